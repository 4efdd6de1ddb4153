"""Bounds, the exact model and the baseline of rematerialization as candidates."""

from __future__ import annotations

from functools import partial
from typing import Any

from stowplan import work_rates
from stowplan.kernel.context import Context
from stowplan.models.rematerialization import bounds, host_bounds
from stowplan.models.rematerialization.problem import Problem
from stowplan.models.rematerialization.structure import build
from stowplan.portfolio.rematerialization.greedy import Policy, simulated
from stowplan.portfolio.solver_limits import reporting

#: Why nothing fits, where a bound on the peak says so.
TOO_MUCH = {"explanation": "what an operator needs, or stays, is more than the limit"}


def greedy(problem: Problem, context: Context) -> None:
    """The baseline alone: the order given, one simulation."""
    structure = build(problem)
    sequence = simulated(structure, structure.order, Policy(), context.closed)
    if sequence is not None:
        context.plan(structure.made(sequence), "greedy")


def cuts(problem: Problem, context: Context) -> None:
    """Bounds by minimum cuts, and the proof that nothing fits."""
    structure = build(problem)
    if problem.limit is None:
        return
    most = context.work(work_rates.REMAT_CUTS, max(1, structure.ops), least=1)
    outcome = bounds.added_cost(structure, problem.limit, context.closed, lambda bound: context.bound(bound, "cuts"), most)
    if outcome is None:
        context.proven_infeasible("cuts", TOO_MUCH)


def transfers(problem: Problem, context: Context) -> None:
    """Bounds of problems with a host, and the proof that nothing fits."""
    if problem.limit is None or problem.channel is None:
        return
    most = context.work(work_rates.REMAT_TRANSFER_CUTS, max(1, len(problem.ops)), least=1)
    told = partial(context.bound, source="transfers")
    if host_bounds.added_cost(build(problem), problem.limit, context.closed, told, most) is None:
        context.proven_infeasible("transfers", {"explanation": "what an operator needs, or stays, is more than the limits"})


def cpsat(problem: Problem, context: Context) -> None:
    """The CP-SAT model: orders free on small graphs, else the order given; hinted with the best plan known."""
    from stowplan.models.rematerialization import cpsat as model

    _solved(model, "cpsat", problem, context)


def host_cpsat(problem: Problem, context: Context) -> None:
    """The CP-SAT model of small problems with a host."""
    from stowplan.models.rematerialization import host_cpsat as model

    _solved(model, "host_cpsat", problem, context)


def _solved(model: Any, source: str, problem: Problem, context: Context) -> None:
    hint = context.incumbent()[0]
    outcome = model.solve(problem, hint=hint, **reporting(context, source, work_rates.REMAT_CPSAT))
    if outcome.bound is not None:
        context.bound(outcome.bound, source)
    if outcome.status == "infeasible":
        context.proven_infeasible(source, {"explanation": "no order, with all runs that could be of use, is within the limit"})
