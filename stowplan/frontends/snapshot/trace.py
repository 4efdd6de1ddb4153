"""Reads the allocations and segments of one device from a snapshot, by the documentation of ``torch.cuda.memory._snapshot``.

Times are called *moments*: moment 0 is the start of the recording, and moment ``i + 1`` is event ``i`` of the device's trace.
Allocations that exist at the end live to the moment after the last event. An allocation lives until the event
``free_completed``, because another stream may read it until then.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, NamedTuple

import msgspec

from stowplan import files
from stowplan.deadline import check_reading
from stowplan.errors import InputError
from stowplan.log import warn_unmodelled

#: Addresses, sizes, and the sum of all sizes must be below this, so that sums fit in 64 bits.
LIMIT = 1 << 60

#: The largest number of events and blocks of all devices. It is limited because a small pickle may contain the same list many
#: times.
MOST_ENTRIES = 1 << 24

#: Events of segments: whether memory is reserved (True) or released, and whether the segment is expandable.
SEGMENT_EVENTS = {
    "segment_alloc": (True, False),
    "segment_free": (False, False),
    "segment_map": (True, True),
    "segment_unmap": (False, True),
}

#: A whole number that is at least 0 and below the limit.
_Whole = Annotated[int, msgspec.Meta(ge=0, lt=LIMIT)]


class _Event(msgspec.Struct, gc=False):
    """An event as PyTorch records it."""

    action: str
    size: _Whole = 0
    addr: _Whole = 0
    stream: int = 0
    frames: Any = None


class _Block(msgspec.Struct):
    """A block at the end of the trace, as PyTorch records it; sizes are in bytes."""

    size: _Whole
    state: str
    address: _Whole | None = None
    """None in older snapshots, in which blocks follow each other without gaps."""
    requested_size: _Whole | None = None
    frames: Any = None


class _Segment(msgspec.Struct):
    """A segment at the end of the trace, as PyTorch records it; sizes are in bytes."""

    address: _Whole
    total_size: _Whole
    blocks: list[_Block]
    stream: int = 0
    device: int = 0
    is_expandable: bool = False


class _Snapshot(msgspec.Struct):
    """A snapshot as PyTorch writes it; the traces are those of devices 0, 1 and so on."""

    segments: list[_Segment]
    device_traces: list[list[_Event]]
    allocator_settings: dict[str, Any] = {}


@dataclass(slots=True)
class Allocation:
    """An allocation of a device."""

    address: int
    """Address of its first byte."""
    size: int
    """Requested bytes."""
    stream: int
    """The CUDA stream for which it was requested."""
    frames: Any
    """The stack of its request, with the innermost frame first; None if it was not recorded."""
    lower: int
    """The moment at which it begins; 0 for an allocation from before the recording."""
    upper: int = -1
    """The moment at which it ends, exclusive; -1 if its end has not been read yet."""
    requested: int = -1
    """The moment at which its release was requested; -1 if it was not."""
    block: int = 0
    """Bytes of its block if the snapshot has them; otherwise 0."""


class Segment(NamedTuple):
    """A range of reserved memory."""

    address: int
    """Address of its first byte."""
    size: int
    """Its size in bytes."""
    stream: int
    """The CUDA stream for which it was reserved."""
    grows: bool
    """Whether it is, or is a part of, an expandable segment (``expandable_segments``), which is reserved in parts."""


class SegmentEvent(NamedTuple):
    """An event in which the allocator reserves memory from the device, or releases it."""

    moment: int
    """The moment of the event."""
    comes: bool
    """Whether memory is reserved; otherwise it is released."""
    segment: Segment
    """The memory that is reserved or released."""


@dataclass
class Trace:
    """One device of a snapshot."""

    device: int
    """Index of the device."""
    events: int
    """Number of events."""
    settings: dict[str, Any]
    """Settings of the allocator."""
    allocations: list[Allocation] = field(default_factory=list)
    """All allocations in the order in which they begin; those from before the trace come first."""
    segments: list[Segment] = field(default_factory=list)
    """The segments at the end of the trace."""
    segment_events: list[SegmentEvent] = field(default_factory=list)
    """All events of segments, in their order."""
    shortages: list[tuple[int, int]] = field(default_factory=list)
    """(moment, requested bytes) of each out-of-memory error."""
    unrecorded: int = 0
    """Number of allocations from before the trace."""

    @property
    def end(self) -> int:
        """The moment after the last event."""
        return self.events + 1


def read_trace(value: Any, device: int | None) -> Trace:
    """Reads one device of a snapshot.

    Parameters
    ----------
    value
        The unpickled snapshot.
    device
        Index of the device. None means the device with the most events; among several of them, the one with the most segments,
        and then the one with the smallest index.

    Raises
    ------
    InputError
        The value is no snapshot, has too many entries or too large sizes, has no such device, or an event or a block lacks a
        documented field; the message names the field.
    TimeLimitError
        The time limit for reading inputs is over.
    """
    snapshot = _convert(value)
    segments_of: dict[int, list[_Segment]] = {}
    for segment in snapshot.segments:
        segments_of.setdefault(segment.device, []).append(segment)
    traces = dict(enumerate(snapshot.device_traces))
    weights = {at: (len(traces.get(at, ())), len(segments_of.get(at, ())), -at) for at in (*traces, *segments_of)}
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
    _Reader(trace).read(events, segments_of.get(chosen, []))
    sizes = (allocation.size + allocation.block for allocation in trace.allocations)
    total = sum(sizes) + sum(segment.size for segment in (*trace.segments, *(event.segment for event in trace.segment_events)))
    if total >= LIMIT:
        raise InputError(f"found sizes that add up to {total} bytes, expected less than {LIMIT}")
    return trace


def _convert(value: Any) -> _Snapshot:
    """The snapshot in an unpickled value; raises InputError if it is none, or has too many entries."""
    if not isinstance(value, dict) or not {"segments", "device_traces"} <= value.keys():
        content = f"the keys {', '.join(value)}" if isinstance(value, dict) and value else type(value).__name__
        raise InputError(f"found a pickle of {content}, expected a memory snapshot with segments and device_traces")
    # Entries are counted here before the values are converted, which refuses values that are no lists.
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
    """Follows the allocations of a trace from their beginning to their end."""

    def __init__(self, trace: Trace):
        self._trace = trace
        self._open: dict[int, Allocation] = {}
        """The allocations that live at the current event, by address."""
        self._early: list[Allocation] = []
        """Allocations from before the trace."""
        self._lost: list[int] = []
        """For each allocation without an event for its end, the latest moment at which it can have ended."""

    def read(self, events: list[_Event], segments: list[_Segment]) -> None:
        """Adds allocations, segments and their events to the trace; ``segments`` are the segments at its end."""
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
        """The allocation at the address of an event; if none is known there, an allocation from before the trace is added."""
        if event.addr not in self._open:
            self._early.append(Allocation(event.addr, event.size, event.stream, None, 0))
            self._open[event.addr] = self._early[-1]
        return self._open[event.addr]

    def _lose(self, address: int, moment: int) -> None:
        """Ends an allocation that has no event for its end, but must have ended before a moment."""
        allocation = self._open.pop(address)
        allocation.upper = allocation.requested if allocation.requested > allocation.lower else moment
        self._lost.append(moment)

    def _end(self, segments: list[_Segment]) -> None:
        """Adds the segments at the end, and ends all allocations that still live.

        Blocks without an event become allocations from before the trace. Allocations without a block have ended without an
        event.
        """
        trace, live_addresses = self._trace, set[int]()
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
                live_addresses.add(address)
        for address in self._open.keys() - live_addresses:
            self._lose(address, trace.end)
        for allocation in self._open.values():
            allocation.upper = trace.end
