"""Operator order as a kind of problem: how its plans are verified, and its candidates."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from stowplan.kernel.context import Context, Options
from stowplan.kernel.kind import Candidate, Extras, Kind, identify
from stowplan.kinds import Prover
from stowplan.models.operator_order.bounds import load_bound
from stowplan.models.operator_order.plan import DECISIONS, Plan, offset_table
from stowplan.models.operator_order.problem import Problem
from stowplan.models.operator_order.structure import build
from stowplan.models.operator_order.verify import verify
from stowplan.portfolio.operator_order.arena import Lives
from stowplan.portfolio.operator_order.orders import BASELINES, alone
from stowplan.portfolio.presolve import PRESOLVER, in_caller
from stowplan.units import BYTES

#: Operators of a graph whose baselines are made in the calling process.
FEW_OPS = 100

#: Up to so many operators the exact search is tried for a moment before all else.
SMALL = 64

#: What inputs are read for: files that mean other problems for other targets.
TARGET = "order"


def _initial(problem: Problem) -> dict[str, Plan]:
    """The operators as given, of small graphs the other baselines, too; with offsets made in a moment."""
    structure = build(problem)
    names = ("given", *KIND.baseline_sources) if len(problem.ops) <= SMALL else ("given",)
    orders = {name: BASELINES[name](structure, lambda: False) for name in names}
    return {name: Lives(problem, structure, order).quick() for name, order in orders.items() if order is not None}


def _candidates(problem: Problem, options: Options) -> list[Candidate]:
    candidates = [
        in_caller(Candidate("search", "heuristic", share=0.7), options),
        in_caller(Candidate("sets", "exact", share=0.7), options),
    ]
    is_small = len(problem.ops) <= SMALL and not options.deterministic
    return [PRESOLVER, *candidates] if is_small else candidates


def _makes_baselines(problem: Problem) -> tuple[Candidate, ...]:
    in_thread = len(problem.ops) <= FEW_OPS
    return tuple(Candidate(name, "baseline", in_thread=in_thread) for name in ("bfs", "dfs", "lpmf"))


def _function(name: str) -> Callable[[Problem, Context], None]:
    if name in BASELINES:
        return partial(alone, name)
    from stowplan.portfolio.operator_order import candidates

    return {"presolve": candidates.presolve, "search": candidates.search, "sets": candidates.exact}[name]


def _facts(problem: Problem, plan: Plan | None) -> dict[str, Any]:
    """Facts for the summary; ``in_place`` says under which rule a peak is proven to be least."""
    count = sum(bool(op.in_place) for op in problem.ops)
    may = f"{count:,} of {len(problem.ops):,} operators may write a result over an operand that nobody needs afterwards"
    return {
        "operators": len(problem.ops),
        "tensors": len(problem.tensors),
        "arena": None if plan is None else plan.arena,
        "load": load_bound(problem),
        "in_place": may if count else "no operator may write a result over an operand",
    }


def _proven(problem: Problem, objective: int | None, bound: int | None) -> dict[str, Any]:
    return {} if objective is None or bound is None else {"peak_proven": objective <= bound}


def _extras() -> Extras[Problem, Plan]:
    from stowplan.portfolio.operator_order.keep_close import Changes

    return Extras(changes=Changes)


def _prover() -> Prover:
    from stowplan.certificates.maker.cuts import order

    return order


KIND = Kind(
    name="operator_order",
    problem=Problem,
    plan=Plan,
    verify=verify,
    labels=lambda problem, plan: {"name": problem.name, "target": TARGET},
    initial=_initial,
    bound=load_bound,
    candidates=_candidates,
    function=_function,
    baseline="given",
    assumptions=("free_inputs=yes",),
    facts=_facts,
    counts=("operators", "tensors"),
    highlights=("arena", "in_place"),
    identity=lambda problem: identify(problem, "live bytes", "least peak"),
    unit=BYTES,
    baseline_sources=("bfs", "dfs", "lpmf"),
    awaited_baselines=lambda problem: ("bfs", "dfs", "lpmf"),
    makes_baselines=_makes_baselines,
    proven=_proven,
    decisions=DECISIONS,
    offset_table=offset_table,
    extras=_extras,
    certificate=_prover,
)
