"""The candidates for rematerialization that prove bounds, solve the exact model, or make the plan of the baseline.

They are functions of (problem, context). They return nothing and raise no errors of their own: they report plans and bounds to
the :class:`~stowplan.kernel.context.Context`. The *limit* restricts the live bytes, and the *added cost* is the cost of all
runs of operators, less the cost of running each operator once.
"""

from __future__ import annotations

from stowplan import work_rates
from stowplan.kernel.context import Context
from stowplan.models.rematerialization import bounds
from stowplan.models.rematerialization.problem import Problem
from stowplan.models.rematerialization.structure import Structure, build
from stowplan.portfolio.rematerialization.greedy import Policy, simulate_within_limit
from stowplan.portfolio.solver_limits import solver_options


def explain_infeasible(structure: Structure, limit: int, context: Context) -> dict[str, str]:
    """Details of a result for a problem that is infeasible because a lower bound of the peak is above ``limit`` bytes: the
    entry ``explanation``, a sentence for people."""
    least = bounds.least_peak(structure, context.closed, enough=limit + 1)
    # Infeasibility is proven before. If there is no time to compute the least peak, the text does not name it.
    needed = (
        f", and no sequence of operators needs fewer than {least:,}"
        if least > limit
        else ", which no sequence of operators meets"
    )
    return {"explanation": f"the limit is {limit:,} bytes{needed}"}


def greedy(problem: Problem, context: Context) -> None:
    """The candidate that computes only the plan of the baseline ``greedy``: one simulation of the order of the input
    (:mod:`.greedy`).

    If the simulation finds no sequence within the limit, it reports nothing.
    """
    structure = build(problem)
    sequence = simulate_within_limit(structure, structure.order, Policy(), context.closed)
    if sequence is not None:
        context.plan(structure.made(sequence), "greedy")


def cuts(problem: Problem, context: Context) -> None:
    """The candidate ``cuts``: it reports bounds of the added cost by minimum cuts, or proves that no plan is within the limit.

    Without a limit it does nothing.
    """
    structure = build(problem)
    if problem.limit is None:
        return
    cuts_each = 1 if problem.channel is None else bounds.HALVINGS
    most = context.work(work_rates.REMAT_CUTS, cuts_each * max(1, structure.ops), least=1)
    outcome = bounds.added_cost(structure, problem.limit, context.closed, lambda bound: context.bound(bound, "cuts"), most)
    if outcome is None:
        context.proven_infeasible("cuts", explain_infeasible(structure, problem.limit, context))


def cpsat(problem: Problem, context: Context) -> None:
    """Solve the CP-SAT model. The solver starts from the best plan so far, if there is one.

    On small graphs the model chooses the order of first runs; on others it has the order of the input.
    """
    from stowplan.models.rematerialization import cpsat as model

    hint = context.incumbent()[0]
    outcome = model.solve(problem, hint=hint, **solver_options(context, "cpsat", work_rates.REMAT_CPSAT))
    if outcome.bound is not None:
        context.bound(outcome.bound, "cpsat")
    if outcome.status == "infeasible":
        context.proven_infeasible(
            "cpsat", {"explanation": "no sequence of operators, however often they run, stays within the limit"}
        )
