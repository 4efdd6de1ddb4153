"""Puts one tensor into a partial plan, in one of several ways, and keeps the way that saves most. Compiled."""

from __future__ import annotations

from stowplan.compiled import njit_inner, njit_once
from stowplan.portfolio.memory_mapping.arrays import Data
from stowplan.portfolio.memory_mapping.engine import (
    access_gain,
    copy_row,
    open_rows,
    open_slot,
    queue_out,
    set_access,
    settle,
    take_back,
)
from stowplan.portfolio.memory_mapping.space import offset_for, stays_free
from stowplan.portfolio.memory_mapping.state import COPIED, DEFINED, ENTER, NEVER, PRELOADED, STAY, State
from stowplan.portfolio.memory_mapping.timeline import earliest_gap, first_at, latest_gap, replay

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

#: Numbers that :func:`way` takes.
WAYS = 6


@njit_inner
def extend(data: Data, state: State, index: int, end: int, policy: int) -> bool:
    """Make a residency of the tensor being inserted last until ``end``, elsewhere in memory if its place is taken."""
    slot = state.slots[index]
    if end <= slot.end:
        return True
    size = data.tensors[slot.tensor].bytes
    if stays_free(state, slot.end, end, slot.offset, slot.offset + size):
        slot.end = end
        return True
    offset = offset_for(data, state, slot.start, end, size, policy)
    if offset >= 0:
        slot.offset = offset
        slot.end = end
    return offset >= 0


@njit_inner
def copy_out(data: Data, state: State, limit: int, policy: int) -> bool:
    """Save the content of the open residency between the boundary where it is complete and ``limit``."""
    draft = state.draft[0]
    slot = state.slots[draft.slot]
    if not data.tensors[slot.tensor].can_copy:
        return False
    replay(data, state)
    length = data.tensors[slot.tensor].copy_out
    begin = earliest_gap(data, state, draft.written, length)
    # Queued at the last boundary that lets it begin then, and complete at the first by which it is.
    start = max(draft.written, data.steps[min(first_at(data, state, begin + 1) - 1, data.horizon - 1)].down)
    if start >= limit:
        start = draft.written
    if start >= limit:
        return False
    end = first_at(data, state, begin + length)
    end = data.steps[end].up if end <= data.horizon else end
    if end > limit:
        if not data.stalls_allowed:
            return False
        end = limit
    if end <= start:
        end = data.steps[start + 1].up
    if end > limit or not extend(data, state, draft.slot, end, policy):
        return False
    queue_out(data, state, draft.slot, start, end)
    draft.valid = end
    return True


@njit_inner
def copy_in(data: Data, state: State, tensor: int, access: int, mode: int, policy: int, skip: int) -> int:
    """Open a residency with a copy that is complete when the access begins; -1 where time or space is short.

    ``skip`` takes earlier idle times of the channel.
    """
    low, high = data.accesses[access].low, data.accesses[access].high
    valid = max(state.draft[0].valid, state.draft[0].ended)
    if valid > low or not data.tensors[tensor].can_copy:
        return -1
    replay(data, state)
    length = data.tensors[tensor].copy_in
    begin = latest_gap(state, valid, low, length, skip)
    if begin < 0:
        if not mode & STALL or not data.stalls_allowed:
            return -1
        begin = max(state.began[valid], state.began[low] - length)
    start = data.steps[min(first_at(data, state, begin + 1) - 1, low)].down
    if start >= low and not data.stalls_allowed:
        if low == 0:
            return -1
        start = data.steps[low - 1].down
    if start < valid:
        return -1
    offset = offset_for(data, state, start, high, data.tensors[tensor].bytes, policy)
    if offset < 0:
        return -1
    return open_slot(data, state, tensor, access, access, COPIED, start, high, offset)


@njit_inner
def insert_tensor(data: Data, state: State, tensor: int, mode: int, policy: int, skip: int) -> bool:
    """Serve a tensor that has no residency in one way; False, with no residency left, where that cannot be.

    Its residencies are not in the map of memory: they share no step, so they need not see each other there, and most ways are
    taken back. :func:`~stowplan.portfolio.memory_mapping.engine.settle` enters those that stay.
    """
    row = data.tensors[tensor]
    if row.bytes > data.capacity:
        return False
    draft = state.draft[0]
    draft.slot = -1
    draft.written = 0
    draft.unsaved = 0
    draft.valid = 0 if row.is_input else NEVER
    draft.ended = 0
    done = True
    for access in range(row.first_access, data.tensors[tensor + 1].first_access):
        if not done:
            break
        at = data.accesses[access]
        if draft.slot >= 0 and not _stays(data, state, tensor, access, mode, policy):
            done = _leave(data, state, at.reads, at.low, policy)
        if done and draft.slot < 0:
            _enter(data, state, tensor, access, mode, policy, skip)
            if draft.slot < 0:
                # In slow memory, which must have the content by now: a copy-out may end too late.
                done = not row.uniform and not (at.reads and draft.valid > at.low)
                if at.writes:
                    draft.valid = at.high
    if done and draft.slot >= 0:
        done = _leave(data, state, row.is_output, data.horizon, policy)
    if done and row.uniform:
        # One residency for all accesses.
        index = state.first_slot[tensor]
        done = index >= 0 and state.slots[index].first == row.first_access and state.slots[index].next < 0
    if not done:
        take_back(data, state, tensor)
    return done and state.first_slot[tensor] >= 0


