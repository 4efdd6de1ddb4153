"""Finds free space in a compiled state: offsets in fast memory, and copy windows on the channel.

A state is a flat vector ``data``, which ``layout.py`` describes. Its section of *rows* has the residencies. The time of the
copy channel is divided into *slots*, each of which is a step, or an outermost loop in which no copy may begin or end. The
section of slots in ``data`` has, for each of them, the supply that is left, and marks. Arguments named ``rows`` and ``slots``
are the indices in ``data`` at which these sections begin. Nothing here raises an error.

Offsets: the residencies are in a linked list by their ends. Moves are made in the order of the program, so a new move usually
concerns steps near the latest ends. A walk along the list from the residency that ends last therefore soon reaches residencies
that end too early to be in the way.

Windows: two copy windows may share at most one slot, and no window may lie strictly inside another one (equation 6 of Wang et
al. 2023). Marks on the slots describe the windows so far. Slot ``s`` is COVERED if a window contains it, CROSSED if a window
contains ``s`` and ``s + 1``, and INTERIOR if a window contains ``s - 1``, ``s`` and ``s + 1``. A new window of one slot is in
conflict with another window if its slot is INTERIOR. A longer one is in conflict if it contains ``s`` and ``s + 1`` for a slot
``s`` that is CROSSED, or if a slot other than its first and last one is COVERED. If a window is in conflict, so is every window
that contains it. A search therefore never extends a window beyond a conflict. It fixes one end of the window (the latest
possible end for a copy-in, the earliest possible start for a copy-out) and extends the other side until the supply meets the
demand, or until a conflict. After a conflict, it moves the fixed end just so far that the conflict is avoided, and begins again
from there. It visits no slot more than twice, so it takes linear time. The first window found is the best, because moving the
fixed end cannot bring the other end any closer to where the search began.
"""

from __future__ import annotations

from stowplan.compiled import njit_inner, njit_once
from stowplan.learned_guidance.memory_mapping.game.compiled import layout
from stowplan.learned_guidance.memory_mapping.game.compiled.tables import Ints


@njit_inner
def is_free(data: Ints, rows: int, start: int, end: int, offset: int, top: int) -> bool:
    """Whether the bytes ``[offset, top)`` are free during the steps ``[start, end)``.

    ``rows`` is the index in ``data`` at which the rows begin.
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
    """The lowest aligned offset at which ``size`` bytes are free during the steps ``[start, end)``; -1 if there is none.

    The offset rises above each residency that is in the way, until none is.
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
    """The highest aligned offset at which ``size`` bytes are free during the steps ``[start, end)``; negative if there is none.

    This is the mirror image of :func:`lowest_offset`.
    """
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
    """Add the residency with this number to the list by ends."""
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
    """Remove the residency with this number from the list by ends."""
    row = rows + layout.ROW * number
    _join(data, rows, data[row + layout.BEFORE_IT], data[row + layout.AFTER_IT])


@njit_inner
def _join(data: Ints, rows: int, one: int, two: int) -> None:
    """Make ``two`` the successor of ``one`` in the list by ends; -1 stands for either end of the list."""
    if one >= 0:
        data[rows + layout.ROW * one + layout.AFTER_IT] = two
    if two >= 0:
        data[rows + layout.ROW * two + layout.BEFORE_IT] = one
    else:
        data[layout.LAST_TO_END] = one


@njit_inner
def latest_window(data: Ints, slots: int, demand: int, first: int, last: int, strict: int) -> tuple[int, int]:
    """The window of a copy-in within the slots ``[first, last)`` with the latest start, and then the latest end.

    The supply of its slots must be at least ``demand``, the time in ps that the copy takes. Returns (-1, -1) if there is none.
    ``slots`` is the index in ``data`` at which the slots begin. With ``strict``, the window ends at ``last``.
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
                    # A window that ends earlier is part of this one, so its supply is not larger.
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
    """The window of a copy-out within the slots ``[first, last)`` with the earliest end, and then the earliest start.

    The mirror image of :func:`latest_window`. With ``strict``, the window starts at ``first``.
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
    """Use the supply of a window for a copy that takes ``demand`` ps: from its last slot backwards (copy-in, ``from_end``), or
    from its first one on (copy-out). Then set the marks of the window on its slots."""
    for index in range(last - first):
        cell = slots + layout.SLOT * (last - 1 - index if from_end else first + index)
        amount = min(data[cell + layout.SUPPLY_PS], demand)
        data[cell + layout.SUPPLY_PS] -= amount
        demand -= amount
    for slot in range(first, last):
        data[slots + layout.SLOT * slot + layout.MARKS] += _marks(slot, first, last)


@njit_once
def unmark(data: Ints, slots: int, first: int, last: int) -> None:
    """Remove the marks of a window. The caller restores the supply of its slots."""
    for slot in range(first, last):
        data[slots + layout.SLOT * slot + layout.MARKS] -= _marks(slot, first, last)


@njit_inner
def _marks(slot: int, first: int, last: int) -> int:
    """The sum of the marks that the window of the slots ``[first, last)`` sets on one of its slots."""
    marks = layout.COVERED
    if slot < last - 1:
        marks += layout.CROSSED
        if slot > first:
            marks += layout.INTERIOR
    return marks
