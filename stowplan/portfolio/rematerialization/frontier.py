"""Peak against added cost: a run for each of several limits, and the least peak that simulations and insertions reach."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import msgspec

from stowplan.models.rematerialization import bounds
from stowplan.models.rematerialization.plan import Plan
from stowplan.models.rematerialization.problem import Problem
from stowplan.models.rematerialization.structure import build
from stowplan.portfolio.operator_order.orders import BASELINES
from stowplan.portfolio.rematerialization.greedy import Policy, simulate
from stowplan.portfolio.rematerialization.insertion import Insertion
from stowplan.portfolio.solve import solve

#: Orders that the least peak is sought from beside that given, and weights of simulations for it.
ORDERS = ("bfs", "lpmf")
POLICIES = (Policy(), Policy(time=0.5, cost=1.5), Policy(cost=1.5), Policy(bytes=2.0), Policy(time=2.0))

#: The search for the least peak ends where so much of it is left.
TOLERANCE = 0.002


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


def least_peak(
    problem: Problem,
    orders: Iterable[Sequence[int]] = (),
    seconds: float = math.inf,
    should_stop: Callable[[], bool] = lambda: False,
    enough: int = 0,
) -> tuple[Plan, int]:
    """A plan of small peak whatever it costs, and a bound on the least.

    By bisection between what was reached and what was not, or is proven: the plan need not be the best. At each step runs are
    added to the best plan and to several orders, and these are simulated.

    Parameters
    ----------
    problem
        Its limit counts for nothing.
    orders
        To try beside the order given and two of its graph's baselines.
    seconds
        Two thirds of them for the plan, the rest for the bound.
    enough
        Bytes of a peak below which none is sought; the first that is.

    Returns
    -------
    (Plan, int)
        The plan is for the problem without a limit; the bound is in bytes.
    """
    began = time.monotonic()

    def is_over(part: float = 2 / 3) -> bool:
        return should_stop() or time.monotonic() >= began + part * seconds

    structure = build(msgspec.structs.replace(problem, limit=None))
    baselines = (BASELINES[name](structure.ordering, is_over) for name in ORDERS)
    every = dict.fromkeys(map(tuple, [structure.order, *orders, *(order for order in baselines if order is not None)]))
    best = min(map(structure.made, every), key=lambda plan: plan.peak)
    insertion = Insertion(structure)
    # What is enough is out of reach at first, and near the best plan at last: the way there is from above.
    low = max(bounds.load_bound(structure), enough - 1)

    def within(way: tuple[Policy | None, tuple[int, ...]], limit: int) -> list[int] | None:
        policy, order = way
        if policy is None:
            return insertion.mended(order or best.sequence, limit, is_over)
        return simulate(structure, order, limit, policy, is_over)

    # Simulations take less time than insertions.
    ways: list[tuple[Policy | None, tuple[int, ...]]] = [
        *itertools.product(POLICIES, every),
        (None, ()),
        *((None, each) for each in every),
    ]
    while enough < best.peak and best.peak - low > TOLERANCE * best.peak and not is_over():
        limit = (low + best.peak) // 2
        found = next(((way, sequence) for way in ways if (sequence := within(way, limit)) is not None), None)
        if found is not None:
            best = structure.made(found[1])
            nearer = insertion.mended(best.sequence, enough, is_over) if 0 < enough < best.peak else None
            best = best if nearer is None else structure.made(nearer)
            # What succeeded is tried first from then on.
            ways.sort(key=lambda way: way != found[0])
        elif not is_over():
            low = limit + 1
    if 0 < enough < best.peak:
        last = next((sequence for way in ways if not is_over() and (sequence := within(way, enough)) is not None), None)
        best = best if last is None else structure.made(last)
    return best, bounds.least_peak(structure, lambda: is_over(1.0))
