"""Where there is room in a compiled state: places in fast memory, and copy windows on the channel.

Places: the list of residencies by their ends, and what is free beside them. Residencies only ever end later than the moves they
were made for, and nearly all questions are about the near future. So a walk from the one that ends last meets few that do not
matter.

Windows: equation 6 in marks of the slots. A window of one slot meets another exactly where the slot is strictly inside that one
(the mark INTERIOR). A longer one does where another crosses from one of its slots to the next (CROSSED), or has a slot strictly
inside it (COVERED). A part of a window that meets no other meets none either. Both searches are linear. As the far end of a
window moves on, so does the near end that meets its demand; so the first window found is the best, and where one is blocked all
those over the same place are.
"""

from __future__ import annotations

from stowplan.compiled import njit_inner, njit_once
from stowplan.learned_guidance.memory_mapping.game.compiled import layout
from stowplan.learned_guidance.memory_mapping.game.compiled.tables import Ints


@njit_inner
def is_free(data: Ints, rows: int, start: int, end: int, offset: int, top: int) -> bool:
    """Whether nothing stands in the bytes ``[offset, top)`` during the steps ``[start, end)``.

    ``rows`` is where the rows begin in ``data``.
    """
    number = data[layout.LAST_TO_END]
    while number >= 0:
        row = rows + layout.ROW * number
        if data[row + layout.END] <= start:
            break
        if data[row + layout.OFFSET] < top and offset < data[row + layout.TOP] and data[row + layout.START] < end:
            return False
        number = data[row + layout.BEFORE_IT]
    return True


@njit_inner
def lowest_offset(data: Ints, rows: int, start: int, end: int, size: int, alignment: int, capacity: int) -> int:
    """The lowest aligned offset at which ``size`` bytes are free during the steps ``[start, end)``; -1 where there is none.

    Whatever is in the way must be passed above, so that the offset only rises, until nothing is in the way.
    """
    offset = 0
    is_moved = True
    while is_moved:
        is_moved = False
        number = data[layout.LAST_TO_END]
        while number >= 0:
            row = rows + layout.ROW * number
            if data[row + layout.END] <= start:
                break
            if data[row + layout.OFFSET] < offset + size and offset < data[row + layout.TOP] and data[row + layout.START] < end:
                offset = (data[row + layout.TOP] + alignment - 1) // alignment * alignment
                is_moved = True
            number = data[row + layout.BEFORE_IT]
        if offset + size > capacity:
            return -1
    return offset


@njit_inner
def highest_offset(data: Ints, rows: int, start: int, end: int, size: int, alignment: int, capacity: int) -> int:
    """The highest aligned offset; the mirror of :func:`lowest_offset`."""
    offset = (capacity - size) // alignment * alignment
    is_moved = True
    while is_moved and offset >= 0:
        is_moved = False
        number = data[layout.LAST_TO_END]
        while number >= 0:
            row = rows + layout.ROW * number
            if data[row + layout.END] <= start:
                break
            if data[row + layout.OFFSET] < offset + size and offset < data[row + layout.TOP] and data[row + layout.START] < end:
                offset = (data[row + layout.OFFSET] - size) // alignment * alignment
                is_moved = True
            number = data[row + layout.BEFORE_IT]
    return max(offset, -1)


@njit_inner
def link(data: Ints, rows: int, number: int) -> None:
    """Enter a residency into the list by ends."""
    end = data[rows + layout.ROW * number + layout.END]
    after = -1
    before = data[layout.LAST_TO_END]
    while before >= 0 and data[rows + layout.ROW * before + layout.END] > end:
        after = before
        before = data[rows + layout.ROW * before + layout.BEFORE_IT]
    _join(data, rows, before, number)
    _join(data, rows, number, after)


@njit_inner
def unlink(data: Ints, rows: int, number: int) -> None:
    """Take a residency out of the list by ends."""
    row = rows + layout.ROW * number
    _join(data, rows, data[row + layout.BEFORE_IT], data[row + layout.AFTER_IT])


