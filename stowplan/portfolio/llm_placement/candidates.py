"""The candidates for LLM placement, as functions of (problem, context).

A *candidate* is one method of a run of ``solve``. It returns nothing and raises no errors of its own: it reports plans and
bounds to its :class:`~stowplan.kernel.context.Context`. A plan places the layers of a language model on the host and the
devices. It chooses which parts of a device's layers are *spilled*, that is, stay on the host. It also chooses a *micro-batch*,
the number of tokens of a prompt that are computed at once.
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
    """Solve the CP-SAT models, of which there is one for each micro-batch and device that computes prompts for the host.

    The solver starts from the best plan so far, if there is one.
    """
    _prove(problem, context, None)


def presolve(problem: Problem, context: Context) -> None:
    """The presolver, which runs before all other candidates: the enumeration, then the CP-SAT models for at most 1.5 seconds.

    The enumeration is left out if the run has no heuristics.
    """
    if includes_heuristics(context):
        enumeration(problem, context)
    _prove(problem, context, presolve_seconds(context))


def _prove(problem: Problem, context: Context, seconds: float | None) -> None:
    """Solve the CP-SAT models, and report their plans and what they prove.

    ``seconds`` is their time limit; None for the time that the candidate has.
    """
    # The model is imported only here, because it imports ortools, which the enumeration does not need.
    from stowplan.models.llm_placement import cpsat as model

    options = solver_options(context, "cpsat", work_rates.LLM_CPSAT, seconds=seconds)
    report_proof(context, model.solve(problem, hint=context.incumbent()[0], **options), "cpsat")
