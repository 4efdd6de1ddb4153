"""Bank mapping as a kind of problem: how its plans are verified, and its candidates."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stowplan.kernel.context import Context, Options
from stowplan.kernel.kind import Candidate, Extras, Kind, identify
from stowplan.kinds import Prover
from stowplan.models.bank_mapping.plan import DECISIONS, Plan
from stowplan.models.bank_mapping.problem import Problem
from stowplan.models.bank_mapping.structure import objective_bound
from stowplan.models.bank_mapping.verify import verify
from stowplan.portfolio.bank_mapping.choose import local_plan, propagated_plan
from stowplan.units import BYTES

#: Up to so many operators nothing is worth a process of its own.
SMALL = 64


def _initial(problem: Problem) -> dict[str, Plan]:
    """Both baselines, where writers agree in them."""
    plans = {"local": local_plan(problem), "propagation": propagated_plan(problem)}
    return {name: plan for name, plan in plans.items() if verify(problem, plan).ok}


def _candidates(problem: Problem, options: Options) -> list[Candidate]:
    is_small = len(problem.operators) <= SMALL
    return [
        Candidate("search", "heuristic", share=0.2, in_thread=is_small),
        Candidate("cpsat", "exact", share=0.6, in_thread=is_small),
        Candidate("milp", "exact", share=0.4, proves_only=options.deterministic),
    ]


def _function(name: str) -> Callable[[Problem, Context], None]:
    from stowplan.portfolio.bank_mapping import candidates

    return {"search": candidates.search, "cpsat": candidates.cpsat, "milp": candidates.milp}[name]


def _facts(problem: Problem, plan: Plan | None) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "operators": len(problem.operators),
        "tensors": len(problem.tensors),
        "banks": problem.banks,
        "capacity": problem.capacity,
    }
    if plan is not None:
        figures = verify(problem, plan).figures
        facts |= {name: figures.get(name) for name in ("copied_bytes", "off_chip_bytes")}
        facts["copies"] = len(plan.copies)
        facts["on_chip"] = sum(plan.on_chip)
    return facts


def _identity(problem: Problem) -> dict[str, str]:
    weights = f"{problem.copy_weight}:{problem.off_chip_weight}"
    return identify(problem, f"bytes copied between banks and moved off chip, {weights}")


def _extras() -> Extras[Problem, Plan]:
    from stowplan.portfolio.bank_mapping.keep_close import Changes

    return Extras(changes=Changes)


def _prover() -> Prover:
    from stowplan.certificates.maker.linear import chip

    return chip


KIND = Kind(
    name="bank_mapping",
    problem=Problem,
    plan=Plan,
    amends=("capacity",),
    verify=verify,
    initial=_initial,
    bound=objective_bound,
    candidates=_candidates,
    function=_function,
    baseline="local",
    assumptions=("banks", "operators.restricted=no"),
    facts=_facts,
    counts=("operators", "tensors"),
    identity=_identity,
    unit=BYTES,
    baseline_sources=("local", "propagation"),
    decisions=DECISIONS,
    extras=_extras,
    certificate=_prover,
)
