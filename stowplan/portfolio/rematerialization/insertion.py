"""Adds runs to a sequence one by one until it is within the limit; and ruin and recreate. Compiled.

A *run* is one execution of an operator, and an *added* run is one of an operator that runs several times. Each time, the runs
are added that save the most bytes for their cost (:mod:`stowplan.portfolio.rematerialization.additions`). Ruin and recreate
(Schrimpf et al. 2000) removes added runs from a part of a sequence and adds others. The *score* of added runs is the ratio of
bytes saved to cost. In ruin and recreate, scores have random noise, so that the added runs are not always the best ones. The
functions raise no errors, except as stated.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from stowplan.compiled import njit, njit_inner
from stowplan.models.rematerialization.structure import Structure
from stowplan.parameters import Parameters, parameters
from stowplan.portfolio.random_numbers import random_below
from stowplan.portfolio.rematerialization.additions import SearchArrays, Tables, add_best, search_arrays, tables
from stowplan.portfolio.rematerialization.engine import Graph, Scratch, build_graph, copy, excess, fill, profile, scratch

Ints = NDArray[np.int64]


class InsertionParameters(Parameters, frozen=True):
    """Parameters of adding runs."""

    room: int = 4
    """Largest number of runs of a sequence, divided by the number of operators; the arrays have space for so many."""


PARAMS = parameters(InsertionParameters, __name__)


#: SLICE is the number of times that runs are added between two calls of ``should_stop``. ENDLESS is a number of times that is
#: never reached.
SLICE, ENDLESS = 20, 1 << 60


@njit_inner
def _trim(graph: Graph, work: Scratch, arrays: SearchArrays, runs: Ints, count: int, limit: int, begin: int, end: int) -> int:
    """Remove runs in ``[begin, end)`` of operators that run several times, if the sequence stays valid and within the limit.

    The most expensive runs are tried first. Returns the new number of runs.
    """
    times = arrays.times
    fill(times, len(times), 0)
    for at in range(count):
        times[runs[at]] += 1
    ceiling = 1 << 62
    while True:
        highest_cost = -1
        for at in range(max(0, begin), min(end, count)):
            cost = graph.cost[runs[at]]
            if times[runs[at]] > 1 and cost < ceiling and (highest_cost < 0 or cost > highest_cost):
                highest_cost = cost
        if highest_cost < 0:
            return count
        at = min(end, count) - 1
        while at >= max(0, begin):
            op = runs[at]
            if graph.cost[op] == highest_cost and times[op] > 1:
                copy(runs, 0, at, arrays.trial, 0)
                copy(runs, at + 1, count, arrays.trial, at)
                if (
                    profile(graph, work, arrays.trial, count - 1, arrays.other)
                    and excess(arrays.other, count - 1, limit) == 0.0
                ):
                    count -= 1
                    times[op] -= 1
                    copy(arrays.trial, 0, count, runs, 0)
            at -= 1
        ceiling = highest_cost


@njit_inner
def _recreate(
    graph: Graph,
    tables: Tables,
    work: Scratch,
    arrays: SearchArrays,
    runs: Ints,
    count: int,
    limit: int,
    chance: Ints,
    noise: int,
    most: float,
    steps: int,
) -> tuple[int, bool]:
    """Add runs until a sequence is within the limit.

    Runs are added at most ``steps`` times. Returns the new number of runs, and whether this is the final result. The number is
    0 if no runs help or if the added cost exceeds ``most``. The result is not final if ``steps`` was too small.
    """
    for _ in range(steps):
        profile(graph, work, runs, count, arrays.live)
        if excess(arrays.live, count, limit) == 0.0:
            return count, True
        if _added_cost(graph, runs, count) > most:
            return 0, True
        count = add_best(graph, tables, work, arrays, runs, count, limit, chance, noise)
        if not count:
            return 0, True
    return count, False


@njit_inner
def _added_cost(graph: Graph, runs: Ints, count: int) -> int:
    """The cost of all runs, less the cost of running each operator once."""
    cost = 0
    for op in range(len(graph.cost)):
        cost -= graph.cost[op]
    for at in range(count):
        cost += graph.cost[runs[at]]
    return cost


@njit
def recreate(
    graph: Graph,
    tables: Tables,
    work: Scratch,
    arrays: SearchArrays,
    runs: Ints,
    count: int,
    limit: int,
    chance: Ints,
    steps: int,
) -> tuple[int, bool]:
    """Add runs until a sequence is within the limit, then remove runs that it does not need.

    Parameters
    ----------
    graph, tables, work, arrays
        The problem as arrays, and working arrays for as many runs as ``runs`` has entries.
    runs, count
        The sequence, in the first ``count`` entries, which must be valid; modified. It gets no longer than ``runs``.
    limit
        Limit of the live bytes.
    chance
        [1] state of the random number generator.
    steps
        Largest number of times that runs are added.

    Returns
    -------
    (int, bool)
        The new ``count``, which is 0 if no runs help; and whether this is the final result. It is not final if ``steps`` was
        too small: another call continues from ``runs``.
    """
    count, is_done = _recreate(graph, tables, work, arrays, runs, count, limit, chance, 0, 1e300, steps)
    if is_done and count:
        count = _trim(graph, work, arrays, runs, count, limit, 0, count)
    return count, is_done


@njit
def ruin_and_recreate(
    graph: Graph,
    tables: Tables,
    work: Scratch,
    arrays: SearchArrays,
    runs: Ints,
    count: int,
    limit: int,
    chance: Ints,
    noise: int,
    temperature: float,
    rounds: int,
) -> int:
    """Repeatedly remove added runs from a part of a sequence within the limit, and add others.

    Parameters
    ----------
    graph, tables, work, arrays
        As for :func:`recreate`.
    runs, count
        The sequence, in the first ``count`` entries; modified. A result that costs more is accepted at random, as in annealing.
    limit
        Limit of the live bytes.
    chance
        [1] state of the random number generator.
    noise
        Largest random increase of the score of added runs, in thousandths of the score.
    temperature
        Temperature, in units of cost; at 0 no result that costs more is accepted.
    rounds
        Number of rounds, each of which removes runs once and adds others.

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
        length = _ruin(graph, arrays, runs, count, begin, begin + width, chance, part)
        if length == count:
            continue
        worst = cost - temperature * np.log((1 + random_below(chance, 1 << 30)) / (1 << 30))
        # Runs are added beyond the cost that is accepted, because trimming may remove some of them again.
        most = worst + 0.3 * cost
        length, _ = _recreate(graph, tables, work, arrays, arrays.draft, length, limit, chance, noise, most, ENDLESS)
        if not length:
            continue
        length = _trim(graph, work, arrays, arrays.draft, length, limit, begin - width, begin + 2 * width)
        added = _added_cost(graph, arrays.draft, length)
        if added <= worst:
            copy(arrays.draft, 0, length, runs, 0)
            count, cost = length, added
    return count


