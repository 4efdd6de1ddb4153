"""Bounds, the exact model and the baseline of rematerialization as candidates."""

from __future__ import annotations

from stowplan import work_rates
from stowplan.kernel.context import Context
from stowplan.models.rematerialization import bounds
from stowplan.models.rematerialization.problem import Problem
from stowplan.models.rematerialization.structure import Structure, build
from stowplan.portfolio.rematerialization.greedy import Policy, simulated
from stowplan.portfolio.solver_limits import solver_options


def too_much(structure: Structure, limit: int, context: Context) -> dict[str, str]:
    """Why nothing fits within so many bytes, where a bound on the peak says so."""
    least = bounds.least_peak(structure, context.closed, enough=limit + 1)
    # The proof holds even if there is no time to say by how much.
    needed = (
        f", and no sequence of operators needs fewer than {least:,}"
        if least > limit
        else ", which no sequence of operators meets"
    )
    return {"explanation": f"the limit is {limit:,} bytes{needed}"}


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
        context.proven_infeasible("cuts", too_much(structure, problem.limit, context))


def cpsat(problem: Problem, context: Context) -> None:
    """The CP-SAT model: orders free on small graphs, else the order given; hinted with the best plan known."""
    from stowplan.models.rematerialization import cpsat as model

    hint = context.incumbent()[0]
    outcome = model.solve(problem, hint=hint, **solver_options(context, "cpsat", work_rates.REMAT_CPSAT))
    if outcome.bound is not None:
        context.bound(outcome.bound, "cpsat")
    if outcome.status == "infeasible":
        context.proven_infeasible(
            "cpsat", {"explanation": "no sequence of operators, however often they run, stays within the limit"}
        )
