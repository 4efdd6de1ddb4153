"""Runs added one by one until a sequence is within the limit; and ruin and recreate with them. Compiled.

Each is the one that saves most for what it costs (:mod:`stowplan.portfolio.rematerialization.additions`). Ruin and recreate
(Schrimpf et al. 2000) takes added runs out of a part of a sequence and adds others, by chance a little off the best.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from stowplan.compiled import njit, njit_inner
from stowplan.models.rematerialization.structure import Structure
from stowplan.parameters import Parameters, parameters
from stowplan.portfolio.random_numbers import random_below
from stowplan.portfolio.rematerialization.additions import Desk, Tables, add_best, desk, tables
from stowplan.portfolio.rematerialization.engine import Graph, Scratch, copy, excess, fill, make, profile, scratch

Ints = NDArray[np.int64]


class InsertionParameters(Parameters, frozen=True):
    """Parameters of insertions."""

    room: int = 4
    """Times the operators that sequences have room for."""


PARAMS = parameters(InsertionParameters, __name__)


#: Runs added between two looks at the clock, and without one.
SLICE, ENDLESS = 20, 1 << 60


@njit_inner
def _trim(graph: Graph, work: Scratch, at_hand: Desk, runs: Ints, count: int, limit: int, begin: int, end: int) -> int:
    """Take away added runs between two places that the limit does not need, the dearest first; the new number of runs."""
    times = at_hand.times
    fill(times, len(times), 0)
    for at in range(count):
        times[runs[at]] += 1
    ceiling = 1 << 62
    while True:
        dearest = -1
        for at in range(max(0, begin), min(end, count)):
            cost = graph.cost[runs[at]]
            if times[runs[at]] > 1 and cost < ceiling and (dearest < 0 or cost > dearest):
                dearest = cost
        if dearest < 0:
            return count
        at = min(end, count) - 1
        while at >= max(0, begin):
            op = runs[at]
            if graph.cost[op] == dearest and times[op] > 1:
                copy(runs, 0, at, at_hand.trial, 0)
                copy(runs, at + 1, count, at_hand.trial, at)
                if (
                    profile(graph, work, at_hand.trial, count - 1, at_hand.other)
                    and excess(at_hand.other, count - 1, limit) == 0.0
                ):
                    count -= 1
                    times[op] -= 1
                    copy(at_hand.trial, 0, count, runs, 0)
            at -= 1
        ceiling = dearest


@njit_inner
def _recreate(
    graph: Graph,
    tables: Tables,
    work: Scratch,
    at_hand: Desk,
    runs: Ints,
    count: int,
    limit: int,
    chance: Ints,
    noise: int,
    most: float,
    steps: int,
) -> tuple[int, bool]:
    """Add runs until a sequence is within the limit; 0 where nothing helps, or where it adds a cost above ``most``.

    The second value says whether that is all: it is not after so many steps.
    """
    for _ in range(steps):
        profile(graph, work, runs, count, at_hand.live)
        if excess(at_hand.live, count, limit) == 0.0:
            return count, True
        if _added_cost(graph, runs, count) > most:
            return 0, True
        count = add_best(graph, tables, work, at_hand, runs, count, limit, chance, noise)
        if not count:
            return 0, True
    return count, False


@njit_inner
def _added_cost(graph: Graph, runs: Ints, count: int) -> int:
    cost = 0
    for op in range(len(graph.cost)):
        cost -= graph.cost[op]
    for at in range(count):
        cost += graph.cost[runs[at]]
    return cost


@njit
def recreate(
    graph: Graph, tables: Tables, work: Scratch, at_hand: Desk, runs: Ints, count: int, limit: int, chance: Ints, steps: int
) -> tuple[int, bool]:
    """Add runs until a sequence is within the limit, and take away what it does not need.

    Parameters
    ----------
    runs, count
        The sequence, in the first ``count`` places; changed. It gets no longer than there is room.
    limit
        Bytes.
    chance
        State of the random numbers.
    steps
        Runs added at most.

    Returns
    -------
    (int, bool)
        The new ``count``, 0 where nothing helps any more; and whether it is done, not only at the end of its steps.
    """
    count, is_done = _recreate(graph, tables, work, at_hand, runs, count, limit, chance, 0, 1e300, steps)
    if is_done and count:
        count = _trim(graph, work, at_hand, runs, count, limit, 0, count)
    return count, is_done


@njit
def ruin_and_recreate(
    graph: Graph,
    tables: Tables,
    work: Scratch,
    at_hand: Desk,
    runs: Ints,
    count: int,
    limit: int,
    chance: Ints,
    noise: int,
    warmth: float,
    rounds: int,
) -> int:
    """Take added runs out of a part of a sequence within the limit and add others, again and again.

    Parameters
    ----------
    runs, count
        The sequence; changed where that is no worse, or by chance where it is (``warmth``, in costs).
    noise
        By how much, in thousandths, what is added may look better than it is, by chance.

    Returns
    -------
    int
        The new ``count``.
    """
    cost = _added_cost(graph, runs, count)
    for _ in range(rounds):
        width = 8 + random_below(chance, max(8, count >> random_below(chance, 7)))
        begin = random_below(chance, count) - width // 2
        part = 300 + random_below(chance, 701)
        length = _ruined(graph, at_hand, runs, count, begin, begin + width, chance, part)
        if length == count:
            continue
        worst = cost - warmth * np.log((1 + random_below(chance, 1 << 30)) / (1 << 30))
        most = worst + 0.3 * cost
        length, _ = _recreate(graph, tables, work, at_hand, at_hand.draft, length, limit, chance, noise, most, ENDLESS)
        if not length:
            continue
        length = _trim(graph, work, at_hand, at_hand.draft, length, limit, begin - width, begin + 2 * width)
        added = _added_cost(graph, at_hand.draft, length)
        if added <= worst:
            copy(at_hand.draft, 0, length, runs, 0)
            count, cost = length, added
    return count


@njit_inner
def _ruined(graph: Graph, at_hand: Desk, runs: Ints, count: int, begin: int, end: int, chance: Ints, part: int) -> int:
    """Write a sequence without some runs between two places, but the first of each operator; its length.

    Each is left out with ``part`` chances of 1,000.
    """
    times = at_hand.times
    fill(times, len(times), 0)
    left = 0
    for at in range(count):
        op = runs[at]
        if times[op] and begin <= at < end and random_below(chance, 1000) < part:
            continue
        times[op] += 1
        at_hand.draft[left] = op
        left += 1
    return left


class Insertion:
    """The arrays of a structure, and sequences repaired with them."""

    def __init__(self, structure: Structure, room: int | None = None):
        self.structure, self.graph, self.tables = structure, make(structure), tables(structure)
        self.room = PARAMS.room * structure.ops + 8 if room is None else room
        self.work, self.desk = scratch(self.graph, self.room), desk(self.graph, self.room)

    def repaired(
        self,
        sequence: Sequence[int],
        limit: int,
        should_stop: Callable[[], bool] = lambda: False,
        most_added: int | None = None,
    ) -> list[int] | None:
        """A sequence with what makes it fit, and without what it does not need; None where it does not get to fit in time.

        No more runs are added once there are ``most_added``.
        """
        runs = np.zeros(self.room, np.int64)
        count = len(sequence)
        if count > self.room:
            return None
        runs[:count] = sequence
        arrays, chance = (self.graph, self.tables, self.work, self.desk), np.ones(1, np.int64)
        is_done, slices = False, 0
        while not is_done and not should_stop() and (most_added is None or slices * SLICE <= most_added):
            count, is_done = recreate(*arrays, runs, count, limit, chance, SLICE)
            slices += 1
        return runs[:count].tolist() if is_done and count else None

    def recreated(self, sequence: Sequence[int], limit: int, seed: int, noise: int, warmth: float, rounds: int) -> list[int]:
        """A sequence within the limit after some rounds of :func:`ruin_and_recreate`."""
        runs = np.zeros(self.room, np.int64)
        runs[: len(sequence)] = sequence
        chance = np.array([seed], np.int64)
        arrays = self.graph, self.tables, self.work, self.desk
        count = ruin_and_recreate(*arrays, runs, len(sequence), limit, chance, noise, warmth, rounds)
        return list(map(int, runs[:count]))
