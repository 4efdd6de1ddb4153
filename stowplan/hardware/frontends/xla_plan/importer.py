"""From XLA's decisions to a plan of ours, as faithful as the rules allow.

What the rules of ``docs/memory-mapping.md`` cannot express is dropped: the uses that stay would serve become slow, which is
always possible, and the result says what was dropped and why.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from pathlib import Path

import msgspec

from stowplan.errors import InputError, UsageError, VerificationError
from stowplan.hardware.frontends.hlo import HloModule, read_module
from stowplan.hardware.frontends.xla_plan.offsets import find_offsets, read_offsets
from stowplan.hardware.frontends.xla_plan.trace import Source, Stay, Trace
from stowplan.hardware.program import Program
from stowplan.hardware.simulator import simulate
from stowplan.models.memory_mapping.plan import Copy, Plan, Residency
from stowplan.models.memory_mapping.problem import Problem
from stowplan.models.memory_mapping.verify import Violation, verify


class Dropped(msgspec.Struct, frozen=True):
    """A stay in fast memory that the plan does not have."""

    tensor: str
    size: int
    """Bytes of the tensor."""
    traffic: int
    """Bytes of the uses it would have served, over all runs."""
    reason: str


class ImportedPlan(msgspec.Struct, frozen=True):
    """A production compiler's plan as one of ours, and what became of it on the way."""

    plan: Plan
    sliced: int
    """Copies that XLA does in slices, merged into one each."""
    delayed: int
    """Of these, how many begin later than their first slice, because their place is not free before."""
    postponed: int
    """Other copies that begin later than XLA has them, because the tensor's stay before is not over."""
    moved: int
    """Stays at another offset than XLA's, because XLA has them take the place of an operand of the same step."""
    mixed_reads: int
    """Reads of a tensor from both memories at once, taken as slow."""
    idle: int
    """Stays that serve no use at all, left out."""
    replaced: tuple[str, ...]
    """Steps of the program that XLA replaced by copies of its own."""
    foreign: tuple[str, ...]
    """Instructions of XLA's own that are neither copies nor steps of the program."""
    homeless: tuple[str, ...]
    """Values in fast memory that are no tensor of the program."""
    dropped: tuple[Dropped, ...]

    @property
    def preloads(self) -> int:
        """Tensors in fast memory before the program starts."""
        return sum(residency.preloaded for residency in self.plan.residencies)

    @property
    def notes(self) -> tuple[str, ...]:
        """What differs from what XLA does, for people to read; one line each."""
        lines = []
        if self.preloads:
            lines.append(f"{self.preloads} tensors are in fast memory before the program starts (cross-program prefetch)")
        if self.sliced:
            lines.append(f"{self.sliced} sliced copies merged, {self.delayed} of them begin later than their first slice")
        if self.postponed:
            lines.append(f"{self.postponed} copies begin later, when the tensor's stay before is over")
        if self.moved:
            lines.append(f"{self.moved} stays at other offsets: XLA has them take the place of an operand of the same step")
        if self.mixed_reads:
            lines.append(f"{self.mixed_reads} reads of one tensor from both memories taken as slow")
        if self.idle:
            lines.append(f"{self.idle} stays in fast memory without any use left out")
        for names, what in (
            (self.replaced, "steps replaced by copies of XLA's own"),
            (self.foreign, "instructions of XLA's own"),
            (self.homeless, "values in fast memory that are no tensor of the program"),
        ):
            if names:
                lines.append(f"{len(names)} {what}: {', '.join(names[:3])}{', ...' if len(names) > 3 else ''}")
        for reason, count in Counter(item.reason for item in self.dropped).most_common():
            same = [item for item in self.dropped if item.reason == reason]
            lines.append(
                f"{count} stays dropped, {sum(item.size for item in same)} bytes that serve "
                f"{sum(item.traffic for item in same)} bytes of traffic: {reason}"
            )
        return tuple(lines)


