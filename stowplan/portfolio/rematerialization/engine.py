"""Local search over sequences of runs. Compiled.

A move takes a run away, adds one, or carries one to another place. Simulated annealing (Kirkpatrick et al. 1983) weighs the
added cost and the bytes above the limit, so that a sequence may break the limit on its way to a better one.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stowplan.compiled import njit, njit_inner
from stowplan.models.rematerialization.structure import Structure
from stowplan.portfolio.random_numbers import random_below

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


class Graph(NamedTuple):
    """A structure as arrays; lists of lists stand as ``(start, items)``. Every array is int64."""

    need_start: Ints
    need: Ints
    """Values that each operator needs."""
    write_start: Ints
    write: Ints
    pair_start: Ints
    pair: Ints
    bar_start: Ints
    bar: Ints
    """Operators of which no run may come after one of each."""
    parent: Ints
    """[values]"""
    size: Ints
    """[values]"""
    writer: Ints
    """[values]"""
    kept: Ints
    """[values] 0 or 1."""
    cost: Ints
    """[operators]"""
    once: Ints
    """[operators] 0 or 1."""
    reserved: Ints
    """Of each reservation five numbers: since, until, bytes, times, of; -1 for no operator."""


def make(structure: Structure) -> Graph:
    """Arrays of a structure."""
    barred: list[list[int]] = [[] for _ in range(structure.ops)]
    for first, second in structure.problem.precedences:
        barred[second].append(first)

    rows = (lists(relation) for relation in (structure.needs, structure.writes, structure.pairs, barred))
    single = (structure.parent, structure.size, structure.writer, structure.kept, structure.cost, structure.once)
    reserved = [
        -1 if number is None else number
        for row in structure.reservations
        for number in (row.since, row.until, row.size, row.times, row.of)
    ]
    return Graph(*(array for row in rows for array in row), *(np.array(column, np.int64) for column in (*single, reserved)))


def lists(rows: Sequence[Sequence[int]]) -> tuple[Ints, Ints]:
    """Lists as where each starts, and their items."""
    start = np.array([0, *itertools.accumulate(len(row) for row in rows)], np.int64)
    return start, np.array([item for row in rows for item in row], np.int64)


class Scratch(NamedTuple):
    """What the replay of a sequence works with; its content is of no use afterwards. Every array is int64."""

    instance: Ints
    """[values] of each value at the moment, -1 where it is not there."""
    size: Ints
    """[instances]"""
    begin: Ints
    last: Ints
    ran: Ints
    """[operators]"""
    barred: Ints
    operand: Ints
    """Instances whose place a result may take, run by run."""
    taker: Ints
    """Those runs."""
    beside: Ints
    """[runs] what is reserved."""


def scratch(graph: Graph, room: int) -> Scratch:
    """For sequences of up to ``room`` runs."""
    writes = int(np.diff(graph.write_start).max(initial=0))
    pairs = int(np.diff(graph.pair_start).max(initial=0))
    values, ops, instances = len(graph.size), len(graph.cost), len(graph.size) + room * writes
    lengths = (values, instances, instances, instances, ops, ops, room * pairs, room * pairs, room)
    return Scratch(*(np.zeros(length, np.int64) for length in lengths))


@njit_inner
def fill(array: Ints, count: int, number: int) -> None:
    """Set the first ``count`` entries."""
    # A loop takes far less time to compile than an assignment to a slice.
    for at in range(count):
        array[at] = number


@njit_inner
def copy(source: Ints, begin: int, end: int, target: Ints, place: int) -> None:
    """Copy a range of an array to a place in another."""
    for at in range(end - begin):
        target[place + at] = source[begin + at]


@njit
def profile(graph: Graph, work: Scratch, runs: Ints, count: int, live: Ints) -> bool:
    """Whether each of the first ``count`` runs can run; ``live[:count]`` then has what is live and reserved at each."""
    instance, size, begin, last, ran, barred, operand, taker, beside = work
    fill(last, len(last), -1)
    fill(ran, len(ran), 0)
    fill(barred, len(barred), 0)
    fill(instance, len(instance), -1)
    made = pairs = 0
    for value in range(len(graph.size)):
        if graph.writer[value] < 0:
            instance[value], size[made], begin[made] = made, graph.size[value], 0
            made += 1
    given = made
    for at in range(count):
        op = runs[at]
        if barred[op] or (ran[op] and graph.once[op]):
            return False
        ran[op] = 1
        for bar in range(graph.bar_start[op], graph.bar_start[op + 1]):
            if not ran[graph.bar[bar]]:
                return False
            barred[graph.bar[bar]] = 1
        for need in range(graph.need_start[op], graph.need_start[op + 1]):
            run = instance[graph.need[need]]
            if run < 0:
                return False
            last[run] = at
        for pair in range(graph.pair_start[op], graph.pair_start[op + 1]):
            operand[pairs], taker[pairs] = instance[graph.pair[pair]], at
            pairs += 1
        for write in range(graph.write_start[op], graph.write_start[op + 1]):
            value = graph.write[write]
            if graph.parent[value] < 0:
                instance[value], size[made], begin[made] = made, graph.size[value], at
                made += 1
            else:
                instance[value] = instance[graph.parent[value]]
            last[instance[value]] = at
    for op in range(len(graph.cost)):
        if not ran[op]:
            return False
    for value in range(len(graph.size)):
        if graph.kept[value]:
            last[instance[value]] = count
    fill(live, count + 1, 0)
    for number in range(made):
        if number >= given or last[number] >= 0:
            live[begin[number]] += size[number]
            live[min(count, last[number] + 1)] -= size[number]
    for at in range(1, count):
        live[at] += live[at - 1]
    for number in range(pairs):
        # What a result takes the place of is not counted beside it.
        if last[operand[number]] == taker[number]:
            live[taker[number]] -= size[operand[number]]
    if len(graph.reserved):
        _reserve(graph, runs, count, live, beside)
    return True


@njit_inner
def _place(runs: Ints, count: int, op: int) -> int:
    """Of the run of an operator that runs once; ``count`` where there is none."""
    at = 0
    while at < count and runs[at] != op:
        at += 1
    return at


@njit_inner
def _reserve(graph: Graph, runs: Ints, count: int, live: Ints, beside: Ints) -> None:
    """Add to live bytes the largest of the reservations in force."""
    fill(beside, count, 0)
    for row in range(len(graph.reserved) // 5):
        since, until = graph.reserved[5 * row], graph.reserved[5 * row + 1]
        size, of = graph.reserved[5 * row + 2], graph.reserved[5 * row + 4]
        begin = _place(runs, count, since) if since >= 0 else 0
        end = _place(runs, count, until) if until >= 0 else count
        if since >= 0 and since == until:
            end = min(count, begin + 1)
        if of >= 0:
            size += graph.reserved[5 * row + 3] * live[_place(runs, count, of)]
        for at in range(begin, end):
            beside[at] = max(beside[at], size)
    for at in range(count):
        live[at] += beside[at]


@njit_inner
def excess(live: Ints, count: int, limit: int) -> float:
    """Bytes above the limit, added up over all runs."""
    total = 0.0
    for at in range(count):
        if live[at] > limit:
            total += live[at] - limit
    return total


@njit
def anneal(
    graph: Graph,
    work: Scratch,
    runs: Ints,
    count: int,
    limit: int,
    best: Ints,
    best_cost: int,
    chance: Ints,
    heat: Floats,
    steps: int,
    scratch: Ints,
) -> tuple[int, int, int]:
    """Change a sequence step by step.

    Parameters
    ----------
    work
        For as many runs as ``runs`` has places.
    runs, count
        The sequence, in the first ``count`` places; changed. Its length is the most runs that it may get.
    limit
        Bytes.
    best, best_cost
        The best sequence within the limit so far is written there; and its added cost.
    chance
        State of the random numbers.
    heat
        Temperature at the first step and at the last, and the weight of a limit's worth of bytes above it, in costs.
    scratch
        Room for three times as many numbers as ``runs`` has places, two more, and one for each operator.

    Returns
    -------
    (int, int, int)
        The new ``count``, the length of ``best`` (0 where nothing better was found), and its added cost.
    """
    ops, room = len(graph.cost), len(runs)
    scratch[:] = 0
    live, other, trial = scratch[: room + 1], scratch[room + 1 : 2 * room + 2], scratch[2 * room + 2 : 3 * room + 2]
    times = scratch[3 * room + 2 :]
    cost = 0
    for op in range(ops):
        cost -= graph.cost[op]
    for at in range(count):
        times[runs[at]] += 1
        cost += graph.cost[runs[at]]
    profile(graph, work, runs, count, live)
    scale = heat[2] / max(1, limit)
    energy = cost + scale * excess(live, count, limit)
    best_count = 0
    for step in range(steps):
        warmth = heat[0] * (heat[1] / heat[0]) ** (step / steps)
        kind = random_below(chance, 8)
        new_count, new_cost = count, cost
        at = random_below(chance, count)
        if kind < 3:
            # Without one of several runs of an operator; look for one near a place by chance.
            tries = 0
            while times[runs[at]] < 2 and tries < count:
                at = at + 1 if at + 1 < count else 0
                tries += 1
            if times[runs[at]] < 2:
                continue
            copy(runs, 0, at, trial, 0)
            copy(runs, at + 1, count, trial, at)
            new_count, new_cost = count - 1, cost - graph.cost[runs[at]]
        elif kind < 5:
            # Once more, right before a run that needs it or somewhat earlier.
            op = runs[at]
            needs = graph.need_start[op + 1] - graph.need_start[op]
            if not needs or count >= room:
                continue
            writer = graph.writer[graph.need[graph.need_start[op] + random_below(chance, needs)]]
            if writer < 0 or graph.once[writer]:
                continue
            place = max(0, at - random_below(chance, 4)) if random_below(chance, 2) else at
            copy(runs, 0, place, trial, 0)
            copy(runs, place, count, trial, place + 1)
            trial[place] = writer
            new_count, new_cost = count + 1, cost + graph.cost[writer]
        else:
            reach = 1 + random_below(chance, min(count, 4 if kind == 5 else max(4, count // 4)))
            place = at + reach if random_below(chance, 2) else at - reach
            if place < 0 or place >= count:
                continue
            low, high = min(at, place), max(at, place)
            copy(runs, 0, low, trial, 0)
            copy(runs, high + 1, count, trial, high + 1)
            if place > at:
                copy(runs, low + 1, high + 1, trial, low)
            else:
                copy(runs, low, high, trial, low + 1)
            trial[place] = runs[at]
        worst = energy - warmth * np.log((1 + random_below(chance, 1 << 30)) / (1 << 30))
        if new_cost > worst or not profile(graph, work, trial, new_count, other):
            continue
        above = excess(other, new_count, limit)
        new_energy = new_cost + scale * above
        if new_energy > worst:
            continue
        if new_count < count:
            times[runs[at]] -= 1
        elif new_count > count:
            times[trial[place]] += 1
        copy(trial, 0, new_count, runs, 0)
        count, cost, energy = new_count, new_cost, new_energy
        if above == 0.0 and cost < best_cost:
            copy(runs, 0, count, best, 0)
            best_cost, best_count = cost, count
    return count, best_count, best_cost
