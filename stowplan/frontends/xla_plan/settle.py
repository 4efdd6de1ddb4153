"""From stays in XLA's module to residencies that our rules allow: when each starts and ends, and where it stands.

XLA's rules are a little freer than those of ``docs/memory-mapping.md``. Its copies come in slices that take their place one by
one; a result may take the place of an operand that is read for the last time, or of what was copied out between the same two
steps. Ours need a place whole, and for whole steps. So some copies begin later or earlier here, some stays move to another
offset, and a few have no place at all.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from typing import NamedTuple

from stowplan.frontends.xla_plan.stays import Source, Stay
from stowplan.frontends.xla_plan.trace import Trace
from stowplan.models.memory_mapping.plan import Residency
from stowplan.models.memory_mapping.problem import Problem


class CopyOut(NamedTuple):
    """Window of a copy to slow memory, and its place among all copies."""

    start: int
    end: int
    sequence: int


class Home:
    """A stay on its way to a residency: its tensor is known, its times and its place may yet change."""

    def __init__(self, stay: Stay, tensor: int):
        self.stay = stay
        self.tensor = tensor
        self.start = stay.starts[0]
        self.end = stay.end
        self.low = stay.offset
        self.high = stay.offset + stay.size
        self.uses = set(stay.uses)
        self.copies_out = [CopyOut(eviction.start, eviction.end, eviction.sequence) for eviction in stay.evictions]

    def residency(self) -> Residency:
        """What the plan has of it."""
        return Residency(self.tensor, self.start, self.end, self.low, self.stay.source is Source.PRELOADED)

    def meets(self, other: Home) -> bool:
        """Whether both want the same bytes, whenever."""
        return self.low < other.high and other.low < self.high

    @property
    def is_sliced(self) -> bool:
        """Whether XLA copies it in in slices."""
        return self.stay.source is Source.COPIED and len(self.stay.starts) > 1


class Dropped(NamedTuple):
    """A stay that has no residency. Sizes in bytes; ``traffic`` are those of the uses it would have served, over all runs."""

    tensor: str
    size: int
    traffic: int
    reason: str


class Settlement:
    """Homes of all stays that can have one, free of overlaps; what had to change is counted."""

    def __init__(self, problem: Problem, trace: Trace):
        self.problem = problem
        self.homes: list[Home] = []
        self.dropped: list[Dropped] = []
        self.idle = 0
        self.moved = 0
        self.advanced = 0
        self._bytes = [use.bytes * step.weight for step in problem.steps for use in step.uses]
        horizon = problem.horizon
        self._span = [(0, horizon) if tensor.is_input or tensor.is_output else (horizon, 0) for tensor in problem.tensors]
        """Steps that use each tensor, ``[first, last + 1)``; for inputs and outputs the whole program."""
        self._writes: list[list[int]] = [[] for _ in problem.tensors]
        for number, step in enumerate(problem.steps):
            for use in step.uses:
                first, end = self._span[use.tensor]
                self._span[use.tensor] = (min(first, number), max(end, number + 1))
                if use.is_output:
                    self._writes[use.tensor].append(number)
        for stay in trace.stays:
            if stay.merged is None:
                self._admit(stay)
        self._delay_copies_in()
        self._resolve_overlaps()
        self._serve_replaced(set(trace.replaced))

    def drop(self, home: Home, reason: str) -> None:
        """Leave it out: its uses become slow."""
        self.homes.remove(home)
        self._record(home.stay, home.uses, self.problem.tensors[home.tensor].name, reason)

    def _record(self, stay: Stay, uses: Iterable[int], name: str, reason: str) -> None:
        self.dropped.append(Dropped(name, stay.size, self._traffic(uses), reason))

    def _traffic(self, uses: Iterable[int]) -> int:
        return sum(self._bytes[use] for use in uses)

    def _admit(self, stay: Stay) -> None:
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
        home = Home(stay, stay.tensor)
        self._settle_end(home)
        self.homes.append(home)

    # Time

    def _settle_end(self, home: Home) -> None:
        """Its last use or copy out; what a loop uses from outside stays until the loop is done."""
        home.end = home.stay.end
        for copy in home.copies_out:
            if copy.start == copy.end:  # its place must not be taken before it is read
                home.end = max(home.end, copy.end + 1)
        first, last = self._span[home.tensor]
        for loop in sorted(self.problem.loops, key=lambda loop: loop.end):
            if (first < loop.start or loop.end < last) and loop.start < home.end < loop.end:
                home.end = loop.end

    def _delay_copies_in(self) -> None:
        """A copy in begins when the whole of its place is free, and when the tensor's stay before is over."""
        by_end = sorted(self.homes, key=lambda home: home.end)
        ends = [home.end for home in by_end]
        for home in self.homes:
            stay = home.stay
            if stay.source is not Source.COPIED:
                continue
            latest = max(stay.starts[-1], min(stay.arrived, home.end - 1))
            for other in by_end[bisect_right(ends, home.start) : bisect_right(ends, latest)]:
                # Until its last slice starts, XLA does not hold the whole place.
                frees_place = other.meets(home) and other.end <= stay.starts[-1]
                if other is not home and (frees_place or other.tensor == home.tensor):
                    home.start = max(home.start, other.end)
            if home.start > stay.starts[0]:
                home.start = self._outside_loops(home.start, forward=True)

    def _outside_loops(self, boundary: int, *, forward: bool) -> int:
        """The next boundary, or the one before, that is not inside a loop: no copy starts or ends there."""
        for loop in self.problem.loops:  # enclosing loops come first, so the first one decides
            if loop.start < boundary < loop.end:
                return loop.end if forward else loop.start
        return boundary

    def _advance(self, home: Home, boundary: int) -> bool:
        """Have copies out that take no step begin earlier, so that the stay can end at ``boundary``."""
        copies_out, end = home.copies_out, home.end
        home.copies_out = []
        for copy in copies_out:
            if copy.start == copy.end == boundary:
                copy = copy._replace(start=self._outside_loops(boundary - 1, forward=False))
            home.copies_out.append(copy)
        self._settle_end(home)
        earliest = max(home.start + 1, home.stay.arrived)
        allowed = home.end <= boundary and all(
            earliest <= copy.start and not any(copy.start <= write < copy.end for write in self._writes[home.tensor])
            for copy in home.copies_out
        )
        if not allowed:
            home.copies_out, home.end = copies_out, end
            return False
        self.advanced += 1
        return True

    # Place

    def _resolve_overlaps(self) -> None:
        """Where two want the same bytes: move one, or have a copy out begin earlier, or drop what serves less traffic."""
        capacity = self.problem.capacity
        active: list[Home] = []
        for home in sorted(self.homes, key=lambda home: home.start):
            active = [other for other in active if other.end > home.start]
            rivals = [other for other in active if other.meets(home)]
            if (rivals or home.high > capacity) and not self._move(home):
                rivals = [rival for rival in rivals if not (self._advance(rival, home.start) or self._move(rival))]
                worth = sum(self._traffic(rival.uses) for rival in rivals)
                losers = rivals if home.high <= capacity and worth < self._traffic(home.uses) else [home]
                for loser in losers:
                    self.drop(loser, "its place is taken, and no other is free")
                active = [other for other in active if other not in losers]
                if home in losers:
                    continue
            active.append(home)

    def _move(self, home: Home) -> bool:
        """Put a stay at the lowest place that is free for as long as it takes; whether there is one."""
        size = home.high - home.low
        low = 0
        for other in sorted(self.homes, key=lambda other: other.low):
            if other is not home and other.start < home.end and home.start < other.end:
                if other.low - low >= size:
                    break
                low = max(low, -(-other.high // self.problem.alignment) * self.problem.alignment)
        if low + size > self.problem.capacity:
            return False
        home.low, home.high = low, low + size
        self.moved += 1
        return True

    # Uses

    def _serve_replaced(self, replaced: set[str]) -> None:
        """Steps that XLA replaced by its own copies read from fast memory what stands there."""
        number = 0
        for place, step in enumerate(self.problem.steps):
            if step.name in replaced:
                for position, use in enumerate(step.uses):
                    for home in self.homes:
                        there = home.start < place < home.end and home.stay.arrived <= place
                        if home.tensor == use.tensor and there and not use.is_output:
                            home.uses.add(number + position)
            number += len(step.uses)
