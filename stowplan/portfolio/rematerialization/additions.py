"""Lowers the peak of a sequence of operators: recomputes one storage instead of keeping it. Compiled by Numba.

The functions check no arguments and raise no errors. A *run* is one execution of an operator. At the run with the most live
bytes, some storages are live only because they *wait* for a later use. If the writer of such a storage runs again right before
that use, its bytes are free in between. In return, the values that the writer reads stay live for longer, unless they are
recomputed as well. :func:`add_best` tries several storages, and several sets of operators to run again for each. It adds the
runs with the best ratio of bytes saved to cost. *Bytes saved* is the decrease of the bytes above the limit, summed over all
runs.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stowplan.compiled import njit_inner
from stowplan.models.rematerialization.structure import Structure
from stowplan.portfolio.random_numbers import random_below
from stowplan.portfolio.rematerialization.engine import Graph, Scratch, copy, excess, fill, lists, profile

Ints = NDArray[np.int64]

#: Largest number of storages that are tried. Those with the largest :attr:`SearchArrays.ratio_bound` are tried, an optimistic
#: estimate of the ratio of bytes saved to cost. This number and the next two limit the time of a search.
TRIED = 12

#: Operators are recomputed together with their predecessors, up to this number of levels; each number is tried.
DEPTHS = (0, 1, 3, 8)

#: Largest number of operators that are recomputed together. Sets with more operators are not tried.
CLOSURE = 60


class Tables(NamedTuple):
    """Arrays (int64) about a problem, in addition to those of :class:`~stowplan.portfolio.rematerialization.engine.Graph`.

    A *storage* is identified by its *root*, the value that is no view.
    """

    root: Ints
    """[values] the root of the storage of each value: the value itself or, for a view, its base."""
    member_start: Ints
    """[values + 1] position in ``member`` of the first value of each storage."""
    member: Ints
    """The values in each storage, that is, its root and all views of it. Those of storage i are
    ``member[member_start[i] : member_start[i + 1]]``; there are none if i is a view."""
    rank: Ints
    """[operators] position of each operator in an order in which they can run."""


class SearchArrays(NamedTuple):
    """Working arrays of the search. Every array is int64 except ``ratio_bound``."""

    ratio_bound: NDArray[np.float64]
    """For each storage of ``ranked``, the bytes that recomputing it saves if nothing else stays live for longer, divided by
    the cost of its writer plus 1."""
    live: Ints
    """[runs + 1] live bytes during each run of the sequence; the last entry is scratch space."""
    trial: Ints
    """A sequence that is tried."""
    other: Ints
    """[runs + 1] live bytes during each run of ``trial``; the last entry is scratch space."""
    chosen: Ints
    """The best sequence that :func:`add_best` has tried."""
    draft: Ints
    """The sequence that ruin and recreate changes."""
    before: Ints
    """[values] for each root, the last use of its storage up to a given run: the number of the last run, no later than the
    given one, that reads or writes the storage; -1 if there is none."""
    after: Ints
    """[values] for each value, its next use from a given run on: the number of the first run, no earlier than the given one,
    that reads it. If no run reads it but it must be kept to the end, this is the number of runs in the sequence. If the
    value is neither read nor kept, or if it is written again before it is read, it has no next use, and the entry is -1."""
    recomputed: Ints
    """Operators to run again."""
    level: Ints
    """The level of each operator of ``recomputed``: 0 for writers of the storage and its views, 1 for writers of the values
    that these read, and so on."""
    times: Ints
    """[operators] number of runs of each operator in a sequence."""
    ranked: Ints
    """Roots of the storages that wait for a use."""


def tables(structure: Structure) -> Tables:
    """Build the additional arrays about a problem, from its structure."""
    members: list[list[int]] = [[] for _ in structure.size]
    for value, root in enumerate(structure.root):
        members[root].append(value)
    rank = np.zeros(structure.ops, np.int64)
    rank[np.array(structure.order, np.int64)] = np.arange(structure.ops)
    return Tables(np.array(structure.root, np.int64), *lists(members), rank)


def search_arrays(graph: Graph, room: int) -> SearchArrays:
    """Allocate working arrays for sequences of up to ``room`` runs."""
    values, ops = len(graph.size), len(graph.cost)
    sizes = (room + 1, room, room + 1, room, room, values, values, CLOSURE, CLOSURE, ops, values)
    return SearchArrays(np.zeros(values), *(np.zeros(size, np.int64) for size in sizes))


@njit_inner
def _find_next_uses(graph: Graph, arrays: SearchArrays, runs: Ints, count: int, begin: int) -> None:
    """Fill ``after`` with the next use of each value in ``runs[begin:count]``."""
    after = arrays.after
    fill(after, len(after), -2)
    for at in range(begin, count):
        op = runs[at]
        for need in range(graph.need_start[op], graph.need_start[op + 1]):
            if after[graph.need[need]] == -2:
                after[graph.need[need]] = at
        for write in range(graph.write_start[op], graph.write_start[op + 1]):
            if after[graph.write[write]] == -2:
                after[graph.write[write]] = -1
    for value in range(len(after)):
        if after[value] == -2:
            after[value] = count if graph.kept[value] else -1


@njit_inner
def _has_next_use(tables: Tables, arrays: SearchArrays, root: int) -> bool:
    """Whether any value of the storage has a next use in ``after``."""
    for member in range(tables.member_start[root], tables.member_start[root + 1]):
        if arrays.after[tables.member[member]] >= 0:
            return True
    return False


@njit_inner
def _find_waiting(graph: Graph, tables: Tables, arrays: SearchArrays, runs: Ints, count: int, moment: int, limit: int) -> int:
    """Fill ``ranked`` and ``ratio_bound`` with the storages that wait during run ``moment``; returns their number.

    They are used before and after this run, but not by it, and their writer may run again. ``live`` must be filled.
    """
    before, after, live = arrays.before, arrays.after, arrays.live
    fill(before, len(before), -1)
    for at in range(moment + 1):
        op = runs[at]
        for need in range(graph.need_start[op], graph.need_start[op + 1]):
            before[tables.root[graph.need[need]]] = at
        for write in range(graph.write_start[op], graph.write_start[op + 1]):
            before[tables.root[graph.write[write]]] = at
    _find_next_uses(graph, arrays, runs, count, moment + 1)
    ranked = 0
    for root in range(len(graph.size)):
        writer = graph.writer[root]
        if before[root] < 0 or before[root] == moment or writer < 0 or graph.once[writer] or not graph.size[root]:
            continue
        if graph.parent[root] >= 0:
            continue
        until = count + 1
        for member in range(tables.member_start[root], tables.member_start[root + 1]):
            use = after[tables.member[member]]
            if use >= 0:
                until = min(until, use)
        if until > count:
            continue
        relief = 0.0
        for at in range(before[root] + 1, until):
            if live[at] > limit:
                relief += min(graph.size[root], live[at] - limit)
        arrays.ranked[ranked] = root
        arrays.ratio_bound[ranked] = relief / (graph.cost[writer] + 1.0)
        ranked += 1
    return ranked


@njit_inner
def _closure(graph: Graph, tables: Tables, arrays: SearchArrays, root: int, depth: int) -> int:
    """Fill ``recomputed`` with the operators that must run again to restore a storage, in an order in which they can run.

    On level 0 are the writer of the storage itself, and the writer of each view of it that has a next use in ``after``. On each
    further level, up to ``depth``, are the writers of the values that operators of the level before read. If such a value is a
    view, the writers of its base, of the base's own base, and so on, are on the same level.

    ``after`` has the next uses from the run before which these operators are inserted. From level 1 on, three kinds of values
    are skipped: those in the storage to restore, those that no operator may write again, and those in a storage with a next use
    in ``after``. In the given sequence, such a storage is in memory at that run anyway.

    Returns the number of operators; 0 if there are more than ``CLOSURE``, or if a writer on level 0 may run only once.
    """
    recomputed, level = arrays.recomputed, arrays.level
    count = 0
    for member in range(tables.member_start[root], tables.member_start[root + 1]):
        value = tables.member[member]
        op = graph.writer[value]
        if (value == root or arrays.after[value] >= 0) and op >= 0:
            is_included = False
            for one in range(count):
                is_included = is_included or recomputed[one] == op
            if not is_included:
                if count == CLOSURE or graph.once[op]:
                    return 0
                recomputed[count], level[count] = op, 0
                count += 1
    at = 0
    while at < count:
        op = recomputed[at]
        for at_need in range(graph.need_start[op], graph.need_start[op + 1]):
            value = graph.need[at_need]
            need = tables.root[value]
            writer = graph.writer[value]
            if level[at] >= depth or need == root or writer < 0 or graph.once[writer] or _has_next_use(tables, arrays, need):
                continue
            while value >= 0:
                writer = graph.writer[value]
                is_included = writer < 0 or graph.once[writer] == 1
                for one in range(count):
                    is_included = is_included or recomputed[one] == writer
                if not is_included:
                    if count == CLOSURE:
                        return 0
                    recomputed[count], level[count] = writer, level[at] + 1
                    count += 1
                value = graph.parent[value]
        at += 1
    for number in range(count):
        at, op = number, recomputed[number]
        while at and tables.rank[recomputed[at - 1]] > tables.rank[op]:
            recomputed[at] = recomputed[at - 1]
            at -= 1
        recomputed[at] = op
    return count


@njit_inner
def add_best(
    graph: Graph,
    tables: Tables,
    work: Scratch,
    arrays: SearchArrays,
    runs: Ints,
    count: int,
    limit: int,
    chance: Ints,
    noise: int,
) -> int:
    """Add to a sequence the runs that recompute one storage and save the most bytes for their cost.

    Storages that wait during the run with the most live bytes are considered.

    Parameters
    ----------
    graph, tables
        The problem as arrays.
    runs, count
        The valid sequence, in the first ``count`` entries of the array. It is replaced by the new one, which is never longer
        than the array. If the result is 0, it is left as it was.
    limit
        Limit of the live bytes.
    chance
        [1] state of the random number generator.
    noise
        Largest random increase of a ratio of bytes saved to cost, in thousandths of the ratio; 0 for none.
    work
        Scratch arrays for replaying a sequence.
    arrays
        Working arrays. ``live`` must have the live bytes of the sequence, as
        :func:`~stowplan.portfolio.rematerialization.engine.profile` computes them.

    Returns
    -------
    int
        The new number of runs; 0 if no added runs lower the bytes above the limit.
    """
    live = arrays.live
    moment = 0
    for at in range(count):
        if live[at] > live[moment]:
            moment = at
    above = excess(live, count, limit)
    waiting = _find_waiting(graph, tables, arrays, runs, count, moment, limit)
    best, length = 0.0, 0
    for _ in range(min(TRIED, waiting)):
        top = 0
        for number in range(1, waiting):
            if arrays.ratio_bound[number] > arrays.ratio_bound[top]:
                top = number
        root = arrays.ranked[top]
        waiting -= 1
        arrays.ranked[top], arrays.ratio_bound[top] = arrays.ranked[waiting], arrays.ratio_bound[waiting]
        _find_next_uses(graph, arrays, runs, count, moment + 1)
        place = count
        for member in range(tables.member_start[root], tables.member_start[root + 1]):
            use = arrays.after[tables.member[member]]
            if use >= 0:
                place = min(place, use)
        _find_next_uses(graph, arrays, runs, count, place)
        last = 0
        for depth in DEPTHS:
            added = _closure(graph, tables, arrays, root, depth)
            if not added or added == last or count + added > len(runs):
                continue
            last = added
            copy(runs, 0, place, arrays.trial, 0)
            copy(arrays.recomputed, 0, added, arrays.trial, place)
            copy(runs, place, count, arrays.trial, place + added)
            if not profile(graph, work, arrays.trial, count + added, arrays.other):
                continue
            saved = above - excess(arrays.other, count + added, limit)
            cost = 0.0
            for number in range(added):
                cost += graph.cost[arrays.recomputed[number]]
            score = saved / (cost + 1e-3) * (1.0 + random_below(chance, 1 + noise) / 1000.0)
            if score > best:
                best, length = score, count + added
                copy(arrays.trial, 0, length, arrays.chosen, 0)
    copy(arrays.chosen, 0, length, runs, 0)
    return length
