"""Replays a trace to find out how large each block was, how many bytes were reserved, allocated and requested at each moment,
and where PyTorch placed the allocations.

Blocks have the sizes that PyTorch's caching allocator gives them (``c10/cuda/CUDACachingAllocator.cpp``): sizes are rounded up,
and the rest of a large block is split off only if it is large enough. Addresses in the trace say which block the allocator has
chosen, so that its choices need not be modelled. Tests compare the numbers with ``torch.cuda.memory_stats`` to the byte.

A *moment* is a position in the trace: moment 0 is its start, and moment ``i + 1`` is event ``i``. Allocations are named by
their numbers, which are their positions in ``Trace.allocations``. A segment *grows* if it is expandable
(``expandable_segments``), so that the allocator adds memory to it instead of reserving another segment.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from stowplan.deadline import check_reading
from stowplan.frontends.snapshot.trace import Segment, Trace

Ints = NDArray[np.int64]

T = TypeVar("T")

#: Sizes and addresses of blocks are multiples of this many bytes.
ALIGNMENT = 512

#: A block of more than this many bytes is *large*. The allocator keeps large blocks and other blocks in different segments. If
#: it gives a part of a free range of a segment of large blocks to an allocation, and the rest has at most this many bytes, the
#: rest is not split off but belongs to the block.
SMALL = 1 << 20

#: The allocator has a rounding setting for sizes from 1 MiB, from 2 MiB, and so on up to 2^15 MiB; this is the last exponent.
_LARGEST_SETTING = 15

#: If more pairs of segments than this would have to be compared, which takes some seconds, the layout is not computed.
_MOST_STEPS = 50_000_000

#: The deadline is checked each time so many allocations have been replayed.
_SLICE = 1 << 14


class Amounts(NamedTuple, Generic[T]):
    """Bytes of a device, at one moment or as arrays over all moments."""

    reserved: T
    """Bytes of segments."""
    active: T
    """Bytes of blocks that are in use, or whose release is pending."""
    allocated: T
    """Bytes of blocks that are in use and whose release is not pending."""
    requested: T
    """Requested bytes of the active blocks."""


class Hole(NamedTuple):
    """A range of free bytes in a segment."""

    address: int
    """Address of its first byte."""
    size: int
    """Its size in bytes."""
    segment: Segment
    """The segment that contains it."""
    below: int | None
    """Number of the allocation below it; None at the start of a segment."""
    above: int | None
    """Number of the allocation above it; None at the end of a segment."""


@dataclass
class _Tenure:
    """A segment during the time in which it is reserved; for a segment that grows, its largest extent."""

    segment: Segment
    """The segment."""
    begin: int
    """The moment at which it is reserved."""
    end: int
    """The moment at which it is released."""
    offset: int = 0
    """Its offset in bytes in the layout."""


class Replay:
    """The result of replaying a trace. The constructor raises TimeLimitError if the time limit for reading inputs is over.

    Attributes
    ----------
    block
        Bytes of the block of each allocation, by its number.
    amounts
        Bytes at each moment, as arrays with an entry for each moment.
    moment
        The moment that a report describes. It is the moment at which the allocation ``grown_for`` begins or, if that is None,
        the first moment at which the reserved memory is largest.
    grown_for
        Number of the allocation for which the reserved memory grew to its largest size: the first allocation that begins when
        it has this size. None if there is none, or if the memory has this size from the start of the trace.
    offsets
        Offset of each allocation in bytes, by its number, in a layout in which segments are next to each other; None if the
        trace does not say in which segment an allocation is, or if there are too many segments.
    height
        Bytes of that layout; None if there are too many segments to compute it.
    """

    def __init__(self, trace: Trace):
        self._trace = trace
        self._rounded = rounding(trace.settings)
        self._tenures = _tenures(trace)
        self.height = _lay_out(self._tenures)
        self.block, self.offsets = self._sweep()
        self._address, self._lower, self._upper = (
            np.fromiter((getattr(allocation, name) for allocation in trace.allocations), np.int64, len(self.block))
            for name in ("address", "lower", "upper")
        )
        self.amounts = self._amounts()
        reserved = self.amounts.reserved
        top = int(reserved.argmax())
        grown = np.flatnonzero((self._lower >= top) & (reserved[np.minimum(self._lower, len(reserved) - 1)] == reserved[top]))
        self.grown_for = int(grown[0]) if len(grown) and top else None
        self.moment = top if self.grown_for is None else int(self._lower[self.grown_for])

    def at(self, moment: int) -> Amounts[int]:
        """Bytes at a moment; raises IndexError if the trace does not have it."""
        return Amounts(*(int(amount[moment]) for amount in self.amounts))

    @property
    def peaks(self) -> Amounts[int]:
        """The largest value of each number over time; they may be at different moments."""
        return Amounts(*(int(amount.max()) for amount in self.amounts))

    def _sweep(self) -> tuple[Ints, list[int] | None]:
        """The size of the block of each allocation, and the offsets in the layout, computed allocation by allocation."""
        trace, block, offsets = self._trace, [], []
        moments = ((at, tenure.begin, tenure.end) for at, tenure in enumerate(self._tenures))
        changes = sorted((change for at, *both in moments for change in zip(both, (1, 0), (at, at), strict=True)), reverse=True)
        # The segments of the current moment, sorted by address, with their addresses.
        starts: list[int] = []
        current: list[_Tenure] = []
        # Sorted addresses of the live large blocks, and a heap of (end, address) of these.
        large: list[int] = []
        ends: list[tuple[int, int]] = []
        most, is_whole = trace.settings.get("max_split_size", -1), True
        most = most if isinstance(most, int) and most >= 0 else 1 << 62
        splits_all = trace.settings.get("expandable_segments") is True
        for number, allocation in enumerate(trace.allocations):
            if number % _SLICE == 0:
                check_reading()
            address, moment, size = allocation.address, allocation.lower, self._rounded(allocation.size)
            while changes and changes[-1][0] <= moment:
                check_reading()
                _, begins, which = changes.pop()
                tenure = self._tenures[which]
                at = bisect_left(starts, tenure.segment.address)
                if begins:
                    starts.insert(at, tenure.segment.address)
                    current.insert(at, tenure)
                elif at < len(starts) and current[at] is tenure:
                    del starts[at], current[at]
            at = bisect_right(starts, address) - 1
            inside = current[at] if at >= 0 else None
            end = 0 if inside is None else inside.segment.address + inside.segment.size
            if inside is None or address + size > end:
                is_whole, inside = False, None
            offsets.append(0 if inside is None else inside.offset + address - inside.segment.address)
            if size > SMALL and inside is not None and not inside.segment.grows:
                while ends and ends[0][0] <= moment:
                    del large[bisect_left(large, heapq.heappop(ends)[1])]
                at = bisect_right(large, address)
                room = min(end, large[at] if at < len(large) else end) - address
                # The neighbours of a block from before the trace are not known, so the size of such a block is not changed.
                if moment and not splits_all and (size >= most or room - size <= SMALL):
                    size = room
                insort(large, address)
                heapq.heappush(ends, (allocation.upper, address))
            block.append(allocation.block or size)
        return np.array(block, np.int64), offsets if is_whole and self.height is not None else None

    def _amounts(self) -> Amounts[Ints]:
        """Reserved, active, allocated and requested bytes at each moment."""
        trace, count = self._trace, len(self.block)
        size = np.fromiter((allocation.size for allocation in trace.allocations), np.int64, count)
        requested = np.fromiter((allocation.requested for allocation in trace.allocations), np.int64, count)
        freed = np.where(requested >= 0, requested, self._upper)
        comes = np.zeros(trace.end + 1, np.int64)
        for event in trace.segment_events:
            comes[event.moment] += event.segment.size if event.comes else -event.segment.size
        last = sum(segment.size for segment in trace.segments)
        reserved = np.maximum(last - comes.sum() + np.cumsum(comes), 0)

        def held(end: Ints, sizes: Ints) -> Ints:
            """Bytes at each moment if allocations have these sizes and end at these moments."""
            change = np.zeros(trace.end + 1, np.int64)
            np.add.at(change, self._lower, sizes)
            np.add.at(change, end, -sizes)
            # Allocations that are live at the end of the trace are subtracted in the entry after the last event, which is cut
            # off, so that they count at the last event.
            return np.cumsum(change)[: trace.end]

        return Amounts(reserved[: trace.end], held(self._upper, self.block), held(freed, self.block), held(self._upper, size))

    def living(self, moment: int) -> list[int]:
        """Numbers of the allocations that are live at a moment, with the largest first."""
        numbers = np.flatnonzero((self._lower <= moment) & (moment < self._upper)).tolist()
        return sorted(numbers, key=lambda number: (-self._trace.allocations[number].size, number))

    def holes(self, moment: int) -> list[Hole]:
        """Holes in segments at a moment, with the largest first."""
        segments = [tenure.segment for tenure in self._tenures if tenure.begin <= moment < tenure.end]
        ranges = [*(segment for segment in segments if not segment.grows), *_grown(self._trace, moment)]
        living = sorted(self.living(moment), key=lambda number: self._trace.allocations[number].address)
        addresses = [self._trace.allocations[number].address for number in living]
        holes, end = [], 0
        for segment in sorted(ranges):
            if segment.address < end:
                # Segments are disjoint, except in damaged files, whose overlapping segments are skipped.
                continue
            free, end, below = segment.address, segment.address + segment.size, None
            for number in living[bisect_left(addresses, free) : bisect_left(addresses, end)]:
                address = self._trace.allocations[number].address
                if address > free:
                    holes.append(Hole(free, address - free, segment, below, number))
                free, below = address + int(self.block[number]), number
            if free < end:
                holes.append(Hole(free, end - free, segment, below, None))
        return sorted(holes, key=lambda hole: (-hole.size, hole.address))

    def last_in(self, hole: Hole, moment: int) -> int | None:
        """Number of the allocation that was the last one to use bytes of a hole before a moment; None if the trace has no such
        allocation."""
        touches = (self._address < hole.address + hole.size) & (self._address + self.block > hole.address)
        ends = np.where(touches & (self._upper <= moment), self._upper, -1)
        return int(ends.argmax()) if ends.max(initial=-1) >= 0 else None


def rounding(settings: dict[str, Any]) -> Callable[[int], int]:
    """Returns a function that rounds sizes in bytes up as the allocator does.

    It rounds to multiples of 512 bytes or, if the settings say so, to one of several steps between two powers of two.
    ``settings`` are the allocator's settings in a snapshot; entries of another form are ignored.
    """
    divisions = settings.get("roundup_power2_divisions")
    by_size = divisions if isinstance(divisions, dict) else {}

    @cache
    def rounded(size: int) -> int:
        # There is a setting for each power of two of MiB, from 1 MiB on.
        parts = by_size.get(str(1 << min(max(0, size.bit_length() - SMALL.bit_length()), _LARGEST_SETTING)))
        step = ALIGNMENT
        if isinstance(parts, int) and parts > 1 and size > ALIGNMENT * parts and size & (size - 1):
            step = max(1, (1 << size.bit_length() - 1) >> parts.bit_length() - 1)
        return max(ALIGNMENT, -(-size // step) * step)

    return rounded


def _tenures(trace: Trace) -> list[_Tenure]:
    """The segments with the moments at which they are reserved and released.

    They are found backwards from the end of the trace, where all segments are known. A segment that grows is reserved and
    released in parts. Therefore overlapping and adjacent ranges of growing segments are joined to one segment, which counts as
    reserved all the time.
    """
    until = {segment.address: (segment, trace.end) for segment in trace.segments if not segment.grows}
    tenures = []
    for moment, comes, segment in reversed(trace.segment_events):
        if segment.grows:
            continue
        later = until.pop(segment.address, (segment, trace.end) if comes else None)
        if later is not None:
            tenures.append(_Tenure(later[0], moment, later[1]))
        if not comes:
            until[segment.address] = segment, moment
    tenures += [_Tenure(segment, 0, end) for segment, end in until.values()]
    ranges = [segment for segment in trace.segments if segment.grows]
    ranges += [event.segment for event in trace.segment_events if event.segment.grows]
    joined: list[Segment] = []
    for segment in sorted(ranges):
        end = segment.address + segment.size
        if joined and segment.address <= joined[-1].address + joined[-1].size:
            before = joined.pop()
            segment, end = before, max(end, before.address + before.size)
        joined.append(segment._replace(size=end - segment.address))
    return [*(_Tenure(segment, 0, trace.end) for segment in joined), *tenures]


def _lay_out(tenures: list[_Tenure]) -> int | None:
    """Gives each segment the lowest offset that is free when it is reserved.

    Returns the height of the layout in bytes; None if there are too many segments.
    """
    height, steps, placed = 0, 0, list[_Tenure]()
    for tenure in sorted(tenures, key=lambda tenure: tenure.begin):
        placed = [other for other in placed if other.end > tenure.begin]
        steps += len(placed)
        if steps > _MOST_STEPS:
            return None
        for other in placed:
            if other.offset - tenure.offset >= tenure.segment.size:
                break
            tenure.offset = other.offset + other.segment.size
        insort(placed, tenure, key=lambda other: other.offset)
        height = max(height, tenure.offset + tenure.segment.size)
    return height


def _grown(trace: Trace, moment: int) -> list[Segment]:
    """Ranges of segments that grow, as they are at a moment, computed backwards from the ranges at the end of the trace."""
    changes: dict[int, int] = {}
    streams: dict[int, int] = {}
    ranges = [(1, segment) for segment in trace.segments]
    ranges += [(-1 if event.comes else 1, event.segment) for event in trace.segment_events if event.moment > moment]
    for sign, segment in ranges:
        if segment.grows:
            end = segment.address + segment.size
            changes[segment.address] = changes.get(segment.address, 0) + sign
            changes[end] = changes.get(end, 0) - sign
            streams[segment.address] = streams[end] = segment.stream
    total, begin, grown = 0, 0, []
    for address, change in sorted(changes.items()):
        if total <= 0 < total + change:
            begin = address
        elif total > 0 >= total + change:
            grown.append(Segment(begin, address - begin, streams[begin], True))
        total += change
    return grown
