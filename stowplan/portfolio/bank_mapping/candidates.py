"""The candidates for bank mapping, as functions of (problem, context)."""

from __future__ import annotations

from collections.abc import Sequence

from stowplan.models.bank_mapping.plan import Plan
from stowplan.models.bank_mapping.problem import Problem
from stowplan.models.bank_mapping.structure import assemble
from stowplan.portfolio.bank_mapping import choose
from stowplan.portfolio.context import Context
from stowplan.portfolio.solver_limits import reporting


def agrees(problem: Problem, options: Sequence[int]) -> bool:
    """Whether all writers of a tensor write one layout; the ways to choose try, and contradictory rules defeat them."""
    for tensor, writers in enumerate(problem.writers):
        layouts = {
            problem.operators[number].options[options[number]][choose.write_place(problem, number, tensor)]
            for number in writers
        }
        if len(layouts) > 1:
            return False
    return True


def search(problem: Problem, context: Context) -> None:
    """Propagation, then descent and keeping in turns while the plan gets better, from several mappings.

    The fixed point of propagation is better than one pass, but descent from one pass sometimes ends lower.
    """
    options = choose.propagated(problem)
    if not agrees(problem, options):
        context.note("writers of one tensor do not agree: left to the exact models")
        return
    stays = choose.by_density(problem, options)
    best = assemble(problem, options, stays)
    context.plan(best, "propagation")
    for start in (options, choose.one_pass(problem), choose.local(problem)):
        if agrees(problem, start):
            best = _improve(problem, context, best, start)


def _improve(problem: Problem, context: Context, best: Plan, options: list[int]) -> Plan:
    may_stay: Sequence[bool] = [True] * len(problem.tensors)
    while not context.closed():
        options = choose.descended(problem, options, may_stay, context.closed)
        stays = choose.by_density(problem, options)
        plan = assemble(problem, options, stays)
        if plan.objective >= best.objective or not agrees(problem, options):
            break
        best = plan
        context.plan(plan, "descent")
        # What found no room is not worth agreeing for.
        may_stay = stays
    return best


def cpsat(problem: Problem, context: Context) -> None:
    """The CP-SAT model, hinted with the best plan known."""
    from stowplan.models.bank_mapping import cpsat as model

    outcome = model.solve(
        problem,
        hint=known_plan(problem, context),
        **reporting(context, "cpsat", 4),
    )
    if outcome.status == "infeasible":
        context.proven_infeasible("cpsat")
    elif outcome.bound is not None:
        context.bound(outcome.bound, "cpsat")


def known_plan(problem: Problem, context: Context) -> Plan | None:
    """The best plan so far; in deterministic runs the propagated one, since it is a matter of load which is the best."""
    if not context.options.deterministic:
        plan: Plan | None = context.incumbent()[0]
        return plan
    options = choose.propagated(problem)
    return assemble(problem, options, choose.by_density(problem, options)) if agrees(problem, options) else None
