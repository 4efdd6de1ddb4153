"""State of the greedy simulation: which storages are in memory while an order runs, and when each is used next. Compiled.

:mod:`stowplan.portfolio.rematerialization.greedy` describes the simulation. A *storage* is identified by its *root*, the value
that is no view. Arrays of storages have an entry for each value, and those of views have no meaning. A *place* is a position in
the order of first runs. A *reservation* is a number of bytes of the limit that something outside of the graph takes between two
places. A *checkpoint* is a storage that is kept in memory however far away its next use is. A *stamp* is a number that grows
with every search, so that marks of earlier searches need not be cleared. The functions raise no errors.
"""

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

#: Largest number of runs of a sequence, in multiples of the number of operators. A simulation that needs more is given up.
MOST_RUNS = 8

#: Indices of ``State.head``, in this order: the limit and the live bytes; the place of the operator that is prepared or runs;
#: the number of storages in memory; the number of runs; the last stamp; and the largest distance, in operators, over which
#: storages that are no checkpoints are kept (-1 for any distance).
LIMIT, LIVE, NOW, THERE, RUNS, STAMP, REACH = range(7)


class OrderTables(NamedTuple):
    """Tables of an order that do not change while it runs.

    Every array is int64. Row i of a list of lists ``x`` is ``x[x_start[i] : x_start[i + 1]]``.
    """

    order: Ints
    """The operators in the order in which they run for the first time."""
    position: Ints
    """[operators] place of each operator."""
    until: Ints
    """[operators] place up to which each operator may run again: its own place if it may run only once, and the place of an
    operator that must come after all of its runs. Otherwise it is the length of the order."""
    root: Ints
    """[values] the root of the storage of each value: the value itself or, for a view, its base."""
    member_start: Ints
    """[values + 1] index of each storage's first entry in ``member``."""
    member: Ints
    """The values in each storage."""
    use_start: Ints
    """[values + 1] index of each storage's first entry in ``use``."""
    use: Ints
    """The places at which each storage is used, ascending. A storage that is kept is also used at the end."""
    last_use: Ints
    """[values] place of the last operator that needs the value; the length of the order if the value is kept, and -1 if no
    operator needs it."""
    is_checkpoint: Ints
    """[values] 1 for checkpoints, which are kept over any distance; otherwise 0."""
    reserved: Ints
    """[operators + 1] bytes that are reserved while the operator at each place runs, and at the end."""


class State(NamedTuple):
    """The state of the simulation and its working arrays. Every array is int64 except ``weights`` and ``score``."""

    weights: Floats
    """[3] exponents of bytes, time and cost in the score of a storage
    (:class:`stowplan.portfolio.rematerialization.greedy.Policy`)."""
    score: Floats
    """[values] scores of the storages in ``ranked``; the storage with the largest score is evicted first."""
    head: Ints
    """[7] numbers of the state, with the indices :data:`LIMIT` and so on."""
    in_memory: Ints
    """[values] 1 if the value is in memory, otherwise 0; temporarily 2 while the cost of recomputing it is determined."""
    place: Ints
    """[values] index of each storage in ``resident``; -1 if it is not in memory."""
    resident: Ints
    """[values] storages in memory, in the first ``head[THERE]`` entries."""
    next_use_index: Ints
    """[values] index in ``use`` of the next use of each storage."""
    pins: Ints
    """[values] number of coming runs for which each storage must stay in memory."""
    hold_stamp: Ints
    """[values] stamp of the last run for which each storage must stay in memory."""
    protected: Ints
    """[values] stamp of the last search in which a value that is not in memory would be recomputed from each storage."""
    ranked: Ints
    """[values] storages that may be evicted."""
    seen: Ints
    """[operators + 1] stamp of the last search that visited each operator."""
    recomputed: Ints
    """[operators + 1] operators that must run again, in the order in which a search found them."""
    queue: Ints
    """[operators + 1] the same operators in the order in which they run."""
    stack: Ints
    """Values that a search still has to visit."""
    sequence: Ints
    """The operators of the runs so far."""


def order_tables(structure: Structure, order: Sequence[int], checkpoints: Collection[int]) -> OrderTables:
    """Build the tables of an order; ``checkpoints`` has the storages that are kept over any distance."""
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
    return OrderTables(
        np.array(order, np.int64),
        position,
        np.array(until, np.int64),
        np.array(structure.root, np.int64),
        *lists(members),
        *lists([sorted(positions) for positions in uses]),
        np.array(last, np.int64),
        is_checkpoint,
        _largest_reservations(structure, at),
    )


def _largest_reservations(structure: Structure, position: Sequence[int]) -> Ints:
    """[operators + 1] the largest reservation in force at each place of the order, and at the end, in bytes.

    A reservation may also contain a multiple of the live bytes at an operator. This part is not included. A reservation that
    ends with the first run of an operator counts at the place of this operator as well, because operators that run again right
    before it belong to this place.
    """
    count = len(position)
    reserved = np.zeros(count + 1, np.int64)
    for row in structure.reservations:
        begin = 0 if row.since is None else position[row.since]
        end = count + 1 if row.until is None else position[row.until] + 1
        reserved[begin:end] = np.maximum(reserved[begin:end], row.size)
    return reserved


def start(graph: Graph, tables: OrderTables, limit: int, weights: Sequence[float], reach: int) -> State:
    """The state before the first operator, with the inputs in memory."""
    values, ops = len(graph.size), len(graph.cost)
    head = np.array([limit, 0, -1, 0, 0, 0, reach], np.int64)
    sizes = (*[values] * 8, *[ops + 1] * 3, values + ops + len(graph.need) + 1, MOST_RUNS * ops + 1)
    state = State(np.array(weights), np.zeros(values), head, *(np.zeros(size, np.int64) for size in sizes))
    state.place[:] = -1
    state.next_use_index[:] = tables.use_start[:-1]
    given = np.flatnonzero((graph.writer < 0) & (np.diff(tables.use_start)[tables.root] > 0))
    state.in_memory[given] = 1
    roots = np.unique(tables.root[given])
    state.place[roots], state.resident[: len(roots)] = np.arange(len(roots)), roots
    head[LIVE], head[THERE] = graph.size[roots].sum(), len(roots)
    return state


@njit_inner
def add_value(graph: Graph, tables: OrderTables, state: State, value: int) -> None:
    """Mark a value as being in memory, and add the bytes of its storage if it was not in memory before."""
    root = tables.root[value]
    state.in_memory[value] = 1
    if state.place[root] < 0:
        state.place[root] = state.head[THERE]
        state.resident[state.head[THERE]] = root
        state.head[THERE] += 1
        state.head[LIVE] += graph.size[root]


@njit_inner
def evict(graph: Graph, tables: OrderTables, state: State, root: int) -> None:
    """Remove a storage and its views from memory."""
    for member in range(tables.member_start[root], tables.member_start[root + 1]):
        state.in_memory[tables.member[member]] = 0
    state.head[THERE] -= 1
    moved = state.resident[state.head[THERE]]
    state.resident[state.place[root]] = moved
    state.place[moved] = state.place[root]
    state.place[root] = -1
    state.head[LIVE] -= graph.size[root]


@njit_inner
def next_use(tables: OrderTables, state: State, root: int) -> int:
    """The place of the next use of a storage after the current operator; -1 if there is none."""
    at = state.next_use_index[root]
    while at < tables.use_start[root + 1] and tables.use[at] <= state.head[NOW]:
        at += 1
    state.next_use_index[root] = at
    return int(tables.use[at]) if at < tables.use_start[root + 1] else -1
