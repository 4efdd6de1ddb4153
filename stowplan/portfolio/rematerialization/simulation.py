"""The greedy simulation (:mod:`stowplan.portfolio.rematerialization.greedy`), operator by operator. Compiled."""

from __future__ import annotations

import numpy as np

from stowplan.compiled import njit, njit_inner
from stowplan.portfolio.rematerialization.engine import Graph, fill
from stowplan.portfolio.rematerialization.residency import (
    LIMIT,
    LIVE,
    NOW,
    REACH,
    RUNS,
    STAMP,
    THERE,
    Plain,
    State,
    drop,
    next_use,
    put,
)

#: Operators looked at for the cost of having a value again.
CLOSURE = 40

#: Costs and scores that are infinite.
ENDLESS = np.inf


@njit_inner
def _search(graph: Graph, tables: Plain, state: State, waiting: int, most: int, protect: bool) -> int:
    """Operators that must run again to have the first ``waiting`` values of ``stack``: how many, of which up to ``most``.

    -1 where one may not, or reads an input that is gone. ``protect`` marks the storages that are there and that they read.
    """
    stamp = state.head[STAMP] = state.head[STAMP] + 1
    count = 0
    while waiting and count < most:
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
        state.again[count] = op
        count += 1
        for need in range(graph.need_start[op], graph.need_start[op + 1]):
            state.stack[waiting] = graph.need[need]
            waiting += 1
    return count


@njit_inner
def _cost_again(graph: Graph, tables: Plain, state: State, root: int) -> float:
    """Cost of having what is needed of a storage again, were it gone; infinite where that cannot be."""
    begin, end = tables.member_start[root], tables.member_start[root + 1]
    gone = 0
    for number in range(begin, end):
        if state.there[tables.member[number]]:
            state.there[tables.member[number]] = 2
            state.stack[gone] = tables.member[number]
            gone += 1
    count = _search(graph, tables, state, gone, CLOSURE, False)
    for number in range(begin, end):
        if state.there[tables.member[number]]:
            state.there[tables.member[number]] = 1
    if count < 0:
        return float(ENDLESS)
    cost = 0
    for number in range(count):
        cost += graph.cost[state.again[number]]
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
    count = _search(graph, tables, state, waiting, len(graph.cost) + 1, True)
    return -1 if count < 0 else int(state.head[STAMP])


@njit_inner
def _make_room(graph: Graph, tables: Plain, state: State, size: int, hold: int) -> bool:
    """Evict until so many bytes fit, but nothing pinned or with the stamp ``hold``; False where that fails."""
    head = state.head
    limit = head[LIMIT] - tables.reserved[head[NOW]]
    if head[LIVE] + size <= limit:
        return True
    count, protected = 0, -2
    for at in range(head[THERE]):
        root = state.resident[at]
        if state.pins[root] or state.held[root] == hold or not graph.size[root]:
            continue
        following, cost = next_use(tables, state, root), _cost_again(graph, tables, state, root)
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
    while head[LIVE] + size > limit:
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
            if next_use(tables, state, root) >= 0:
                continue
            protected = _protect(graph, tables, state)
            if protected >= 0 and state.protected[root] == protected:
                continue
        drop(graph, tables, state, root)
    return True


@njit_inner
def _is_taken(tables: Plain, state: State, op: int, root: int) -> bool:
    """Whether a result of the operator takes the bytes of a storage that it reads, since no one needs them any more."""
    now = state.head[NOW]
    is_last = now < len(tables.order) and op == tables.order[now]
    return bool(is_last and next_use(tables, state, root) < 0)


@njit_inner
def _fit(graph: Graph, tables: Plain, state: State, op: int) -> bool:
    """Make room for what an operator writes."""
    hold = state.head[STAMP] = state.head[STAMP] + 1
    size = 0
    for need in range(graph.need_start[op], graph.need_start[op + 1]):
        state.held[tables.root[graph.need[need]]] = hold
    for write in range(graph.write_start[op], graph.write_start[op + 1]):
        root = tables.root[graph.write[write]]
        if state.place[root] < 0:
            size += graph.size[graph.write[write]]
        state.held[root] = hold
    for pair in range(graph.pair_start[op], graph.pair_start[op + 1]):
        root = tables.root[graph.pair[pair]]
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
    for write in range(graph.write_start[op], graph.write_start[op + 1]):
        value = graph.write[write]
        if graph.parent[value] < 0:
            # Views of the instance before have to be made again.
            for view in range(tables.member_start[value], tables.member_start[value + 1]):
                state.there[tables.member[view]] = 0
        put(graph, tables, state, value)
    protected = -2
    for pair in range(graph.pair_start[op], graph.pair_start[op + 1]):
        root = tables.root[graph.pair[pair]]
        if not _is_taken(tables, state, op, root):
            continue
        if protected == -2:
            protected = _protect(graph, tables, state)
        if state.place[root] >= 0 and not (
            protected >= 0 and state.protected[root] == protected and _cost_again(graph, tables, state, root) == ENDLESS
        ):
            drop(graph, tables, state, root)
        elif head[LIVE] > head[LIMIT] - tables.reserved[head[NOW]]:
            return False
    return True


@njit_inner
def _reach(graph: Graph, tables: Plain, state: State, waiting: int, last: int) -> bool:
    """Have the first ``waiting`` values of ``stack`` there at once, with room for what ``last`` writes (-1 for nothing)."""
    # The search takes the stack down; the values themselves are pinned first.
    fill(state.pins, len(state.pins), 0)
    for number in range(waiting):
        state.pins[tables.root[state.stack[number]]] = 1
    count = _search(graph, tables, state, waiting, len(graph.cost) + 1, False)
    if count < 0:
        return False
    again = state.again
    for number in range(count):
        # By insertion: there are few.
        at, op = number, again[number]
        while at and tables.position[again[at - 1]] > tables.position[op]:
            again[at] = again[at - 1]
            at -= 1
        again[at] = op
    # Searches for what to evict use the list, too.
    for number in range(count):
        state.queue[number] = again[number]
    for number in range(count):
        op = state.queue[number]
        for one in range(graph.need_start[op], graph.need_start[op + 1]):
            state.pins[tables.root[graph.need[one]]] += 1
    if last >= 0:
        for one in range(graph.need_start[last], graph.need_start[last + 1]):
            state.pins[tables.root[graph.need[one]]] += 1
    for number in range(count):
        op = state.queue[number]
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
        following = next_use(tables, state, root)
        if following < 0 or following - state.head[NOW] <= state.head[REACH]:
            continue
        if _cost_again(graph, tables, state, root) != ENDLESS:
            drop(graph, tables, state, root)


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
    for need in range(graph.need_start[op], graph.need_start[op + 1]):
        state.stack[waiting] = graph.need[need]
        waiting += 1
    if not _reach(graph, tables, state, waiting, op):
        return False
    fill(state.pins, len(state.pins), 0)
    if not _run(graph, tables, state, op):
        return False
    if state.head[REACH] >= 0:
        _drop_far(graph, tables, state)
    return True