@njit_inner
def _join(data: Ints, rows: int, one: int, two: int) -> None:
    """Let ``two`` follow ``one`` in the order of ends; -1 stands for either end of the list."""
    if one >= 0:
        data[rows + layout.ROW * one + layout.AFTER_IT] = two
    if two >= 0:
        data[rows + layout.ROW * two + layout.BEFORE_IT] = one
    else:
        data[layout.LAST_TO_END] = one


@njit_inner
def latest_window(data: Ints, slots: int, demand: int, first: int, last: int, strict: int) -> tuple[int, int]:
    """Window of a copy-in within the slots ``[first, last)``: the latest start, and for it the latest end; (-1, -1) for none.

    ``slots`` is where the slots begin in ``data``. With ``strict`` the window ends at ``last``.
    """
    end = last
    while end > first:
        start = end - 1
        cell = slots + layout.SLOT * start
        next_end = start
        if not data[cell + layout.MARKS] & layout.INTERIOR:
            supply = data[cell + layout.SUPPLY_PS]
            while supply < demand:
                if start == first:
                    # A window that ends earlier has no more.
                    return -1, -1
                next_end = start
                if data[cell - layout.SLOT + layout.MARKS] & layout.CROSSED:
                    break
                next_end = start + 1
                if next_end < end and data[cell + layout.MARKS] >= layout.COVERED:
                    break
                start -= 1
                cell -= layout.SLOT
                supply += data[cell + layout.SUPPLY_PS]
            if supply >= demand:
                return start, end
        if strict:
            break
        end = next_end
    return -1, -1


@njit_inner
def earliest_window(data: Ints, slots: int, demand: int, first: int, last: int, strict: int) -> tuple[int, int]:
    """Window of a copy-out within the slots ``[first, last)``: the earliest end, and for it the earliest start.

    The mirror of :func:`latest_window`. With ``strict`` the window starts at ``first``.
    """
    start = first
    while start < last:
        slot = start
        cell = slots + layout.SLOT * slot
        next_start = start + 1
        if not data[cell + layout.MARKS] & layout.INTERIOR:
            supply = data[cell + layout.SUPPLY_PS]
            while supply < demand:
                if slot == last - 1:
                    return -1, -1
                next_start = slot + 1
                if data[cell + layout.MARKS] & layout.CROSSED:
                    break
                next_start = slot
                if start < slot and data[cell + layout.MARKS] >= layout.COVERED:
                    break
                slot += 1
                cell += layout.SLOT
                supply += data[cell + layout.SUPPLY_PS]
            if supply >= demand:
                return start, slot + 1
        if strict:
            break
        start = next_start
    return -1, -1


@njit_once
def book(data: Ints, slots: int, demand: int, first: int, last: int, from_end: bool) -> None:
    """Take the supply of a copy: from the window's last slot backwards (a copy-in), or from the first one on (a copy-out)."""
    for index in range(last - first):
        cell = slots + layout.SLOT * (last - 1 - index if from_end else first + index)
        taken = min(data[cell + layout.SUPPLY_PS], demand)
        data[cell + layout.SUPPLY_PS] -= taken
        demand -= taken
    for slot in range(first, last):
        data[slots + layout.SLOT * slot + layout.MARKS] += _marks(slot, first, last)


@njit_once
def unmark(data: Ints, slots: int, first: int, last: int) -> None:
    """Take back the marks of a window."""
    for slot in range(first, last):
        data[slots + layout.SLOT * slot + layout.MARKS] -= _marks(slot, first, last)


@njit_inner
def _marks(slot: int, first: int, last: int) -> int:
    marks = layout.COVERED
    if slot < last - 1:
        marks += layout.CROSSED
        if slot > first:
            marks += layout.INTERIOR
    return marks
