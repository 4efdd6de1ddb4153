"""A packing in a moment.

Buffers by size, each at the lowest offset that is free; of many, from the bottom up, the longest lives first.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from stowplan.kernel.context import Context
from stowplan.models.packing.plan import Plan
from stowplan.models.packing.problem import Problem
from stowplan.models.packing.verify import verify
from stowplan.parameters import Parameters, parameters
from stowplan.portfolio.packing import arrays, skyline
from stowplan.portfolio.packing.search import Placements, skyline_keys


class QuickParameters(Parameters, frozen=True):
    """Parameters of the first plans."""

    many: int = 1500
    """Buffers above which they are placed from the bottom up: by size, each is compared with all others."""
    too_many: int = 200_000
    """Buffers beyond which verifying the plan takes longer than the first good one does."""


PARAMS = parameters(QuickParameters, __name__)


def quick_plan(problem: Problem, should_stop: Callable[[], bool] = lambda: False) -> tuple[str, Plan] | None:
    """The plan, and its name; None where it does not fit, or there are more than :data:`PARAMS` buffers, or it was stopped.

    The name is ``greedy`` where the plan is that of the baseline, by size; else ``quick``.
    """
    if len(problem.buffers) > PARAMS.too_many:
        return None
    data = arrays.build(problem)
    placements = Placements(data, should_stop)
    is_many = len(data.size) > PARAMS.many and skyline.takes(data)
    if is_many:
        placed: tuple[int, arrays.Ints] | None = placements.skyline(next(skyline_keys(data, np.random.default_rng(0), False)))
    else:
        placed = placements.first_fit(data.size.astype(np.float64))
    if placed is None:
        return None
    plan = arrays.export_plan(problem, data, placed[1])
    if problem.capacity is not None and plan.objective > problem.capacity:
        return None
    # Fixed offsets may collide.
    if (data.fixed >= 0).any() and not verify(problem, plan).ok:
        return None
    return "quick" if is_many else "greedy", plan


def greedy(problem: Problem, context: Context) -> None:
    """First fit by size as a candidate, the baseline and nothing more."""
    data = arrays.build(problem)
    placed = Placements(data, context.closed).first_fit(data.size.astype(np.float64))
    if placed is None:
        return
    plan = arrays.export_plan(problem, data, placed[1])
    if problem.capacity is not None and plan.objective > problem.capacity:
        context.note(f"its plan takes {plan.objective:,} bytes of {problem.capacity:,}")
        context.no_plan("greedy")
    else:
        context.plan(plan, "greedy")
