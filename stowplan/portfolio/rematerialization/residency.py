"""What is there while the greedy simulation runs an order, and when it is used next. Compiled."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stowplan.compiled import njit_inner
from stowplan.models.rematerialization.structure import Structure
from stowplan.portfolio.rematerialization.engine import Graph, lists

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

#: Runs of a sequence at most, for each operator.
MOST_RUNS = 8

#: Places of ``State.head``: the limit, the live bytes, the place in the order of the operator that is made ready or runs, how
#: many storages are there, runs, the last stamp, and operators over which what is no checkpoint is kept (-1 for all).
LIMIT, LIVE, NOW, THERE, RUNS, STAMP, REACH = range(7)


class Plain(NamedTuple):
    """What does not change while an order is run. Every array is int64; lists of lists stand as ``(start, items)``."""

    order: Ints
    position: Ints
    """[operators]"""
    until: Ints
    """[operators] place in the order up to which each may run again."""
    root: Ints
    """[values]"""
    member_start: Ints
    member: Ints
    """Values with the bytes of each storage."""
    use_start: Ints
    use: Ints
    """Places in the order where each storage is used, ascending; what stays is used at its end."""
    last_use: Ints
    """[values] place of the last operator that needs it, the order's length where it stays; -1 for none."""
    is_checkpoint: Ints
    """[values]"""
    reserved: Ints
    """[places of the order, and the end] bytes of the limit that something else takes."""


class State(NamedTuple):
    """What is there, and what a step works with. Every array is int64 but ``weights`` and ``score``."""

    weights: Floats
    """Exponents of bytes, time and cost."""
    score: Floats
    head: Ints
    there: Ints
    """[values] 0 or 1; 2 while it is asked what it would cost if it were not there."""
    place: Ints
    """[storages] in ``resident``, -1 where it is not there."""
    resident: Ints
    """Storages that are there, in the first ``head[THERE]`` places."""
    following: Ints
    """[storages] place in ``use`` of the next use."""
    pins: Ints
    """[storages] runs to come for which it must stay."""
    held: Ints
    """[storages] stamp of the last run for which it must stay."""
    protected: Ints
    """[storages] stamp of the last time that something that is gone is computed from it."""
    ranked: Ints
    """Storages that may be evicted."""
    seen: Ints
    """[operators] stamp of the last search that met it."""
    again: Ints
    """Operators that must run again, as a search found them."""
    queue: Ints
    """The same in their order, while they run."""
    stack: Ints
    sequence: Ints


def plain(structure: Structure, order: Sequence[int], checkpoints: Collection[int]) -> Plain:
    """Tables of an order."""
    count, values = len(order), len(structure.size)
    position = np.zeros(structure.ops, np.int64)
    position[np.asarray(order, np.int64)] = np.arange(count)
    at = position.tolist()
    members: list[list[int]] = [[] for _ in range(values)]
    uses: list[list[int]] = [[] for _ in range(values)]
    last = [max((at[op] for op in readers), default=-1) for readers in structure.readers]
    for value, root in enumerate(structure.root):
        members[root].append(value)
        uses[root] += [at[op] for op in structure.readers[value]]
        if structure.kept[value]:
            uses[root].append(count)
            last[value] = count
    until = [at[op] if once else count for op, once in enumerate(structure.once)]
    for first, second in structure.problem.precedences:
        until[first] = min(until[first], at[second])
    is_checkpoint = np.zeros(values, np.int64)
    is_checkpoint[list(checkpoints)] = 1
    return Plain(
        np.array(order, np.int64),
        position,
        np.array(until, np.int64),
        np.array(structure.root, np.int64),
        *lists(members),
        *lists([sorted(positions) for positions in uses]),
        np.array(last, np.int64),
        is_checkpoint,
        _reserved(structure, at),
    )


def _reserved(structure: Structure, position: Sequence[int]) -> Ints:
    """[places of the order, and the end] the largest reservation in force; of those that count live bytes their bytes alone.

    What runs again right before the operator of a place runs behind the one of the place before: that counts, too.
    """
    count = len(position)
    reserved = np.zeros(count + 1, np.int64)
    for row in structure.reservations:
        begin = 0 if row.since is None else position[row.since]
        end = count + 1 if row.until is None else position[row.until] + 1
        reserved[begin:end] = np.maximum(reserved[begin:end], row.size)
    return reserved


def start(graph: Graph, tables: Plain, limit: int, weights: Sequence[float], reach: int) -> State:
    """Before the first operator: inputs are there."""
    values, ops = len(graph.size), len(graph.cost)
    head = np.array([limit, 0, -1, 0, 0, 0, reach], np.int64)
    sizes = (*[values] * 8, *[ops + 1] * 3, values + ops + len(graph.need) + 1, MOST_RUNS * ops + 1)
    state = State(np.array(weights), np.zeros(values), head, *(np.zeros(size, np.int64) for size in sizes))
    state.place[:] = -1
    state.following[:] = tables.use_start[:-1]
    given = np.flatnonzero((graph.writer < 0) & (np.diff(tables.use_start)[tables.root] > 0))
    state.there[given] = 1
    roots = np.unique(tables.root[given])
    state.place[roots], state.resident[: len(roots)] = np.arange(len(roots)), roots
    head[LIVE], head[THERE] = graph.size[roots].sum(), len(roots)
    return state


@njit_inner
def put(graph: Graph, tables: Plain, state: State, value: int) -> None:
    """A value is there from now on."""
    root = tables.root[value]
    state.there[value] = 1
    if state.place[root] < 0:
        state.place[root] = state.head[THERE]
        state.resident[state.head[THERE]] = root
        state.head[THERE] += 1
        state.head[LIVE] += graph.size[root]


@njit_inner
def drop(graph: Graph, tables: Plain, state: State, root: int) -> None:
    """A storage is gone, and its views."""
    for member in range(tables.member_start[root], tables.member_start[root + 1]):
        state.there[tables.member[member]] = 0
    state.head[THERE] -= 1
    moved = state.resident[state.head[THERE]]
    state.resident[state.place[root]] = moved
    state.place[moved] = state.place[root]
    state.place[root] = -1
    state.head[LIVE] -= graph.size[root]


@njit_inner
def next_use(tables: Plain, state: State, root: int) -> int:
    """Place in the order of the next use behind the present one; -1 for none."""
    at = state.following[root]
    while at < tables.use_start[root + 1] and tables.use[at] <= state.head[NOW]:
        at += 1
    state.following[root] = at
    return int(tables.use[at]) if at < tables.use_start[root + 1] else -1
