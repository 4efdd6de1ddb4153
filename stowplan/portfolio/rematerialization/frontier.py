"""Peak against added cost: a run for each of several limits, and limits of bytes on the host."""

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
    host_limit: int | None = None
    """Bytes; None without a host."""


def frontier(
    problem: Problem,
    limits: Sequence[int] | int = 8,
    on_point: Callable[[Point], None] = lambda point: None,
    *,
    host_limits: Sequence[int] = (),
    **options: Any,
) -> list[Point]:
    """Plans for several limits, the smallest first.

    Parameters
    ----------
    problem
        Its own limit counts for nothing.
    limits
        Bytes; or how many limits, evenly from the bound on the least peak to the peak of the order given.
    host_limits
        Bytes on the host; by default that of the problem alone. The limits are tried for each, the smallest first.
    on_point
        Called with what was found for each limit, in turn; its bound may rise afterwards.
    options
        As :func:`stowplan.solve` takes them, for each limit. Where ``cancel`` is set, limits that are left are left out.

    Returns
    -------
    list of Point
        A larger limit, of either kind, never costs more, and a smaller one never has a lower bound.

    Raises
    ------
    UsageError
        Limits of bytes on the host for a problem that has none.
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
    """Points of ascending limits on the peak; ``plans`` by limit, of less bytes on the host, are known and made better."""
    points: list[Point] = []
    plan: Plan | None = None
    host_limit = None if problem.host is msgspec.UNSET else problem.host.limit
    for limit in limits:
        limited = msgspec.structs.replace(problem, limit=limit)
        # What is within a limit is within every larger one.
        known = {"tighter": plan, "smaller host": plans.get(limit)}
        at_hand = {
            name: msgspec.structs.replace(plan, problem=limited.digest) for name, plan in known.items() if plan is not None
        }
        result = solve(limited, plans=at_hand, **options)
        plan = result.plan
        none = result.status == "infeasible"
        if plan is None:
            points.append(Point(limit, None, None, None if none else result.bound, None, none, host_limit))
        else:
            plans[limit] = plan
            points.append(Point(limit, plan.peak, plan.objective, result.bound, plan, False, host_limit))
        on_point(points[-1])
        if options.get("cancel") is not None and options["cancel"].is_set():
            break
    return points


def _with_bounds(points: list[Point]) -> list[Point]:
    """Points with the best that is proven of them, or of larger limits: a bound, or that there is no plan."""
    better: list[Point] = []
    for point in points:
        above = [other for other in points if other.limit >= point.limit and (other.host_limit or 0) >= (point.host_limit or 0)]
        none = any(other.is_infeasible for other in above)
        bounds = [other.bound for other in above if other.bound is not None and not none]
        better.append(point._replace(bound=max(bounds, default=None), is_infeasible=none))
    return better
