"""The kind ``bank_mapping``: how its plans are verified and described, and which candidates and baselines it has.

A plan chooses how each tensor of a program is spread over the banks of a scratchpad, and which tensors stay on chip. The
objective is a weighted sum of two numbers: the bytes that are copied between banks, and the bytes that are moved to or from
main memory. :class:`stowplan.kernel.kind.Kind` explains the fields of :data:`KIND`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stowplan.kernel.candidate import Place
from stowplan.kernel.context import Context, Options
from stowplan.kernel.kind import Baseline, Candidate, Extras, Kind, identify
from stowplan.kinds import Prover
from stowplan.models.bank_mapping.plan import DECISIONS, Plan
from stowplan.models.bank_mapping.problem import Problem
from stowplan.models.bank_mapping.structure import objective_bound
from stowplan.models.bank_mapping.verify import verify
from stowplan.parameters import Parameters, parameters
from stowplan.portfolio.bank_mapping.choose import local_plan, propagated_plan
from stowplan.units import BYTES
from stowplan.verification import Verification


class StartParameters(Parameters, frozen=True):
    """Parameters that decide where candidates run."""

    small: int = 64
    """Number of operators up to which the search and CP-SAT run in threads of the calling process, because they take less time
    than starting a process."""


PARAMS = parameters(StartParameters, __name__)


def _valid(problem: Problem, plan: Plan) -> Plan | None:
    """The plan if it is valid, otherwise None. Plans of heuristics are not valid if writers of a tensor disagree on its
    layout."""
    return plan if verify(problem, plan).ok else None


def _candidates(problem: Problem, options: Options) -> list[Candidate]:
    """All candidates of the problem, most useful first."""
    place: Place = "thread" if len(problem.operators) <= PARAMS.small else "process"
    return [
        Candidate("search", "heuristic", share=0.2, place=place),
        Candidate("cpsat", "exact", share=0.6, place=place),
        Candidate("milp", "exact", share=0.4, proves_only=options.deterministic),
    ]


def _function(name: str) -> Callable[[Problem, Context], None]:
    """The function of the candidate of this name; raises KeyError for other names."""
    from stowplan.portfolio.bank_mapping import candidates

    return {"search": candidates.search, "cpsat": candidates.cpsat, "milp": candidates.milp}[name]


def _facts(problem: Problem, plan: Plan | None, check: Verification[Any] | None) -> dict[str, Any]:
    """Details for the result: the size of the problem, and with a plan the bytes that it moves and what it keeps on chip."""
    facts: dict[str, Any] = {
        "operators": len(problem.operators),
        "tensors": len(problem.tensors),
        "banks": problem.banks,
        "capacity": problem.capacity,
    }
    if plan is not None and check is not None:
        facts |= {name: check.figures.get(name) for name in ("copied_bytes", "off_chip_bytes")}
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
    bound=objective_bound,
    candidates=_candidates,
    function=_function,
    baselines=(
        Baseline(name="local", plan=lambda problem: _valid(problem, local_plan(problem))),
        Baseline(name="propagation", is_known=True, plan=lambda problem: _valid(problem, propagated_plan(problem))),
    ),
    assumptions=("banks", "operators.restricted=no"),
    facts=_facts,
    counts=("operators", "tensors"),
    identity=_identity,
    unit=BYTES,
    decisions=DECISIONS,
    extras=_extras,
    certificate=_prover,
)
