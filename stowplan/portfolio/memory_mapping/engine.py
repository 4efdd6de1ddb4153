"""A partial memory-mapping plan that tensors can be put into and taken out of, compiled.

Every change keeps the plan valid in all rules but time; ``timeline.replay`` then says what it costs.

Copies queued at one boundary are served in the order of their deadlines, which for a single channel is the best order; a
state is therefore the same whatever the order in which its residencies were opened.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from stowplan.compiled import njit_inner, njit_outer, records
from stowplan.portfolio.memory_mapping.arrays import Data, Ints
from stowplan.portfolio.memory_mapping.space import MEMO, ROOM, STRIDE, place, unplace
from stowplan.portfolio.memory_mapping.state import (
    COPIED,
    ENTER,
    NEVER,
    PRELOADED,
    STAY,
    CopyRow,
    Draft,
    MemoRow,
    MomentRow,
    SlotRow,
    State,
    Totals,
)


def new_state(data: Data) -> State:
    """Everything in slow memory."""
    slots = len(data.accesses) - 1
    windows = data.horizon // STRIDE + 1
    state = State(
        slots=records(SlotRow, slots),
        copies=records(CopyRow, 2 * slots),
        order=np.zeros(slots, np.int64),
        crowd=np.zeros(windows, np.int64),
        nearby=np.zeros(windows * ROOM, np.int64),
        moments=records(MomentRow, data.horizon + 1),
        began=np.zeros(data.horizon + 1, np.int64),
        totals=records(Totals, 1),
        draft=records(Draft, 1),
        first_slot=np.full(len(data.tensors) - 1, -1, np.int64),
        fast=np.zeros(len(data.access_uses), np.int64),
        free_at=np.zeros(data.channels, np.int64),
        memo=records(MemoRow, MEMO),
        kept=records(SlotRow, slots),
        permits=np.full(slots, ENTER | STAY, np.int64),
    )
    reset(data, state)
    return state


@njit_outer
def reset(data: Data, state: State) -> None:
    """Fill a state that is all zero, and let its first replay play everything."""
    for index in range(len(state.slots)):
        slot = state.slots[index]
        slot.tensor = -1
        slot.next = index + 1 if index + 1 < len(state.slots) else -1
    totals = state.totals[0]
    for step in range(data.horizon + 1):
        moment = state.moments[step]
        moment.head = -1
        moment.tail = -1
        if step < data.horizon:
            moment.duration = data.steps[step].weight * latency(data, state.fast, step)
            totals.latency += moment.duration
    began = 0
    for step in range(data.horizon + 1):
        moment = state.moments[step]
        moment.idle = 1
        state.began[step] = began
        began += moment.duration if data.stalls_allowed else data.steps[step].floor
    totals.total = totals.latency
    totals.dirty_from = data.horizon + 1
    totals.dirty_to = -1


# ------------------------------------------------------------------------------------------------------------- latency


@njit_inner
def latency(data: Data, fast: Ints, step: int) -> int:
    """Latency of one run of a step (ps)."""
    row, after = data.steps[step], data.steps[step + 1]
    if row.table >= 0:
        mask = 0
        for bit in range(row.table_uses):
            if fast[row.first_use + data.table[row.table_use + bit]]:
                mask |= 1 << bit
        return data.table[row.table + mask]  # type: ignore[no-any-return]
    worst = -NEVER
    term = row.first_term
    while term < after.first_term:
        value = data.terms[term].slow
        for use in range(row.first_use, after.first_use):
            term += 1
            if fast[use]:
                value += data.terms[term].fast
            else:
                value += data.terms[term].slow
        worst = max(worst, value)
        term += 1
    return worst


@njit_inner
def set_access(data: Data, state: State, access: int, value: int) -> None:
    """Serve all uses of an access from fast (or slow) memory and update the latencies of their steps."""
    for position in range(data.accesses[access].first_use, data.accesses[access + 1].first_use):
        state.fast[data.access_uses[position].use] = value
    last = -1
    for position in range(data.accesses[access].first_use, data.accesses[access + 1].first_use):
        step = data.access_uses[position].step
        if step == last:
            continue
        last = step
        moment = state.moments[step]
        change = data.steps[step].weight * latency(data, state.fast, step) - moment.duration
        if change != 0:
            moment.duration += change
            state.totals[0].latency += change
            if data.stalls_allowed:
                touch(state, step)


@njit_inner
def access_gain(data: Data, state: State, access: int) -> int:
    """What the steps of an access in slow memory would save were it fast and all else as it is (ps, weighted)."""
    begin, end = data.accesses[access].first_use, data.accesses[access + 1].first_use
    for position in range(begin, end):
        state.fast[data.access_uses[position].use] = 1
    gain = 0
    last = -1
    for position in range(begin, end):
        step = data.access_uses[position].step
        if step != last:
            gain += state.moments[step].duration - data.steps[step].weight * latency(data, state.fast, step)
        last = step
    for position in range(begin, end):
        state.fast[data.access_uses[position].use] = 0
    return gain


@njit_inner
def joint_gain(data: Data, access: int) -> int:
    """What the steps of an access that have tables would save at most were it fast, whatever others do (ps, weighted)."""
    begin, end = data.accesses[access].first_use, data.accesses[access + 1].first_use
    gain = 0
    last = -1
    for position in range(begin, end):
        step = data.access_uses[position].step
        row = data.steps[step]
        if step == last or row.table < 0:
            continue
        last = step
        subset = 0
        for bit in range(row.table_uses):
            for other in range(position, end):
                if data.access_uses[other].use == row.first_use + data.table[row.table_use + bit]:
                    subset |= 1 << bit
        best = 0
        for mask in range(1 << row.table_uses):
            if mask & subset == 0:
                best = max(best, data.table[row.table + mask] - data.table[row.table + (mask | subset)])
        gain += row.weight * best
    return gain


# -------------------------------------------------------------------------------------------------------------- copies


@njit_inner
def touch(state: State, boundary: int) -> None:
    """Have a boundary and the step after it played again."""
    totals = state.totals[0]
    state.moments[boundary].dirty = 1
    totals.dirty_from = min(totals.dirty_from, boundary)
    totals.dirty_to = max(totals.dirty_to, boundary)


@njit_inner
def queue_copy(state: State, copy: int, boundary: int, due: int, length: int) -> None:
    """Queue a copy at a boundary, by its deadline; copies out go first among equals, then lower tensors."""
    moment, row = state.moments[boundary], state.copies[copy]
    rank = 2 * state.slots[copy >> 1].tensor + 1 - (copy & 1)
    before = moment.tail
    while before >= 0:
        other = state.copies[before]
        if other.due < due or (other.due == due and 2 * state.slots[before >> 1].tensor + 1 - (before & 1) < rank):
            break
        before = other.before
    row.before = before
    row.after = moment.head if before < 0 else state.copies[before].after
    row.due = due
    row.length = length
    if before >= 0:
        state.copies[before].after = copy
    else:
        moment.head = copy
    if row.after >= 0:
        state.copies[row.after].before = copy
    else:
        moment.tail = copy
    touch(state, boundary)


@njit_inner
def unqueue_copy(state: State, copy: int, boundary: int) -> None:
    """Take a copy out of the queue of a boundary."""
    moment, row = state.moments[boundary], state.copies[copy]
    if row.before >= 0:
        state.copies[row.before].after = row.after
    else:
        moment.head = row.after
    if row.after >= 0:
        state.copies[row.after].before = row.before
    else:
        moment.tail = row.before
    touch(state, boundary)


# ---------------------------------------------------------------------------------------------------------- residencies


@njit_inner
def open_slot(
    data: Data, state: State, tensor: int, first: int, last: int, source: int, start: int, end: int, offset: int
) -> int:
    """Begin a residency that serves the accesses ``first`` to ``last``; queues its copy-in where it is copied.

    It is not in the map of memory yet: :func:`settle` enters all of a tensor, once it is clear how it stays.
    """
    totals = state.totals[0]
    index = totals.free
    slot = state.slots[index]
    totals.free = slot.next
    slot.tensor = tensor
    slot.first = first
    slot.last = last
    slot.source = source
    slot.start = start
    slot.end = end
    slot.offset = offset
    slot.bytes = data.tensors[tensor].bytes
    slot.out_start = -1
    slot.out_end = -1
    slot.next = state.first_slot[tensor]
    state.first_slot[tensor] = index
    if source == COPIED:
        queue_copy(state, 2 * index, start, data.accesses[first].low, data.tensors[tensor].copy_in)
    elif source == PRELOADED:
        totals.preloads += 1
    for access in range(first, last + 1):
        set_access(data, state, access, 1)
    return index


@njit_inner
def queue_out(data: Data, state: State, index: int, start: int, end: int) -> None:
    """Give a slot a copy-out."""
    slot = state.slots[index]
    slot.out_start = start
    slot.out_end = end
    queue_copy(state, 2 * index + 1, start, end, data.tensors[slot.tensor].copy_out)


@njit_inner
def remove_tensor(data: Data, state: State, tensor: int) -> None:
    """Put all accesses of a tensor back into slow memory."""
    index = state.first_slot[tensor]
    while index >= 0:
        unplace(state, index)
        index = state.slots[index].next
    take_back(data, state, tensor)


@njit_inner
def settle(state: State, tensor: int) -> None:
    """Enter the residencies of a tensor into the map of memory, the first one first."""
    count = 0
    index = state.first_slot[tensor]
    while index >= 0:
        count += 1
        index = state.slots[index].next
    for later in range(count - 1, -1, -1):
        index = state.first_slot[tensor]
        for _ in range(later):
            index = state.slots[index].next
        place(state, index)


@njit_inner
def take_back(data: Data, state: State, tensor: int) -> None:
    """As :func:`remove_tensor`, for residencies that are not in the map of memory."""
    totals = state.totals[0]
    while state.first_slot[tensor] >= 0:
        index = state.first_slot[tensor]
        slot = state.slots[index]
        for access in range(slot.first, slot.last + 1):
            set_access(data, state, access, 0)
        if slot.source == COPIED:
            unqueue_copy(state, 2 * index, slot.start)
        elif slot.source == PRELOADED:
            totals.preloads -= 1
        if slot.out_start >= 0:
            unqueue_copy(state, 2 * index + 1, slot.out_start)
        state.first_slot[tensor] = slot.next
        slot.tensor = -1
        slot.next = totals.free
        totals.free = index


@njit_inner
def copy_row(source: SlotRow, target: SlotRow) -> None:
    """Note what a residency is, to open it again."""
    target.tensor = source.tensor
    target.first = source.first
    target.last = source.last
    target.source = source.source
    target.start = source.start
    target.end = source.end
    target.offset = source.offset
    target.bytes = source.bytes
    target.out_start = source.out_start
    target.out_end = source.out_end


@njit_inner
def open_rows(data: Data, state: State, rows: Sequence[SlotRow], count: int) -> None:
    """Open residencies again."""
    for position in range(count):
        row = rows[position]
        index = open_slot(data, state, row.tensor, row.first, row.last, row.source, row.start, row.end, row.offset)
        place(state, index)
        if row.out_start >= 0:
            queue_out(data, state, index, row.out_start, row.out_end)
