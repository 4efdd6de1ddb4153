"""Simulated annealing for packing with reuse penalties, by ruin and recreate.

A *reuse penalty* is a cost of a pair of buffers that is paid if both share bytes, one after the other. Two buffers are
*related* if they have a penalty, or if they may not share bytes because they are live at the same time.

A step takes out a buffer and some of those that are related to it, often close to it in memory, and puts them back one after
the other. Each goes where the penalties that it causes are least; between equally good places, chance decides. If the new plan
costs no more than before, it is kept. If it costs more, it is kept with a probability that falls during the search (Schrimpf et
al., "Record breaking optimization results using the ruin and recreate principle", Journal of Computational Physics 159, 2000).
If a buffer finds no place, the step is undone. A *cycle* is a series of steps in which the temperature, on which this
probability depends, falls from hot to cold.

The offset with the least penalties is found by a sweep over memory. Every placed buffer forbids a range of offsets or makes it
more expensive. Two lists of the placed buffers, by their starts and by their ends, give these ranges in order. Buffers and
units are those of :class:`stowplan.portfolio.packing.arrays.Data`, and n is the number of buffers. Buffers are given by their
index in ``Data``. The functions raise no errors, except as stated.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from stowplan.compiled import Ints2D, njit, njit_inner
from stowplan.models.packing.problem import Problem
from stowplan.parameters import Parameters, parameters
from stowplan.portfolio.packing import arrays
from stowplan.portfolio.packing.arrays import Data, Ints
from stowplan.portfolio.random_numbers import random_below


class AnnealingParameters(Parameters, frozen=True):
    """Parameters of annealing."""

    hot: float = 1.0
    """First temperature, in multiples of the mean cost of a penalty."""
    cold: float = 0.1
    """Last temperature, in multiples of the mean cost of a penalty."""
    most_removed: int = 12
    """Largest number of buffers that a step takes out."""
    cycles: tuple[float, ...] = (0.1, 0.3, 1.0)
    """Fraction of the remaining time that each cycle takes, one cycle after the other."""
    chunk: int = 2000
    """Number of steps between two looks at the clock."""


PARAMS = parameters(AnnealingParameters, __name__)

#: The entry of :attr:`Search.pair` for two buffers that may not share bytes.
APART = -1

#: Two tuned percentages. _AT_PAIR is the share of the steps that start from a pair of buffers that pays its penalty, and take
#: out one of the two. _LOWEST is the share of the buffers that go to the lowest of several equally good places.
_AT_PAIR, _LOWEST = 70, 50

#: Percentage of the places at which a buffer could go at least as cheaply as at the best place so far, but which are ignored at
#: random, so that steps vary.
_BLINK = 1


class Search(NamedTuple):
    """The buffers of a problem, n in number, and a plan, in units (:class:`stowplan.portfolio.packing.arrays.Data`)."""

    size: Ints
    """[n] sizes."""
    align: Ints
    """[n] alignments."""
    is_fixed: Ints
    """[n] 1 if the offset must not change, otherwise 0."""
    pair: Ints2D
    """[n, n] the penalty of two buffers, which is 0 if they have none; or :data:`APART` if they are live at the same time."""
    first: Ints
    """[pairs] the first buffer of each pair with a penalty."""
    second: Ints
    """[pairs] the second buffer of each of these pairs."""
    low: Ints
    """[n] offsets of the current plan."""
    before: Ints
    """[n] offsets before the current step, for the buffers that it takes out."""
    best: Ints
    """[n] offsets of the best plan."""
    by_low: Ints
    """[n] the placed buffers by ascending offset."""
    by_high: Ints
    """[n] the placed buffers by ascending end."""
    removed: Ints
    """[n] the buffers that a step takes out, in the order in which they return."""
    is_removed: Ints
    """[n] 1 for the buffers that are taken out, otherwise 0."""
    status: Ints
    """[3] number of placed buffers, cost of the current plan, cost of the best plan."""
    chance: Ints
    """[1] state of the random number generator."""


@njit_inner
def _insert(search: Search, number: int, offset: int) -> None:
    """Place a buffer at an offset in units, and enter it into both lists."""
    low, size, count = search.low, search.size, search.status[0]
    low[number] = offset
    at = count
    while at > 0 and low[search.by_low[at - 1]] > offset:
        search.by_low[at] = search.by_low[at - 1]
        at -= 1
    search.by_low[at] = number
    end, at = offset + size[number], count
    while at > 0 and low[search.by_high[at - 1]] + size[search.by_high[at - 1]] > end:
        search.by_high[at] = search.by_high[at - 1]
        at -= 1
    search.by_high[at] = number
    search.status[0] = count + 1


@njit_inner
def _take_out(search: Search, count: int) -> None:
    """Take out the buffers that ``is_removed`` marks, ``count`` in number."""
    placed = search.status[0]
    for order in (search.by_low, search.by_high):
        remaining = 0
        for at in range(placed):
            number = order[at]
            if not search.is_removed[number]:
                order[remaining] = number
                remaining += 1
    search.status[0] = placed - count


@njit_inner
def _cost_at(search: Search, number: int) -> int:
    """The sum of the penalties between a buffer at its offset and the placed buffers."""
    cost, low, high = 0, search.low[number], search.low[number] + search.size[number]
    for at in range(search.status[0]):
        other = search.by_low[at]
        if search.low[other] >= high:
            break
        if search.low[other] + search.size[other] > low and other != number:
            cost += max(0, search.pair[number, other])
    return cost


@njit_inner
def _cheapest(search: Search, number: int, capacity: int) -> tuple[int, int]:
    """The offset at which a buffer causes the least penalties, and the sum of these penalties.

    ``capacity`` is in units. The offset is -1 if the buffer fits nowhere.
    """
    low, size, pair, placed = search.low, search.size, search.pair, search.status[0]
    mine, step, last = size[number], search.align[number], capacity - size[number]
    takes_lowest = random_below(search.chance, 100) < _LOWEST
    best_cost, best, equal = -1, -1, 0
    entering = leaving = forbidden = cost = 0
    at = 0
    while at <= last:
        # Each placed buffer forbids, or makes more expensive, a range of offsets. Ranges that begin at or before this offset
        # are entered, and ranges that end there are left.
        while entering < placed and low[search.by_low[entering]] - mine < at:
            change = pair[number, search.by_low[entering]]
            entering += 1
            if change < 0:
                forbidden += 1
            else:
                cost += change
        while leaving < placed and low[search.by_high[leaving]] + size[search.by_high[leaving]] <= at:
            change = pair[number, search.by_high[leaving]]
            leaving += 1
            if change < 0:
                forbidden -= 1
            else:
                cost -= change
        until = last + 1
        if entering < placed:
            until = min(until, low[search.by_low[entering]] - mine + 1)
        if leaving < placed:
            until = min(until, low[search.by_high[leaving]] + size[search.by_high[leaving]])
        if forbidden == 0 and (best_cost < 0 or cost <= best_cost):
            lower = at + -at % step
            upper = (until - 1) // step * step
            if lower <= upper and random_below(search.chance, 100) >= _BLINK:
                equal = 1 if cost < best_cost or best_cost < 0 else equal + 1
                if equal == 1 or (not takes_lowest and random_below(search.chance, equal) == 0):
                    best = lower if takes_lowest or random_below(search.chance, 2) else upper
                best_cost = cost
        at = until
    return best, best_cost


@njit_inner
def _choose(search: Search, most: int) -> int:
    """Choose at most ``most`` buffers that a step takes out, and mark them; returns their number, which may be 0."""
    n, pairs = len(search.size), len(search.first)
    chance = search.chance
    center = random_below(chance, n)
    if pairs and random_below(chance, 100) < _AT_PAIR:
        for _ in range(50):
            at = random_below(chance, pairs)
            one, other = search.first[at], search.second[at]
            if (
                search.low[one] < search.low[other] + search.size[other]
                and search.low[other] < search.low[one] + search.size[one]
            ):
                center = one if random_below(chance, 2) else other
                break
    count, wanted = 0, 1 + random_below(chance, most)
    if not search.is_fixed[center]:
        search.removed[0] = center
        search.is_removed[center] = 1
        count = 1
    # The other buffers are related to this one, the centre. In two of three steps, they also touch a range of memory around the
    # centre.
    reach = search.size[center] * random_below(chance, 3)
    low, high = search.low[center] - reach, search.low[center] + search.size[center] + reach
    anywhere = random_below(chance, 3) == 0
    start = random_below(chance, n)
    stride = 1 + random_below(chance, n - 1) if n > 1 else 1
    while math.gcd(stride, n) != 1:
        stride += 1
    for step in range(n):
        if count >= wanted:
            break
        number = (start + step * stride) % n
        if search.is_removed[number] or search.is_fixed[number] or search.pair[center, number] == 0:
            continue
        if anywhere or (search.low[number] < high and low < search.low[number] + search.size[number]):
            search.removed[count] = number
            search.is_removed[number] = 1
            count += 1
    return count


@njit_inner
def _order(search: Search, count: int) -> None:
    """Choose the order in which the ``count`` removed buffers return: at random, or in half of the steps by descending size."""
    chance, removed = search.chance, search.removed
    for at in range(count - 1, 0, -1):
        other = random_below(chance, at + 1)
        removed[at], removed[other] = removed[other], removed[at]
    if random_below(chance, 2):
        for at in range(1, count):
            number, position = removed[at], at
            while position > 0 and search.size[removed[position - 1]] < search.size[number]:
                removed[position] = removed[position - 1]
                position -= 1
            removed[position] = number


@njit
def anneal(search: Search, capacity: int, steps: int, most: int, hot: float, cold: float) -> int:
    """Do ``steps`` steps while the temperature falls from ``hot`` to ``cold``, in the unit of the costs.

    ``capacity`` is in units. A step takes out at most ``most`` buffers. Returns the number of steps that were undone because a
    buffer found no place.
    """
    status, failed = search.status, 0
    for step in range(steps):
        count = _choose(search, most)
        if count == 0:
            continue
        _take_out(search, count)
        now = status[1]
        # ``now`` becomes the cost of the plan without these buffers. The penalties of each with the placed buffers are
        # subtracted first, then those between two of them.
        for at in range(count):
            number = search.removed[at]
            search.before[number] = search.low[number]
            now -= _cost_at(search, number)
        for at in range(count):
            for later in range(at + 1, count):
                one, other = search.removed[at], search.removed[later]
                if (
                    search.low[one] < search.low[other] + search.size[other]
                    and search.low[other] < search.low[one] + search.size[one]
                ):
                    now -= max(0, search.pair[one, other])
        _order(search, count)
        temperature = hot * (cold / hot) ** (step / steps)
        limit = status[1] - temperature * math.log((1 + random_below(search.chance, 1 << 30)) / (1 << 30))
        placed = 0
        for at in range(count):
            number = search.removed[at]
            offset, cost = _cheapest(search, number, capacity)
            if offset < 0:
                failed += 1
                break
            now += cost
            if now > limit:
                break
            _insert(search, number, offset)
            placed += 1
        for at in range(count):
            search.is_removed[search.removed[at]] = 0
        if placed == count:
            status[1] = now
            if now < status[2]:
                status[2] = now
                for number in range(len(search.low)):
                    search.best[number] = search.low[number]
            continue
        for at in range(placed):
            search.is_removed[search.removed[at]] = 1
        _take_out(search, placed)
        for at in range(placed):
            search.is_removed[search.removed[at]] = 0
        for at in range(count):
            _insert(search, search.removed[at], search.before[search.removed[at]])
    return failed


@njit
def start(search: Search, offsets: Ints) -> None:
    """Make a plan, whose ``offsets`` [n] are in units, the current and the best one."""
    search.status[0] = 0
    cost = 0
    for number in range(len(search.size)):
        search.low[number] = offsets[number]
        cost += _cost_at(search, number)
        _insert(search, number, offsets[number])
        search.best[number] = offsets[number]
    search.status[1] = search.status[2] = cost


def build(problem: Problem, data: Data, seed: int) -> Search:
    """The tables of a problem, without a plan; ``seed`` is the seed of the random numbers.

    Permitted overlaps are not used: buffers that are live at the same time may not share bytes.
    """
    n = len(data.size)
    index = np.full(len(problem.buffers), -1)
    index[data.numbers] = np.arange(n)
    pair = np.zeros((n, n), np.int64)
    rows = [(index[one], index[other], cost) for (one, other), cost in problem.penalty_of.items()]
    first, second, cost = np.array([row for row in rows if min(row[:2]) >= 0], np.int64).reshape(-1, 3).T.copy()
    pair[first, second] = pair[second, first] = cost
    begin, others = arrays.neighbours(data)
    pair[np.repeat(np.arange(n), np.diff(begin)), others] = APART
    column = np.zeros(n, np.int64)
    return Search(
        size=data.size,
        align=data.align,
        is_fixed=(data.fixed >= 0).astype(np.int64),
        pair=pair,
        first=first,
        second=second,
        low=column,
        before=column.copy(),
        best=column.copy(),
        by_low=column.copy(),
        by_high=column.copy(),
        removed=column.copy(),
        is_removed=column.copy(),
        status=np.zeros(3, np.int64),
        chance=np.array([np.random.default_rng(seed).integers(1, 1 << 62)], np.int64),
    )


class Annealing:
    """Simulated annealing from a plan, in cycles from hot to cold.

    Parameters
    ----------
    problem
        A problem with reuse penalties and a capacity. Without a capacity, AssertionError is raised.
    data
        Its buffers, at least one.
    seed
        Seed of the random numbers.
    """

    def __init__(self, problem: Problem, data: Data, seed: int):
        assert problem.capacity is not None
        self._search = build(problem, data, seed)
        self._capacity = problem.capacity // data.unit
        costs = self._search.pair[self._search.first, self._search.second]
        self._scale = float(costs.mean()) if len(costs) else 1.0

    @property
    def cost(self) -> int:
        """The sum of the penalties of the best plan; 0 before the first cycle."""
        return int(self._search.status[2])

    @property
    def offsets(self) -> Ints:
        """[n] offsets of the best plan in units; all 0 before the first cycle."""
        return self._search.best.copy()

    def cycle(self, offsets: Ints, progress: Callable[[int], float], improved: Callable[[], None]) -> None:
        """Anneal from a plan until the cycle is over, or until a plan without penalties is found.

        Parameters
        ----------
        offsets
            [n] offsets in units of a plan within the capacity.
        progress
            Function from the number of steps so far to the part of the cycle that is over; the cycle ends at 1.
        improved
            Called after each better plan, which is in :attr:`offsets`.
        """
        start(self._search, offsets)
        steps, part = 0, progress(0)
        while part < 1 and self.cost:
            before = self.cost
            heat = self._scale * PARAMS.hot * (PARAMS.cold / PARAMS.hot) ** part
            anneal(self._search, self._capacity, PARAMS.chunk, PARAMS.most_removed, heat, heat)
            steps += PARAMS.chunk
            part = progress(steps)
            if self.cost < before:
                improved()