def import_xla_plan(
    problem: Problem, program: Program, plan_path: str | Path, offsets_path: str | Path | None = None
) -> ImportedPlan:
    """XLA's plan for a program, verified.

    Parameters
    ----------
    problem
        Made of ``program`` for the target XLA compiled for, with ``stalls="allowed"``.
    program
        The program before XLA's memory-space assignment.
    plan_path
        The same module after it, as HLO text, plain or gzip; ``S(3)`` in a layout is fast memory.
    offsets_path
        Values of XLA's buffer assignment; ``NAME.fastmem.txt[.gz]`` beside ``NAME.hlo.txt.gz`` where None.

    Raises
    ------
    InputError
        A file cannot be read, is not scheduled, is of another program, or lacks an offset.
    UsageError
        The problem is not the program's, or forbids stalls.
    """
    if [step.name for step in problem.steps] != [step.name for step in program.steps]:
        raise UsageError("found a problem and a program with different steps, expected the problem made of the program")
    if problem.stalls != "allowed":
        raise UsageError("found a problem that forbids stalls, expected one that allows them: XLA's plans stall now and then")
    module = read_module(plan_path)
    placements = read_offsets(find_offsets(plan_path) if offsets_path is None else offsets_path)
    try:
        return _Importer(problem, _traced(program, module, placements)).result()
    except InputError as error:
        raise error.within(plan_path) from error


def _traced(program: Program, module: HloModule, placements: dict[str, tuple[int, int]]) -> Trace:
    if not module.is_scheduled:
        raise InputError("found a module without is_scheduled=true, expected a scheduled one", place="line 1")
    return Trace(program, module, placements)


class _Home:
    """A stay on its way to a residency: ``start`` and ``end`` may move, ``tensor`` is known."""

    def __init__(self, stay: Stay, tensor: int, end: int, traffic: int):
        self.stay = stay
        self.tensor = tensor
        self.start = stay.starts[0]
        self.end = end
        self.low = stay.offset
        self.high = stay.offset + stay.size
        self.traffic = traffic


