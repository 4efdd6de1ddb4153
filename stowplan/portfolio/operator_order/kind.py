"""The kind ``operator_order``: how its plans are verified and described, and which candidates and baselines it has.

Its problems are graphs of operators; a plan is an order of the operators and an offset for each tensor. The objective is the
*peak*, the largest number of bytes that are live at the same time. A *candidate* is one method that looks for plans or bounds.
A *baseline* is a plan with which results are compared. :class:`stowplan.kernel.kind.Kind` explains the fields of :data:`KIND`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from stowplan.kernel.context import Context, Options
from stowplan.kernel.kind import Baseline, Candidate, Extras, Highlight, Kind, identify
from stowplan.kinds import Prover
from stowplan.models.operator_order.bounds import load_bound
from stowplan.models.operator_order.plan import DECISIONS, Plan, offset_table
from stowplan.models.operator_order.problem import Problem
from stowplan.models.operator_order.structure import build
from stowplan.models.operator_order.verify import verify
from stowplan.parameters import Parameters, parameters
from stowplan.portfolio.operator_order.arena import Lives
from stowplan.portfolio.operator_order.orders import BASELINES, baseline_candidate
from stowplan.portfolio.presolve import PRESOLVER, in_caller
from stowplan.units import BYTES
from stowplan.verification import Verification


class StartParameters(Parameters, frozen=True):
    """Parameters that decide which candidates run, and whether in a thread or a process."""

    few_ops: int = 100
    """Number of operators up to which candidates that compute baselines run in a thread of the calling process."""
    small: int = 64
    """Number of operators up to which the presolver runs, before all other candidates, and baselines are computed before the
    run."""


PARAMS = parameters(StartParameters, __name__)


#: The target for which input files are read as problems of this kind.
TARGET = "order"


def _baseline(name: str) -> Baseline[Problem, Plan]:
    """A baseline: ``given``, the order of the input, or an order that a compiler would choose, with offsets from a quick
    heuristic.

    The order of the input costs no time. The other orders are computed at once only if the graph is small; otherwise a
    candidate of the baseline's name computes them during the run.
    """

    def plan(problem: Problem) -> Plan | None:
        if name != "given" and len(problem.ops) > PARAMS.small:
            return None
        structure = build(problem)
        order = BASELINES[name](structure, lambda: False)
        return None if order is None else Lives(problem, structure, order).quick()

    def maker(problem: Problem) -> Candidate:
        return Candidate(name, "baseline", place="thread" if len(problem.ops) <= PARAMS.few_ops else "process")

    if name == "given":
        return Baseline(name=name, plan=plan)
    return Baseline(name=name, plan=plan, maker=maker, is_awaited=lambda problem: True)


def _candidates(problem: Problem, options: Options) -> list[Candidate]:
    """The candidates for a problem besides those of the baselines."""
    candidates = [
        in_caller(Candidate("search", "heuristic", share=0.7), options),
        in_caller(Candidate("sets", "exact", share=0.7), options),
    ]
    return [PRESOLVER, *candidates] if len(problem.ops) <= PARAMS.small else candidates


def _function(name: str) -> Callable[[Problem, Context], None]:
    """The function of the candidate or the baseline of this name; raises KeyError for other names."""
    if name in BASELINES:
        return partial(baseline_candidate, name)
    from stowplan.portfolio.operator_order import candidates

    return {"presolve": candidates.presolve, "search": candidates.search, "sets": candidates.exact}[name]


def _facts(problem: Problem, plan: Plan | None, check: Verification[Any] | None) -> dict[str, Any]:
    """Facts for the summary. ``in_place`` says whether operators may work in place, because a proof of a minimal peak depends
    on this."""
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
    """A detail of the result: whether the peak is proven minimal. It is missing without a plan or a bound."""
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
    bound=load_bound,
    candidates=_candidates,
    function=_function,
    baselines=tuple(map(_baseline, ("given", "bfs", "dfs", "lpmf"))),
    assumptions=("free_inputs=yes",),
    facts=_facts,
    counts=("operators", "tensors"),
    highlights=(Highlight("arena", write=BYTES.write), Highlight("in_place")),
    identity=lambda problem: identify(problem, "live bytes", "least peak"),
    unit=BYTES,
    proven=_proven,
    decisions=DECISIONS,
    offset_table=offset_table,
    extras=_extras,
    certificate=_prover,
)
