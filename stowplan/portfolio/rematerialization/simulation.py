"""One step of the greedy simulation (:mod:`stowplan.portfolio.rematerialization.greedy`): running an operator. Compiled.

:mod:`stowplan.portfolio.rematerialization.residency` describes the tables and the state. To *evict* a storage is to remove it
from memory before its last use. A storage that is *pinned* or *held* is needed by a run that follows at once and must not be
evicted. A *protected* storage is needed to recompute another value later. A *stamp* is the number of a search or a run, with
which entries are marked. The functions raise no errors.
"""

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
    OrderTables,
    State,
    add_value,
    evict,
    next_use,
)

#: Largest number of operators whose costs are added up for the cost of recomputing a storage; further operators are ignored, to
#: save time.
CLOSURE = 40

#: The cost of a storage that cannot be recomputed, and a score above all others.
ENDLESS = np.inf


@njit_inner
def _find_recomputed(graph: Graph, tables: OrderTables, state: State, waiting: int, most: int, protect: bool) -> int:
    """Find the operators that must run again to bring the first ``waiting`` values of ``stack`` into memory.

    The search ends at ``most`` operators, which it writes to ``recomputed``. Returns their number, or -1 if one of them may not
    run again or needs an input that is not in memory. If ``protect`` is set, the storages in memory that they read are marked
    as protected.
    """
    stamp = state.head[STAMP] = state.head[STAMP] + 1
    count = 0
    while waiting and count < most:
        waiting -= 1
        value = state.stack[waiting]
        if state.in_memory[value] == 1:
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
        state.recomputed[count] = op
        count += 1
        for need in range(graph.need_start[op], graph.need_start[op + 1]):
            state.stack[waiting] = graph.need[need]
            waiting += 1
    return count


@njit_inner
def _cost_again(graph: Graph, tables: OrderTables, state: State, root: int) -> float:
    """The cost of recomputing the values of a storage if it were evicted; infinite if that is impossible."""
    begin, end = tables.member_start[root], tables.member_start[root + 1]
    evicted = 0
    for number in range(begin, end):
        if state.in_memory[tables.member[number]]:
            state.in_memory[tables.member[number]] = 2
            state.stack[evicted] = tables.member[number]
            evicted += 1
    count = _find_recomputed(graph, tables, state, evicted, CLOSURE, False)
    for number in range(begin, end):
        if state.in_memory[tables.member[number]]:
            state.in_memory[tables.member[number]] = 1
    if count < 0:
        return float(ENDLESS)
    cost = 0
    for number in range(count):
        cost += graph.cost[state.recomputed[number]]
    return float(cost)


@njit_inner
def _protect(graph: Graph, tables: OrderTables, state: State) -> int:
    """Protect the storages from which values that will be needed again are recomputed.

    Returns the stamp that marks them in ``state.protected``, or -1 if some value cannot be recomputed.
    """
    waiting = 0
    for value in range(len(graph.size)):
        writer = graph.writer[value]
        if state.in_memory[value] or (writer >= 0 and tables.position[writer] >= state.head[NOW]):
            continue
        if tables.last_use[value] >= state.head[NOW]:
            state.stack[waiting] = value
            waiting += 1
    count = _find_recomputed(graph, tables, state, waiting, len(graph.cost) + 1, True)
    return -1 if count < 0 else int(state.head[STAMP])


@njit_inner
def _make_room(graph: Graph, tables: OrderTables, state: State, size: int, hold: int) -> bool:
    """Evict storages until ``size`` more bytes fit (``size`` may be negative); returns False if that fails.

    Storages that are pinned or held with the stamp ``hold`` are not evicted. Storages that are never used again are evicted
    first, then those with the largest score of the policy. A storage that cannot be recomputed is evicted only if nothing needs
    it any more.
    """
    head = state.head
    limit = head[LIMIT] - tables.reserved[head[NOW]]
    if head[LIVE] + size <= limit:
        return True
    count, protected = 0, -2
    for at in range(head[THERE]):
        root = state.resident[at]
        if state.pins[root] or state.hold_stamp[root] == hold or not graph.size[root]:
            continue
        next_use_index, cost = next_use(tables, state, root), _cost_again(graph, tables, state, root)
        if cost == ENDLESS:
            if next_use_index >= 0:
                continue
            if protected == -2:
                protected = _protect(graph, tables, state)
            if protected >= 0 and state.protected[root] == protected:
                continue
            score = ENDLESS
        elif next_use_index < 0:
            score = 1e300 / (1.0 + cost)
        else:
            distance = float(max(1, next_use_index - head[NOW]))
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
        # Because of earlier evictions in this loop, it may no longer be possible to recompute this storage, or others may have
        # to be recomputed from it.
        if _cost_again(graph, tables, state, root) == ENDLESS:
            if next_use(tables, state, root) >= 0:
                continue
            protected = _protect(graph, tables, state)
            if protected >= 0 and state.protected[root] == protected:
                continue
        evict(graph, tables, state, root)
    return True


@njit_inner
def _is_reused(tables: OrderTables, state: State, op: int, root: int) -> bool:
    """Whether a result of the operator may take over the bytes of a storage that it reads, because nothing needs the storage
    later. This is never so if the operator runs again."""
    now = state.head[NOW]
    is_last = now < len(tables.order) and op == tables.order[now]
    return bool(is_last and next_use(tables, state, root) < 0)


