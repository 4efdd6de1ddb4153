"""Plans of small peak, whatever they cost, by bisection over the limit.

The *peak* of a plan is the largest number of bytes that are live during a run of an operator. An *eviction policy* chooses the
storages that a simulation gives up when memory runs out (:mod:`stowplan.portfolio.rematerialization.greedy`). An *order* lists
all operators in the order in which they run for the first time. The functions raise no errors.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterable, Sequence

import msgspec

from stowplan import work_rates
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
    """Names of two baselines of operator order, the orders of compilers, from which the search starts in addition to the order
    of the input."""
    tolerance: float = 0.002
    """Bisection ends when the range of limits, from the highest that was not reached to the best peak, is at most this fraction
    of the peak."""


PARAMS = parameters(LeastPeakParameters, __name__)

#: Part of the time for finding a plan; the rest is for the bound.
PLAN_SHARE = 2 / 3

#: The work between two calls of ``is_over`` is in proportion to the number of operators plus this number, which stands for the
#: work that does not depend on the size of the graph.
CALL_OVERHEAD = 300

#: Eviction policies of the simulations, in the order in which they are tried.
POLICIES = (Policy(), Policy(time=0.5, cost=1.5), Policy(cost=1.5), Policy(bytes=2.0), Policy(time=2.0))


def least_peak(
    problem: Problem,
    orders: Iterable[Sequence[int]] = (),
    seconds: float = math.inf,
    should_stop: Callable[[], bool] = lambda: False,
    enough: int = 0,
) -> tuple[Plan, int]:
    """A plan of small peak, whatever it costs, and a lower bound of the least peak.

    The plan comes from a heuristic, so there may be plans with a smaller peak.

    Parameters
    ----------
    problem
        The problem; its limit is ignored.
    orders
        Orders from which to start, in addition to the order of the input and two baselines.
    seconds
        Time limit in seconds; two thirds are for the plan, the rest is for the bound. There is a plan even if it is 0.
    should_stop
        Function that says whether to end early.
    enough
        Peak in bytes that is small enough: the search ends with the first plan that reaches it. With 0, the search looks for
        the least peak.

    Returns
    -------
    (Plan, int)
        The plan, for the problem without a limit; and the bound in bytes.
    """
    began = time.monotonic()

    def is_over(part: float = PLAN_SHARE) -> bool:
        return should_stop() or time.monotonic() >= began + part * seconds

    structure = build(msgspec.structs.replace(problem, limit=None))
    plan = minimize_peak(structure, orders, is_over, enough)
    return plan, bounds.least_peak(structure, lambda: is_over(1.0))


def is_work_done(structure: Structure, seconds: float) -> Callable[[], bool]:
    """A function for the argument ``is_over`` of :func:`minimize_peak`: whether the work of ``seconds`` seconds has been done.

    It counts its calls, and returns True after as many as an idle machine makes in about ``seconds`` seconds. The plan of the
    search then does not depend on how busy the machine is.
    """
    left = int(work_rates.REMAT_PEAKS.per_second * seconds / (structure.ops + CALL_OVERHEAD))

    def is_over() -> bool:
        nonlocal left
        left -= 1
        return left < 0

    return is_over


def minimize_peak(structure: Structure, orders: Iterable[Sequence[int]], is_over: Callable[[], bool], enough: int = 0) -> Plan:
    """A plan of small peak, by bisection over the limit.

    The upper end of the range is the best peak so far. The lower end is a lower bound, or a limit within which no plan was
    found. Each step of the bisection tries to find a plan within a limit in several ways: by simulating several orders, and by
    adding runs to the best plan and to these orders.

    Parameters
    ----------
    structure
        The structure of a problem without a limit.
    orders, enough
        As for :func:`least_peak`.
    is_over
        Function that says whether the time is over. The best of the orders is returned as a plan even if it is over at once.
    """
    baselines = (BASELINES[name](structure.ordering, is_over) for name in PARAMS.orders)
    all_orders = dict.fromkeys(map(tuple, [structure.order, *orders, *(order for order in baselines if order is not None)]))
    first = min(map(structure.made, all_orders), key=lambda plan: plan.peak)
    insertion = Insertion(structure)
    # Simulations come first, because they take less time than adding runs.
    methods: list[tuple[Policy | None, tuple[int, ...]]] = [
        *itertools.product(POLICIES, all_orders),
        (None, ()),
        *((None, order) for order in all_orders),
    ]

    def attempt(method: tuple[Policy | None, tuple[int, ...]], limit: int, best: Plan) -> list[int] | None:
        policy, order = method
        if policy is None:
            return insertion.repaired(order or best.sequence, limit, is_over)
        return simulate(structure, order, limit, policy, is_over)

    def bisected(low: int) -> Plan:
        best, in_turn = first, methods
        while enough < best.peak and best.peak - low > PARAMS.tolerance * best.peak and not is_over():
            limit = (low + best.peak) // 2
            lower = next(((method, made) for method in in_turn if (made := attempt(method, limit, best)) is not None), None)
            if lower is not None:
                best = structure.made(lower[1])
                nearer = insertion.repaired(best.sequence, enough, is_over) if 0 < enough < best.peak else None
                best = best if nearer is None else structure.made(nearer)
                # The method that succeeded is tried first from now on.
                in_turn = sorted(in_turn, key=lambda method: method != lower[0])
            elif not is_over():
                low = limit + 1
        if 0 < enough < best.peak:
            last = next(
                (made for method in in_turn if not is_over() and (made := attempt(method, enough, best)) is not None),
                None,
            )
            best = best if last is None else structure.made(last)
        return best

    load = bounds.load_bound(structure)
    # The first bisection has ``enough`` as its lower end, so that the peak approaches it from above. If the peak remains
    # larger, a second bisection over the whole range takes other steps and may still reach it.
    best = bisected(max(load, enough - 1))
    return best if not 0 < enough < best.peak or is_over() else min(best, bisected(load), key=lambda plan: plan.peak)