@njit_inner
def _ruin(graph: Graph, arrays: SearchArrays, runs: Ints, count: int, begin: int, end: int, chance: Ints, part: int) -> int:
    """Write to ``draft`` the sequence without some of the added runs in ``[begin, end)``; returns its length.

    Each of them is left out with a probability of ``part`` thousandths. The first run of each operator is never left out.
    """
    times = arrays.times
    fill(times, len(times), 0)
    length = 0
    for at in range(count):
        op = runs[at]
        if times[op] and begin <= at < end and random_below(chance, 1000) < part:
            continue
        times[op] += 1
        arrays.draft[length] = op
        length += 1
    return length


class Insertion:
    """Repairs and improves sequences of one structure.

    Parameters
    ----------
    structure
        The structure of the problem.
    room
        Largest number of runs of a sequence; by default :attr:`InsertionParameters.room` times the number of operators, and
        eight more.
    """

    def __init__(self, structure: Structure, room: int | None = None):
        self.structure, self.graph, self.tables = structure, build_graph(structure), tables(structure)
        self.room = PARAMS.room * structure.ops + 8 if room is None else room
        self.work, self.search_arrays = scratch(self.graph, self.room), search_arrays(self.graph, self.room)

    def repaired(
        self,
        sequence: Sequence[int],
        limit: int,
        should_stop: Callable[[], bool] = lambda: False,
        most_added: int | None = None,
    ) -> list[int] | None:
        """The sequence with runs added until it is within ``limit`` bytes, and without added runs that it does not need.

        The sequence must be valid. Returns None if no runs help, if ``should_stop`` returned True, or if the sequence has more
        than ``room`` runs. It also returns None if runs would have to be added more than about ``most_added`` times (None for
        no limit).
        """
        runs = np.zeros(self.room, np.int64)
        count = len(sequence)
        if count > self.room:
            return None
        runs[:count] = sequence
        arrays, chance = (self.graph, self.tables, self.work, self.search_arrays), np.ones(1, np.int64)
        is_done, slices = False, 0
        while not is_done and not should_stop() and (most_added is None or slices * SLICE <= most_added):
            count, is_done = recreate(*arrays, runs, count, limit, chance, SLICE)
            slices += 1
        return runs[:count].tolist() if is_done and count else None

    def recreated(
        self, sequence: Sequence[int], limit: int, seed: int, noise: int, temperature: float, rounds: int
    ) -> list[int]:
        """The sequence, which must be within the limit, after some rounds of :func:`ruin_and_recreate`.

        ``seed`` must be positive. Raises ValueError if the sequence has more than ``room`` runs.
        """
        runs = np.zeros(self.room, np.int64)
        runs[: len(sequence)] = sequence
        chance = np.array([seed], np.int64)
        arrays = self.graph, self.tables, self.work, self.search_arrays
        count = ruin_and_recreate(*arrays, runs, len(sequence), limit, chance, noise, temperature, rounds)
        return list(map(int, runs[:count]))
