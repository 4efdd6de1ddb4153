"""The first plan of a packing problem, within milliseconds.

Buffers are placed by descending size, each at the lowest free offset (first fit). If there are many buffers, they are placed
from the bottom up instead, those with the longest lives first (:mod:`stowplan.portfolio.packing.skyline`). The functions raise
no errors.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from stowplan.kernel.context import Context
from stowplan.models.packing.plan import Plan, height
from stowplan.models.packing.problem import Problem
from stowplan.models.packing.verify import verify
from stowplan.parameters import Parameters, parameters
from stowplan.portfolio.packing import arrays, skyline
from stowplan.portfolio.packing.search import Placements, skyline_keys


class QuickParameters(Parameters, frozen=True):
    """Parameters of the first plans."""

    many: int = 1500
    """Number of buffers above which they are placed from the bottom up, because first fit compares each buffer with all
    others."""
    too_many: int = 200_000
    """Number of buffers above which there is no quick plan, because verifying it would take longer than finding the first good
    plan."""


PARAMS = parameters(QuickParameters, __name__)


def quick_plan(problem: Problem, should_stop: Callable[[], bool] = lambda: False) -> tuple[str, Plan] | None:
    """Make a plan within milliseconds; returns the name of its method and the plan.

    The name is ``greedy`` if the plan is that of the baseline, first fit by size; otherwise ``quick``. The result is None if
    the plan exceeds the capacity, if fixed offsets collide, if there are too many buffers (:class:`QuickParameters`), or if
    ``should_stop`` ended the placement.
    """
    if len(problem.buffers) > PARAMS.too_many:
        return None
    data = arrays.build(problem)
    placements = Placements(data, should_stop)
    is_many = len(data.size) > PARAMS.many and skyline.supports(data)
    if is_many:
        placement: tuple[int, arrays.Ints] | None = placements.skyline(
            next(skyline_keys(data, np.random.default_rng(0), False))
        )
    else:
        placement = placements.first_fit(data.size.astype(np.float64))
    if placement is None:
        return None
    plan = arrays.export_plan(problem, data, placement[1])
    if problem.capacity is not None and height(problem, plan.offsets) > problem.capacity:
        return None
    # The problem's fixed offsets may collide with each other.
    if (data.fixed >= 0).any() and not verify(problem, plan).ok:
        return None
    return "quick" if is_many else "greedy", plan


def greedy(problem: Problem, context: Context) -> None:
    """The candidate that computes only the plan of the baseline ``greedy``: first fit by descending size.

    If the plan exceeds the capacity, it reports that the baseline has no plan. If it is stopped, it reports nothing.
    """
    data = arrays.build(problem)
    placement = Placements(data, context.closed).first_fit(data.size.astype(np.float64))
    if placement is None:
        return
    plan = arrays.export_plan(problem, data, placement[1])
    if problem.capacity is not None and (needed := height(problem, plan.offsets)) > problem.capacity:
        context.note(f"its plan takes {needed:,} bytes of {problem.capacity:,}")
        context.no_plan("greedy")
    else:
        context.plan(plan, "greedy")
