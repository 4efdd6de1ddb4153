"""First-fit placement in plain Python, for a few things at a time."""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence


class FirstFit:
    """Gives ranges of time the lowest offset that is free throughout, in memory of so many bytes."""

    def __init__(self, capacity: int):
        self._capacity = capacity
        # (offset, top, start, end), by offset.
        self._taken: list[tuple[int, int, int, int]] = []

    def take(self, start: int, end: int, size: int, alignment: int = 1) -> int | None:
        """Offset of ``size`` bytes in the half-open time [start, end), which are taken from then on; None: they do not fit."""
        offset = self._lowest(start, end, size, alignment, 0)
        if offset + size > self._capacity:
            return None
        self.put(start, end, size, offset)
        return offset

    def take_all(self, times: Sequence[tuple[int, int]], size: int, alignment: int = 1) -> int | None:
        """The same for several stretches of time, at one offset."""
        offset, before = 0, -1
        while before < offset:
            before = offset
            for start, end in times:
                offset = self._lowest(start, end, size, alignment, offset)
        if offset + size > self._capacity:
            return None
        for start, end in times:
            self.put(start, end, size, offset)
        return offset

    def _lowest(self, start: int, end: int, size: int, alignment: int, offset: int) -> int:
        """The lowest offset from one on."""
        for low, top, begin, until in self._taken:
            if low >= offset + size:
                break
            if begin < end and start < until and top > offset:
                offset = top + -top % alignment
        return offset

    def put(self, start: int, end: int, size: int, offset: int) -> None:
        """Take these bytes, free or not; what has none is in nobody's way."""
        if size:
            insort(self._taken, (offset, offset + size, start, end))
