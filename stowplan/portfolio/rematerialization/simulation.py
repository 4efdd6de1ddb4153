"""The greedy simulation (:mod:`stowplan.portfolio.rematerialization.greedy`), operator by operator. Compiled."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stowplan.compiled import njit, njit_inner
from stowplan.models.rematerialization.structure import Structure
from stowplan.portfolio.rematerialization.engine import Graph, fill, lists

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

#: Operators looked at for the cost of having a value again.
CLOSURE = 40

#: Runs of a sequence at most, for each operator.
MOST_RUNS = 8

#: Costs and scores that are infinite.
ENDLESS = np.inf

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
    last = [max((at[op] for op in each), default=-1) for each in structure.readers]
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
        *lists([sorted(each) for each in uses]),
        np.array(last, np.int64),
        is_checkpoint,
    )


def start(graph: Graph, tables: Plain, limit: int, weights: Sequence[float], reach: int) -> State:
    """Before the first operator: inputs are there."""
    values, ops = len(graph.size), len(graph.cost)
    head = np.array([limit, 0, -1, 0, 0, 0, reach], np.int64)
    sizes = (*[values] * 8, *[ops + 1] * 3, values + ops + len(graph.need) + 1, MOST_RUNS * ops + 1)
    state = State(np.array(weights), np.zeros(values), head, *(np.zeros(each, np.int64) for each in sizes))
    state.place[:] = -1
    state.following[:] = tables.use_start[:-1]
    given = np.flatnonzero((graph.writer < 0) & (np.diff(tables.use_start)[tables.root] > 0))
    state.there[given] = 1
    roots = np.unique(tables.root[given])
    state.place[roots], state.resident[: len(roots)] = np.arange(len(roots)), roots
    head[LIVE], head[THERE] = graph.size[roots].sum(), len(roots)
    return state


@njit_inner
def _put(graph: Graph, tables: Plain, state: State, value: int) -> None:
    root = tables.root[value]
    state.there[value] = 1
    if state.place[root] < 0:
        state.place[root] = state.head[THERE]
        state.resident[state.head[THERE]] = root
        state.head[THERE] += 1
        state.head[LIVE] += graph.size[root]


@njit_inner
def _drop(graph: Graph, tables: Plain, state: State, root: int) -> None:
    for each in range(tables.member_start[root], tables.member_start[root + 1]):
        state.there[tables.member[each]] = 0
    state.head[THERE] -= 1
    moved = state.resident[state.head[THERE]]
    state.resident[state.place[root]] = moved
    state.place[moved] = state.place[root]
    state.place[root] = -1
    state.head[LIVE] -= graph.size[root]


@njit_inner
def _next_use(tables: Plain, state: State, root: int) -> int:
    """Place in the order of the next use behind the present one; -1 for none."""
    at = state.following[root]
    while at < tables.use_start[root + 1] and tables.use[at] <= state.head[NOW]:
        at += 1
    state.following[root] = at
    return int(tables.use[at]) if at < tables.use_start[root + 1] else -1


@njit_inner
def _search(graph: Graph, tables: Plain, state: State, waiting: int, most: int, protect: bool) -> int:
    """Operators that must run again to have the first ``waiting`` values of ``stack``: how many, of which up to ``most``.

    -1 where one may not, or reads an input that is gone. ``protect`` marks the storages that are there and that they read.
    """
    stamp = state.head[STAMP] = state.head[STAMP] + 1
    found = 0
    while waiting and found < most:
        waiting -= 1
        value = state.stack[waiting]
        if state.there[value] == 1:
            if protect:
                state.protected[tables.root[value]] = stamp
            continue
        op = graph.writer[value]
        if op < 0:
            return -1
        if state.seen[op] == stamp:
            continue
        if tables.until[op] < state.head[NOW]:
            return -1
        state.seen[op] = stamp
        state.again[found] = op
        found += 1
        for each in range(graph.need_start[op], graph.need_start[op + 1]):
            state.stack[waiting] = graph.need[each]
            waiting += 1
    return found


@njit_inner
def _cost_again(graph: Graph, tables: Plain, state: State, root: int) -> float:
    """Cost of having what is needed of a storage again, were it gone; infinite where that cannot be."""
    begin, end = tables.member_start[root], tables.member_start[root + 1]
    gone = 0
    for each in range(begin, end):
        if state.there[tables.member[each]]:
            state.there[tables.member[each]] = 2
            state.stack[gone] = tables.member[each]
            gone += 1
    found = _search(graph, tables, state, gone, CLOSURE, False)
    for each in range(begin, end):
        if state.there[tables.member[each]]:
            state.there[tables.member[each]] = 1
    if found < 0:
        return float(ENDLESS)
    cost = 0
    for each in range(found):
        cost += graph.cost[state.again[each]]
    return float(cost)


@njit_inner
def _protect(graph: Graph, tables: Plain, state: State) -> int:
    """Mark storages from which what is gone and will be needed is computed again: the stamp, -1 where it cannot be."""
    waiting = 0
    for value in range(len(graph.size)):
        writer = graph.writer[value]
        if state.there[value] or (writer >= 0 and tables.position[writer] >= state.head[NOW]):
            continue
        if tables.last_use[value] >= state.head[NOW]:
            state.stack[waiting] = value
            waiting += 1
    found = _search(graph, tables, state, waiting, len(graph.cost) + 1, True)
    return -1 if found < 0 else int(state.head[STAMP])


@njit_inner
def _make_room(graph: Graph, tables: Plain, state: State, size: int, hold: int) -> bool:
    """Evict until so many bytes fit, but nothing pinned or with the stamp ``hold``; False where that fails."""
    head = state.head
    if head[LIVE] + size <= head[LIMIT]:
        return True
    count, protected = 0, -2
    for at in range(head[THERE]):
        root = state.resident[at]
        if state.pins[root] or state.held[root] == hold or not graph.size[root]:
            continue
        following, cost = _next_use(tables, state, root), _cost_again(graph, tables, state, root)
        if cost == ENDLESS:
            if following >= 0:
                continue
            if protected == -2:
                protected = _protect(graph, tables, state)
            if protected >= 0 and state.protected[root] == protected:
                continue
            score = ENDLESS
        elif following < 0:
            score = 1e300 / (1.0 + cost)
        else:
            distance = float(max(1, following - head[NOW]))
            weights = state.weights
            score = float(graph.size[root]) ** weights[0] * distance ** weights[1] / (1.0 + cost) ** weights[2]
        state.score[count], state.ranked[count] = score, root
        count += 1
    while head[LIVE] + size > head[LIMIT]:
        if not count:
            return False
        best = 0
        for at in range(1, count):
            if state.score[at] > state.score[best] or (
                state.score[at] == state.score[best] and state.ranked[at] < state.ranked[best]
            ):
                best = at
        root = state.ranked[best]
        count -= 1
        state.score[best], state.ranked[best] = state.score[count], state.ranked[count]
        # What is evicted makes others dearer, or protects them: those are looked at again.
        if _cost_again(graph, tables, state, root) == ENDLESS:
            if _next_use(tables, state, root) >= 0:
                continue
            protected = _protect(graph, tables, state)
            if protected >= 0 and state.protected[root] == protected:
                continue
        _drop(graph, tables, state, root)
    return True


@njit_inner
def _is_taken(tables: Plain, state: State, op: int, root: int) -> bool:
    """Whether a result of the operator takes the bytes of a storage that it reads, since no one needs them any more."""
    now = state.head[NOW]
    is_last = now < len(tables.order) and op == tables.order[now]
    return bool(is_last and _next_use(tables, state, root) < 0)


@njit_inner
def _fit(graph: Graph, tables: Plain, state: State, op: int) -> bool:
    """Make room for what an operator writes."""
    hold = state.head[STAMP] = state.head[STAMP] + 1
    size = 0
    for each in range(graph.need_start[op], graph.need_start[op + 1]):
        state.held[tables.root[graph.need[each]]] = hold
    for each in range(graph.write_start[op], graph.write_start[op + 1]):
        root = tables.root[graph.write[each]]
        if state.place[root] < 0:
            size += graph.size[graph.write[each]]
        state.held[root] = hold
    for each in range(graph.pair_start[op], graph.pair_start[op + 1]):
        root = tables.root[graph.pair[each]]
        if _is_taken(tables, state, op, root):
            size -= graph.size[root]
    return _make_room(graph, tables, state, size, hold)


@njit_inner
def _run(graph: Graph, tables: Plain, state: State, op: int) -> bool:
    head = state.head
    if not _fit(graph, tables, state, op) or head[RUNS] >= len(state.sequence) - 1:
        return False
    state.sequence[head[RUNS]] = op
    head[RUNS] += 1
    for each in range(graph.write_start[op], graph.write_start[op + 1]):
        value = graph.write[each]
        if graph.parent[value] < 0:
            # Views of the instance before have to be made again.
            for view in range(tables.member_start[value], tables.member_start[value + 1]):
                state.there[tables.member[view]] = 0
        _put(graph, tables, state, value)
    protected = -2
    for each in range(graph.pair_start[op], graph.pair_start[op + 1]):
        root = tables.root[graph.pair[each]]
        if not _is_taken(tables, state, op, root):
            continue
        if protected == -2:
            protected = _protect(graph, tables, state)
        if state.place[root] >= 0 and not (
            protected >= 0 and state.protected[root] == protected and _cost_again(graph, tables, state, root) == ENDLESS
        ):
            _drop(graph, tables, state, root)
        elif head[LIVE] > head[LIMIT]:
            return False
    return True


@njit_inner
def _reach(graph: Graph, tables: Plain, state: State, waiting: int, last: int) -> bool:
    """Have the first ``waiting`` values of ``stack`` there at once, with room for what ``last`` writes (-1 for nothing)."""
    # The search takes the stack down; the values themselves are pinned first.
    fill(state.pins, len(state.pins), 0)
    for each in range(waiting):
        state.pins[tables.root[state.stack[each]]] = 1
    found = _search(graph, tables, state, waiting, len(graph.cost) + 1, False)
    if found < 0:
        return False
    again = state.again
    for each in range(found):
        # By insertion: there are few.
        at, op = each, again[each]
        while at and tables.position[again[at - 1]] > tables.position[op]:
            again[at] = again[at - 1]
            at -= 1
        again[at] = op
    # Searches for what to evict use the list, too.
    for each in range(found):
        state.queue[each] = again[each]
    for each in range(found):
        op = state.queue[each]
        for one in range(graph.need_start[op], graph.need_start[op + 1]):
            state.pins[tables.root[graph.need[one]]] += 1
    if last >= 0:
        for one in range(graph.need_start[last], graph.need_start[last + 1]):
            state.pins[tables.root[graph.need[one]]] += 1
    for each in range(found):
        op = state.queue[each]
        if not _run(graph, tables, state, op):
            return False
        for one in range(graph.need_start[op], graph.need_start[op + 1]):
            state.pins[tables.root[graph.need[one]]] -= 1
    return last < 0 or _fit(graph, tables, state, last)


@njit_inner
def _drop_far(graph: Graph, tables: Plain, state: State) -> None:
    for root in range(len(graph.size)):
        if state.place[root] < 0 or not graph.size[root] or tables.is_checkpoint[root]:
            continue
        following = _next_use(tables, state, root)
        if following < 0 or following - state.head[NOW] <= state.head[REACH]:
            continue
        if _cost_again(graph, tables, state, root) != ENDLESS:
            _drop(graph, tables, state, root)


@njit
def step(graph: Graph, tables: Plain, state: State) -> bool:
    """Run the next operator of the order, and before it what it needs; behind the last, what stays. False where that fails."""
    now = state.head[NOW] = state.head[NOW] + 1
    waiting = 0
    if now == len(tables.order):
        for value in range(len(graph.size)):
            if graph.kept[value]:
                state.stack[waiting] = value
                waiting += 1
        return _reach(graph, tables, state, waiting, -1)
    op = tables.order[now]
    for each in range(graph.need_start[op], graph.need_start[op + 1]):
        state.stack[waiting] = graph.need[each]
        waiting += 1
    if not _reach(graph, tables, state, waiting, op):
        return False
    fill(state.pins, len(state.pins), 0)
    if not _run(graph, tables, state, op):
        return False
    if state.head[REACH] >= 0:
        _drop_far(graph, tables, state)
    return True
