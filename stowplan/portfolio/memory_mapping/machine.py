"""The operations on a partial plan, compiled: inserting tensors into fast memory and removing them.

:mod:`~stowplan.portfolio.memory_mapping.state` describes the tables of a partial plan. A *residency* is the stay of a tensor in
fast memory from one boundary, the moment before a step, to another; its row in a table is a *slot*. An *access* is all uses of
a tensor by one step; it is *fast* if it is served from fast memory. To *insert* a tensor is to open residencies for it. The
*map of memory* lists all residencies by offset. The *timeline* is the times at which steps begin; a *replay* computes it anew,
with the objective. A *copy-out* goes to slow memory. A *stall* is time that the program waits for a copy. Constructive
heuristics and searches use only the functions in ``__all__``. These use three other modules: ``space`` finds free bytes,
``timeline`` simulates steps and copies, and ``residencies`` opens and closes the residencies of a tensor.

:func:`insert_first` and :func:`insert_best` insert a tensor, :func:`remove` removes it. :func:`gain` estimates the time that an
access would save by being fast, and :func:`replay` returns the objective after a change. :func:`note` saves a residency;
:func:`reopen` and :func:`restart` restore saved residencies. :func:`repack` gives all residencies new offsets. The functions
check no arguments and raise no errors.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from stowplan.compiled import njit, njit_inner, njit_once, records
from stowplan.portfolio.memory_mapping.arrays import Data
from stowplan.portfolio.memory_mapping.residencies import (
    close_residencies,
    copy_in,
    copy_out,
    enter_in_map,
    extend,
    open_slot,
    queue_out,
)
from stowplan.portfolio.memory_mapping.space import (
    BEST_FIT,
    FIRST_FIT,
    HIGH_FIT,
    MEMO,
    ROOM,
    STRIDE,
    offset_for,
    place,
    repack,
    unplace,
)
from stowplan.portfolio.memory_mapping.state import (
    DEFINED,
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
from stowplan.portfolio.memory_mapping.timeline import gain, gain_alone, latency, replay, set_access, touch

__all__ = [
    "BEST_FIT",
    "FIRST_FIT",
    "HIGH_FIT",
    "gain",
    "insert_best",
    "insert_first",
    "new_state",
    "note",
    "remove",
    "reopen",
    "repack",
    "replay",
    "restart",
]

# Bits that make up a *way* to serve a tensor from fast memory. The argument ``mode`` of functions is a combination of these
# bits.
DEFINE = 1
"""The tensor is written to fast memory when it is defined."""
COPY = 2
"""The tensor is copied to fast memory before reads, if it is not there."""
EAGER = 4
"""The tensor is copied to slow memory as soon as it is defined, if slow memory ever needs its content. It can then leave fast
memory later at no cost."""
PRELOAD = 8
"""The tensor is in fast memory before the program starts."""
RELEASE = 16
"""The bytes of the tensor are freed between uses that lie far apart."""
STALL = 32
"""The tensor is copied to fast memory even if the program must wait for the copy."""

#: Number of ways that :func:`way` distinguishes.
WAYS = 6


def new_state(data: Data) -> State:
    """A state in which all tensors are in slow memory."""
    slots = len(data.accesses) - 1
    windows = data.horizon // STRIDE + 1
    state = State(
        slots=records(SlotRow, slots),
        copies=records(CopyRow, 2 * slots),
        order=np.zeros(slots, np.int64),
        window_counts=np.zeros(windows, np.int64),
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


@njit
def reset(data: Data, state: State) -> None:
    """Initialize a state that is all zero, and compute its timeline."""
    for index in range(len(state.slots)):
        slot = state.slots[index]
        slot.tensor = -1
        slot.next = index + 1 if index + 1 < len(state.slots) else -1
    for step in range(data.horizon + 1):
        moment = state.moments[step]
        moment.head = -1
        moment.tail = -1
        moment.idle = 1
        touch(state, step)
        if step < data.horizon:
            moment.duration = data.steps[step].weight * latency(data, state.fast, step)
            state.totals[0].latency += moment.duration
    replay(data, state)


# -------------------------------------------------------------------------------------------------------- putting a tensor in


@njit_inner
def insert_tensor(data: Data, state: State, tensor: int, mode: int, policy: int, skip: int) -> bool:
    """Open residencies for a tensor that has none, in the way ``mode``; returns False, with no residency left, if that fails.

    ``policy`` chooses among the free offsets (:func:`.space.find_offset`); ``skip`` makes copies earlier
    (:func:`.residencies.copy_in`). The residencies are not yet in the map of memory, because most ways are undone, and because
    residencies of one tensor share no step. :func:`~stowplan.portfolio.memory_mapping.residencies.enter_in_map` enters the
    residencies that are kept.
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
                # The access is slow. Slow memory must have the content by now, but a copy-out may end too late for that.
                done = not row.uniform and not (at.reads and draft.valid > at.low)
                if at.writes:
                    draft.valid = at.high
    if done and draft.slot >= 0:
        done = _leave(data, state, row.is_output, data.horizon, policy)
    if done and row.uniform:
        # A uniform tensor must be in fast memory throughout or not at all, so it needs one residency for all of its accesses.
        index = state.first_slot[tensor]
        done = index >= 0 and state.slots[index].first == row.first_access and state.slots[index].next < 0
    if not done:
        close_residencies(data, state, tensor)
    return done and state.first_slot[tensor] >= 0


