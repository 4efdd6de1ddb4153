"""What a snapshot says of one device, by the documentation of ``torch.cuda.memory._snapshot``: allocations and segments.

Moment 0 is when recording began, moment ``i + 1`` the event ``i`` of the device's trace; what is there at the end lives to the
moment after the last event. An allocation lives until ``free_completed``: before that another stream may still read it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, NamedTuple

import msgspec

from stowplan import files
from stowplan.deadline import check_reading
from stowplan.errors import InputError
from stowplan.log import warn_unmodelled

#: Addresses, sizes, and the sum of all sizes are below this.
LIMIT = 1 << 60

#: Events and blocks of all devices, at most: one and the same list may stand in many places.
MOST_ENTRIES = 1 << 24

#: Events of segments: whether memory comes or goes, and whether as part of one that can grow.
SEGMENT_EVENTS = {
    "segment_alloc": (True, False),
    "segment_free": (False, False),
    "segment_map": (True, True),
    "segment_unmap": (False, True),
}

_Whole = Annotated[int, msgspec.Meta(ge=0, lt=LIMIT)]


class _Event(msgspec.Struct, gc=False):
    action: str
    size: _Whole = 0
    addr: _Whole = 0
    stream: int = 0
    frames: Any = None


class _Block(msgspec.Struct):
    size: _Whole
    state: str
    address: _Whole | None = None
    """Older snapshots leave it out: blocks stand one after the other."""
    requested_size: _Whole | None = None
    frames: Any = None


class _Segment(msgspec.Struct):
    address: _Whole
    total_size: _Whole
    blocks: list[_Block]
    stream: int = 0
    device: int = 0
    is_expandable: bool = False


class _Snapshot(msgspec.Struct):
    segments: list[_Segment]
    device_traces: list[list[_Event]]
    allocator_settings: dict[str, Any] = {}


@dataclass(slots=True)
class Allocation:
    """Bytes that were asked for."""

    address: int
    size: int
    """Bytes asked for."""
    stream: int
    frames: Any
    """Its stack, innermost first; None where there is none."""
    lower: int
    upper: int = -1
    """Half-open life; -1 while it lives."""
    requested: int = -1
    """When it was asked to be freed; -1 where it was not."""
    block: int = 0
    """Bytes of its block, where the snapshot has it; else 0."""


class Segment(NamedTuple):
    """Memory that is reserved."""

    address: int
    size: int
    stream: int
    grows: bool
    """Whether it is, or is part of, one that can grow (``expandable_segments``)."""


class SegmentEvent(NamedTuple):
    """Memory comes from the device or goes back to it."""

    moment: int
    comes: bool
    segment: Segment


@dataclass
class Trace:
    """One device of a snapshot."""

    device: int
    events: int
    settings: dict[str, Any]
    """Of the allocator."""
    allocations: list[Allocation] = field(default_factory=list)
    """By the moment at which they begin; those from before the trace first."""
    segments: list[Segment] = field(default_factory=list)
    """Those at the end."""
    segment_events: list[SegmentEvent] = field(default_factory=list)
    shortages: list[tuple[int, int]] = field(default_factory=list)
    """(moment, bytes asked for) of the errors that memory was out."""
    unrecorded: int = 0
    """Allocations from before the trace."""

    @property
    def end(self) -> int:
        """Moment after the last event."""
        return self.events + 1


def read_trace(value: Any, device: int | None) -> Trace:
    """One device of a snapshot: the one that is asked for, else the one with the most events, and of those the most segments.

    Raises
    ------
    InputError
        It is no snapshot, has no such device, or an event or a block lacks what the documented format has; names it.
    """
    snapshot = _convert(value)
    held: dict[int, list[_Segment]] = {}
    for segment in snapshot.segments:
        held.setdefault(segment.device, []).append(segment)
    traces = dict(enumerate(snapshot.device_traces))
    weights = {at: (len(traces.get(at, ())), len(held.get(at, ())), -at) for at in (*traces, *held)}
    filled = [at for at, weight in sorted(weights.items()) if weight[:2] != (0, 0)]
    if not filled:
        raise InputError("found neither segments nor events, expected what torch.cuda.memory._record_memory_history recorded")
    chosen = max(filled, key=weights.__getitem__) if device is None else device
    if chosen not in filled:
        raise InputError(f"found nothing of device {device}, expected one of {', '.join(map(str, filled))}")
    if device is None and len(filled) > 1:
        others = ", ".join(str(at) for at in filled if at != chosen)
        warn_unmodelled(f"it has the most events; there are others: {others} (--set device=N)", f"device {chosen}")
    events = traces.get(chosen, [])
    trace = Trace(chosen, len(events), snapshot.allocator_settings)
    _Reader(trace).read(events, held.get(chosen, []))
    sizes = (allocation.size + allocation.block for allocation in trace.allocations)
    total = sum(sizes) + sum(segment.size for segment in (*trace.segments, *(event.segment for event in trace.segment_events)))
    if total >= LIMIT:
        raise InputError(f"found sizes that add up to {total} bytes, expected less than {LIMIT}")
    return trace


def _convert(value: Any) -> _Snapshot:
    if not isinstance(value, dict) or not {"segments", "device_traces"} <= value.keys():
        content = f"the keys {', '.join(value)}" if isinstance(value, dict) and value else type(value).__name__
        raise InputError(f"found a pickle of {content}, expected a memory snapshot with segments and device_traces")
    # What is no list is refused below.
    lists = [value["segments"], value["device_traces"]]
    lists = [entries for entries in lists if isinstance(entries, list)]
    inner = [part.get("blocks") if isinstance(part, dict) else part for entries in lists for part in entries]
    if sum(len(entries) for entries in (*lists, *inner) if isinstance(entries, list)) > MOST_ENTRIES:
        raise InputError(f"found more than {MOST_ENTRIES} events and blocks, expected fewer")
    try:
        return msgspec.convert(value, _Snapshot)
    except msgspec.ValidationError as error:
        raise files.type_mismatch(error, _Snapshot) from error


class _Reader:
    """Follows the allocations of a trace from their begin to their end."""

    def __init__(self, trace: Trace):
        self._trace = trace
        self._open: dict[int, Allocation] = {}
        self._early: list[Allocation] = []
        """Those from before the trace."""
        self._lost: list[int] = []
        """Moments by which allocations are known to have ended that no event ends."""

    def read(self, events: list[_Event], segments: list[_Segment]) -> None:
        trace, begun = self._trace, self._trace.allocations
        check_reading()
        for moment, event in enumerate(events, 1):
            action, address = event.action, event.addr
            if action == "alloc":
                if address in self._open:
                    self._lose(address, moment)
                self._open[address] = Allocation(address, event.size, event.stream, event.frames, moment)
                begun.append(self._open[address])
            elif action == "free_requested":
                self._living(event).requested = moment
            elif action == "free_completed":
                self._living(event).upper = moment
                del self._open[address]
            elif action == "oom":
                trace.shortages.append((moment, event.size))
            elif action in SEGMENT_EVENTS:
                comes, grows = SEGMENT_EVENTS[action]
                trace.segment_events.append(SegmentEvent(moment, comes, Segment(address, event.size, event.stream, grows)))
        self._end(segments)
        trace.unrecorded = len(self._early)
        begun[:0] = self._early
        if self._lost:
            text = f"{len(self._lost)} allocations end without an event: some were not recorded, and lives may be too long"
            warn_unmodelled(text, f"event {min(self._lost) - 1}")

    def _living(self, event: _Event) -> Allocation:
        """The allocation that stands at an address; one from before the trace where none is known."""
        if event.addr not in self._open:
            self._early.append(Allocation(event.addr, event.size, event.stream, None, 0))
            self._open[event.addr] = self._early[-1]
        return self._open[event.addr]

    def _lose(self, address: int, moment: int) -> None:
        """End an allocation that must have ended by a moment."""
        allocation = self._open.pop(address)
        allocation.upper = allocation.requested if allocation.requested > allocation.lower else moment
        self._lost.append(moment)

    def _end(self, segments: list[_Segment]) -> None:
        """Take what stands in segments at the end: what has no event was there before the trace."""
        trace, standing = self._trace, set[int]()
        for segment in segments:
            trace.segments.append(Segment(segment.address, segment.total_size, segment.stream, segment.is_expandable))
            following = segment.address
            for block in segment.blocks:
                address = following if block.address is None else block.address
                following = address + block.size
                if not block.state.startswith("active"):
                    continue
                if address not in self._open:
                    size = block.size if block.requested_size is None else block.requested_size
                    self._early.append(Allocation(address, size, segment.stream, block.frames, 0))
                    self._open[address] = self._early[-1]
                allocation = self._open[address]
                allocation.block = block.size
                if allocation.lower == 0 and allocation.requested < 0 and block.state != "active_allocated":
                    allocation.requested = 0
                standing.add(address)
        for address in self._open.keys() - standing:
            self._lose(address, trace.end)
        for allocation in self._open.values():
            allocation.upper = trace.end
