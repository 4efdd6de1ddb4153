"""Opens, extends and closes residencies of the tensor that is being inserted into a partial plan, with their copies. Compiled.

A *residency* is the stay of a tensor in fast memory from one boundary, the moment before a step, to another; its row in a table
is a *slot*. An *access* is all uses of a tensor by one step. :mod:`.state` describes the tables, such as the *map of memory*,
which lists all residencies by offset. After every change the plan is valid, but its *timeline*, the times at which steps begin,
is out of date; :func:`~stowplan.portfolio.memory_mapping.timeline.replay` brings the timeline up to date and returns the
objective. The *open residency* is the one to which the insertion adds accesses (``State.draft``). A ``policy`` chooses among
the free offsets (:func:`.space.find_offset`). The functions check no arguments and raise no errors.
"""

from __future__ import annotations

from stowplan.compiled import njit_inner
from stowplan.portfolio.memory_mapping.arrays import Data
from stowplan.portfolio.memory_mapping.space import offset_for, place, stays_free
from stowplan.portfolio.memory_mapping.state import COPIED, PRELOADED, State
from stowplan.portfolio.memory_mapping.timeline import (
    earliest_gap,
    first_at,
    latest_gap,
    queue_copy,
    replay,
    set_access,
    unqueue_copy,
)


@njit_inner
def open_slot(
    data: Data, state: State, tensor: int, first: int, last: int, source: int, start: int, end: int, offset: int
) -> int:
    """Open a residency that serves the accesses ``first`` to ``last``, and queue its copy-in if it has one; returns its slot.

    The arguments are fields of :class:`~stowplan.portfolio.memory_mapping.state.SlotRow`. The residency is not yet in the map
    of memory. :func:`enter_in_map` enters all residencies of a tensor once they are final.
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
def extend(data: Data, state: State, index: int, end: int, policy: int) -> bool:
    """Extend a residency of the tensor that is being inserted to boundary ``end``, at another offset if necessary.

    Returns False, with nothing changed, if no offset is free.
    """
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
def queue_out(data: Data, state: State, index: int, start: int, end: int) -> None:
    """Queue a copy-out of the residency ``index`` at boundary ``start``, to be complete at boundary ``end``."""
    slot = state.slots[index]
    slot.out_start = start
    slot.out_end = end
    queue_copy(state, 2 * index + 1, start, end, data.tensors[slot.tensor].copy_out)


@njit_inner
def copy_out(data: Data, state: State, limit: int, policy: int) -> bool:
    """Queue a copy-out of the open residency that is complete by boundary ``limit``, and extend the residency to its end.

    Returns False, without a copy, if the tensor may not be copied, or if there is not enough time or space.
    """
    draft = state.draft[0]
    slot = state.slots[draft.slot]
    if not data.tensors[slot.tensor].can_copy:
        return False
    replay(data, state)
    length = data.tensors[slot.tensor].copy_out
    begin = earliest_gap(data, state, draft.written, length)
    # The copy is queued at the last boundary that lets it begin at that time, and is due at the first one after its end.
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
def copy_in(data: Data, state: State, tensor: int, access: int, may_stall: bool, policy: int, skip: int) -> int:
    """Open a residency with a copy-in that is complete when the access begins.

    Returns its slot, or -1 if the tensor may not be copied, or if there is not enough time or space. ``may_stall`` permits
    copies for which the program must wait, if the problem allows stalls. ``skip`` is the number of suitable idle times of the
    channel that are left out, counted back from the access, so that the copy is earlier.
    """
    low, high = data.accesses[access].low, data.accesses[access].high
    valid = max(state.draft[0].valid, state.draft[0].ended, data.accesses[access].released)
    if valid > low or not data.tensors[tensor].can_copy:
        return -1
    replay(data, state)
    length = data.tensors[tensor].copy_in
    begin = latest_gap(state, valid, low, length, skip)
    if begin < 0:
        if not may_stall or not data.stalls_allowed:
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
def enter_in_map(state: State, tensor: int) -> None:
    """Enter the residencies of a tensor into the map of memory, in the order in which they were opened."""
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
def close_residencies(data: Data, state: State, tensor: int) -> None:
    """Close all residencies of a tensor, which are not in the map of memory, so that all of its accesses are slow."""
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
