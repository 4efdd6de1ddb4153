"""A partial memory-mapping plan that tensors can be put into and taken out of, compiled.

The state holds residencies (slots), a map of fast memory sorted by offset, the queue of copies, and the timeline of the
last replay. Every change keeps the plan valid in all rules but time; :func:`replay` then says what it costs, by playing the
copy queue (``docs/memory-mapping.md``, "Copy engine"). Where stalls are forbidden the queue is played with floor latencies and
a plan that stalls costs :data:`NEVER`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from stowplan.portfolio.compiled import njit
from stowplan.portfolio.memory_mapping.arrays import (
    ACCESS_USE,
    BASE,
    COPY_IN,
    COPY_OUT,
    FAST,
    FLOOR,
    LOW,
    SIZE,
    SLOW,
    STEP_PIECE,
    STEP_TABLE,
    STEP_TABLE_USE,
    STEP_USE,
    TERM,
    WEIGHT,
    Data,
    Ints,
)

#: More than any total; a plan that may not be.
NEVER = 1 << 62

# Columns of State.slots, State.boundaries and State.copies.
TENSOR, FIRST, LAST, SOURCE, START, END, OFFSET, OUT_START, OUT_END, NEXT = range(10)
QUEUE_HEAD, QUEUE_TAIL, DUE = range(3)
AFTER, BEFORE, MOVED_BEGIN, MOVED_END = range(4)
# Sources of a residency.
DEFINED, COPIED, PRELOADED = 0, 1, 2
# Entries of State.counts.
FREE_HEAD, PLACED, TRANSFERS, PRELOADS, TOTAL, COPIES = range(6)
# Offset policies.
FIRST_FIT, BEST_FIT, HIGH_FIT = 0, 1, 2


class State(NamedTuple):
    """Views of one buffer, so that a state is saved and restored by one copy of ``buffer``.

    Copy number ``2 * slot`` is a slot's copy-in, ``2 * slot + 1`` its copy-out.
    """

    slots: Ints
    """[S, 10]: one residency a row."""
    counts: Ints
    """[6]"""
    order: Ints
    """[S]: slots in use, sorted by offset; the first ``counts[PLACED]`` entries count."""
    head: Ints
    """[N]: first slot of each tensor, -1 where it has none."""
    fast: Ints
    """[U]: 1 where a use is fast."""
    duration: Ints
    """[T]: weighted latency of each step."""
    boundaries: Ints
    """[T + 1, 3]: first and last copy queued at each; when the copies that it waits for are complete (scratch)."""
    begins: Ints
    """[T + 1]: when each step begins, as last replayed."""
    copies: Ints
    """[2 S, 4]: next and previous copy in the same bucket; begin and end of the n-th transfer (not copy) of the last replay."""
    free_at: Ints
    """[K]: when each channel is free (scratch)."""


def new_state(data: Data) -> tuple[Ints, State]:
    """Buffer and state with everything in slow memory."""
    slots = len(data.accesses)
    shapes = [
        (slots, 10),
        (6,),
        (slots,),
        (len(data.tensors) - 1,),
        (len(data.use_step),),
        (data.horizon,),
        (data.horizon + 1, 3),
        (data.horizon + 1,),
        (2 * slots, 4),
        (data.channels,),
    ]
    sizes = [int(np.prod(shape)) for shape in shapes]
    buffer = np.zeros(sum(sizes), np.int64)
    parts = np.split(buffer, np.cumsum(sizes)[:-1])
    state = State(*(part.reshape(shape) for part, shape in zip(parts, shapes, strict=True)))
    state.slots[:] = -1
    state.slots[:-1, NEXT] = np.arange(1, slots)
    state.head[:] = -1
    state.boundaries[:, :2] = -1
    _initial_durations(data, state)
    state.counts[TOTAL] = replay(data, state)
    return buffer, state


@njit
def _initial_durations(data: Data, state: State) -> None:
    for step in range(data.horizon):
        state.duration[step] = data.steps[step, WEIGHT] * latency(data, state.fast, step)


@njit
def latency(data: Data, fast: Ints, step: int) -> int:
    """Latency of one run of a step (ps)."""
    first, last = data.steps[step, STEP_USE], data.steps[step + 1, STEP_USE]
    if data.steps[step, STEP_TABLE] >= 0:
        mask = 0
        begin = data.steps[step, STEP_TABLE_USE]
        for bit in range(data.steps[step + 1, STEP_TABLE_USE] - begin):
            if fast[first + data.table_uses[begin + bit]]:
                mask |= 1 << bit
        return int(data.table[data.steps[step, STEP_TABLE] + mask])
    worst = -NEVER
    for piece in range(data.steps[step, STEP_PIECE], data.steps[step + 1, STEP_PIECE]):
        value = data.pieces[piece, BASE]
        term = data.pieces[piece, TERM]
        for use in range(first, last):
            if fast[use]:
                value += data.terms[term + use - first, FAST]
            else:
                value += data.terms[term + use - first, SLOW]
        worst = max(worst, value)
    return worst


@njit
def set_access(data: Data, state: State, access: int, value: int) -> None:
    """Serve all uses of an access from fast (or slow) memory and update the latencies of their steps."""
    for position in range(data.accesses[access, ACCESS_USE], data.accesses[access + 1, ACCESS_USE]):
        use = data.access_uses[position]
        state.fast[use] = value
        step = data.use_step[use]
        state.duration[step] = data.steps[step, WEIGHT] * latency(data, state.fast, step)


@njit
def access_gain(data: Data, state: State, access: int) -> int:
    """What the steps of an access would save were it fast and all else as it is (ps, weighted)."""
    gain = 0
    for position in range(data.accesses[access, ACCESS_USE], data.accesses[access + 1, ACCESS_USE]):
        step = data.use_step[data.access_uses[position]]
        gain += state.duration[step]
    set_access(data, state, access, 1)
    for position in range(data.accesses[access, ACCESS_USE], data.accesses[access + 1, ACCESS_USE]):
        step = data.use_step[data.access_uses[position]]
        gain -= state.duration[step]
    set_access(data, state, access, 0)
    return gain


# ---------------------------------------------------------------------------------------------------------------- time


@njit
def replay(data: Data, state: State) -> int:
    """Play the copy queue; fills ``begins`` and ``moved`` and returns the objective, or NEVER for a forbidden stall."""
    state.boundaries[:, DUE] = 0
    state.free_at[:] = 0
    now = 0
    served = 0
    stall = 0
    total = 0
    for boundary in range(data.horizon + 1):
        if state.boundaries[boundary, DUE] > now:
            stall += state.boundaries[boundary, DUE] - now
            now = state.boundaries[boundary, DUE]
        copy = state.boundaries[boundary, QUEUE_HEAD]
        while copy >= 0:
            slot = copy >> 1
            tensor = state.slots[slot, TENSOR]
            if copy & 1:
                length = data.tensors[tensor, COPY_OUT]
                end_at = state.slots[slot, OUT_END]
            else:
                length = data.tensors[tensor, COPY_IN]
                end_at = data.accesses[state.slots[slot, FIRST], LOW]
            channel = 0
            for other in range(1, data.channels):
                if state.free_at[other] < state.free_at[channel]:
                    channel = other
            begin = max(now, state.free_at[channel])
            state.free_at[channel] = begin + length
            state.copies[served, MOVED_BEGIN] = begin
            state.copies[served, MOVED_END] = begin + length
            served += 1
            state.boundaries[end_at, DUE] = max(state.boundaries[end_at, DUE], begin + length)
            copy = state.copies[copy, AFTER]
        if state.boundaries[boundary, DUE] > now:
            stall += state.boundaries[boundary, DUE] - now
            now = state.boundaries[boundary, DUE]
        state.begins[boundary] = now
        if boundary < data.horizon:
            total += state.duration[boundary]
            now += state.duration[boundary] if data.stalls_allowed else data.steps[boundary, FLOOR]
    state.counts[TRANSFERS] = served
    if data.stalls_allowed:
        return now
    return total if stall == 0 else NEVER


@njit
def step_at(state: State, moment: int) -> int:
    """Latest boundary that has begun at a moment of the last replay."""
    return int(np.searchsorted(state.begins, moment, side="right")) - 1


@njit
def latest_gap(state: State, earliest: int, latest: int, length: int, skip: int) -> int:
    """Latest begin of an idle stretch of the channel within [earliest, latest]; -1 where there is none.

    ``skip`` leaves out that many stretches that would do, to try earlier ones.
    """
    end = latest
    index = state.counts[TRANSFERS] - 1
    while index >= 0 and state.copies[index, MOVED_BEGIN] >= latest:
        index -= 1
    while True:
        floor = earliest
        if index >= 0:
            floor = max(floor, state.copies[index, MOVED_END])
        if end - floor >= length:
            if skip == 0:
                return end - length
            skip -= 1
        if index < 0 or state.copies[index, MOVED_BEGIN] <= earliest:
            return -1
        end = min(end, state.copies[index, MOVED_BEGIN])
        index -= 1


@njit
def earliest_gap(state: State, earliest: int, length: int) -> int:
    """Earliest begin, not before a moment, of an idle stretch of the channel; there always is one."""
    begin = earliest
    served = state.counts[TRANSFERS]
    index = 0
    while index < served and state.copies[index, MOVED_END] <= earliest:
        index += 1
    while index < served:
        if state.copies[index, MOVED_BEGIN] - begin >= length:
            return begin
        begin = max(begin, state.copies[index, MOVED_END])
        index += 1
    return begin


@njit
def queue_copy(state: State, copy: int, boundary: int) -> None:
    """Append a copy to the bucket of a boundary."""
    tail = state.boundaries[boundary, QUEUE_TAIL]
    state.copies[copy, BEFORE] = tail
    state.copies[copy, AFTER] = -1
    if tail >= 0:
        state.copies[tail, AFTER] = copy
    else:
        state.boundaries[boundary, QUEUE_HEAD] = copy
    state.boundaries[boundary, QUEUE_TAIL] = copy
    state.counts[COPIES] += 1


@njit
def unqueue_copy(state: State, copy: int, boundary: int) -> None:
    """Take a copy out of the bucket of a boundary."""
    before, after = state.copies[copy, BEFORE], state.copies[copy, AFTER]
    if before >= 0:
        state.copies[before, AFTER] = after
    else:
        state.boundaries[boundary, QUEUE_HEAD] = after
    if after >= 0:
        state.copies[after, BEFORE] = before
    else:
        state.boundaries[boundary, QUEUE_TAIL] = before
    state.counts[COPIES] -= 1


# --------------------------------------------------------------------------------------------------------------- space


@njit
def find_offset(data: Data, state: State, start: int, end: int, size: int, policy: int) -> int:
    """Offset where ``size`` bytes are free during the steps [start, end); -1 where there is none.

    First fit takes the lowest gap, best fit the tightest, high fit the highest end of the highest.
    """
    best = -1
    best_size = NEVER
    top = 0
    for position in range(state.counts[PLACED] + 1):
        if position < state.counts[PLACED]:
            slot = state.order[position]
            if state.slots[slot, START] >= end or state.slots[slot, END] <= start:
                continue
            bottom = state.slots[slot, OFFSET]
            upper = bottom + data.tensors[state.slots[slot, TENSOR], SIZE]
        else:
            bottom = data.capacity
            upper = data.capacity
        gap = bottom - top
        if gap >= size:
            if policy == FIRST_FIT:
                return top
            if policy == HIGH_FIT:
                best = bottom - size
            elif gap < best_size:
                best = top
                best_size = gap
        top = max(top, upper)
    return best


@njit
def is_free(data: Data, state: State, start: int, end: int, offset: int, size: int, own: int) -> bool:
    """Whether nothing but slot ``own`` stands in ``size`` bytes from an offset during the steps [start, end)."""
    if start >= end:
        return True
    for position in range(state.counts[PLACED]):
        slot = state.order[position]
        bottom = state.slots[slot, OFFSET]
        if bottom >= offset + size:
            return True
        if slot == own or state.slots[slot, START] >= end or state.slots[slot, END] <= start:
            continue
        if bottom + data.tensors[state.slots[slot, TENSOR], SIZE] > offset:
            return False
    return True


@njit
def insert_sorted(state: State, slot: int) -> None:
    """Enter a slot into the map of fast memory."""
    offset = state.slots[slot, OFFSET]
    position = state.counts[PLACED]
    while position > 0 and state.slots[state.order[position - 1], OFFSET] > offset:
        state.order[position] = state.order[position - 1]
        position -= 1
    state.order[position] = slot
    state.counts[PLACED] += 1


@njit
def remove_sorted(state: State, slot: int) -> None:
    """Take a slot out of the map of fast memory."""
    position = 0
    while state.order[position] != slot:
        position += 1
    state.counts[PLACED] -= 1
    for index in range(position, state.counts[PLACED]):
        state.order[index] = state.order[index + 1]


# ---------------------------------------------------------------------------------------------------------- residencies


@njit
def open_slot(data: Data, state: State, tensor: int, access: int, source: int, start: int, end: int, offset: int) -> int:
    """Begin a residency with one fast access; queues its copy-in at ``start`` where it is copied."""
    slot = state.counts[FREE_HEAD]
    state.counts[FREE_HEAD] = state.slots[slot, NEXT]
    state.slots[slot, TENSOR] = tensor
    state.slots[slot, FIRST] = access
    state.slots[slot, LAST] = access
    state.slots[slot, SOURCE] = source
    state.slots[slot, START] = start
    state.slots[slot, END] = end
    state.slots[slot, OFFSET] = offset
    state.slots[slot, OUT_START] = -1
    state.slots[slot, OUT_END] = -1
    state.slots[slot, NEXT] = state.head[tensor]
    state.head[tensor] = slot
    insert_sorted(state, slot)
    if source == COPIED:
        queue_copy(state, 2 * slot, start)
    elif source == PRELOADED:
        state.counts[PRELOADS] += 1
    set_access(data, state, access, 1)
    return int(slot)


@njit
def extend_slot(data: Data, state: State, slot: int, last: int, source: int) -> None:
    """Let a residency just opened serve the accesses up to ``last``, from another source; queues no copy."""
    for access in range(state.slots[slot, FIRST] + 1, last + 1):
        set_access(data, state, access, 1)
    state.slots[slot, LAST] = last
    state.slots[slot, SOURCE] = source
    if source == PRELOADED:
        state.counts[PRELOADS] += 1


@njit
def remove_tensor(data: Data, state: State, tensor: int) -> None:
    """Put all accesses of a tensor back into slow memory; ``counts[TOTAL]`` is left to the caller."""
    slot = state.head[tensor]
    while slot >= 0:
        after = state.slots[slot, NEXT]
        for access in range(state.slots[slot, FIRST], state.slots[slot, LAST] + 1):
            set_access(data, state, access, 0)
        if state.slots[slot, SOURCE] == COPIED:
            unqueue_copy(state, 2 * slot, state.slots[slot, START])
        elif state.slots[slot, SOURCE] == PRELOADED:
            state.counts[PRELOADS] -= 1
        if state.slots[slot, OUT_START] >= 0:
            unqueue_copy(state, 2 * slot + 1, state.slots[slot, OUT_START])
        remove_sorted(state, slot)
        state.slots[slot, TENSOR] = -1
        state.slots[slot, NEXT] = state.counts[FREE_HEAD]
        state.counts[FREE_HEAD] = slot
        slot = after
    state.head[tensor] = -1
