"""First-fit placement in plain Python: for plans that are wanted before compiled code is there."""

from __future__ import annotations

from bisect import insort


class FirstFit:
    """Gives ranges of time the lowest offset that is free throughout.

    Parameters
    ----------
    capacity
        Bytes there are; None for no limit.
    """

    def __init__(self, capacity: int | None = None):
        self._capacity = capacity
        self.height = 0
        """Byte after the last one taken."""
        # (offset, top, start, end), by offset.
        self._taken: list[tuple[int, int, int, int]] = []

    def take(self, start: int, end: int, size: int, alignment: int = 1) -> int | None:
        """Offset of ``size`` bytes in the half-open time [start, end), which are taken from then on; None: they do not fit."""
        offset = 0
        for low, top, begin, until in self._taken:
            if low >= offset + size:
                break
            if begin < end and start < until and top > offset:
                offset = top + -top % alignment
        if self._capacity is not None and offset + size > self._capacity:
            return None
        self.put(start, end, size, offset)
        return offset

    def put(self, start: int, end: int, size: int, offset: int) -> None:
        """Take these bytes, free or not."""
        self.height = max(self.height, offset + size)
        insort(self._taken, (offset, offset + size, start, end))