@njit_once
def _stays(data: Data, state: State, tensor: int, access: int, mode: int, policy: int) -> bool:
    """Let the open residency serve one more access, if the way permits it and there is space; returns whether it does."""
    draft, row = state.draft[0], data.accesses[access]
    if not state.permits[access - 1] & STAY:
        return False
    slot = state.slots[draft.slot]
    if mode & RELEASE and data.tensors[tensor].can_copy:
        gap = state.began[row.low] - state.began[slot.end]
        # A gap is long if the tensor could be copied in four times during it (tuned).
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
    """Close the open residency; returns False, with the residency still open, if a copy-out that is needed is not possible.

    If ``needed`` is not 0, slow memory needs the content by boundary ``limit``.
    """
    draft = state.draft[0]
    if needed and draft.unsaved and draft.valid == NEVER and not copy_out(data, state, limit, policy):
        return False
    draft.ended = state.slots[draft.slot].end
    draft.slot = -1
    draft.unsaved = 0
    return True


@njit_once
def _enter(data: Data, state: State, tensor: int, access: int, mode: int, policy: int, skip: int) -> None:
    """Open a residency that begins with an access, if the way permits it and there are space and time.

    Afterwards :attr:`.Draft.slot` is the slot, or -1 if none was opened.
    """
    draft, tensor_row, row = state.draft[0], data.tensors[tensor], data.accesses[access]
    if not state.permits[access] & ENTER:
        return
    if row.defines and mode & DEFINE:
        offset = offset_for(data, state, row.low, row.high, tensor_row.bytes, policy)
        if offset >= 0:
            draft.slot = open_slot(data, state, tensor, access, access, DEFINED, row.low, row.high, offset)
    elif row.reads and (draft.accepts_loss or gain_alone(data, state, access) > 0):
        if mode & PRELOAD and access == tensor_row.first_access and tensor_row.is_input:
            if state.totals[0].preloads < data.max_preloads:
                offset = offset_for(data, state, 0, row.high, tensor_row.bytes, policy)
                if offset >= 0:
                    draft.slot = open_slot(data, state, tensor, access, access, PRELOADED, 0, row.high, offset)
        elif mode & COPY:
            draft.slot = copy_in(data, state, tensor, access, mode & STALL != 0, policy, skip)
    if draft.slot >= 0 and row.writes:
        draft.unsaved = 1
        draft.written = row.high
        draft.valid = NEVER
        if mode & EAGER and row.defines:
            _save_early(data, state, tensor, access, policy)


@njit_once
def _save_early(data: Data, state: State, tensor: int, access: int, policy: int) -> None:
    """Copy out the content that an access has just defined, if slow memory ever needs it and no later access writes it.

    If that is not possible, nothing happens.
    """
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
    """Returns way ``number`` (0 to ``WAYS - 1``, the most promising first) to serve a tensor, as bits; -1 if it is not worth
    trying.

    ``thorough`` permits ways that are rarely the best, numbers 3 and above.
    """
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
def insert_first(data: Data, state: State, tensor: int) -> None:
    """Insert a tensor in the first of two ways that saves time.

    In the first way, the tensor is written to fast memory and copied out at once if slow memory needs its content. In the
    second, it is only copied in before uses, as late as the copy can still be hidden. Offsets are chosen by best fit. If
    neither way saves time, the tensor stays in slow memory.
    """
    base = state.totals[0].total
    state.totals[0].insertions += 1
    for mode in (DEFINE | COPY | EAGER, COPY):
        if insert_tensor(data, state, tensor, mode, BEST_FIT, 0):
            if replay(data, state) < base:
                enter_in_map(state, tensor)
                return
            close_residencies(data, state, tensor)
    replay(data, state)


