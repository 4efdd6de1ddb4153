"""Places in fast memory of a compiled state: the list of residencies by their ends, and what is free beside them.

Residencies only ever end later than the moves they were made for, and nearly all questions are about the near future. So a walk
from the one that ends last meets few that do not matter.
"""

from __future__ import annotations

from stowplan.compiled import njit_inner
from stowplan.learned_guidance.memory_mapping.game.kernel.layout import (
    AFTER_IT,
    BEFORE_IT,
    END,
    LAST_TO_END,
    OFFSET,
    ROW,
    START,
    TOP,
)
from stowplan.learned_guidance.memory_mapping.game.kernel.tables import Ints


@njit_inner
def is_free(data: Ints, rows: int, start: int, end: int, offset: int, top: int) -> bool:
    """Whether nothing stands in the bytes ``[offset, top)`` during the steps ``[start, end)``.

    ``rows`` is where the rows begin in ``data``.
    """
    number = data[LAST_TO_END]
    while number >= 0:
        row = rows + ROW * number
        if data[row + END] <= start:
            break
        if data[row + OFFSET] < top and offset < data[row + TOP] and data[row + START] < end:
            return False
        number = data[row + BEFORE_IT]
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
        number = data[LAST_TO_END]
        while number >= 0:
            row = rows + ROW * number
            if data[row + END] <= start:
                break
            if data[row + OFFSET] < offset + size and offset < data[row + TOP] and data[row + START] < end:
                offset = (data[row + TOP] + alignment - 1) // alignment * alignment
                is_moved = True
            number = data[row + BEFORE_IT]
        if offset + size > capacity:
            return -1
    return offset


@njit_inner
def link(data: Ints, rows: int, number: int) -> None:
    """Enter a residency into the list by ends."""
    end = data[rows + ROW * number + END]
    after = -1
    before = data[LAST_TO_END]
    while before >= 0 and data[rows + ROW * before + END] > end:
        after = before
        before = data[rows + ROW * before + BEFORE_IT]
    _join(data, rows, before, number)
    _join(data, rows, number, after)


@njit_inner
def unlink(data: Ints, rows: int, number: int) -> None:
    """Take a residency out of the list by ends."""
    row = rows + ROW * number
    _join(data, rows, data[row + BEFORE_IT], data[row + AFTER_IT])


@njit_inner
def _join(data: Ints, rows: int, one: int, two: int) -> None:
    """Let ``two`` follow ``one`` in the order of ends; -1 stands for either end of the list."""
    if one >= 0:
        data[rows + ROW * one + AFTER_IT] = two
    if two >= 0:
        data[rows + ROW * two + BEFORE_IT] = one
    else:
        data[LAST_TO_END] = one
