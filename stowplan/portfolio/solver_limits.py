"""What the solvers of exact models are given, by whoever runs them as candidates."""

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
    """The same for models that tell of better plans and bounds as they find them."""

    on_plan: Callable[[Any], None]
    on_bound: Callable[[int], None]


def solver_limits(context: Context, rate: Rate, *, seconds: float | None = None) -> SolverLimits:
    """Limits, seed and stop of an exact model's solver, as keyword arguments of its ``solve``.

    Parameters
    ----------
    rate
        How much the solver does in a deterministic run, in its own deterministic seconds.
    seconds
        Of the clock, at most; by default all that may be left, for ``should_stop`` says when the candidate's share is over.
    """
    return {
        "time_limit": context.longest() if seconds is None else seconds,
        "deterministic_limit": context.units(rate),
        "seed": context.seed(),
        "should_stop": context.closed,
    }


def reporting(context: Context, source: str, rate: Rate, *, seconds: float | None = None) -> SolverOptions:
    """:func:`solver_limits`, and functions that report what the solver finds under the name ``source``."""
    return {
        **solver_limits(context, rate, seconds=seconds),
        "on_plan": lambda plan: context.plan(plan, source),
        "on_bound": lambda bound: context.bound(bound, source),
    }
