"""Limits and callbacks that candidates pass to the solvers of exact models."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypedDict

from stowplan.kernel.context import Context
from stowplan.work_rates import Rate


class SolverLimits(TypedDict):
    """Keyword arguments that every exact model's ``solve`` takes."""

    time_limit: float
    deterministic_limit: float | None
    seed: int
    should_stop: Callable[[], bool]


class SolverOptions(SolverLimits):
    """Keyword arguments of models that also report better plans and bounds while they run."""

    on_plan: Callable[[Any], None]
    on_bound: Callable[[int], None]


def solver_limits(context: Context, rate: Rate, *, seconds: float | None = None) -> SolverLimits:
    """Limits, seed and stop function of an exact model's solver, as keyword arguments of its ``solve``.

    Parameters
    ----------
    context
        The context of the candidate.
    rate
        The solver's work in a deterministic run, in the solver's own deterministic seconds for a second of the work limit.
    seconds
        Time limit in seconds; by default all time that may be left, since ``should_stop`` ends the candidate's share.
    """
    return {
        "time_limit": context.longest() if seconds is None else seconds,
        "deterministic_limit": context.units(rate),
        "seed": context.seed(),
        "should_stop": context.closed,
    }


def solver_options(context: Context, source: str, rate: Rate, *, seconds: float | None = None) -> SolverOptions:
    """:func:`solver_limits`, and callbacks that report the solver's plans and bounds under the name ``source``."""
    return {
        **solver_limits(context, rate, seconds=seconds),
        "on_plan": lambda plan: context.plan(plan, source),
        "on_bound": lambda bound: context.bound(bound, source),
    }
