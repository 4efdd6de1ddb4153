"""The candidates for LLM placement, as functions of (problem, context)."""

from __future__ import annotations

from stowplan import work_rates
from stowplan.kernel.context import Context
from stowplan.models.llm_placement.problem import Problem
from stowplan.portfolio.llm_placement.enumeration import plans
from stowplan.portfolio.presolve import includes_heuristics, presolve_seconds, report_proof
from stowplan.portfolio.solver_limits import solver_options


def enumeration(problem: Problem, context: Context) -> None:
    """Every sequence of devices, with layers moved between them and the cheapest parts spilled."""
    for plan in plans(problem, context.closed):
        context.plan(plan, "enumeration")


def cpsat(problem: Problem, context: Context) -> None:
    """The CP-SAT models, hinted with the best plan known."""
    _prove(problem, context, None)


def presolve(problem: Problem, context: Context) -> None:
    """The enumeration, and the CP-SAT models for a moment."""
    if includes_heuristics(context):
        enumeration(problem, context)
    _prove(problem, context, presolve_seconds(context))


def _prove(problem: Problem, context: Context, seconds: float | None) -> None:
    # Not at the top: it imports ortools, which the others can do without.
    from stowplan.models.llm_placement import cpsat as model

    options = solver_options(context, "cpsat", work_rates.LLM_CPSAT, seconds=seconds)
    report_proof(context, model.solve(problem, hint=context.incumbent()[0], **options), "cpsat")
