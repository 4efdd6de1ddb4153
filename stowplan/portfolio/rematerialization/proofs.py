"""The candidates of rematerialization that prove bounds, the exact model, and the baseline."""

from __future__ import annotations

from stowplan import work_rates
from stowplan.kernel.context import Context
from stowplan.models.rematerialization import bounds
from stowplan.models.rematerialization.problem import Problem
from stowplan.models.rematerialization.structure import Structure, build
from stowplan.portfolio.rematerialization.greedy import Policy, simulate_within_limit
from stowplan.portfolio.solver_limits import solver_options


def explain_infeasible(structure: Structure, limit: int, context: Context) -> dict[str, str]:
    """The explanation for a problem that is infeasible because a bound of the peak is above ``limit`` bytes."""
    least = bounds.least_peak(structure, context.closed, enough=limit + 1)
    # The infeasibility is proven even if there is no time to compute by how much the limit is too small.
    needed = (
        f", and no sequence of operators needs fewer than {least:,}"
        if least > limit
        else ", which no sequence of operators meets"
    )
    return {"explanation": f"the limit is {limit:,} bytes{needed}"}


def greedy(problem: Problem, context: Context) -> None:
    """The candidate that computes the baseline alone: one simulation of the order given."""
    structure = build(problem)
    sequence = simulate_within_limit(structure, structure.order, Policy(), context.closed)
    if sequence is not None:
        context.plan(structure.made(sequence), "greedy")


def cuts(problem: Problem, context: Context) -> None:
    """Bounds of the added cost by minimum cuts, or the proof that no plan is within the limit."""
    structure = build(problem)
    if problem.limit is None:
        return
    cuts_each = 1 if problem.channel is None else bounds.HALVINGS
    most = context.work(work_rates.REMAT_CUTS, cuts_each * max(1, structure.ops), least=1)
    outcome = bounds.added_cost(structure, problem.limit, context.closed, lambda bound: context.bound(bound, "cuts"), most)
    if outcome is None:
        context.proven_infeasible("cuts", explain_infeasible(structure, problem.limit, context))


def cpsat(problem: Problem, context: Context) -> None:
    """The CP-SAT model: it chooses the order on small graphs and fixes the order given on others. The best plan is its hint."""
    from stowplan.models.rematerialization import cpsat as model

    hint = context.incumbent()[0]
    outcome = model.solve(problem, hint=hint, **solver_options(context, "cpsat", work_rates.REMAT_CPSAT))
    if outcome.bound is not None:
        context.bound(outcome.bound, "cpsat")
    if outcome.status == "infeasible":
        context.proven_infeasible(
            "cpsat", {"explanation": "no sequence of operators, however often they run, stays within the limit"}
        )