@njit_inner
def insert_best(data: Data, state: State, tensor: int, policy: int, thorough: bool, loss: int, skip: int) -> int:
    """Insert a tensor in the way that saves most time; returns the saving (ps), which is negative for a loss.

    If no way saves time, the best one is taken if it loses less than ``loss`` (ps). A loss may be worth accepting, because two
    tensors sometimes save time only together, while each alone costs time. If no way is taken, the tensor stays in slow memory
    and the result is 0. ``thorough`` permits ways that are rarely the best. ``policy`` and ``skip`` are as for
    :func:`insert_tensor`. The timeline is up to date before and after.
    """
    base = state.totals[0].total
    state.totals[0].insertions += 1
    state.draft[0].accepts_loss = loss > 0
    least = base + loss
    best = -1
    is_inserted = False
    count = 0
    for number in range(WAYS):
        mode = way(data, tensor, number, thorough)
        if mode < 0:
            continue
        if is_inserted:
            count = _remove_and_save(data, state, tensor)
            is_inserted = False
        if insert_tensor(data, state, tensor, mode, policy, skip):
            total = replay(data, state)
            if total < least:
                least = total
                best = mode
                is_inserted = True
            else:
                close_residencies(data, state, tensor)
    if best >= 0 and best & RELEASE:
        # The residencies of this way depend on the current timeline, so they are found again, not restored.
        if is_inserted:
            close_residencies(data, state, tensor)
        insert_tensor(data, state, tensor, best, policy, skip)
        is_inserted = True
    if is_inserted:
        enter_in_map(state, tensor)
    elif best >= 0 and not is_inserted:
        reopen(data, state, state.kept, count)
    state.draft[0].accepts_loss = 0
    return base - replay(data, state)


@njit_once
def _remove_and_save(data: Data, state: State, tensor: int) -> int:
    """Remove a tensor and save its residencies in ``state.kept``, in the order in which they began; returns their number."""
    count = 0
    index = state.first_slot[tensor]
    while index >= 0:
        count += 1
        index = state.slots[index].next
    position = count
    index = state.first_slot[tensor]
    while index >= 0:
        position -= 1
        note(state.slots[index], state.kept[position])
        index = state.slots[index].next
    close_residencies(data, state, tensor)
    return count


# --------------------------------------------------------------------------------- taking tensors out, and bringing them back


@njit_inner
def remove(data: Data, state: State, tensor: int) -> None:
    """Remove a tensor from fast memory, so that all of its accesses are slow. The timeline is out of date afterwards."""
    index = state.first_slot[tensor]
    while index >= 0:
        unplace(state, index)
        index = state.slots[index].next
    close_residencies(data, state, tensor)


@njit_inner
def note(source: SlotRow, target: SlotRow) -> None:
    """Save a residency in the row ``target``, to open it again later."""
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
def reopen(data: Data, state: State, rows: Sequence[SlotRow], count: int) -> None:
    """Open the first ``count`` saved residencies again, and enter them into the map of memory.

    Their bytes must be free. The timeline is out of date afterwards.
    """
    for position in range(count):
        row = rows[position]
        index = open_slot(data, state, row.tensor, row.first, row.last, row.source, row.start, row.end, row.offset)
        place(state, index)
        if row.out_start >= 0:
            queue_out(data, state, index, row.out_start, row.out_end)


@njit
def restart(data: Data, state: State, rows: Sequence[SlotRow], count: int) -> None:
    """Replace the plan of a state by the plan with the first ``count`` saved residencies, and replay it."""
    while state.totals[0].placed > 0:
        remove(data, state, state.slots[state.order[state.totals[0].placed - 1]].tensor)
    reopen(data, state, rows, count)
    replay(data, state)
