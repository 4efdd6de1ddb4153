"""Plays a trace: how large blocks were, what was reserved, allocated and asked for, and where things stood.

Blocks are as large as torch's caching allocator makes them (``c10/cuda/CUDACachingAllocator.cpp``): sizes are rounded
up, and the rest of a large block is split off only where that is worth it. Addresses say which block was taken, so that no
choice of the allocator has to be guessed. Tests hold it to ``torch.cuda.memory_stats``, to the byte.
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

#: Sizes of blocks are multiples of this (bytes), and addresses are.
ALIGNMENT = 512

#: What is larger stands in segments of another sort, in which less than this is not split off (bytes).
SMALL = 1 << 20

#: Sizes up to so many times 1 MiB have their own setting of how they are rounded.
_LARGEST_SETTING = 15

#: Segments beside a new one, all together, beyond which segments are not laid out.
_MOST_STEPS = 50_000_000

_SLICE = 1 << 14


class Amounts(NamedTuple, Generic[T]):
    """Bytes of a device, at a moment or at all moments."""

    reserved: T
    active: T
    """In blocks that are in use, or whose free is pending."""
    allocated: T
    """In blocks that are in use."""
    requested: T
    """What was asked for, of ``active``."""


class Hole(NamedTuple):
    """Free bytes within a segment."""

    address: int
    size: int
    segment: Segment
    below: int | None
    """Number of the allocation that it begins behind; None at the begin of a segment."""
    above: int | None
    """Number of the allocation that it ends before; None at the end of a segment."""


@dataclass
class _Tenure:
    """A segment for as long as it is reserved; of one that can grow, all that it ever holds."""

    segment: Segment
    begin: int
    end: int
    offset: int = 0


class Replay:
    """What came of a trace.

    Attributes
    ----------
    block
        [allocations] bytes of their blocks.
    amounts
        Bytes after each event, and before the first: arrays [events + 2].
    moment
        The first at which most is reserved, once what it was reserved for stands in it.
    grown_for
        Number of that allocation; None where that was before the trace.
    offsets
        [allocations] where each stands if segments are laid out one beside the other; None where the trace does not say.
    height
        Bytes of that layout; None where there are too many segments for one.
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
        """Bytes at a moment."""
        return Amounts(*(int(amount[moment]) for amount in self.amounts))

    @property
    def peaks(self) -> Amounts[int]:
        """The highest of each, which need not be at one moment."""
        return Amounts(*(int(amount.max()) for amount in self.amounts))

    def _sweep(self) -> tuple[Ints, list[int] | None]:
        """Blocks and offsets, allocation by allocation."""
        trace, block, offsets = self._trace, [], []
        moments = ((at, tenure.begin, tenure.end) for at, tenure in enumerate(self._tenures))
        changes = sorted((change for at, *both in moments for change in zip(both, (1, 0), (at, at), strict=True)), reverse=True)
        starts: list[int] = []
        current: list[_Tenure] = []
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
                # What was there before the trace stood beside others that are not known.
                if moment and not splits_all and (size >= most or room - size <= SMALL):
                    size = room
                insort(large, address)
                heapq.heappush(ends, (allocation.upper, address))
            block.append(allocation.block or size)
        return np.array(block, np.int64), offsets if is_whole and self.height is not None else None

    def _amounts(self) -> Amounts[Ints]:
        trace, count = self._trace, len(self.block)
        size = np.fromiter((allocation.size for allocation in trace.allocations), np.int64, count)
        asked = np.fromiter((allocation.requested for allocation in trace.allocations), np.int64, count)
        freed = np.where(asked >= 0, asked, self._upper)
        comes = np.zeros(trace.end + 1, np.int64)
        for event in trace.segment_events:
            comes[event.moment] += event.segment.size if event.comes else -event.segment.size
        last = sum(segment.size for segment in trace.segments)
        reserved = np.maximum(last - comes.sum() + np.cumsum(comes), 0)

        def held(end: Ints, sizes: Ints) -> Ints:
            change = np.zeros(trace.end + 1, np.int64)
            np.add.at(change, self._lower, sizes)
            np.add.at(change, end, -sizes)
            # What lives to the end is there at the last event.
            return np.cumsum(change)[: trace.end]

        return Amounts(reserved[: trace.end], held(self._upper, self.block), held(freed, self.block), held(self._upper, size))

    def living(self, moment: int) -> list[int]:
        """Numbers of the allocations at a moment, the largest first."""
        numbers = np.flatnonzero((self._lower <= moment) & (moment < self._upper)).tolist()
        return sorted(numbers, key=lambda number: (-self._trace.allocations[number].size, number))

    def holes(self, moment: int) -> list[Hole]:
        """Free bytes within segments at a moment, the largest first."""
        then = [tenure.segment for tenure in self._tenures if tenure.begin <= moment < tenure.end]
        ranges = [*(segment for segment in then if not segment.grows), *_grown(self._trace, moment)]
        living = sorted(self.living(moment), key=lambda number: self._trace.allocations[number].address)
        addresses = [self._trace.allocations[number].address for number in living]
        holes, end = [], 0
        for segment in sorted(ranges):
            if segment.address < end:
                # Segments are disjoint, but for those of damaged files.
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
        """Number of the allocation that stood in a hole last; None where nothing is known to have stood there."""
        touches = (self._address < hole.address + hole.size) & (self._address + self.block > hole.address)
        stood = np.where(touches & (self._upper <= moment), self._upper, -1)
        return int(stood.argmax()) if stood.max(initial=-1) >= 0 else None


