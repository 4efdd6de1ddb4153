"""The run to be added to a sequence: that which saves most for what it costs, at the fullest moment. Compiled.

Some storages wait for their next use there. To run the writer of one again, right before that use, frees its bytes over the
gap, and holds what it reads for longer, unless that is computed again, too. Of all these the one with the most bytes above the
limit saved for its cost is taken.
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

#: Storages at one moment that are tried, those that promise most.
TRIED = 12

#: Levels of operators that run again before one that does: each number is tried.
DEPTHS = (0, 1, 3, 8)

#: Operators that run again together, at most.
CLOSURE = 60


class Tables(NamedTuple):
    """Beside the graph; every array is int64."""

    root: Ints
    """[values]"""
    member_start: Ints
    member: Ints
    """Values with the bytes of each storage."""
    rank: Ints
    """[operators] place in an order in which they can run."""


class Desk(NamedTuple):
    """What the search works with. Every array is int64 but ``promise``."""

    promise: NDArray[np.float64]
    """What each of ``ranked`` saves for its cost, at most."""
    live: Ints
    trial: Ints
    other: Ints
    """Live bytes of ``trial``."""
    chosen: Ints
    """The best sequence of a step."""
    draft: Ints
    """What becomes of a sequence."""
    before: Ints
    """[storages] last run before a moment that uses it, -1 where it is not there."""
    after: Ints
    """[values] first run from a moment on that needs it, before it is written again; -1 for none."""
    again: Ints
    """Operators that run again, and the level of each."""
    level: Ints
    times: Ints
    """[operators] runs."""
    ranked: Ints


def tables(structure: Structure) -> Tables:
    """Tables of a structure."""
    members: list[list[int]] = [[] for _ in structure.size]
    for value, root in enumerate(structure.root):
        members[root].append(value)
    rank = np.zeros(structure.ops, np.int64)
    rank[np.array(structure.order, np.int64)] = np.arange(structure.ops)
    return Tables(np.array(structure.root, np.int64), *lists(members), rank)


def desk(graph: Graph, room: int) -> Desk:
    """For sequences of up to ``room`` runs."""
    values, ops = len(graph.size), len(graph.cost)
    sizes = (room + 1, room, room + 1, room, room, values, values, CLOSURE, CLOSURE, ops, values)
    return Desk(np.zeros(values), *(np.zeros(size, np.int64) for size in sizes))


@njit_inner
def _look_ahead(graph: Graph, at_hand: Desk, runs: Ints, count: int, begin: int) -> None:
    """Fill ``after`` for a moment."""
    after = at_hand.after
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
def _is_used(tables: Tables, at_hand: Desk, root: int) -> bool:
    for member in range(tables.member_start[root], tables.member_start[root + 1]):
        if at_hand.after[tables.member[member]] >= 0:
            return True
    return False


@njit_inner
def _rank(graph: Graph, tables: Tables, at_hand: Desk, runs: Ints, count: int, moment: int, limit: int) -> int:
    """Storages that wait at a moment, with what they promise; how many."""
    before, after, live = at_hand.before, at_hand.after, at_hand.live
    fill(before, len(before), -1)
    for at in range(moment + 1):
        op = runs[at]
        for need in range(graph.need_start[op], graph.need_start[op + 1]):
            before[tables.root[graph.need[need]]] = at
        for write in range(graph.write_start[op], graph.write_start[op + 1]):
            before[tables.root[graph.write[write]]] = at
    _look_ahead(graph, at_hand, runs, count, moment + 1)
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
        at_hand.ranked[ranked] = root
        at_hand.promise[ranked] = relief / (graph.cost[writer] + 1.0)
        ranked += 1
    return ranked


@njit_inner
def _closure(graph: Graph, tables: Tables, at_hand: Desk, root: int, depth: int) -> int:
    """Operators that run again to have a storage and its views that are used, sorted; how many, 0 where that cannot be."""
    again, level = at_hand.again, at_hand.level
    count = 0
    for member in range(tables.member_start[root], tables.member_start[root + 1]):
        value = tables.member[member]
        op = graph.writer[value]
        if (value == root or at_hand.after[value] >= 0) and op >= 0:
            known = False
            for one in range(count):
                known = known or again[one] == op
            if not known:
                if count == CLOSURE or graph.once[op]:
                    return 0
                again[count], level[count] = op, 0
                count += 1
    at = 0
    while at < count:
        op = again[at]
        for at_need in range(graph.need_start[op], graph.need_start[op + 1]):
            value = graph.need[at_need]
            need = tables.root[value]
            writer = graph.writer[value]
            if level[at] >= depth or need == root or writer < 0 or graph.once[writer] or _is_used(tables, at_hand, need):
                continue
            while value >= 0:
                writer = graph.writer[value]
                known = writer < 0 or graph.once[writer] == 1
                for one in range(count):
                    known = known or again[one] == writer
                if not known:
                    if count == CLOSURE:
                        return 0
                    again[count], level[count] = writer, level[at] + 1
                    count += 1
                value = graph.parent[value]
        at += 1
    for number in range(count):
        at, op = number, again[number]
        while at and tables.rank[again[at - 1]] > tables.rank[op]:
            again[at] = again[at - 1]
            at -= 1
        again[at] = op
    return count


@njit_inner
def add_best(
    graph: Graph, tables: Tables, work: Scratch, at_hand: Desk, runs: Ints, count: int, limit: int, chance: Ints, noise: int
) -> int:
    """Add what saves most for its cost at the fullest moment; the new number of runs, 0 where nothing helps."""
    live = at_hand.live
    moment = 0
    for at in range(count):
        if live[at] > live[moment]:
            moment = at
    above = excess(live, count, limit)
    waiting = _rank(graph, tables, at_hand, runs, count, moment, limit)
    best, length = 0.0, 0
    for _ in range(min(TRIED, waiting)):
        top = 0
        for number in range(1, waiting):
            if at_hand.promise[number] > at_hand.promise[top]:
                top = number
        root = at_hand.ranked[top]
        waiting -= 1
        at_hand.ranked[top], at_hand.promise[top] = at_hand.ranked[waiting], at_hand.promise[waiting]
        _look_ahead(graph, at_hand, runs, count, moment + 1)
        place = count
        for member in range(tables.member_start[root], tables.member_start[root + 1]):
            use = at_hand.after[tables.member[member]]
            if use >= 0:
                place = min(place, use)
        _look_ahead(graph, at_hand, runs, count, place)
        last = 0
        for depth in DEPTHS:
            added = _closure(graph, tables, at_hand, root, depth)
            if not added or added == last or count + added > len(runs):
                continue
            last = added
            copy(runs, 0, place, at_hand.trial, 0)
            copy(at_hand.again, 0, added, at_hand.trial, place)
            copy(runs, place, count, at_hand.trial, place + added)
            if not profile(graph, work, at_hand.trial, count + added, at_hand.other):
                continue
            saved = above - excess(at_hand.other, count + added, limit)
            cost = 0.0
            for number in range(added):
                cost += graph.cost[at_hand.again[number]]
            score = saved / (cost + 1e-3) * (1.0 + random_below(chance, 1 + noise) / 1000.0)
            if score > best:
                best, length = score, count + added
                copy(at_hand.trial, 0, length, at_hand.chosen, 0)
    copy(at_hand.chosen, 0, length, runs, 0)
    return length
