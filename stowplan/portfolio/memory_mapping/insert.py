"""Puts one tensor into a partial plan, in one of several ways, and keeps the way that saves most. Compiled."""

from __future__ import annotations

import numpy as np

from stowplan.portfolio.compiled import njit
from stowplan.portfolio.memory_mapping.arrays import (
    ACCESS,
    CAN_COPY,
    COPY_IN,
    COPY_OUT,
    DEFINES,
    DOWN,
    FLAGS,
    HIGH,
    IS_INPUT,
    IS_OUTPUT,
    LOW,
    READS,
    SIZE,
    UNIFORM,
    UP,
    WRITES,
    Data,
    Ints,
)
from stowplan.portfolio.memory_mapping.engine import (
    COPIED,
    DEFINED,
    END,
    FIRST,
    LAST,
    MOVED_BEGIN,
    NEVER,
    NEXT,
    OFFSET,
    OUT_END,
    OUT_START,
    PRELOADED,
    PRELOADS,
    START,
    TENSOR,
    TOTAL,
    TRANSFERS,
    State,
    access_gain,
    earliest_gap,
    find_offset,
    insert_sorted,
    is_free,
    latest_gap,
    open_slot,
    queue_copy,
    remove_sorted,
    remove_tensor,
    replay,
    set_access,
    step_at,
)

# Ways to serve a tensor, combined as bits.
DEFINE = 1
"""Write it to fast memory where it is defined."""
COPY = 2
"""Copy it in before reads that find it in slow memory."""
EAGER = 4
"""Copy it out as soon as it is defined, if slow memory ever needs it, so that dropping it later costs nothing."""
PRELOAD = 8
"""Have it in fast memory before the program starts."""
RELEASE = 16
"""Give the place back between uses that lie far apart."""
STALL = 32
"""Copy in even where the program must wait for it."""


@njit
def extend(data: Data, state: State, slot: int, end: int, policy: int) -> bool:
    """Make a residency last until ``end``, elsewhere in memory if its place is taken."""
    if end <= state.slots[slot, END]:
        return True
    size = data.tensors[state.slots[slot, TENSOR], SIZE]
    if is_free(data, state, state.slots[slot, END], end, state.slots[slot, OFFSET], size, slot):
        state.slots[slot, END] = end
        return True
    remove_sorted(state, slot)
    offset = find_offset(data, state, state.slots[slot, START], end, size, policy)
    if offset >= 0:
        state.slots[slot, OFFSET] = offset
        state.slots[slot, END] = end
    insert_sorted(state, slot)
    return offset >= 0


@njit
def copy_out(data: Data, state: State, slot: int, written: int, limit: int, policy: int) -> bool:
    """Queue a residency's copy-out between boundaries ``written`` and ``limit``; the residency is extended over it."""
    length = data.tensors[state.slots[slot, TENSOR], COPY_OUT]
    begin = earliest_gap(state, state.begins[written], length)
    start = max(written, data.snap[min(step_at(state, begin), data.horizon - 1), DOWN])
    if start >= limit:
        start = written
    if start >= limit:
        return False
    end = np.searchsorted(state.begins, begin + length, side="left")
    end = data.snap[end, UP] if end <= data.horizon else data.horizon + 1
    if end > limit:
        if not data.stalls_allowed:
            return False
        end = limit
    if end <= start:
        end = data.snap[start + 1, UP]
    if end > limit or not extend(data, state, slot, end, policy):
        return False
    state.slots[slot, OUT_START] = start
    state.slots[slot, OUT_END] = end
    queue_copy(state, 2 * slot + 1, start)
    return True


