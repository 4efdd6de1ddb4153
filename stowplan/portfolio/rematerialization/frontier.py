"""Peak against added cost: a run for each of several limits, and the least peak that the simulation reaches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec

from stowplan.models.rematerialization import bounds
from stowplan.models.rematerialization.plan import Plan
from stowplan.models.rematerialization.problem import Problem
from stowplan.models.rematerialization.structure import Structure, build
from stowplan.portfolio.rematerialization.greedy import Policy, checkpoint_policies, simulate
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
    found: list[Point] = []
    plan: Plan | None = None
    for limit in sorted({*limits}):
        each = msgspec.structs.replace(problem, limit=limit)
        # What is within a limit is within every larger one.
        at_hand = {} if plan is None else {"tighter": msgspec.structs.replace(plan, problem=each.digest)}
        result = solve(each, plans=at_hand, **options)
        plan = result.plan
        none = result.status == "infeasible"
        if plan is None:
            found.append(Point(limit, None, None, None if none else result.bound, None, none))
        else:
            found.append(Point(limit, plan.peak, plan.objective, result.bound, plan))
        on_point(found[-1])
        if options.get("cancel") is not None and options["cancel"].is_set():
            break
    best = 0
    for at in range(len(found) - 1, -1, -1):
        bound = found[at].bound
        if bound is not None:
            best = max(best, bound)
            found[at] = found[at]._replace(bound=best)
    return found


def least_peak(problem: Problem, should_stop: Callable[[], bool] = lambda: False) -> tuple[Plan, int]:
    """A plan of small peak whatever it costs, and a bound on the least.

    By bisection between what the simulation reached and what it did not, or what is proven: the plan need not be the best.

    Returns
    -------
    (Plan, int)
        The plan is for the problem without a limit; the bound is in bytes.
    """
    structure = build(msgspec.structs.replace(problem, limit=None))
    best = structure.made(structure.order)
    bound = low = bounds.least_peak(structure, should_stop)
    policies = (Policy(), *checkpoint_policies(structure, structure.order))
    while low < best.peak and not should_stop():
        limit = (low + best.peak - 1) // 2
        plan = _within(structure, limit, policies, should_stop)
        if plan is None:
            low = limit + 1
        else:
            best = plan
    return best, bound


def _within(structure: Structure, limit: int, policies: Sequence[Policy], should_stop: Callable[[], bool]) -> Plan | None:
    for policy in policies:
        sequence = simulate(structure, structure.order, limit, policy, should_stop)
        if sequence is not None:
            return structure.made(sequence)
    return None
