"""Live bytes of a sequence of runs, and simulated annealing over sequences. Compiled.

A *run* is one execution of an operator. A *value* is a tensor with bytes of its own, or a *view*, which shares the bytes of
another value. A sequence is *valid* if each run comes after runs that compute what it needs, and if it breaks no other rule
about the order of runs; it may exceed the limit. A step of the annealing removes a run, adds one, or moves one to another
place. Simulated annealing (Kirkpatrick et al. 1983) minimizes a weighted sum of the added cost and the bytes above the limit,
so that a sequence may exceed the limit on the way to a better one. The functions check no arguments and raise no errors.
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
    """A structure (:class:`~stowplan.models.rematerialization.structure.Structure`), that is, the graph of a problem, as int64
    arrays. Row i of a list of lists ``x`` is ``x[x_start[i] : x_start[i + 1]]``. Operators and values are given by their
    indices in the structure."""

    need_start: Ints
    """[operators + 1] index of each operator's first entry in ``need``."""
    need: Ints
    """Values that each operator needs."""
    write_start: Ints
    """[operators + 1] index of each operator's first entry in ``write``."""
    write: Ints
    """Values that each operator writes."""
    pair_start: Ints
    """[operators + 1] index of each operator's first entry in ``pair``."""
    pair: Ints
    """Values whose bytes a result of each operator may take over, if no later run needs them (in place)."""
    bar_start: Ints
    """[operators + 1] index of each operator's first entry in ``bar``."""
    bar: Ints
    """For each operator, the operators whose runs must all come before its first run."""
    parent: Ints
    """[values] the value whose bytes a view shares; -1 for a value with bytes of its own."""
    size: Ints
    """[values] size in bytes; 0 for views."""
    writer: Ints
    """[values] the operator that writes the value; -1 for inputs."""
    kept: Ints
    """[values] 1 if the value is kept until the end, otherwise 0."""
    cost: Ints
    """[operators] cost of a run."""
    once: Ints
    """[operators] 1 if the operator may run only once, otherwise 0."""
    reserved: Ints
    """Five numbers for each reservation, one after the other: the fields ``since``, ``until``, ``size``, ``times`` and ``of``
    of :class:`~stowplan.models.rematerialization.problem.Reservation`. A reservation is a number of bytes of the limit that
    something outside of the graph takes between two runs. -1 stands for no operator."""


def build_graph(structure: Structure) -> Graph:
    """The arrays of a structure."""
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
    """Returns a list of lists as two arrays: the index at which each row starts, and all items."""
    start = np.array([0, *itertools.accumulate(len(row) for row in rows)], np.int64)
    return start, np.array([item for row in rows for item in row], np.int64)


class Scratch(NamedTuple):
    """Scratch arrays for replaying a sequence; every array is int64.

    An *instance* is the bytes that one run of an operator gives to a value.
    """

    instance: Ints
    """[values] the number of the current instance of each value; -1 if there is none."""
    size: Ints
    """[instances] size in bytes."""
    begin: Ints
    """[instances] number of the run that makes the instance; 0 for inputs."""
    last: Ints
    """[instances] number of the last run that makes or needs the instance; -1 if no run needs an input, and the number of all
    runs if the instance is kept until the end."""
    ran: Ints
    """[operators] 1 once the operator has run, otherwise 0."""
    barred: Ints
    """[operators] 1 once the operator may not run any more, otherwise 0."""
    operand: Ints
    """Instances whose bytes a result may take over, run by run."""
    reusing_run: Ints
    """Number of the run of each entry of ``operand``."""
    reserved_bytes: Ints
    """[runs] bytes that reservations take."""


def scratch(graph: Graph, room: int) -> Scratch:
    """Allocate scratch arrays for sequences of up to ``room`` runs."""
    writes = int(np.diff(graph.write_start).max(initial=0))
    pairs = int(np.diff(graph.pair_start).max(initial=0))
    values, ops, instances = len(graph.size), len(graph.cost), len(graph.size) + room * writes
    lengths = (values, instances, instances, instances, ops, ops, room * pairs, room * pairs, room)
    return Scratch(*(np.zeros(length, np.int64) for length in lengths))


@njit_inner
def fill(array: Ints, count: int, number: int) -> None:
    """Set the first ``count`` entries of an array to a number."""
    # A loop compiles much faster than an assignment to a slice.
    for at in range(count):
        array[at] = number


