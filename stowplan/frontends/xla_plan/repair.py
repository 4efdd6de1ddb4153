"""Turns XLA's use of fast memory into residencies that the rules allow.

A *stay* is a period in which XLA has a tensor in fast memory (:class:`~stowplan.frontends.xla_plan.stays.Stay`). A *residency*
is such a period in a plan of stowplan: it has a start, an end and an offset, and must keep the rules of
``docs/reference/memory-mapping.md``. A *use* is one access of a tensor by one step. *Boundary* ``t`` is the moment before step
``t``. To copy *in* means to copy to fast memory, and to copy *out* means to copy to slow memory.

XLA's plans do three things that these rules forbid unless an option allows them:

- A tensor is copied in slices, each of which occupies only its own bytes.
- A result overwrites a donated operand.
- A tensor uses the bytes of another one that was copied out between the same two steps.

Without these options a residency occupies all of its bytes during whole steps. Therefore some copies begin later or earlier
than in XLA's plan, some stays move to another offset, and a few stays are dropped.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from stowplan.frontends.xla_plan.stays import Source, Stay
from stowplan.frontends.xla_plan.trace import Trace
from stowplan.models.memory_mapping.plan import Residency
from stowplan.models.memory_mapping.problem import Problem


class CopyOut(NamedTuple):
    """A copy to slow memory."""

    start: int
    """The boundary at which it starts."""
    end: int
    """The boundary at which it ends."""
    sequence: int
    """Its position among all copies of XLA's plan."""


@dataclass(slots=True)
class Slice:
    """One of the copies that bring a tensor to fast memory piece by piece: it copies the tensor's bytes ``[low, high)``."""

    start: int
    """The boundary at which it starts."""
    end: int
    """The boundary at which it ends."""
    low: int
    """The first byte, counted from the start of the tensor."""
    high: int
    """The byte after the last one."""
    sequence: int
    """Its position among all copies of XLA's plan."""


class PlacedStay:
    """A stay that becomes a residency. Its tensor is known, while its times and its offset may still change.

    It occupies the bytes ``[low, high)`` of fast memory from the boundary ``start`` to the boundary ``end``. ``uses`` has the
    numbers of the uses that it serves.
    """

    def __init__(self, stay: Stay, tensor: int, *, sliced: bool = False):
        self.stay = stay
        self.slices = _slices(stay) if sliced else []
        """The slices; empty if the tensor is copied in one piece."""
        self.tensor = tensor
        self.start = stay.starts[0]
        self.end = stay.end
        self.low = stay.offset
        self.high = stay.offset + stay.size
        self.uses = set(stay.uses)
        self.copies_out = [CopyOut(eviction.start, eviction.end, eviction.sequence) for eviction in stay.evictions]

    def residency(self) -> Residency:
        """The residency of the plan."""
        return Residency(self.tensor, self.start, self.end, self.low, self.stay.source is Source.PRELOADED)

    def meets(self, other: PlacedStay) -> bool:
        """Whether both use some of the same bytes, whether or not at the same time."""
        return self.low < other.high and other.low < self.high

    def clashes(self, other: PlacedStay) -> bool:
        """Whether both use some of the same bytes at the same time."""
        if not self.meets(other) or self.start >= other.end or other.start >= self.end:
            return False
        return any(
            low < top and bottom < high and start < other.end and since < self.end
            for start, low, high in self.boxes()
            for since, bottom, top in other.boxes()
        )

    def boxes(self) -> list[tuple[int, int, int]]:
        """The ranges of bytes that it occupies, as triples ``(start, low, high)``: it occupies the bytes ``[low, high)`` of
        fast memory from boundary ``start`` on."""
        return [(part.start, self.low + part.low, self.low + part.high) for part in self.slices] or [
            (self.start, self.low, self.high)
        ]

    @property
    def is_delayed(self) -> bool:
        """Whether its copy, or one of its slices, begins later than XLA's."""
        if self.slices:
            return any(moved.start > part.starts[0] for moved, part in zip(self.slices, self.stay.parts, strict=True))
        return self.start > self.stay.starts[0]

    @property
    def is_sliced(self) -> bool:
        """Whether XLA copies it to fast memory in slices."""
        return self.stay.source is Source.COPIED and len(self.stay.starts) > 1


def _slices(stay: Stay) -> list[Slice]:
    """The slices of a stay if they cover each of its bytes exactly once; otherwise none."""
    if stay.source is not Source.COPIED or len(stay.parts) < 2:
        return []
    slices = []
    for part in stay.parts:
        low = part.offset - stay.offset
        slices.append(Slice(part.starts[0], part.arrived, low, low + part.size, part.sequence))
    borders = sorted((piece.low, piece.high) for piece in slices)
    is_partition = [0, *(high for _, high in borders)] == [*(low for low, _ in borders), stay.size]
    return slices if is_partition else []


class Dropped(NamedTuple):
    """A stay that has no residency."""

    tensor: str
    """Name of the tensor, or ``unknown``."""
    size: int
    """Size of the tensor in bytes."""
    traffic: int
    """Bytes that steps read and write in slow memory because the stay was dropped, over all runs of these steps."""
    reason: str
    """The reason why it was dropped."""