class _Importer:
    """Stays of a trace on their way to a valid plan."""

    def __init__(self, problem: Problem, trace: Trace):
        self.problem = problem
        self.trace = trace
        self.delayed = 0
        self.postponed = 0
        self.idle = 0
        self.moved = 0
        self.dropped: list[Dropped] = []
        self.use_bytes = [use.bytes * step.weight for step in problem.steps for use in step.uses]
        self.span = self._spans()
        self.homes: list[_Home] = []
        for stay in trace.stays:
            if stay.merged is None:
                self._admit(stay)
        self.homes.sort(key=lambda home: (home.start, home.stay.sequence))
        self._delay_copies()
        self._settle_overlaps()

    def result(self) -> ImportedPlan:
        plan = self._valid_plan()
        trace = self.trace
        sliced = [home for home in self.homes if home.stay.source is Source.COPIED and len(home.stay.starts) > 1]
        return ImportedPlan(
            plan=plan,
            sliced=len(sliced),
            delayed=sum(home.start > home.stay.starts[0] for home in sliced),
            postponed=sum(home.start > home.stay.starts[0] for home in self.homes if len(home.stay.starts) == 1),
            moved=self.moved,
            mixed_reads=trace.mixed_reads,
            idle=self.idle,
            replaced=tuple(trace.replaced),
            foreign=tuple(trace.foreign),
            homeless=tuple(trace.homeless),
            dropped=tuple(self.dropped),
        )

    def _spans(self) -> list[tuple[int, int]]:
        """Steps ``[first, last + 1)`` that use each tensor; the whole program for inputs and outputs."""
        horizon = self.problem.horizon
        spans = [(0, horizon) if tensor.is_input or tensor.is_output else (horizon, 0) for tensor in self.problem.tensors]
        for number, step in enumerate(self.problem.steps):
            for use in step.uses:
                first, end = spans[use.tensor]
                spans[use.tensor] = (min(first, number), max(end, number + 1))
        return spans

    def _admit(self, stay: Stay) -> None:
        tensor = stay.tensor
        traffic = sum(self.use_bytes[use] for use in stay.uses)
        if not stay.uses and not stay.evictions:
            self.idle += 1
            return
        if tensor is None:
            self.dropped.append(Dropped("unknown", stay.size, traffic, "no tensor of the program"))
            return
        end = stay.end
        for eviction in stay.evictions:
            if eviction.start == eviction.end:  # the place must not be taken before it is read
                end = max(end, eviction.end + 1)
        home = _Home(stay, tensor, self._past_loops(tensor, stay.starts[0], end), traffic)
        if stay.size != self.problem.tensors[tensor].size:
            self._drop(home, "another size than the program's tensor")
        elif stay.fault is not None:
            self._drop(home, stay.fault)
        else:
            self.homes.append(home)

    def _past_loops(self, tensor: int, start: int, end: int) -> int:
        """What a loop uses from outside stays until the loop is done."""
        first, last = self.span[tensor]
        moved = True
        while moved:
            moved = False
            for loop in self.problem.loops:
                outside = first < loop.start or loop.end < last
                if outside and loop.start < end < loop.end:
                    end, moved = loop.end, True
        return end

    def _drop(self, home: _Home, reason: str) -> None:
        self.dropped.append(Dropped(self.problem.tensors[home.tensor].name, home.high - home.low, home.traffic, reason))

    # Time and place

    def _delay_copies(self) -> None:
        """Copies start when their place is free, and when the tensor's stay before is over.

        XLA takes the place of a sliced copy piece by piece, as its slices start; a copy of ours needs it at once.
        """
        by_end = sorted(self.homes, key=lambda home: home.end)
        ends = [home.end for home in by_end]
        for home in self.homes:
            stay = home.stay
            if stay.source is not Source.COPIED:
                continue
            latest = max(stay.starts[-1], min(stay.arrived, home.end - 1))
            for other in by_end[bisect_right(ends, home.start) : bisect_right(ends, latest)]:
                if other is home:
                    continue
                in_place = other.low < home.high and home.low < other.high and other.end <= stay.starts[-1]
                if in_place or other.tensor == home.tensor:
                    home.start = max(home.start, other.end)

    def _settle_overlaps(self) -> None:
        """Move what wants bytes that are taken, or else drop what serves less traffic.

        XLA lets a result take the place of an operand that is read for the last time. Our rules do not: for the duration of
        that step both need a place.
        """
        kept: list[_Home] = []
        active: list[_Home] = []
        for home in sorted(self.homes, key=lambda home: home.start):
            active = [other for other in active if other.end > home.start]
            rivals = [other for other in active if other.low < home.high and home.low < other.high]
            if rivals and not self._move(home):
                stuck = [rival for rival in rivals if not self._move(rival)]
                if sum(rival.traffic for rival in stuck) >= home.traffic:
                    stuck = [home]
                for loser in stuck:
                    self._drop(loser, "its place is taken, and no other is free")
                    self.homes.remove(loser)
                kept = [other for other in kept if other not in stuck]
                active = [other for other in active if other not in stuck]
                if home in stuck:
                    continue
            active.append(home)
            kept.append(home)

    def _move(self, home: _Home) -> bool:
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

    # The plan

    def _valid_plan(self) -> Plan:
        while True:
            order, plan = self._plan()
            found = verify(self.problem, plan)
            if found.ok:
                return plan
            guilty: dict[int, str] = {}
            for violation in found.violations:
                for place in self._blamed(violation, plan, order):
                    guilty.setdefault(place, f"breaks the rule {violation.code}")
            if not guilty:
                raise VerificationError(f"XLA's plan cannot be made valid: {found.violations[0].message}")
            for place, reason in sorted(guilty.items()):
                self._drop(self.homes[place], reason)
            self.homes = [home for place, home in enumerate(self.homes) if place not in guilty]

    def _blamed(self, violation: Violation, plan: Plan, order: list[int]) -> set[int]:
        """Places in ``homes`` (and so in the plan's residencies) of what a violation is about."""
        blamed = set(violation.residencies)
        blamed |= {order[copy] for copy in violation.copies}
        uses = set(violation.uses)
        if uses:
            blamed |= {place for place, home in enumerate(self.homes) if home.stay.uses & uses}
        if not blamed and violation.tensor is not None:
            blamed = {place for place, home in enumerate(self.homes) if home.tensor == violation.tensor}
        return blamed

    def _plan(self) -> tuple[list[int], Plan]:
        """The plan of all homes, and for each of its copies the home it belongs to."""
        self.homes.sort(key=lambda home: (home.start, home.tensor))
        copies: list[tuple[int, int, int, Copy]] = []
        for place, home in enumerate(self.homes):
            stay = home.stay
            if stay.source is Source.COPIED:
                copies.append((home.start, stay.sequence, place, Copy(home.tensor, "in", home.start, stay.arrived)))
            copies += [
                (eviction.start, eviction.sequence, place, Copy(home.tensor, "out", eviction.start, eviction.end))
                for eviction in stay.evictions
            ]
        copies.sort(key=lambda item: item[:2])
        plan = Plan(
            problem=self.problem.digest,
            objective_ps=0,
            residencies=tuple(
                Residency(home.tensor, home.start, home.end, home.low, home.stay.source is Source.PRELOADED)
                for home in self.homes
            ),
            copies=tuple(item[3] for item in copies),
            fast_uses=tuple(sorted({use for home in self.homes for use in home.stay.uses})),
            program=self.problem.name,
            target=self.problem.target,
        )
        plan = msgspec.structs.replace(plan, objective_ps=simulate(self.problem, plan).total_ps)
        return [item[2] for item in copies], plan
