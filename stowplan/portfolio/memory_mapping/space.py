"""The map of fast memory in a partial plan, compiled: which bytes residencies occupy, and where there is space.

A *residency* is the stay of a tensor in fast memory for a range of steps; its row in a table is a *slot*. To *insert* a tensor
is to open residencies for it. The map lists all residencies by offset. Most queries concern a few steps, during which only a
few residencies are live. Therefore *windows*, short ranges of steps, have shorter lists of their own. Window ``w`` covers the
steps ``[w * STRIDE, w * STRIDE + WIDTH)``, so that any ``WIDTH - STRIDE + 1`` consecutive steps lie within some window. A
window with more than ``ROOM`` residencies has no list. :mod:`.state` describes the tables. The functions check no arguments and
raise no errors.
"""

from __future__ import annotations

from collections.abc import Sequence

from stowplan.compiled import njit, njit_inner, njit_once
from stowplan.portfolio.memory_mapping.arrays import Data, Ints
from stowplan.portfolio.memory_mapping.state import NEVER, SlotRow, State

# Policies that choose among the free offsets (:func:`find_offset`).
FIRST_FIT, BEST_FIT, HIGH_FIT = 0, 1, 2

# The next four numbers are tuned for speed; they change no result.
#: Number of steps from the start of one window to the start of the next.
STRIDE = 8
#: Number of steps in a window.
WIDTH = 16
#: Largest number of residencies in the list of a window.
ROOM = 128

#: Number of answers that are cached for the tensor that is being inserted.
MEMO = 128


@njit_inner
def offset_for(data: Data, state: State, start: int, end: int, size: int, policy: int) -> int:
    """The result of :func:`find_offset`, from a cache for the tensor that is being inserted.

    The ways to insert a tensor repeat the same queries, and the map of memory does not change during an insertion. The queries
    of one insertion must have the same ``size`` and ``policy``, which the cache does not compare.
    """
    row = state.memo[(start * 31 + end) % MEMO]
    number = state.totals[0].insertions
    if row.number != number or row.start != start or row.end != end or row.place != -1:
        row.answer = find_offset(data, state, start, end, size, policy)
        row.number = number
        row.start = start
        row.end = end
        row.place = -1
    return row.answer


@njit_inner
def stays_free(state: State, start: int, end: int, bottom: int, top: int) -> bool:
    """The result of :func:`is_free`, from a cache for the tensor that is being inserted; see :func:`offset_for`."""
    row = state.memo[(start * 31 + end + bottom) % MEMO]
    number = state.totals[0].insertions
    if row.number != number or row.start != start or row.end != end or row.place != bottom:
        row.answer = 1 if is_free(state, start, end, bottom, top) else 0
        row.number = number
        row.start = start
        row.end = end
        row.place = bottom
    return row.answer == 1


@njit_inner
def find_offset(data: Data, state: State, start: int, end: int, size: int, policy: int) -> int:
    """An offset at which ``size`` bytes are free during the steps ``[start, end)``; -1 if there is none.

    A *gap* is a free range of bytes. ``policy`` chooses among the gaps that are large enough: ``FIRST_FIT`` takes the lowest,
    ``BEST_FIT`` the smallest, and ``HIGH_FIT`` the upper end of the highest.
    """
    window = _window(state, start, end)
    listed = state.order if window < 0 else state.nearby
    first = 0 if window < 0 else window * ROOM
    last = first + (state.totals[0].placed if window < 0 else state.window_counts[window])
    best = -1
    best_size = NEVER
    top = 0
    for position in range(first, last + 1):
        bottom = data.capacity
        if position < last:
            row = state.slots[listed[position]]
            if row.start >= end or row.end <= start:
                continue
            bottom = row.offset
        gap = bottom - top
        if gap >= size:
            if policy == FIRST_FIT:
                return top
            if policy == HIGH_FIT:
                best = bottom - size
            elif gap < best_size:
                best = top
                best_size = gap
        if position < last:
            row = state.slots[listed[position]]
            top = max(top, row.offset + row.bytes)
    return best


@njit_inner
def is_free(state: State, start: int, end: int, bottom: int, top: int) -> bool:
    """Whether the bytes ``[bottom, top)`` are free during the steps ``[start, end)``."""
    window = _window(state, start, end)
    listed = state.order if window < 0 else state.nearby
    first = 0 if window < 0 else window * ROOM
    last = first + (state.totals[0].placed if window < 0 else state.window_counts[window])
    for position in range(first, last):
        row = state.slots[listed[position]]
        if row.offset >= top:
            break
        if row.offset + row.bytes > bottom and row.start < end and row.end > start:
            return False
    return True