@njit_inner
def copy(source: Ints, begin: int, end: int, target: Ints, place: int) -> None:
    """Copy ``source[begin:end]`` to ``target``, from index ``place`` on."""
    for at in range(end - begin):
        target[place + at] = source[begin + at]


@njit
def profile(graph: Graph, work: Scratch, runs: Ints, count: int, live: Ints) -> bool:
    """Replay the sequence ``runs[:count]``; returns whether it is valid.

    If it is, ``live[:count]`` receives the live and reserved bytes during each run; ``live`` has at least ``count + 1``
    entries. If it is not, the content of ``live`` has no meaning.
    """
    instance, size, begin, last, ran, barred, operand, reusing_run, reserved_bytes = work
    fill(last, len(last), -1)
    fill(ran, len(ran), 0)
    fill(barred, len(barred), 0)
    fill(instance, len(instance), -1)
    instances = pairs = 0
    for value in range(len(graph.size)):
        if graph.writer[value] < 0:
            instance[value], size[instances], begin[instances] = instances, graph.size[value], 0
            instances += 1
    input_count = instances
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
            operand[pairs], reusing_run[pairs] = instance[graph.pair[pair]], at
            pairs += 1
        for write in range(graph.write_start[op], graph.write_start[op + 1]):
            value = graph.write[write]
            if graph.parent[value] < 0:
                instance[value], size[instances], begin[instances] = instances, graph.size[value], at
                instances += 1
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
    for number in range(instances):
        if number >= input_count or last[number] >= 0:
            live[begin[number]] += size[number]
            live[min(count, last[number] + 1)] -= size[number]
    for at in range(1, count):
        live[at] += live[at - 1]
    for number in range(pairs):
        # An operand whose bytes a result takes over does not count in addition to the result.
        if last[operand[number]] == reusing_run[number]:
            live[reusing_run[number]] -= size[operand[number]]
    if len(graph.reserved):
        _reserve(graph, runs, count, live, reserved_bytes)
    return True


@njit_inner
def _place(runs: Ints, count: int, op: int) -> int:
    """The number of the first run of an operator; ``count`` if there is none."""
    at = 0
    while at < count and runs[at] != op:
        at += 1
    return at


@njit_inner
def _reserve(graph: Graph, runs: Ints, count: int, live: Ints, reserved_bytes: Ints) -> None:
    """Add to the live bytes of each run the largest of the reservations that are in force during it."""
    fill(reserved_bytes, count, 0)
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
            reserved_bytes[at] = max(reserved_bytes[at], size)
    for at in range(count):
        live[at] += reserved_bytes[at]


@njit_inner
def excess(live: Ints, count: int, limit: int) -> float:
    """The bytes above the limit, summed over the first ``count`` runs; ``live`` has the live bytes of each run."""
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
    schedule: Floats,
    steps: int,
    scratch: Ints,
) -> tuple[int, int, int]:
    """Improve a sequence by simulated annealing.

    Parameters
    ----------
    graph
        The operators and values.
    work
        Scratch arrays for as many runs as ``runs`` has entries.
    runs, count
        The sequence, in the first ``count`` entries, which must be valid; modified. It gets no longer than ``runs``.
    limit
        Limit of the live bytes.
    best, best_cost
        ``best``, as long as ``runs``, receives the cheapest sequence within the limit, if its added cost is less than
        ``best_cost``.
    chance
        [1] state of the random number generator.
    schedule
        [3] temperature at the first step and at the last, in units of cost; and the cost of exceeding the limit by as many
        bytes as it has.
    steps
        Number of changes to try.
    scratch
        Scratch space: three times as many numbers as ``runs`` has entries, two more, and one for each operator.

    Returns
    -------
    (int, int, int)
        The new ``count``; the number of runs in ``best``, 0 if nothing better was found; and the added cost of ``best``, which
        is ``best_cost`` if nothing better was found.
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
    scale = schedule[2] / max(1, limit)
    energy = cost + scale * excess(live, count, limit)
    best_count = 0
    for step in range(steps):
        temperature = schedule[0] * (schedule[1] / schedule[0]) ** (step / steps)
        # Of eight steps, three remove a run, two add one and three move one: one by at most 4 places, two by up to a quarter of
        # the sequence.
        kind = random_below(chance, 8)
        new_count, new_cost = count, cost
        at = random_below(chance, count)
        if kind < 3:
            # Remove a run of an operator that runs several times, near a random place.
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
            # Add a run of an operator, right before a run that needs its result or somewhat earlier.
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
        worst = energy - temperature * np.log((1 + random_below(chance, 1 << 30)) / (1 << 30))
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