def rounding(settings: dict[str, Any]) -> Callable[[int], int]:
    """How an allocator rounds sizes up: to 512 bytes, or to one of some even steps between two powers of two."""
    divisions = settings.get("roundup_power2_divisions")
    by_size = divisions if isinstance(divisions, dict) else {}

    @cache
    def rounded(size: int) -> int:
        # Sizes have settings by powers of two of 1 MiB.
        parts = by_size.get(str(1 << min(max(0, size.bit_length() - SMALL.bit_length()), _LARGEST_SETTING)))
        step = ALIGNMENT
        if isinstance(parts, int) and parts > 1 and size > ALIGNMENT * parts and size & (size - 1):
            step = max(1, (1 << size.bit_length() - 1) >> parts.bit_length() - 1)
        return max(ALIGNMENT, -(-size // step) * step)

    return rounded


def _tenures(trace: Trace) -> list[_Tenure]:
    """Segments with their lives, found from the end back to the begin: what stands at the end is known."""
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
    whole: list[Segment] = []
    for segment in sorted(ranges):
        end = segment.address + segment.size
        if whole and segment.address <= whole[-1].address + whole[-1].size:
            before = whole.pop()
            segment, end = before, max(end, before.address + before.size)
        whole.append(segment._replace(size=end - segment.address))
    return [*(_Tenure(segment, 0, trace.end) for segment in whole), *tenures]


def _lay_out(tenures: list[_Tenure]) -> int | None:
    """Give each segment the lowest offset that is free when it comes; the height of all that, None where there are too many."""
    height, steps, standing = 0, 0, list[_Tenure]()
    for tenure in sorted(tenures, key=lambda tenure: tenure.begin):
        standing = [other for other in standing if other.end > tenure.begin]
        steps += len(standing)
        if steps > _MOST_STEPS:
            return None
        for other in standing:
            if other.offset - tenure.offset >= tenure.segment.size:
                break
            tenure.offset = other.offset + other.segment.size
        insort(standing, tenure, key=lambda other: other.offset)
        height = max(height, tenure.offset + tenure.segment.size)
    return height


def _grown(trace: Trace, moment: int) -> list[Segment]:
    """What segments that can grow hold at a moment: what they hold at the end, without what came, with what went until then."""
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
    held, begin, grown = 0, 0, []
    for address, change in sorted(changes.items()):
        if held <= 0 < held + change:
            begin = address
        elif held > 0 >= held + change:
            grown.append(Segment(begin, address - begin, streams[begin], True))
        held += change
    return grown
