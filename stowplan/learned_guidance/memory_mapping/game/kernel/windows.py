"""Copy windows on the channel of a compiled state: where a copy fits, and what it takes (``channel.py``).

Equation 6 in marks of the slots. A window of one slot meets another exactly where the slot is strictly inside that one (the
mark INTERIOR). A longer one does where another crosses from one of its slots to the next (CROSSED), or has a slot strictly
inside it (COVERED). A part of a window that meets no other meets none either.

Both searches are linear. As the far end of a window moves on, so does the near end that meets its demand; so the first window
found is the best, and where one is blocked all those over the same place are.
"""

from __future__ import annotations

from stowplan.compiled import njit_inner, njit_once
from stowplan.learned_guidance.memory_mapping.game.kernel.layout import COVERED, CROSSED, INTERIOR, MARKS, SLOT, SUPPLY_PS
from stowplan.learned_guidance.memory_mapping.game.kernel.tables import Ints


@njit_inner
def latest_window(data: Ints, slots: int, demand: int, first: int, last: int, strict: int) -> tuple[int, int]:
    """Window of a copy-in within the slots ``[first, last)``: the latest start, and for it the latest end; (-1, -1) for none.

    ``slots`` is where the slots begin in ``data``. With ``strict`` the window ends at ``last``.
    """
    end = last
    while end > first:
        start = end - 1
        cell = slots + SLOT * start
        next_end = start
        if not data[cell + MARKS] & INTERIOR:
            supply = data[cell + SUPPLY_PS]
            while supply < demand:
                if start == first:
                    # A window that ends earlier has no more.
                    return -1, -1
                next_end = start
                if data[cell - SLOT + MARKS] & CROSSED:
                    break
                next_end = start + 1
                if next_end < end and data[cell + MARKS] >= COVERED:
                    break
                start -= 1
                cell -= SLOT
                supply += data[cell + SUPPLY_PS]
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
        cell = slots + SLOT * slot
        next_start = start + 1
        if not data[cell + MARKS] & INTERIOR:
            supply = data[cell + SUPPLY_PS]
            while supply < demand:
                if slot == last - 1:
                    return -1, -1
                next_start = slot + 1
                if data[cell + MARKS] & CROSSED:
                    break
                next_start = slot
                if start < slot and data[cell + MARKS] >= COVERED:
                    break
                slot += 1
                cell += SLOT
                supply += data[cell + SUPPLY_PS]
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
        cell = slots + SLOT * (last - 1 - index if from_end else first + index)
        taken = min(data[cell + SUPPLY_PS], demand)
        data[cell + SUPPLY_PS] -= taken
        demand -= taken
    for slot in range(first, last):
        data[slots + SLOT * slot + MARKS] += _marks(slot, first, last)


@njit_once
def unmark(data: Ints, slots: int, first: int, last: int) -> None:
    """Take back the marks of a window."""
    for slot in range(first, last):
        data[slots + SLOT * slot + MARKS] -= _marks(slot, first, last)


@njit_inner
def _marks(slot: int, first: int, last: int) -> int:
    marks = COVERED
    if slot < last - 1:
        marks += CROSSED
        if slot > first:
            marks += INTERIOR
    return marks
