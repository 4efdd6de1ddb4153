"""Operator order as a kind of problem: how its plans are verified, and its candidates."""

from __future__ import annotations

from typing import Any

from stowplan.models.operator_order.bounds import load_bound
from stowplan.models.operator_order.plan import DECISIONS, Plan, offset_table
from stowplan.models.operator_order.problem import Problem
from stowplan.models.operator_order.structure import build
from stowplan.models.operator_order.verify import verify
from stowplan.portfolio.context import Options
from stowplan.portfolio.kind import Candidate, Extras, Kind, identify, in_caller, presolver
from stowplan.portfolio.operator_order.arena import Lives
from stowplan.portfolio.operator_order.orders import BASELINES

#: Operators of a graph whose baselines are made in the calling process.
FEW_OPS = 100

#: Up to so many operators the exact search is tried for a moment before all else.
SMALL = 64

#: What inputs are read for: files that mean other problems for other targets.
TARGET = "order"

_HERE = "stowplan.portfolio.operator_order.candidates"


def _initial(problem: Problem) -> dict[str, Plan]:
    """The operators as given, of small graphs the other baselines, too; with offsets made in a moment."""
    structure = build(problem)
    names = ("given", *KIND.baseline_sources) if len(problem.ops) <= SMALL else ("given",)
    orders = {name: BASELINES[name](structure, lambda: False) for name in names}
    return {name: Lives(problem, structure, order).quick() for name, order in orders.items() if order is not None}


def _candidates(problem: Problem, options: Options) -> list[Candidate]:
    found = [
        in_caller(Candidate("search", "heuristic", f"{_HERE}:search", share=0.7), options),
        in_caller(Candidate("sets", "exact", f"{_HERE}:exact", share=0.7), options),
    ]
    is_small = len(problem.ops) <= SMALL and not options.deterministic
    return [presolver(f"{_HERE}:presolve"), *found] if is_small else found


def _makes_baselines(problem: Problem) -> tuple[Candidate, ...]:
    where, in_thread = "stowplan.portfolio.operator_order.orders", len(problem.ops) <= FEW_OPS
    return tuple(Candidate(name, "baseline", f"{where}:{name}", in_thread=in_thread) for name in ("bfs", "dfs", "lpmf"))


def _facts(problem: Problem, plan: Plan | None) -> dict[str, Any]:
    return {
        "operators": len(problem.ops),
        "tensors": len(problem.tensors),
        "arena": None if plan is None else plan.arena,
        "load": load_bound(problem),
    }


def _proven(problem: Problem, objective: int | None, bound: int | None) -> dict[str, Any]:
    return {} if objective is None or bound is None else {"peak_proven": objective <= bound}


def _extras() -> Extras[Problem, Plan]:
    from stowplan.portfolio.operator_order.keep_close import Changes

    return Extras(changes=Changes)


KIND = Kind(
    name="operator_order",
    problem=Problem,
    plan=Plan,
    verify=verify,
    labels=lambda problem, plan: {"name": problem.name, "target": TARGET},
    initial=_initial,
    bound=load_bound,
    candidates=_candidates,
    baseline="given",
    assumptions=("free_inputs=yes",),
    facts=_facts,
    counts=("operators", "tensors"),
    highlights=("arena",),
    identity=lambda problem: identify(problem, "live bytes", "least peak"),
    unit="bytes",
    baseline_sources=("bfs", "dfs", "lpmf"),
    awaited_baselines=lambda problem: ("bfs", "dfs", "lpmf"),
    makes_baselines=_makes_baselines,
    proven=_proven,
    decisions=DECISIONS,
    offset_table=offset_table,
    presenter="stowplan.report.operator_order:OrderPresenter",
    extras=_extras,
    certificate="stowplan.certificates.maker.cuts:order",
)