class Repair:
    """Makes a residency from each stay that can have one, such that no two overlap, and counts the changes.

    Attributes
    ----------
    placed
        The stays that become residencies.
    dropped
        The stays that have no residency.
    idle
        Number of stays that were left out because they serve no use and no copy to slow memory.
    moved
        Number of stays that were given another offset.
    advanced
        Number of stays whose copies to slow memory start earlier than in XLA's plan.
    """

    def __init__(self, problem: Problem, trace: Trace):
        self.problem = problem
        self.placed: list[PlacedStay] = []
        self.dropped: list[Dropped] = []
        self.idle = 0
        self.moved = 0
        self.advanced = 0
        self._bytes = [use.bytes * step.weight for step in problem.steps for use in step.uses]
        """Bytes that each use moves, over all runs of its step."""
        horizon = problem.horizon
        self._span = [(0, horizon) if tensor.is_input or tensor.is_output else (horizon, 0) for tensor in problem.tensors]
        """For each tensor, the range ``[first, last + 1)`` of steps that use it; for inputs and outputs the whole program."""
        self._writes: list[list[int]] = [[] for _ in problem.tensors]
        """For each tensor, the steps that write it, ascending."""
        for number, step in enumerate(problem.steps):
            for use in step.uses:
                first, end = self._span[use.tensor]
                self._span[use.tensor] = (min(first, number), max(end, number + 1))
                if use.is_output:
                    self._writes[use.tensor].append(number)
        for stay in trace.stays:
            if stay.merged is None:  # Otherwise it is a part of another stay.
                self._admit(stay)
        if problem.prefetches == "sliced":
            self._copy_results_without_room()
        self._delay_copies_in()
        self._resolve_overlaps()
        self._serve_replaced(set(trace.replaced))

    def drop(self, entry: PlacedStay, reason: str) -> None:
        """Drops a stay, so that its uses read and write slow memory. ``reason`` is a text for :attr:`Dropped.reason`. Raises
        ValueError if the stay is not in :attr:`placed`."""
        self.placed.remove(entry)
        self._record(entry.stay, entry.uses, self.problem.tensors[entry.tensor].name, reason)

    def _record(self, stay: Stay, uses: Iterable[int], name: str, reason: str) -> None:
        """Adds a stay to :attr:`dropped`."""
        self.dropped.append(Dropped(name, stay.size, self._traffic(uses), reason))

    def _traffic(self, uses: Iterable[int]) -> int:
        """Bytes that the uses read and write, over all runs of their steps."""
        return sum(self._bytes[use] for use in uses)

    def _admit(self, stay: Stay) -> None:
        """Adds a stay to :attr:`placed`, or to :attr:`dropped` if no residency can express it, or counts it as idle."""
        if not stay.uses and not stay.evictions:
            self.idle += 1
            return
        if stay.tensor is None:
            self._record(stay, stay.uses, "unknown", "no tensor of the program")
            return
        tensor = self.problem.tensors[stay.tensor]
        fault = stay.fault
        if fault is None and stay.size != tensor.size:
            fault = "another size than the program's tensor"
        if fault is not None:
            self._record(stay, stay.uses, tensor.name, fault)
            return
        entry = PlacedStay(stay, stay.tensor, sliced=self.problem.prefetches == "sliced")
        self._fix_end(entry)
        self.placed.append(entry)

    # Time

    def _fix_end(self, entry: PlacedStay) -> None:
        """Sets the end of a stay to its last use or the end of its last copy to slow memory, whichever is later.

        If this end is inside of a loop, but the tensor is also needed before or after the loop, the stay lasts until the end of
        the loop.
        """
        entry.end = entry.stay.end
        whole_steps = self.problem.evictions == "whole_steps"
        for copy in entry.copies_out:
            if copy.start == copy.end and whole_steps:  # The next step must not overwrite the bytes before they are copied.
                entry.end = max(entry.end, copy.end + 1)
        first, last = self._span[entry.tensor]
        for loop in sorted(self.problem.loops, key=lambda loop: loop.end):
            if (first < loop.start or loop.end < last) and loop.start < entry.end < loop.end:
                entry.end = loop.end

    def _copy_results_without_room(self) -> None:
        """Shortens the stays of results that overlap other stays, if XLA replaced the step that writes the result by a copy.

        At first, such a stay begins with the step, as if the step wrote its result to fast memory. If the stay then overlaps
        another one, the step writes to slow memory instead, and the stay begins when XLA's copy starts.
        """
        for entry in self.placed:
            placement = entry.stay.stands_for
            if placement is None or not any(other is not entry and other.clashes(entry) for other in self.placed):
                continue
            start, write = placement
            entry.stay.source, entry.stay.starts, entry.start = Source.COPIED, [start], start
            entry.uses.discard(write)

    def _delay_copies_in(self) -> None:
        """Delays copies to fast memory until all of their bytes are free, and until the tensor's previous stay is over."""
        by_end = sorted(self.placed, key=lambda entry: entry.end)
        ends = [entry.end for entry in by_end]
        for entry in self.placed:
            stay = entry.stay
            if stay.source is not Source.COPIED:
                continue
            latest = max(stay.starts[-1], min(stay.arrived, entry.end - 1))
            for other in by_end[bisect_right(ends, entry.start) : bisect_right(ends, latest)]:
                # In XLA, another stay may use the bytes of a slice until the copy of this slice starts. A copy of the whole
                # tensor needs all bytes from its start on, so that it must wait for the end of such a stay.
                frees_bytes = other.meets(entry) and other.end <= stay.starts[-1] and not entry.slices
                if other is not entry and (frees_bytes or other.tensor == entry.tensor):
                    entry.start = max(entry.start, other.end)
            if entry.start > stay.starts[0]:
                entry.start = self._outside_loops(entry.start, forward=True)
            for part in entry.slices:
                part.start = max(part.start, entry.start)
                part.end = max(part.end, part.start)

    def _outside_loops(self, boundary: int, *, forward: bool) -> int:
        """The boundary itself if it is outside of all loops; otherwise the end (``forward``) or the start of the outermost loop
        around it.

        Copies are moved there because no copy may start or end inside of a loop.
        """
        for loop in self.problem.loops:  # Enclosing loops come first, so the first loop that contains the boundary decides.
            if loop.start < boundary < loop.end:
                return loop.end if forward else loop.start
        return boundary

    def _advance(self, entry: PlacedStay, boundary: int) -> bool:
        """Makes a stay end at a boundary by starting its copies to slow memory earlier; returns whether that is possible.

        XLA copies a tensor out between two steps, and its bytes are free at once. If the problem does not allow this, the stay
        lasts for one more step. If the copy starts at an earlier boundary, it is complete in time. If an earlier start is not
        possible, the stay remains as it is.
        """
        copies_out, end = entry.copies_out, entry.end
        entry.copies_out = []
        for copy in copies_out:
            if copy.start == copy.end == boundary:
                copy = copy._replace(start=self._outside_loops(boundary - 1, forward=False))
            entry.copies_out.append(copy)
        self._fix_end(entry)
        earliest = max(entry.start + 1, entry.stay.arrived)
        allowed = entry.end <= boundary and all(
            earliest <= copy.start and not any(copy.start <= write < copy.end for write in self._writes[entry.tensor])
            for copy in entry.copies_out
        )
        if not allowed:
            entry.copies_out, entry.end = copies_out, end
            return False
        self.advanced += 1
        return True

    # Place

    def _resolve_overlaps(self) -> None:
        """Resolves overlaps of stays, in the order in which they start.

        A stay that overlaps earlier ones, or does not fit into the capacity, is moved to a free offset. If there is none, the
        earlier stays that overlap it start their copies to slow memory earlier or are moved. If overlaps remain, the bytes that
        the stay's uses move are compared with those of the earlier stays that still overlap it. Either the stay is dropped or
        these earlier stays are, whichever move fewer bytes. A stay that does not fit into the capacity and cannot be moved is
        always dropped.
        """
        capacity = self.problem.capacity
        active: list[PlacedStay] = []
        for entry in sorted(self.placed, key=lambda entry: entry.start):
            active = [other for other in active if other.end > entry.start]
            overlapping = [other for other in active if other.clashes(entry)]
            if (overlapping or entry.high > capacity) and not self._move(entry):
                overlapping = [other for other in overlapping if not (self._advance(other, entry.start) or self._move(other))]
                traffic = sum(self._traffic(other.uses) for other in overlapping)
                removed = overlapping if entry.high <= capacity and traffic < self._traffic(entry.uses) else [entry]
                for stay in removed:
                    self.drop(stay, "its place is taken, and no other is free")
                active = [other for other in active if other not in removed]
                if entry in removed:
                    continue
            active.append(entry)

    def _move(self, entry: PlacedStay) -> bool:
        """Moves a stay to the lowest offset that is free from its start to its end; returns whether there is one."""
        size = entry.high - entry.low
        low = 0
        for other in sorted(self.placed, key=lambda other: other.low):
            if other is not entry and other.start < entry.end and entry.start < other.end:
                if other.low - low >= size:
                    break
                low = max(low, -(-other.high // self.problem.alignment) * self.problem.alignment)
        if low + size > self.problem.capacity:
            return False
        entry.low, entry.high = low, low + size
        self.moved += 1
        return True

    # Uses

    def _serve_replaced(self, replaced: set[str]) -> None:
        """Lets each step that XLA has replaced by a copy read an operand from fast memory if the operand is there.

        ``replaced`` has the names of these steps.
        """
        number = 0
        for place, step in enumerate(self.problem.steps):
            if step.name in replaced:
                for position, use in enumerate(step.uses):
                    for entry in self.placed:
                        is_resident = entry.start < place < entry.end and entry.stay.arrived <= place
                        if entry.tensor == use.tensor and is_resident and not use.is_output:
                            entry.uses.add(number + position)
            number += len(step.uses)
