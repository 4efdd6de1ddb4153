"""The trade-off between memory and added cost: a plan for each of several limits of live bytes, and of bytes on the host.

The *added cost* of a plan is the cost of all runs of operators, less the cost of running each operator once. The *host* is a
second memory, to which values can be sent and from which they can be fetched back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec

from stowplan.errors import UsageError
from stowplan.kernel.solve import solve
from stowplan.models.rematerialization import bounds
from stowplan.models.rematerialization.plan import Plan
from stowplan.models.rematerialization.problem import Problem
from stowplan.models.rematerialization.structure import build


class Point(NamedTuple):
    """The result for one limit."""

    limit: int
    """Limit of the live bytes, in bytes."""
    peak: int | None
    """Peak of the plan in bytes; None if no plan was found."""
    added_cost: int | None
    """Added cost of the plan; None if no plan was found."""
    bound: int | None
    """Proven lower bound of the added cost within the limit; None if nothing is proven, or if it is proven that there is no
    plan."""
    plan: Plan | None
    """The plan, for the problem with that limit; None if no plan was found."""
    is_infeasible: bool = False
    """Whether it is proven that no plan is within the limit."""
    host_limit: int | None = None
    """Limit of the bytes on the host; None if the problem has no host."""


def frontier(
    problem: Problem,
    limits: Sequence[int] | int = 8,
    on_point: Callable[[Point], None] = lambda point: None,
    *,
    host_limits: Sequence[int] = (),
    **options: Any,
) -> list[Point]:
    """Solve a problem for several limits, the smallest first.

    Parameters
    ----------
    problem
        The problem; its own limit is ignored.
    limits
        Limits of the live bytes, in any order; equal ones count once. Or the number of limits, which are then spaced evenly
        from a lower bound of the peak to the peak of the order of the input.
    on_point
        Called with the result for each limit in turn; its bound may still rise afterwards.
    host_limits
        Limits of the bytes on the host, by default that of the problem. All ``limits`` are solved for each of these, the
        smallest first.
    options
        Options of :func:`stowplan.solve`, for each limit. Once the event ``cancel`` is set, the remaining limits are skipped.

    Returns
    -------
    list of Point
        The results. A plan for a larger limit, of live bytes or of bytes on the host, never costs more. The bound for a smaller
        limit is never less than that for a larger one.

    Raises
    ------
    UsageError
        There are limits of bytes on the host, but the problem has no host; or an option is wrong.
    InputError
        A limit is negative or too large; or as :func:`stowplan.solve` raises it.
    """
    if problem.host is msgspec.UNSET and host_limits:
        raise UsageError("found limits of bytes on the host, expected a problem with a host: its bandwidth is not known")
    hosts = [msgspec.structs.replace(problem.host, limit=limit) for limit in sorted({*host_limits})] if problem.host else []
    if isinstance(limits, int):
        structure = build(msgspec.structs.replace(problem, limit=None, host=hosts[-1] if hosts else problem.host))
        low, high = bounds.least_peak(structure), structure.ordering.peak(structure.order)
        limits = [low + (high - low) * number // max(1, limits - 1) for number in range(limits)]
    if not hosts:
        return _with_bounds(_points(problem, sorted({*limits}), {}, on_point, options))
    points: list[Point] = []
    plans: dict[int, Plan] = {}
    for host in hosts:
        points += _points(msgspec.structs.replace(problem, host=host), sorted({*limits}), plans, on_point, options)
        if options.get("cancel") is not None and options["cancel"].is_set():
            break
    return _with_bounds(points)


def _points(
    problem: Problem, limits: Sequence[int], plans: dict[int, Plan], on_point: Callable[[Point], None], options: dict[str, Any]
) -> list[Point]:
    """The points for ascending limits of the live bytes.

    ``plans`` has, by limit, the plans for a smaller limit of bytes on the host. They are starting points, and are replaced by
    the plans that are found.
    """
    points: list[Point] = []
    plan: Plan | None = None
    host_limit = None if problem.host is msgspec.UNSET else problem.host.limit
    for limit in limits:
        limited = msgspec.structs.replace(problem, limit=limit)
        # A plan within a limit is also within every larger limit, so it can serve as a starting point.
        starts = {"tighter": plan, "smaller host": plans.get(limit)}
        start_plans = {
            name: msgspec.structs.replace(plan, problem=limited.digest) for name, plan in starts.items() if plan is not None
        }
        result = solve(limited, plans=start_plans, **options)
        plan = result.plan
        proven_infeasible = result.status == "infeasible"
        if plan is None:
            points.append(
                Point(limit, None, None, None if proven_infeasible else result.bound, None, proven_infeasible, host_limit)
            )
        else:
            plans[limit] = plan
            points.append(Point(limit, plan.peak, plan.objective, result.bound, plan, False, host_limit))
        on_point(points[-1])
        if options.get("cancel") is not None and options["cancel"].is_set():
            break
    return points


def _with_bounds(points: list[Point]) -> list[Point]:
    """The points, each with the best bound, or the infeasibility, that is proven for its limits or for larger ones."""
    better: list[Point] = []
    for point in points:
        above = [other for other in points if other.limit >= point.limit and (other.host_limit or 0) >= (point.host_limit or 0)]
        proven_infeasible = any(other.is_infeasible for other in above)
        bounds = [other.bound for other in above if other.bound is not None and not proven_infeasible]
        better.append(point._replace(bound=max(bounds, default=None), is_infeasible=proven_infeasible))
    return better