@njit_once
def _stays(data: Data, state: State, tensor: int, access: int, mode: int, policy: int) -> bool:
    """Let the open residency serve one more access, if the way wants it and there is room."""
    draft, row = state.draft[0], data.accesses[access]
    if not state.permits[access - 1] & STAY:
        return False
    slot = state.slots[draft.slot]
    if mode & RELEASE and data.tensors[tensor].can_copy:
        gap = state.began[row.low] - state.began[slot.end]
        if gap >= 4 * data.tensors[tensor].copy_in:
            return False
    if not extend(data, state, draft.slot, row.high, policy):
        return False
    slot.last = access
    set_access(data, state, access, 1)
    if row.writes:
        draft.unsaved = 1
        draft.written = row.high
        draft.valid = NEVER
    return True


@njit_inner
def _leave(data: Data, state: State, needed: int, limit: int, policy: int) -> bool:
    """Close the open residency, saving its content where slow memory lacks it and needs it by boundary ``limit``."""
    draft = state.draft[0]
    if needed and draft.unsaved and draft.valid == NEVER and not copy_out(data, state, limit, policy):
        return False
    draft.ended = state.slots[draft.slot].end
    draft.slot = -1
    draft.unsaved = 0
    return True


@njit_once
def _enter(data: Data, state: State, tensor: int, access: int, mode: int, policy: int, skip: int) -> None:
    """Open a residency with an access, if the way wants it and there is room and time."""
    draft, tensor_row, row = state.draft[0], data.tensors[tensor], data.accesses[access]
    if not state.permits[access] & ENTER:
        return
    if row.defines and mode & DEFINE:
        offset = offset_for(data, state, row.low, row.high, tensor_row.bytes, policy)
        if offset >= 0:
            draft.slot = open_slot(data, state, tensor, access, access, DEFINED, row.low, row.high, offset)
    elif row.reads and (draft.bold or access_gain(data, state, access) > 0):
        if mode & PRELOAD and access == tensor_row.first_access and tensor_row.is_input:
            if state.totals[0].preloads < data.max_preloads:
                offset = offset_for(data, state, 0, row.high, tensor_row.bytes, policy)
                if offset >= 0:
                    draft.slot = open_slot(data, state, tensor, access, access, PRELOADED, 0, row.high, offset)
        elif mode & COPY:
            draft.slot = copy_in(data, state, tensor, access, mode, policy, skip)
    if draft.slot >= 0 and row.writes:
        draft.unsaved = 1
        draft.written = row.high
        draft.valid = NEVER
        if mode & EAGER and row.defines:
            _save_early(data, state, tensor, access, policy)


@njit_once
def _save_early(data: Data, state: State, tensor: int, access: int, policy: int) -> None:
    """Copy out what an access has just defined, if slow memory ever needs it and nothing writes it again."""
    last = data.tensors[tensor + 1].first_access - 1
    for later in range(access + 1, last + 1):
        if data.accesses[later].writes:
            return
    if data.tensors[tensor].is_output:
        copy_out(data, state, data.horizon, policy)
    elif access < last:
        copy_out(data, state, data.accesses[access + 1].low, policy)


@njit_once
def way(data: Data, tensor: int, number: int, thorough: bool) -> int:
    """Ways worth trying for a tensor, most likely first, by number from 0 to ``WAYS - 1``; -1 for one not worth it."""
    row = data.tensors[tensor]
    several = data.tensors[tensor + 1].first_access - row.first_access > 1
    defines = data.accesses[row.first_access].defines
    if number == 0:
        return DEFINE | COPY if defines else COPY
    if number == 1:
        if defines:
            return DEFINE | COPY | EAGER if several or row.is_output else -1
        return PRELOAD | COPY if row.is_input and data.max_preloads > 0 else -1
    if number == 2:
        return DEFINE | COPY | EAGER | RELEASE if defines and several else -1
    if not several or not thorough:
        return -1
    if number == 3:
        return COPY if defines else -1
    if number == 4:
        return COPY | RELEASE
    if not data.stalls_allowed:
        return -1
    return DEFINE | COPY | STALL if defines else COPY | STALL


@njit_inner
def insert_best(data: Data, state: State, tensor: int, policy: int, thorough: bool, loss: int, skip: int) -> int:
    """Put a tensor in the way that saves most, if it loses less than ``loss`` (ps); returns the saving (ps).

    Where fast memory can hurt, two tensors may save something only together, and each alone costs. The timeline is up to date
    before and after.
    """
    base = state.totals[0].total
    state.totals[0].insertions += 1
    state.draft[0].bold = loss > 0
    least = base + loss
    best = -1
    is_in = False
    count = 0
    for number in range(WAYS):
        mode = way(data, tensor, number, thorough)
        if mode < 0:
            continue
        if is_in:
            count = _take_out(data, state, tensor)
            is_in = False
        if insert_tensor(data, state, tensor, mode, policy, skip):
            total = replay(data, state)
            if total < least:
                least = total
                best = mode
                is_in = True
            else:
                take_back(data, state, tensor)
    if best >= 0 and best & RELEASE:
        # What this way gives back depends on the timeline that it finds.
        if is_in:
            take_back(data, state, tensor)
        insert_tensor(data, state, tensor, best, policy, skip)
        is_in = True
    if is_in:
        settle(state, tensor)
    elif best >= 0 and not is_in:
        open_rows(data, state, state.kept, count)
    state.draft[0].bold = 0
    return base - replay(data, state)


@njit_once
def _take_out(data: Data, state: State, tensor: int) -> int:
    """Take a tensor out and note its residencies in ``state.kept``, in the order in which they began; returns their number."""
    count = 0
    index = state.first_slot[tensor]
    while index >= 0:
        count += 1
        index = state.slots[index].next
    position = count
    index = state.first_slot[tensor]
    while index >= 0:
        position -= 1
        copy_row(state.slots[index], state.kept[position])
        index = state.slots[index].next
    take_back(data, state, tensor)
    return count