@njit_inner
def _make_room_for_results(graph: Graph, tables: OrderTables, state: State, op: int) -> bool:
    """Evict storages until the results of an operator fit; returns False if that fails."""
    hold = state.head[STAMP] = state.head[STAMP] + 1
    size = 0
    for need in range(graph.need_start[op], graph.need_start[op + 1]):
        state.hold_stamp[tables.root[graph.need[need]]] = hold
    for write in range(graph.write_start[op], graph.write_start[op + 1]):
        root = tables.root[graph.write[write]]
        if state.place[root] < 0:
            size += graph.size[graph.write[write]]
        state.hold_stamp[root] = hold
    for pair in range(graph.pair_start[op], graph.pair_start[op + 1]):
        root = tables.root[graph.pair[pair]]
        if _is_reused(tables, state, op, root):
            size -= graph.size[root]
    return _make_room(graph, tables, state, size, hold)


@njit_inner
def _run(graph: Graph, tables: OrderTables, state: State, op: int) -> bool:
    """Run an operator and add it to the sequence; returns False if its results do not fit or the sequence is too long.

    The values that it needs must be in memory.
    """
    head = state.head
    if not _make_room_for_results(graph, tables, state, op) or head[RUNS] >= len(state.sequence) - 1:
        return False
    state.sequence[head[RUNS]] = op
    head[RUNS] += 1
    for write in range(graph.write_start[op], graph.write_start[op + 1]):
        value = graph.write[write]
        if graph.parent[value] < 0:
            # Views of the bytes that an earlier run gave to the value have to be recomputed.
            for view in range(tables.member_start[value], tables.member_start[value + 1]):
                state.in_memory[tables.member[view]] = 0
        add_value(graph, tables, state, value)
    protected = -2
    for pair in range(graph.pair_start[op], graph.pair_start[op + 1]):
        root = tables.root[graph.pair[pair]]
        if not _is_reused(tables, state, op, root):
            continue
        if protected == -2:
            protected = _protect(graph, tables, state)
        if state.place[root] >= 0 and not (
            protected >= 0 and state.protected[root] == protected and _cost_again(graph, tables, state, root) == ENDLESS
        ):
            evict(graph, tables, state, root)
        elif head[LIVE] > head[LIMIT] - tables.reserved[head[NOW]]:
            return False
    return True


@njit_inner
def _bring_into_memory(graph: Graph, tables: OrderTables, state: State, waiting: int, last: int) -> bool:
    """Bring the first ``waiting`` values of ``stack`` into memory together, and make space for the results of operator
    ``last``.

    ``last`` is -1 if no operator follows. Returns False if that fails.
    """
    # The values are pinned before the search, because it empties the stack.
    fill(state.pins, len(state.pins), 0)
    for number in range(waiting):
        state.pins[tables.root[state.stack[number]]] = 1
    count = _find_recomputed(graph, tables, state, waiting, len(graph.cost) + 1, False)
    if count < 0:
        return False
    recomputed = state.recomputed
    for number in range(count):
        # There are few operators, so insertion sort is fast.
        at, op = number, recomputed[number]
        while at and tables.position[recomputed[at - 1]] > tables.position[op]:
            recomputed[at] = recomputed[at - 1]
            at -= 1
        recomputed[at] = op
    # The list is copied, because searches during evictions overwrite it.
    for number in range(count):
        state.queue[number] = recomputed[number]
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
    return last < 0 or _make_room_for_results(graph, tables, state, last)


@njit_inner
def _evict_far(graph: Graph, tables: OrderTables, state: State) -> None:
    """Evict the storages that are no checkpoints, are next used beyond the reach of the policy, and can be recomputed."""
    for root in range(len(graph.size)):
        if state.place[root] < 0 or not graph.size[root] or tables.is_checkpoint[root]:
            continue
        next_use_index = next_use(tables, state, root)
        if next_use_index < 0 or next_use_index - state.head[NOW] <= state.head[REACH]:
            continue
        if _cost_again(graph, tables, state, root) != ENDLESS:
            evict(graph, tables, state, root)


@njit
def step(graph: Graph, tables: OrderTables, state: State) -> bool:
    """Run the next operator of the order, after recomputing the values that it needs; returns False if that fails.

    After a failure the state has no meaning. The step after the last operator recomputes the values that are kept until the
    end.
    """
    now = state.head[NOW] = state.head[NOW] + 1
    waiting = 0
    if now == len(tables.order):
        for value in range(len(graph.size)):
            if graph.kept[value]:
                state.stack[waiting] = value
                waiting += 1
        return _bring_into_memory(graph, tables, state, waiting, -1)
    op = tables.order[now]
    for need in range(graph.need_start[op], graph.need_start[op + 1]):
        state.stack[waiting] = graph.need[need]
        waiting += 1
    if not _bring_into_memory(graph, tables, state, waiting, op):
        return False
    fill(state.pins, len(state.pins), 0)
    if not _run(graph, tables, state, op):
        return False
    if state.head[REACH] >= 0:
        _evict_far(graph, tables, state)
    return True
