"""The candidates for LLM placement, as functions of (problem, context).

A plan places the layers of a language model on the host and the devices, chooses which parts of a device's layers are
*spilled*, that is, stay on the host, and chooses a micro-batch.
"""

from __future__ import annotations

from stowplan import work_rates
from stowplan.kernel.context import Context
from stowplan.models.llm_placement.problem import Problem
from stowplan.portfolio.llm_placement.enumeration import plans
from stowplan.portfolio.presolve import includes_heuristics, presolve_seconds, report_proof
from stowplan.portfolio.solver_limits import solver_options


def enumeration(problem: Problem, context: Context) -> None:
    """The heuristic: it tries every sequence of devices and every micro-batch, and divides the layers among them."""
    for plan in plans(problem, context.closed):
        context.plan(plan, "enumeration")


def cpsat(problem: Problem, context: Context) -> None:
    """Solve the CP-SAT models, with the best plan so far as their hint."""
    _prove(problem, context, None)


def presolve(problem: Problem, context: Context) -> None:
    """The presolver: the enumeration, then the CP-SAT models for a second or two."""
    if includes_heuristics(context):
        enumeration(problem, context)
    _prove(problem, context, presolve_seconds(context))


def _prove(problem: Problem, context: Context, seconds: float | None) -> None:
    """Solve the CP-SAT models, for at most ``seconds`` if that is not None, and report what they prove."""
    # The model is imported only here, because it imports ortools, which the enumeration does not need.
    from stowplan.models.llm_placement import cpsat as model

    options = solver_options(context, "cpsat", work_rates.LLM_CPSAT, seconds=seconds)
    report_proof(context, model.solve(problem, hint=context.incumbent()[0], **options), "cpsat")
