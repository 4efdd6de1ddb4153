"""What a snapshot says of one device, by the documentation of ``torch.cuda.memory._snapshot``: allocations and segments.

Moment 0 is when recording began, moment ``i + 1`` the event ``i`` of the device's trace; what is there at the end lives to the
moment after the last event. An allocation lives until ``free_completed``: before that another stream may still read it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from stowplan.deadline import check_reading
from stowplan.errors import InputError
from stowplan.log import warn_unmodelled

#: Addresses, sizes, and the sum of all sizes are below this.
LIMIT = 1 << 60

#: Blocks in all segments, at most: one and the same list may stand in many.
MAX_BLOCKS = 1 << 22

#: Events of segments: whether memory comes or goes, and whether as part of one that can grow.
SEGMENT_EVENTS = {
    "segment_alloc": (True, False),
    "segment_free": (False, False),
    "segment_map": (True, True),
    "segment_unmap": (False, True),
}

#: All events that mean something here; others are marks of the user or of the allocator.
_MODELLED = frozenset({"alloc", "free_requested", "free_completed", "oom", *SEGMENT_EVENTS})

#: Events between two looks at the clock.
_SLICE = 1 << 14


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
    allocations: list[Allocation] = field(default_factory=list)
    """By the moment at which they begin; those from before the trace first."""
    segments: list[Segment] = field(default_factory=list)
    """Those at the end."""
    segment_events: list[SegmentEvent] = field(default_factory=list)
    shortages: list[tuple[int, int]] = field(default_factory=list)
    """(moment, bytes asked for) of the errors that memory was out."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Of the allocator."""
    unrecorded: int = 0
    """Allocations from before the trace."""

    @property
    def end(self) -> int:
        """Moment after the last event."""
        return self.events + 1


def read_trace(snapshot: Any, device: int | None) -> Trace:
    """One device of a snapshot: the one that is asked for, else the one with the most events, and of those the most memory.

    Raises
    ------
    InputError
        It is no snapshot, has no such device, or an event or a block lacks what the documented format has; names it.
    """
    if not isinstance(snapshot, dict) or not {"segments", "device_traces"} <= snapshot.keys():
        found = f"the keys {', '.join(snapshot)}" if isinstance(snapshot, dict) and snapshot else type(snapshot).__name__
        raise InputError(f"found a pickle of {found}, expected a memory snapshot with segments and device_traces")
    segments, traces = (_list(snapshot, name, name) for name in ("segments", "device_traces"))
    held: dict[int, list[Any]] = {number: [] for number in range(len(traces))}
    for number, segment in enumerate(segments):
        place = f"segments[{number}]"
        held.setdefault(_whole(segment, "device", place) if "device" in _dict(segment, place) else 0, []).append(segment)
    filled = [number for number, own in held.items() if own or (number < len(traces) and traces[number])]
    if device is None and not filled:
        raise InputError("found neither segments nor events, expected what torch.cuda.memory._record_memory_history recorded")
    weights = {number: (len(traces[number]) if number < len(traces) else 0, len(held[number]), -number) for number in filled}
    chosen = max(filled, key=weights.__getitem__) if device is None else device
    if chosen not in filled:
        raise InputError(f"found nothing of device {device}, expected one of {', '.join(map(str, filled)) or 'none'}")
    if device is None and len(filled) > 1:
        others = ", ".join(str(number) for number in filled if number != chosen)
        warn_unmodelled(f"it has the most events; others are there: {others} (--device)", f"device {chosen}")
    settings = snapshot.get("allocator_settings")
    events = traces[chosen] if chosen < len(traces) else []
    trace = Trace(chosen, len(events), settings=settings if isinstance(settings, dict) else {})
    _Reader(trace, f"device_traces[{chosen}]").read(events, held[chosen])
    return trace


