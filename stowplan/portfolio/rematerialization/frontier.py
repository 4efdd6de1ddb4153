"""Peak against added cost: a run for each of several limits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec

from stowplan.models.rematerialization import bounds
from stowplan.models.rematerialization.plan import Plan
from stowplan.models.rematerialization.problem import Problem
from stowplan.models.rematerialization.structure import build
from stowplan.portfolio.solve import solve


class Point(NamedTuple):
    """What was found for one limit."""

    limit: int
    """Bytes."""
    peak: int | None
    """Bytes of the plan; None where none was found."""
    added_cost: int | None
    bound: int | None
    """Added cost that no plan within the limit is below; None where it is proven that there is no such plan."""
    plan: Plan | None
    """For the problem with that limit."""
    is_infeasible: bool = False
    """It is proven that no plan is within the limit."""


def frontier(
    problem: Problem, limits: Sequence[int] | int = 8, on_point: Callable[[Point], None] = lambda point: None, **options: Any
) -> list[Point]:
    """Plans for several limits, the smallest first.

    Parameters
    ----------
    problem
        Its own limit counts for nothing.
    limits
        Bytes; or how many limits, evenly from the bound on the least peak to the peak of the order given.
    on_point
        Called with what was found for each limit, in turn; its bound may rise afterwards.
    options
        As :func:`stowplan.solve` takes them, for each limit. Where ``cancel`` is set, limits that are left are left out.

    Returns
    -------
    list of Point
        A larger limit never costs more, and a smaller one never has a lower bound.
    """
    structure = build(msgspec.structs.replace(problem, limit=None))
    if isinstance(limits, int):
        low, high = bounds.least_peak(structure), structure.ordering.peak(structure.order)
        limits = [low + (high - low) * number // max(1, limits - 1) for number in range(limits)]
    points: list[Point] = []
    plan: Plan | None = None
    for limit in sorted({*limits}):
        each = msgspec.structs.replace(problem, limit=limit)
        # What is within a limit is within every larger one.
        at_hand = {} if plan is None else {"tighter": msgspec.structs.replace(plan, problem=each.digest)}
        result = solve(each, plans=at_hand, **options)
        plan = result.plan
        none = result.status == "infeasible"
        if plan is None:
            points.append(Point(limit, None, None, None if none else result.bound, None, none))
        else:
            points.append(Point(limit, plan.peak, plan.objective, result.bound, plan))
        on_point(points[-1])
        if options.get("cancel") is not None and options["cancel"].is_set():
            break
    best = 0
    for at in range(len(points) - 1, -1, -1):
        bound = points[at].bound
        if bound is not None:
            best = max(best, bound)
            points[at] = points[at]._replace(bound=best)
    return points