@njit_inner
def place(state: State, index: int) -> None:
    """Enter a slot into the map of memory; its bytes must be free."""
    slot = state.slots[index]
    _insert(state.slots, state.order, 0, state.totals[0].placed, index)
    state.totals[0].placed += 1
    _enter_windows(state, index, max(0, (slot.start - WIDTH) // STRIDE + 1), (slot.end - 1) // STRIDE + 1)


@njit_inner
def unplace(state: State, index: int) -> None:
    """Remove a slot from the map of memory."""
    slot = state.slots[index]
    state.totals[0].placed -= 1
    _delete(state.slots, state.order, 0, state.totals[0].placed, index)
    for window in range(max(0, (slot.start - WIDTH) // STRIDE + 1), (slot.end - 1) // STRIDE + 1):
        state.window_counts[window] -= 1
        if state.window_counts[window] < ROOM:
            _delete(state.slots, state.nearby, window * ROOM, window * ROOM + state.window_counts[window], index)
        elif state.window_counts[window] == ROOM:
            _rebuild_list(state, window)


@njit_inner
def clear(state: State) -> None:
    """Empty the map of memory without changing the slots."""
    state.totals[0].placed = 0
    for window in range(len(state.window_counts)):
        state.window_counts[window] = 0


@njit
def repack(data: Data, state: State, order: Ints, old: Ints) -> bool:
    """Give every residency a new offset by first fit, in the order of the slots ``order``, which lists all slots in use.

    Returns False, with all offsets as before, if some residency finds no offset. ``old`` is scratch space as long as ``order``.
    """
    for position in range(len(order)):
        old[position] = state.slots[order[position]].offset
    clear(state)
    for position in range(len(order)):
        slot = state.slots[order[position]]
        slot.offset = find_offset(data, state, slot.start, slot.end, data.tensors[slot.tensor].bytes, FIRST_FIT)
        if slot.offset < 0:
            clear(state)
            for again in range(len(order)):
                state.slots[order[again]].offset = old[again]
                place(state, order[again])
            return False
        place(state, order[position])
    return True


@njit_inner
def _window(state: State, start: int, end: int) -> int:
    """The window that has a list and covers the steps ``[start, end)``; -1 if there is none."""
    window = start // STRIDE
    return window if end <= window * STRIDE + WIDTH and state.window_counts[window] <= ROOM else -1


@njit_inner
def _enter_windows(state: State, index: int, first: int, last: int) -> None:
    """Enter a slot into the lists and counts of the windows ``[first, last)``."""
    for window in range(first, last):
        if state.window_counts[window] < ROOM:
            _insert(state.slots, state.nearby, window * ROOM, window * ROOM + state.window_counts[window], index)
        state.window_counts[window] += 1


@njit_once
def _rebuild_list(state: State, window: int) -> None:
    """Rebuild the list of a window that had more than ``ROOM`` residencies before."""
    low, high = window * STRIDE, window * STRIDE + WIDTH
    listed = window * ROOM
    for position in range(state.totals[0].placed):
        row = state.slots[state.order[position]]
        if row.start < high and row.end > low:
            state.nearby[listed] = state.order[position]
            listed += 1


@njit_inner
def _lower_bound(slots: Sequence[SlotRow], listed: Ints, first: int, last: int, offset: int) -> int:
    """First position in ``[first, last)`` with this offset or a higher one; ``last`` if there is none."""
    while first < last:
        middle = (first + last) >> 1
        if slots[listed[middle]].offset < offset:
            first = middle + 1
        else:
            last = middle
    return first


@njit_inner
def _insert(slots: Sequence[SlotRow], listed: Ints, first: int, last: int, index: int) -> None:
    """Insert a slot into the sorted list ``[first, last)``, which has space for it."""
    at = _lower_bound(slots, listed, first, last, slots[index].offset)
    for position in range(last, at, -1):
        listed[position] = listed[position - 1]
    listed[at] = index


@njit_inner
def _delete(slots: Sequence[SlotRow], listed: Ints, first: int, last: int, index: int) -> None:
    """Delete a slot from a sorted list, which is ``[first, last)`` afterwards."""
    at = _lower_bound(slots, listed, first, last + 1, slots[index].offset)
    while listed[at] != index:
        at += 1
    for position in range(at, last):
        listed[position] = listed[position + 1]