@njit
def copy_in(data: Data, state: State, access: int, tensor: int, valid: int, mode: int, policy: int, skip: int) -> int:
    """Open a residency with a copy that is complete when the access begins; -1 where time or space is short."""
    low = data.accesses[access, LOW]
    if valid > low or not data.tensors[tensor, CAN_COPY]:
        return -1
    length = data.tensors[tensor, COPY_IN]
    begin = latest_gap(state, state.begins[valid], state.begins[low], length, skip)
    if begin >= 0:
        start = data.snap[min(step_at(state, begin), low), DOWN]
    elif mode & STALL and data.stalls_allowed:
        start = data.snap[min(step_at(state, max(state.begins[valid], state.begins[low] - length)), low), DOWN]
    else:
        return -1
    if start >= low and not data.stalls_allowed:
        if low == 0:
            return -1
        start = data.snap[low - 1, DOWN]
    if start < valid:
        return -1
    offset = find_offset(data, state, start, data.accesses[access, HIGH], data.tensors[tensor, SIZE], policy)
    if offset < 0:
        return -1
    return open_slot(data, state, tensor, access, COPIED, start, data.accesses[access, HIGH], offset)


@njit
def insert_tensor(data: Data, state: State, tensor: int, mode: int, policy: int, skip: int) -> bool:
    """Serve a tensor that has no residency in one way; False, and nothing changed, where that cannot be.

    The timeline must be that of the present state. It is replayed between the copies of the tensor; the caller replays once
    more for the total, or brings the old timeline back. ``skip`` takes earlier idle stretches of the channel for copies in.
    """
    size = data.tensors[tensor, SIZE]
    if size > data.capacity:
        return False
    first, last = data.tensors[tensor, ACCESS], data.tensors[tensor + 1, ACCESS]
    valid = 0 if data.tensors[tensor, IS_INPUT] else NEVER
    slot = -1
    dirty = False
    written = 0
    ended = 0
    stale = False
    has_later_write = False
    for access in range(first + 1, last):
        has_later_write = has_later_write or data.accesses[access, FLAGS] & WRITES != 0
    for access in range(first, last):
        low, high, flags = data.accesses[access, LOW], data.accesses[access, HIGH], data.accesses[access, FLAGS]
        if slot >= 0:
            keep = True
            if mode & RELEASE and data.tensors[tensor, CAN_COPY]:
                gap = state.begins[low] - state.begins[state.slots[slot, END]]
                keep = gap < 4 * data.tensors[tensor, COPY_IN]
            if keep and extend(data, state, slot, high, policy):
                state.slots[slot, LAST] = access
                set_access(data, state, access, 1)
                if flags & WRITES:
                    dirty = True
                    written = high
                    valid = NEVER
                continue
            if dirty and valid == NEVER and flags & READS:
                if stale:
                    replay(data, state)
                stale = True
                if not data.tensors[tensor, CAN_COPY] or not copy_out(data, state, slot, written, low, policy):
                    remove_tensor(data, state, tensor)
                    return False
                valid = state.slots[slot, OUT_END]
            ended = state.slots[slot, END]
            slot = -1
            dirty = False
        if flags & DEFINES and mode & DEFINE:
            offset = find_offset(data, state, low, high, size, policy)
            if offset >= 0:
                slot = open_slot(data, state, tensor, access, DEFINED, low, high, offset)
                dirty = True
                written = high
                valid = NEVER
                needed = access + 1 < last or data.tensors[tensor, IS_OUTPUT]
                if mode & EAGER and needed and not has_later_write and data.tensors[tensor, CAN_COPY]:
                    limit = data.accesses[access + 1, LOW] if access + 1 < last else data.horizon
                    if data.tensors[tensor, IS_OUTPUT] or access + 1 >= last:
                        limit = data.horizon
                    if stale:
                        replay(data, state)
                    stale = True
                    if copy_out(data, state, slot, written, limit, policy):
                        valid = state.slots[slot, OUT_END]
                continue
        elif flags & READS and access_gain(data, state, access) > 0:
            if mode & PRELOAD and access == first and data.tensors[tensor, IS_INPUT]:
                if state.counts[PRELOADS] < data.max_preloads:
                    offset = find_offset(data, state, 0, high, size, policy)
                    if offset >= 0:
                        slot = open_slot(data, state, tensor, access, PRELOADED, 0, high, offset)
            elif mode & COPY:
                if stale:
                    replay(data, state)
                stale = True
                slot = copy_in(data, state, access, tensor, max(valid, ended), mode, policy, skip)
            if slot >= 0:
                dirty = flags & WRITES != 0
                if dirty:
                    written = high
                    valid = NEVER
                continue
        if data.tensors[tensor, UNIFORM]:
            remove_tensor(data, state, tensor)
            return False
        if flags & READS and valid > low:
            # A copy-out that ends too late for this read; such a plan would read stale data.
            remove_tensor(data, state, tensor)
            return False
        if flags & WRITES:
            valid = high
    must_leave = slot >= 0 and dirty and valid == NEVER and data.tensors[tensor, IS_OUTPUT]
    if must_leave and stale:
        replay(data, state)
    if must_leave and not copy_out(data, state, slot, written, data.horizon, policy):
        remove_tensor(data, state, tensor)
        return False
    if data.tensors[tensor, UNIFORM] and state.head[tensor] >= 0:
        slot = state.head[tensor]
        if state.slots[slot, NEXT] >= 0 or state.slots[slot, FIRST] != first or state.slots[slot, LAST] != last - 1:
            remove_tensor(data, state, tensor)
            return False
    return bool(state.head[tensor] >= 0)


