"""A small problem cut out of a large one: some tensors within a time window, while the rest of a plan stays as it is.

The *time axis* of a neighbourhood has a boundary of its own wherever one of its tensors may change; the steps in between are
merged, so that its size depends on what is free and not on the program. Two steps are added, one before that writes what
enters the window with content that slow memory lacks, and one after that reads what leaves it resident. What the window cuts,
keeps its place there.

All else is constant (see ``surroundings``). On one channel with stalls the model's objective is exact but for copies and stalls
inside merged steps, which may not get worse. A *frozen clock* is cheaper: the moments of the given plan stand still, and copies
must be hidden as if nothing got faster. Either way only the replay of the whole plan says what it costs.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable
from dataclasses import replace

import msgspec
import numpy as np

from stowplan.models.memory_mapping.accesses import Access, TensorAccesses, access_sequences
from stowplan.models.memory_mapping.cpsat.situation import Situation
from stowplan.models.memory_mapping.cpsat.surroundings import FixedCopy, FixedSpace, Moment, Surroundings
from stowplan.models.memory_mapping.plan import Copy, Plan, Residency
from stowplan.models.memory_mapping.problem import Loop, Piece, Problem, Step, Table, Use


class Neighbourhood:
    """What is free, as a problem with surroundings; ``problem``, ``sequences``, ``surroundings`` and ``plan`` describe it.

    Parameters
    ----------
    situation
        The plan to improve.
    tensors
        Which may change; those that cannot (copied across a border of the window, say) stay as they are.
    start, end
        Boundaries of the window, moved outwards to the next that lie in no loop.
    detail
        Boundaries that the time axis has at least, if the window has that many.
    frozen
        Whether the clock is frozen.
    """

    def __init__(
        self, situation: Situation, tensors: Iterable[int], start: int, end: int, *, detail: int = 0, frozen: bool = False
    ):
        self.situation = situation
        ground = situation.ground
        boundaries = ground.sequences[0].copy
        self.start = int(boundaries.prev[max(0, start)])
        self.end = int(boundaries.next[min(end, ground.problem.horizon)])
        self.is_frozen = frozen or not situation.waits or ground.problem.channels > 1
        self.free = [tensor for tensor in sorted(set(tensors)) if self._may_change(tensor)]
        self.inside = [self._accesses_inside(tensor) for tensor in self.free]
        self.entering = [self._cut_by(tensor, self.start) for tensor in self.free]
        self.leaving = [self._cut_by(tensor, self.end) for tensor in self.free]
        self.axis = self._make_axis(detail)
        """Boundaries of the program; boundary ``i`` of the axis is boundary ``i + 1`` of the problem."""
        self.use_of: list[int] = []
        """Use of the program for each of the problem's, -1 for those of the two steps added."""
        self._make_problem()
        self.plan = self._make_plan()
        self.surroundings = self._make_surroundings()

    # ---------------------------------------------------------------------------------------------------- what is free

    def _may_change(self, tensor: int) -> bool:
        situation, ground = self.situation, self.situation.ground
        if not ground.is_candidate[tensor]:
            return False
        for _, copy in situation.copies[tensor]:
            if copy.start < self.start < copy.end or copy.start < self.end < copy.end:
                return False
        sequence = ground.sequences[tensor]
        first, last = sequence.accesses[0].step, sequence.accesses[-1].step
        if sequence.uniform:
            stays = situation.residencies[tensor]
            return self.start <= first and last < self.end and all(self.start <= r.start and r.end <= self.end for r in stays)
        return bool(self._accesses_inside(tensor)) or self._cut_by(tensor, self.end) is not None

    def _accesses_inside(self, tensor: int) -> list[Access]:
        accesses = self.situation.ground.sequences[tensor].accesses
        return [access for access in accesses if self.start <= access.step < self.end]

    def _cut_by(self, tensor: int, boundary: int) -> Residency | None:
        """The residency that stands on both sides of a boundary."""
        return next((r for r in self.situation.residencies[tensor] if r.start < boundary < r.end), None)

    # ------------------------------------------------------------------------------------------------------- time axis

    def _make_axis(self, detail: int) -> list[int]:
        situation, problem = self.situation, self.situation.ground.problem
        points = {self.start, self.end}
        steps = sorted({access.step for accesses in self.inside for access in accesses})
        for step in steps:
            points |= {step, step + 1}
        self.loops: list[Loop] = []
        closed = np.zeros(problem.horizon + 1, np.bool_)
        for loop in problem.loops:
            if self.start <= loop.start and loop.end <= self.end:
                place = bisect_left(steps, loop.start)
                if place < len(steps) and steps[place] < loop.end:
                    self.loops.append(loop)
                    points |= {loop.start, loop.end}
                else:
                    closed[loop.start + 1 : loop.end] = True
        for tensor in self.free:
            points |= {point for r in situation.residencies[tensor] for point in (r.start, r.end)}
            points |= {point for _, copy in situation.copies[tensor] for point in (copy.start, copy.end)}
        if len(points) < detail:
            stride = max(1, (self.end - self.start) // (detail - len(points)))
            points |= set(range(self.start, self.end, stride))
        return [point for point in sorted(points) if self.start <= point <= self.end and not closed[point]]

    def boundary(self, point: int) -> int:
        """The problem's boundary for one of the program's that is on the axis."""
        place = bisect_left(self.axis, point)
        assert self.axis[place] == point
        return place + 1

    def point(self, boundary: int) -> int:
        """The program's boundary for one of the problem's."""
        return self.axis[min(max(0, boundary - 1), len(self.axis) - 1)]

    # --------------------------------------------------------------------------------------------------------- problem

    def _make_problem(self) -> None:
        situation, problem = self.situation, self.situation.ground.problem
        numbers = {tensor: number for number, tensor in enumerate(self.free)}
        saved = [situation.is_slow_valid(tensor, self.start) for tensor in self.free]
        begun = [
            number
            for number, (cut, accesses) in enumerate(zip(self.entering, self.inside, strict=True))
            if cut is not None
            and not saved[number]
            and (accesses or self.leaving[number] is not None or situation.is_slow_needed(self.free[number], self.end))
        ]
        self.is_begun = [number in begun for number in range(len(self.free))]
        """Tensors that enter with content that slow memory lacks: the step before the window writes it."""
        read = [number for number, cut in enumerate(self.leaving) if cut is not None]
        steps = [self._border_step("enter", begun, is_output=True)]
        for first, last in zip(self.axis, self.axis[1:], strict=False):
            steps.append(self._reduced(first, numbers) if last == first + 1 else self._merged(first, last))
        steps.append(self._border_step("leave", read, is_output=False))
        tensors = tuple(
            msgspec.structs.replace(
                problem.tensors[tensor],
                is_input=saved[number],
                is_output=situation.is_slow_needed(tensor, self.end) and (saved[number] or self._is_written(number)),
            )
            for number, tensor in enumerate(self.free)
        )
        self.problem = Problem(
            name=problem.name,
            target=problem.target,
            cost_model=problem.cost_model,
            capacity=problem.capacity,
            steps=tuple(steps),
            tensors=tensors,
            loops=tuple(Loop(self.boundary(loop.start), self.boundary(loop.end), loop.trip_count) for loop in self.loops),
            alignment=problem.alignment,
            channels=problem.channels,
            max_preloads=len(tensors) + 1,
            stalls="forbidden" if self.is_frozen else "allowed",
            alias_rule=problem.alias_rule,
        )
        self.sequences = [
            self._with_borders(sequence, situation.ground.sequences[tensor])
            for sequence, tensor in zip(access_sequences(self.problem), self.free, strict=True)
        ]

    def _is_written(self, number: int) -> bool:
        return self.is_begun[number] or any(access.write is not None for access in self.inside[number])

    def _border_step(self, name: str, numbers: list[int], *, is_output: bool) -> Step:
        """A step that takes no time as long as its uses are fast."""
        self.use_of += [-1] * len(numbers)
        uses = tuple(Use(number, is_output, 0) for number in numbers)
        return Step(name, "border", 1, uses, (Piece(0, (1,) * len(uses), (0,) * len(uses)),))

    def _merged(self, first: int, last: int) -> Step:
        timeline = self.situation.timeline
        base = 0 if self.is_frozen else timeline.reached[last] - timeline.left[first]
        return Step("merged", "merged", 1, (), (Piece(base, (), ()),))

    def _reduced(self, index: int, numbers: dict[int, int]) -> Step:
        """A step with all uses decided but those of free tensors."""
        ground, fast = self.situation.ground, self.situation.fast
        step, first = ground.problem.steps[index], ground.first_use[index]
        kept = [place for place, use in enumerate(step.uses) if use.tensor in numbers]
        if not kept:
            return self._merged(index, index + 1)
        self.use_of += [first + place for place in kept]
        uses = tuple(msgspec.structs.replace(step.uses[place], tensor=numbers[step.uses[place].tensor]) for place in kept)
        decided = [place for place in range(len(step.uses)) if step.uses[place].tensor not in numbers]
        if step.table is not None:
            return Step(step.name, step.opcode, step.weight, uses, table=_reduced_table(step.table, kept, fast[first:]))
        pieces = tuple(
            Piece(
                piece.base_ps + sum(piece.fast_ps[p] if fast[first + p] else piece.slow_ps[p] for p in decided),
                tuple(piece.slow_ps[p] for p in kept),
                tuple(piece.fast_ps[p] for p in kept),
            )
            for piece in step.pieces
        )
        return Step(step.name, step.opcode, step.weight, uses, pieces)

    def _with_borders(self, cut: TensorAccesses, whole: TensorAccesses) -> TensorAccesses:
        """Accesses of a tensor cut out; one that has accesses beyond the window is internal to no loop in it."""
        if cut.may_copy or not whole.may_copy:
            return cut
        return replace(cut, may_copy=True, residency=cut.copy)

    # ------------------------------------------------------------------------------------------------------------ plan

    def _make_plan(self) -> Plan:
        """The given plan, as one of the problem's; its objective is not set."""
        situation, last = self.situation, self.problem.horizon
        residencies: list[Residency] = []
        copies: list[tuple[int, Copy]] = []
        for number, tensor in enumerate(self.free):
            for stay in situation.residencies[tensor]:
                if stay.end <= self.start or stay.start >= self.end:
                    continue
                enters, leaves = stay is self.entering[number], stay is self.leaving[number]
                residencies.append(
                    Residency(
                        number,
                        0 if enters else self.boundary(stay.start),
                        last if leaves else self.boundary(stay.end),
                        stay.offset,
                        not self.is_begun[number] if enters else stay.preloaded,
                    )
                )
            copies += [
                (place, Copy(number, copy.direction, self.boundary(copy.start), self.boundary(copy.end)))
                for place, copy in situation.copies[tensor]
                if self.start <= copy.start < self.end
            ]
        copies.sort(key=lambda item: item[0])
        fast = [use for use, origin in enumerate(self.use_of) if origin < 0 or situation.fast[origin]]
        return Plan(
            problem="",
            objective_ps=0,
            residencies=tuple(residencies),
            copies=tuple(copy for _, copy in copies),
            fast_uses=tuple(fast),
        )

    # ---------------------------------------------------------------------------------------------------- surroundings

    def _make_surroundings(self) -> Surroundings:
        situation, problem = self.situation, self.situation.ground.problem
        timeline, zero = situation.timeline, situation.timeline.reached[self.start]
        align = problem.alignment
        before = [place for place, copy in enumerate(situation.plan.copies) if copy.start < self.start]
        busy = [
            (max(0, timeline.begin[place] - zero), situation.end_ps(place) - zero)
            for place in before
            if situation.end_ps(place) > zero
        ]
        copies = self._fixed_copies(zero, busy)
        floor_until, waits = self._moments(zero), {}
        tail = None
        if not self.is_frozen:
            waits = self._waits(before, zero)
            tail = situation.tail_ps(self.end)
            most = situation.objective_ps - zero
            slack = most - tail - floor_until[-1]
        else:
            slack, most = 0, self._sum_of_latencies()
        free = np.zeros(len(problem.tensors), np.bool_)
        free[self.free] = True
        table = situation.table[~free[situation.table[:, 0]]]
        table = table[(table[:, 1] < self.end) & (table[:, 2] > self.start)]
        boundaries = [self.axis[0], *self.axis, self.axis[-1]]
        space = FixedSpace(boundaries, table[:, 1], table[:, 2], table[:, 3], table[:, 4], -(-problem.capacity // align))
        preloads = None
        if self.start == 0:
            preloads = problem.max_preloads - sum(r.preloaded for r in situation.plan.residencies if not free[r.tensor])
        return Surroundings(
            floor_until=floor_until,
            slack_ps=slack,
            busy=busy,
            waits=waits,
            copies=copies,
            tail_ps=tail,
            most_ps=most,
            entering={
                number: cut.offset // align
                for number, cut in enumerate(self.entering)
                if cut is not None and (self.is_begun[number] or self._may_keep(number))
            },
            leaving={number: cut.offset // align for number, cut in enumerate(self.leaving) if cut is not None},
            preloads=preloads,
            given_in=self._given("in"),
            given_out=self._given("out"),
            space=space,
        )

    def _given(self, direction: str) -> dict[int, list[int]]:
        found: dict[int, list[int]] = {number: [] for number in range(len(self.free))}
        for copy in self.plan.copies:
            if copy.direction == direction:
                found[copy.tensor].append(copy.start if direction == "in" else copy.end)
        return found

    def _may_keep(self, number: int) -> bool:
        """Whether a tensor that enters with its slow copy valid may have a use for staying."""
        sequence = self.sequences[number]
        return len(sequence) > 0 and not sequence.is_dead(0)

    def _moments(self, zero: int) -> list[int]:
        if self.is_frozen:
            middle = [self.situation.timeline.left[point] - zero for point in self.axis]
            return [middle[0], *middle, middle[-1]]
        moments = [0]
        for step in self.problem.steps:
            moments.append(moments[-1] + step.weight * step.floor_ps)
        return moments

    def _sum_of_latencies(self) -> int:
        total, number, fast = 0, 0, set(self.plan.fast_uses)
        for step in self.problem.steps:
            total += step.weight * step.latency_ps([number + place in fast for place in range(len(step.uses))])
            number += len(step.uses)
        return total

    def _moment(self, point: int, absolute_ps: int) -> Moment:
        """Where a moment at a boundary of the window lies on the axis."""
        place = bisect_right(self.axis, point) - 1
        is_on_axis = self.axis[place] == point and not self.is_frozen
        return Moment(place + 1, 0 if is_on_axis else absolute_ps - self.situation.timeline.left[self.axis[place]])

    def _waits(self, before: Collection[int], zero: int) -> dict[int, int]:
        """Boundaries that wait for copies queued before the window."""
        situation, waits = self.situation, dict[int, int]()
        for place in before:
            due = situation.plan.copies[place].end
            if self.start <= due <= self.end and situation.end_ps(place) > zero:
                moment = self._moment(due, situation.timeline.left[due])
                waits[moment.boundary] = max(waits.get(moment.boundary, 0), situation.end_ps(place) - zero - moment.after_ps)
        return waits

    def _fixed_copies(self, zero: int, busy: Collection[tuple[int, int]]) -> list[FixedCopy]:
        """Copies queued in the window for tensors that are not free."""
        situation, timeline = self.situation, self.situation.timeline
        free, found = set(self.free), []
        inside = [
            (place, copy)
            for place, copy in enumerate(situation.plan.copies)
            if self.start <= copy.start < self.end and copy.tensor not in free
        ]
        crossing = [situation.end_ps(place) - zero for place, copy in inside if copy.end > self.end]
        latest = max([timeline.left[self.end] - zero, *crossing, *(end for _, end in busy)])
        follows = any(copy.start >= self.end for copy in situation.plan.copies)
        beyond = 2 * timeline.left[-1] + 1
        for place, copy in inside:
            is_due_later = copy.end > self.end
            tail = 0
            if is_due_later and not self.is_frozen:
                tail = situation.tail_ps(copy.end)
                if follows:
                    tail = max(tail, situation.tail_ps(self.end, beyond) - beyond)
            found.append(
                FixedCopy(
                    place=place,
                    queued=self._moment(copy.start, timeline.open[copy.start]),
                    due=None if is_due_later else self._moment(copy.end, timeline.left[copy.end]),
                    duration_ps=situation.window(copy).duration_ps,
                    begin_ps=timeline.begin[place] - zero,
                    tail_ps=tail,
                    latest_end_ps=min(timeline.left[copy.end] - zero, latest) if is_due_later else 0,
                )
            )
        return found


def _reduced_table(table: Table, kept: list[int], fast: list[bool]) -> Table:
    """A table with the uses that are not kept decided; positions count among the kept ones."""
    bits = [(bit, kept.index(use)) for bit, use in enumerate(table.uses) if use in kept]
    given = sum(1 << bit for bit, use in enumerate(table.uses) if use not in kept and fast[use])
    latencies = []
    for mask in range(1 << len(bits)):
        row = given | sum(1 << bit for number, (bit, _) in enumerate(bits) if mask >> number & 1)
        latencies.append(table.latency_ps[row])
    return Table(tuple(place for _, place in bits), tuple(latencies))