class _Reader:
    """Follows the allocations of a trace from their begin to their end."""

    def __init__(self, trace: Trace, place: str):
        self._trace, self._place = trace, place
        self._open: dict[int, Allocation] = {}
        self._early: list[Allocation] = []
        self._lost: list[int] = []
        """Events at which an allocation is known to have ended that no event ends."""

    def read(self, events: Any, segments: list[Any]) -> None:
        trace, begun = self._trace, self._trace.allocations
        for index, event in enumerate(_list({"events": events}, "events", self._place)):
            if index % _SLICE == 0:
                check_reading()
            try:
                action, size = event["action"], event["size"]
                if action not in _MODELLED:
                    continue
                # An event of "oom" has no address.
                address, stream = event.get("addr", 0), event.get("stream", 0)
            except (KeyError, TypeError):
                raise InputError("expected an event with action and size", place=f"{self._place}[{index}]") from None
            if not (type(address) is type(size) is type(stream) is int and 0 <= address < LIMIT and 0 <= size < LIMIT):
                found = f"addr {address!r}, size {size!r} and stream {stream!r}"
                raise InputError(f"found {found}, expected whole numbers", place=f"{self._place}[{index}]")
            moment = index + 1
            if action == "alloc":
                if address in self._open:
                    self._lose(address, moment)
                allocation = Allocation(address, size, stream, event.get("frames"), moment)
                begun.append(allocation)
                self._open[address] = allocation
            elif action == "free_requested":
                self._living(address, event).requested = moment
            elif action == "free_completed":
                self._living(address, event).upper = moment
                del self._open[address]
            elif action == "oom":
                trace.shortages.append((moment, size))
            else:
                comes, grows = SEGMENT_EVENTS[action]
                trace.segment_events.append(SegmentEvent(moment, comes, Segment(address, size, stream, grows)))
        self._end(segments)
        total = sum(each.size + each.block for each in (*begun, *self._early))
        total += sum(segment.size for segment in (*trace.segments, *(event.segment for event in trace.segment_events)))
        if total >= LIMIT:
            raise InputError(f"found sizes that add up to {total} bytes, expected less than {LIMIT}", place=self._place)
        trace.unrecorded = len(self._early)
        begun[:0] = self._early
        if self._lost:
            text = f"{len(self._lost)} allocations end without an event: some were not recorded, and lives may be too long"
            warn_unmodelled(text, f"event {min(self._lost) - 1}")

    def _living(self, address: int, event: Any) -> Allocation:
        """The allocation that stands at an address; one from before the trace where none is known."""
        allocation = self._open.get(address)
        if allocation is None:
            allocation = self._open[address] = Allocation(address, event["size"], event.get("stream", 0), None, 0)
            self._early.append(allocation)
        return allocation

    def _lose(self, address: int, moment: int) -> None:
        """End an allocation that must have ended by a moment."""
        allocation = self._open.pop(address)
        allocation.upper = allocation.requested if allocation.requested > allocation.lower else moment
        self._lost.append(moment)

    def _end(self, segments: list[Any]) -> None:
        """Take what stands in segments at the end: what has no event was there before the trace."""
        trace, standing, blocks = self._trace, set[int](), 0
        for number, segment in enumerate(segments):
            place = f"segments of device {trace.device}[{number}]"
            start, stream = _whole(segment, "address", place), _whole({"stream": 0} | segment, "stream", place)
            grows = segment.get("is_expandable", False) is True
            trace.segments.append(Segment(start, _whole(segment, "total_size", place), stream, grows))
            blocks += len(_list(segment, "blocks", place))
            if blocks > MAX_BLOCKS:
                raise InputError(f"found more than {MAX_BLOCKS} blocks, expected fewer", place=place)
            for address, block in _blocks(segment, start, place):
                if address not in self._open:
                    size = _whole(block, "requested_size", place) if "requested_size" in block else block["size"]
                    self._early.append(Allocation(address, size, stream, block.get("frames"), 0))
                    self._open[address] = self._early[-1]
                allocation = self._open[address]
                allocation.block = block["size"]
                if allocation.lower == 0 and allocation.requested < 0 and block["state"] != "active_allocated":
                    allocation.requested = 0
                standing.add(address)
        for address in [address for address in self._open if address not in standing]:
            self._lose(address, trace.end)
        for allocation in self._open.values():
            allocation.upper = trace.end


def _blocks(segment: dict[str, Any], address: int, place: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """(address, block) of what is not free; older snapshots leave addresses out, and blocks stand one after the other."""
    for number, block in enumerate(_list(segment, "blocks", place)):
        inside = f"{place}.blocks[{number}]"
        size, state = _whole(block, "size", inside), block.get("state")
        address = _whole(block, "address", inside) if "address" in block else address
        if not isinstance(state, str):
            raise InputError(f"found the state {state!r}, expected one such as active_allocated", place=inside)
        if state.startswith("active"):
            yield address, block
        address += size


def _dict(value: Any, place: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InputError(f"found {type(value).__name__}, expected a dictionary", place=place)
    return value


def _list(value: Any, name: str, place: str) -> list[Any]:
    entries = _dict(value, place).get(name)
    if not isinstance(entries, list):
        raise InputError(f"found {name} of the type {type(entries).__name__}, expected a list", place=place)
    return entries


def _whole(value: Any, name: str, place: str) -> int:
    number = _dict(value, place).get(name)
    if type(number) is not int or not 0 <= number < LIMIT:
        raise InputError(f"found {name} {number!r}, expected a whole number of 0 to {LIMIT - 1}", place=place)
    return number