@njit
def area(data: Data, state: State, tensor: int) -> float:
    """Memory a tensor takes: bytes times picoseconds, over all its residencies."""
    total = 0.0
    slot = state.head[tensor]
    while slot >= 0:
        span = state.begins[state.slots[slot, END]] - state.begins[state.slots[slot, START]]
        total += float(span) * data.tensors[tensor, SIZE]
        slot = state.slots[slot, NEXT]
    return total


@njit
def ways(data: Data, tensor: int, thorough: bool) -> Ints:
    """Modes worth trying for a tensor, most likely first."""
    found = np.zeros(8, np.int64)
    count = 0
    first, last = data.tensors[tensor, ACCESS], data.tensors[tensor + 1, ACCESS]
    if first == last:
        return found[:0]
    several = last - first > 1
    if data.accesses[first, FLAGS] & DEFINES:
        found[count] = DEFINE | COPY
        count += 1
        if several or data.tensors[tensor, IS_OUTPUT]:
            found[count] = DEFINE | COPY | EAGER
            found[count + 1] = DEFINE | COPY | EAGER | RELEASE
            count += 2
        if several and thorough:
            found[count] = COPY
            count += 1
    else:
        found[count] = COPY
        count += 1
        if data.tensors[tensor, IS_INPUT] and data.max_preloads > 0:
            found[count] = PRELOAD | COPY
            count += 1
    if several and thorough:
        found[count] = COPY | RELEASE
        count += 1
        if data.stalls_allowed:
            found[count] = COPY | STALL | (DEFINE if data.accesses[first, FLAGS] & DEFINES else 0)
            count += 1
    return found[:count]


@njit
def insert_best(data: Data, state: State, tensor: int, policy: int, thorough: bool, price: float, skip: int) -> int:
    """Put a tensor in the way that saves most after paying ``price`` (ps for a byte held for a ps); returns the saving (ps).

    ``counts[TOTAL]`` and the timeline are those of the present state before and after.
    """
    base = state.counts[TOTAL]
    best_value = 0.0
    best_mode = -1
    # Bringing the timeline back is cheaper than replaying it.
    begins = state.begins.copy()
    transfers = state.counts[TRANSFERS]
    moved = state.copies[:transfers, MOVED_BEGIN:].copy()
    for mode in ways(data, tensor, thorough):
        if insert_tensor(data, state, tensor, mode, policy, skip):
            total = replay(data, state)
            if total < base:
                value = float(base - total) - price * area(data, state, tensor)
                if value > best_value:
                    best_value = value
                    best_mode = mode
            remove_tensor(data, state, tensor)
        state.begins[:] = begins
        state.copies[:transfers, MOVED_BEGIN:] = moved
        state.counts[TRANSFERS] = transfers
    if best_mode < 0:
        return 0
    insert_tensor(data, state, tensor, best_mode, policy, skip)
    state.counts[TOTAL] = replay(data, state)
    return int(base - state.counts[TOTAL])
