"""Limits and callbacks that candidates pass to the solvers of exact models.

An *exact model* is a mathematical program (MILP or CP-SAT) whose optimum is an optimal plan. The function ``solve`` of its
module takes these limits. A *candidate* is one method of a run of :func:`stowplan.solve`, and its
:class:`~stowplan.kernel.context.Context` says how long it may work. A *deterministic run* is limited by an amount of work, not
by time. The functions raise no errors.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypedDict

from stowplan.kernel.context import Context
from stowplan.work_rates import Rate


class SolverLimits(TypedDict):
    """Keyword arguments that every exact model's ``solve`` takes."""

    time_limit: float
    """Time limit in seconds."""
    deterministic_limit: float | None
    """Limit on the solver's work, in *deterministic seconds*, the unit in which CP-SAT counts its work; None if only the time
    counts, which is so unless the run is deterministic."""
    seed: int
    """Seed of the solver's random numbers."""
    should_stop: Callable[[], bool]
    """Function that the solver calls while it runs; True ends the solve."""


class SolverOptions(SolverLimits):
    """Keyword arguments of models that also report better plans and bounds while they run."""

    on_plan: Callable[[Any], None]
    """Function that the solver calls with each better plan."""
    on_bound: Callable[[int], None]
    """Function that the solver calls with each better lower bound, in the unit of the objective."""


def solver_limits(context: Context, rate: Rate, *, seconds: float | None = None) -> SolverLimits:
    """Limits, seed and stop function of an exact model's solver, as keyword arguments of its ``solve``.

    Parameters
    ----------
    context
        The context of the candidate.
    rate
        How many deterministic seconds the solver may use for each second of the work limit of a deterministic run. It does not
        matter for other runs.
    seconds
        Time limit in seconds. By default it is the most time that the candidate may still get (:meth:`Context.longest`), since
        ``should_stop`` becomes true at the end of the candidate's share.
    """
    return {
        "time_limit": context.longest() if seconds is None else seconds,
        "deterministic_limit": context.units(rate),
        "seed": context.seed(),
        "should_stop": context.closed,
    }


def solver_options(context: Context, source: str, rate: Rate, *, seconds: float | None = None) -> SolverOptions:
    """The limits of :func:`solver_limits`, and callbacks that report the solver's plans and bounds under the name
    ``source``."""
    return {
        **solver_limits(context, rate, seconds=seconds),
        "on_plan": lambda plan: context.plan(plan, source),
        "on_bound": lambda bound: context.bound(bound, source),
    }
