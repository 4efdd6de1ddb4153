"""Bounds, the exact model and the baseline of rematerialization as candidates."""

from __future__ import annotations

from stowplan import work_rates
from stowplan.kernel.context import Context
from stowplan.models.rematerialization import bounds
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
    cuts_each = 1 if problem.channel is None else bounds.HALVINGS
    most = context.work(work_rates.REMAT_CUTS, cuts_each * max(1, structure.ops), least=1)
    outcome = bounds.added_cost(structure, problem.limit, context.closed, lambda bound: context.bound(bound, "cuts"), most)
    if outcome is None:
        context.proven_infeasible("cuts", TOO_MUCH)


def cpsat(problem: Problem, context: Context) -> None:
    """The CP-SAT model: orders free on small graphs, else the order given; hinted with the best plan known."""
    from stowplan.models.rematerialization import cpsat as model

    hint = context.incumbent()[0]
    outcome = model.solve(problem, hint=hint, **reporting(context, "cpsat", work_rates.REMAT_CPSAT))
    if outcome.bound is not None:
        context.bound(outcome.bound, "cpsat")
    if outcome.status == "infeasible":
        context.proven_infeasible("cpsat", {"explanation": "no order, with all runs that could be of use, is within the limit"})
