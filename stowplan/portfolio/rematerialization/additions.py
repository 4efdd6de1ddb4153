"""Finds the run that is best added to a sequence, at the moment with most live bytes. Compiled.

Some storages are live at this moment only because they wait for a later use. If the writer of such a storage runs again right
before that use, its bytes are free in between. In return, the values that the writer reads stay live for longer, unless they
are recomputed as well. Of all these possibilities the one is chosen that saves the most bytes above the limit for its cost.
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

#: Number of storages that are tried: those with the largest upper bound on the bytes saved for the cost.
TRIED = 12

#: Numbers of levels of predecessors that are recomputed together with an operator; each of them is tried.
DEPTHS = (0, 1, 3, 8)

#: Largest number of operators that are recomputed together.
CLOSURE = 60


class Tables(NamedTuple):
    """Tables of a structure that the graph does not have; every array is int64."""

    root: Ints
    """[values] the value that has the bytes of each one: itself, or the base of a view."""
    member_start: Ints
    member: Ints
    """The values that share the bytes of each storage, as a list of lists."""
    rank: Ints
    """[operators] place of each one in an order in which they can run."""


class SearchArrays(NamedTuple):
    """Working arrays of the search. Every array is int64 except ``ratio_bound``."""

    ratio_bound: NDArray[np.float64]
    """Upper bound on the bytes saved for the cost, for each of ``ranked``."""
    live: Ints
    """[runs + 1] live bytes of the sequence."""
    trial: Ints
    """A sequence that is tried."""
    other: Ints
    """[runs + 1] live bytes of ``trial``."""
    chosen: Ints
    """The best sequence of a step."""
    draft: Ints
    """The sequence that ruin and recreate changes."""
    before: Ints
    """[storages] last run up to a moment that uses it; -1 if there is none."""
    after: Ints
    """[values] first run from a moment on that needs it, before it is written again; -1 if there is none."""
    recomputed: Ints
    """Operators to run again."""
    level: Ints
    """The level of each of ``recomputed``: 0 for writers of the storage, 1 for writers of what these read, and so on."""
    times: Ints
    """[operators] number of runs."""
    ranked: Ints
    """Storages that wait at a moment."""


def tables(structure: Structure) -> Tables:
    """The tables of a structure."""
    members: list[list[int]] = [[] for _ in structure.size]
    for value, root in enumerate(structure.root):
        members[root].append(value)
    rank = np.zeros(structure.ops, np.int64)
    rank[np.array(structure.order, np.int64)] = np.arange(structure.ops)
    return Tables(np.array(structure.root, np.int64), *lists(members), rank)


def search_arrays(graph: Graph, room: int) -> SearchArrays:
    """Working arrays for sequences of up to ``room`` runs."""
    values, ops = len(graph.size), len(graph.cost)
    sizes = (room + 1, room, room + 1, room, room, values, values, CLOSURE, CLOSURE, ops, values)
    return SearchArrays(np.zeros(values), *(np.zeros(size, np.int64) for size in sizes))


@njit_inner
def _look_ahead(graph: Graph, arrays: SearchArrays, runs: Ints, count: int, begin: int) -> None:
    """Fill ``after`` for the moment before run ``begin``."""
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
def _is_used(tables: Tables, arrays: SearchArrays, root: int) -> bool:
    """Whether a value of the storage is needed after the moment for which ``after`` was filled."""
    for member in range(tables.member_start[root], tables.member_start[root + 1]):
        if arrays.after[tables.member[member]] >= 0:
            return True
    return False


@njit_inner
def _rank(graph: Graph, tables: Tables, arrays: SearchArrays, runs: Ints, count: int, moment: int, limit: int) -> int:
    """Find the storages that wait for a use after run ``moment``, with their ``ratio_bound``; returns their number."""
    before, after, live = arrays.before, arrays.after, arrays.live
    fill(before, len(before), -1)
    for at in range(moment + 1):
        op = runs[at]
        for need in range(graph.need_start[op], graph.need_start[op + 1]):
            before[tables.root[graph.need[need]]] = at
        for write in range(graph.write_start[op], graph.write_start[op + 1]):
            before[tables.root[graph.write[write]]] = at
    _look_ahead(graph, arrays, runs, count, moment + 1)
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
    """Find the operators to run again for a storage and those of its views that are used, in an order in which they can run.

    Up to ``depth`` levels of predecessors are included if nothing else needs their results. Returns the number of operators, 0
    if this is not possible.
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
            if level[at] >= depth or need == root or writer < 0 or graph.once[writer] or _is_used(tables, arrays, need):
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
    """Add the runs that save most for their cost at the moment with most live bytes.

    ``noise`` is the largest random increase of a score, in thousandths. Returns the new number of runs, 0 if nothing helps.
    """
    live = arrays.live
    moment = 0
    for at in range(count):
        if live[at] > live[moment]:
            moment = at
    above = excess(live, count, limit)
    waiting = _rank(graph, tables, arrays, runs, count, moment, limit)
    best, length = 0.0, 0
    for _ in range(min(TRIED, waiting)):
        top = 0
        for number in range(1, waiting):
            if arrays.ratio_bound[number] > arrays.ratio_bound[top]:
                top = number
        root = arrays.ranked[top]
        waiting -= 1
        arrays.ranked[top], arrays.ratio_bound[top] = arrays.ranked[waiting], arrays.ratio_bound[waiting]
        _look_ahead(graph, arrays, runs, count, moment + 1)
        place = count
        for member in range(tables.member_start[root], tables.member_start[root + 1]):
            use = arrays.after[tables.member[member]]
            if use >= 0:
                place = min(place, use)
        _look_ahead(graph, arrays, runs, count, place)
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
