"""First-fit allocation in plain Python, for small numbers of buffers. Nothing here raises an error for valid arguments."""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence


class FirstFit:
    """A memory that gives each request the lowest offset that is free during the whole time of the request.

    Parameters
    ----------
    capacity
        Size of the memory in bytes.
    """

    def __init__(self, capacity: int):
        self._capacity = capacity
        # Allocations as (offset, first byte after the allocation, start, end), sorted by offset.
        self._ranges: list[tuple[int, int, int, int]] = []

    def take(self, start: int, end: int, size: int, alignment: int = 1) -> int | None:
        """Allocate ``size`` bytes during the half-open time ``[start, end)``, at a multiple of ``alignment`` bytes.

        Returns
        -------
        int or None
            The offset in bytes. If the request does not fit, the result is None, and nothing is allocated.
        """
        offset = self._lowest(start, end, size, alignment, 0)
        if offset + size > self._capacity:
            return None
        self.put(start, end, size, offset)
        return offset

    def take_all(self, times: Sequence[tuple[int, int]], size: int, alignment: int = 1) -> int | None:
        """Allocate ``size`` bytes at one offset during several half-open times ``(start, end)``; see :meth:`take`.

        Without any times, the result is 0 if ``size`` bytes fit into the memory, and nothing is allocated.
        """
        offset, previous = 0, -1
        while previous < offset:
            previous = offset
            for start, end in times:
                offset = self._lowest(start, end, size, alignment, offset)
        if offset + size > self._capacity:
            return None
        for start, end in times:
            self.put(start, end, size, offset)
        return offset

    def _lowest(self, start: int, end: int, size: int, alignment: int, offset: int) -> int:
        """The lowest offset from ``offset`` on at which the bytes are free; they may end beyond the capacity.

        ``offset`` must be a multiple of the alignment.
        """
        for low, high, first, last in self._ranges:
            if low >= offset + size:
                break
            if first < end and start < last and high > offset:
                offset = high + -high % alignment
        return offset

    def put(self, start: int, end: int, size: int, offset: int) -> None:
        """Mark these bytes as allocated, whether they are free or not. A size of 0 changes nothing."""
        if size:
            insort(self._ranges, (offset, offset + size, start, end))
