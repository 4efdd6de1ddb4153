"""Plans of small peak whatever they cost, by bisection."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterable, Sequence

import msgspec

from stowplan.models.rematerialization import bounds
from stowplan.models.rematerialization.plan import Plan
from stowplan.models.rematerialization.problem import Problem
from stowplan.models.rematerialization.structure import Structure, build
from stowplan.parameters import Parameters, parameters
from stowplan.portfolio.operator_order.orders import BASELINES
from stowplan.portfolio.rematerialization.greedy import Policy, simulate
from stowplan.portfolio.rematerialization.insertion import Insertion


class LeastPeakParameters(Parameters, frozen=True):
    """Parameters of the search for the least peak."""

    orders: tuple[str, ...] = ("bfs", "lpmf")
    """Names of baselines of operator order that the least peak is sought from beside the order given."""
    tolerance: float = 0.002
    """Part of the peak that is left to search where the search ends."""


PARAMS = parameters(LeastPeakParameters, __name__)

POLICIES = (Policy(), Policy(time=0.5, cost=1.5), Policy(cost=1.5), Policy(bytes=2.0), Policy(time=2.0))


def least_peak(
    problem: Problem,
    orders: Iterable[Sequence[int]] = (),
    seconds: float = math.inf,
    should_stop: Callable[[], bool] = lambda: False,
    enough: int = 0,
) -> tuple[Plan, int]:
    """A plan of small peak whatever it costs, and a bound on the least.

    The plan need not be the best.

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
    plan = lowered(structure, orders, is_over, enough)
    return plan, bounds.least_peak(structure, lambda: is_over(1.0))


def lowered(structure: Structure, orders: Iterable[Sequence[int]], is_over: Callable[[], bool], enough: int = 0) -> Plan:
    """A plan of small peak, by bisection between what was reached and what was not, or is proven.

    At each step runs are added to the best plan and to several orders, and these are simulated.

    Parameters
    ----------
    structure
        Of a problem without a limit.
    orders, enough
        As :func:`least_peak` takes them.
    is_over
        Whether the time is over.
    """
    baselines = (BASELINES[name](structure.ordering, is_over) for name in PARAMS.orders)
    every = dict.fromkeys(map(tuple, [structure.order, *orders, *(order for order in baselines if order is not None)]))
    first = min(map(structure.made, every), key=lambda plan: plan.peak)
    insertion = Insertion(structure)
    # Simulations take less time than insertions.
    ways: list[tuple[Policy | None, tuple[int, ...]]] = [
        *itertools.product(POLICIES, every),
        (None, ()),
        *((None, order) for order in every),
    ]

    def within(way: tuple[Policy | None, tuple[int, ...]], limit: int, best: Plan) -> list[int] | None:
        policy, order = way
        if policy is None:
            return insertion.repaired(order or best.sequence, limit, is_over)
        return simulate(structure, order, limit, policy, is_over)

    def bisected(low: int) -> Plan:
        best, tried = first, ways
        while enough < best.peak and best.peak - low > PARAMS.tolerance * best.peak and not is_over():
            limit = (low + best.peak) // 2
            lower = next(((way, made) for way in tried if (made := within(way, limit, best)) is not None), None)
            if lower is not None:
                best = structure.made(lower[1])
                nearer = insertion.repaired(best.sequence, enough, is_over) if 0 < enough < best.peak else None
                best = best if nearer is None else structure.made(nearer)
                # What succeeded is tried first from then on.
                tried = sorted(tried, key=lambda way: way != lower[0])
            elif not is_over():
                low = limit + 1
        if 0 < enough < best.peak:
            last = next((made for way in tried if not is_over() and (made := within(way, enough, best)) is not None), None)
            best = best if last is None else structure.made(last)
        return best

    load = bounds.load_bound(structure)
    # What is enough is out of reach at first, and near the best plan at last: the way there is from above. Another way may
    # come by it.
    best = bisected(max(load, enough - 1))
    return best if not 0 < enough < best.peak or is_over() else min(best, bisected(load), key=lambda plan: plan.peak)
