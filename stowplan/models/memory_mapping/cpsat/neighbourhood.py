"""A neighbourhood of a plan for large-neighbourhood search, as a small problem.

Only some tensors may change, and only within a window of steps; they are called *free*. The rest of the plan stays as it is and
enters the model as constants (:class:`~stowplan.models.memory_mapping.cpsat.fixed_part.FixedPart`). A *boundary* is the moment
before a step, and a *residency* is one stay of a tensor in fast memory.

The *time axis* of a neighbourhood has a boundary wherever one of its tensors may change. The steps in between are merged, so
the size of the problem depends on the number of free decisions and not on the length of the program. Two steps are added. The
step before the window writes the tensors that enter it with content that slow memory lacks. The step after the window reads the
tensors that are resident when it ends. Residencies that extend beyond the window keep their offset.

If there is one channel and stalls are allowed, the model computes the time of the program exactly, except inside merged steps.
A merged step takes as long as in the given plan, including stalls. Copies of other tensors are queued inside it when they are
in the given plan, and a copy that is due inside it must be complete by the time at which the program leaves that boundary in
the given plan, so that no stall becomes longer. These times are counted from the beginning of the merged step.

A *frozen clock* makes the model smaller: each boundary keeps the time that it has in the given plan, and copies must be
complete by these times even if the new plan makes steps faster. If stalls are forbidden, the clock is always frozen, and the
time of a boundary is the sum of the least latencies of the steps before it, as the rules of the problem require copies to be
complete even if all steps are that fast. With or without a frozen clock, the objective of a new plan is known only after a
simulation of the whole program.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

import msgspec
import numpy as np

from stowplan.models.memory_mapping.accesses import Access, TensorAccesses, access_sequences
from stowplan.models.memory_mapping.copy_engine import PlanTimeline, step_durations
from stowplan.models.memory_mapping.cpsat.fixed_part import FixedCopy, FixedPart, FixedSpace, Moment
from stowplan.models.memory_mapping.plan import Copy, Plan, Residency
from stowplan.models.memory_mapping.problem import Loop, Piece, Step, border_step, loops_within, restricted, sub_problem


class Neighbourhood:
    """A neighbourhood of a plan. ``problem`` is its small problem, ``plan`` is the given plan as a plan of this problem, and
    ``fixed_part`` has the constants.

    Parameters
    ----------
    timeline
        The plan to improve.
    tensors
        Tensors that may change. A tensor stays as it is if its decisions cannot change independently, for example because it is
        copied across a border of the window.
    start, end
        First and last boundary of the window. They are moved outwards to the next boundaries that do not lie inside a loop.
    detail
        If the time axis would have fewer boundaries than this, evenly spaced ones are added until it has about this many.
    frozen
        Whether the clock is frozen. It is always frozen if stalls are forbidden or if there are several channels.
    """

    def __init__(
        self, timeline: PlanTimeline, tensors: Iterable[int], start: int, end: int, *, detail: int = 0, frozen: bool = False
    ):
        self.timeline = timeline
        facts = timeline.facts
        boundaries = facts.sequences[0].copy
        self.start = int(boundaries.prev[max(0, start)])
        self.end = int(boundaries.next[min(end, facts.problem.horizon)])
        self.is_frozen = frozen or not timeline.waits or facts.problem.channels > 1
        self.free = [tensor for tensor in sorted(set(tensors)) if self._may_change(tensor)]
        self.inside = [self._accesses_inside(tensor) for tensor in self.free]
        self.entering = [self._across(tensor, self.start) for tensor in self.free]
        self.leaving = [self._across(tensor, self.end) for tensor in self.free]
        self.axis = self._make_axis(detail)
        """Boundaries of the program; boundary ``i`` of the axis is boundary ``i + 1`` of the problem."""
        self.use_of: list[int] = []
        """For each use of the small problem, its number in the program; -1 for those of the two added steps."""
        self._make_problem()
        self.plan = self._make_plan()
        self.fixed_part = self._make_fixed_part()

    # ---------------------------------------------------------------------------------------------------- what is free

    def _may_change(self, tensor: int) -> bool:
        """Whether the decisions for a tensor in the neighbourhood may change without a change outside of it."""
        timeline, facts = self.timeline, self.timeline.facts
        # The small problem has no asynchronous operations, so the tensors that such operations use stay as they are.
        if not facts.is_candidate[tensor] or facts.sequences[tensor].in_flight:
            return False
        for _, copy in timeline.copies[tensor]:
            if copy.start < self.start < copy.end or copy.start < self.end < copy.end:
                return False
            # A copy-out that is queued at a border of the window and must be complete at the same boundary, before the next
            # step begins, belongs neither to the window nor to the part outside of it.
            if timeline.leaves_at(tensor, self.start) or timeline.leaves_at(tensor, self.end):
                return False
        sequence = facts.sequences[tensor]
        first, last = sequence.accesses[0].step, sequence.accesses[-1].step
        if sequence.uniform:
            # Either all uses of this tensor are fast or none, so all of them must lie within the window.
            stays = timeline.residencies[tensor]
            return self.start <= first and last < self.end and all(self.start <= r.start and r.end <= self.end for r in stays)
        return bool(self._accesses_inside(tensor)) or self._across(tensor, self.end) is not None

    def _accesses_inside(self, tensor: int) -> list[Access]:
        """The accesses of a tensor within the window."""
        accesses = self.timeline.facts.sequences[tensor].accesses
        return [access for access in accesses if self.start <= access.step < self.end]

    def _across(self, tensor: int, boundary: int) -> Residency | None:
        """The residency that covers the steps on both sides of a boundary; None if there is none."""
        return next((r for r in self.timeline.residencies[tensor] if r.start < boundary < r.end), None)

    # ------------------------------------------------------------------------------------------------------- time axis

    def _make_axis(self, detail: int) -> list[int]:
        """Boundaries of the original problem between which the small problem has one step each, ascending."""
        timeline, problem = self.timeline, self.timeline.facts.problem
        points = {self.start, self.end}
        steps = sorted({access.step for accesses in self.inside for access in accesses})
        for step in steps:
            points |= {step, step + 1}
        self.loops: list[Loop] = []
        # Boundaries inside loops that use no free tensor; the steps of such a loop are merged.
        closed = np.zeros(problem.horizon + 1, np.bool_)
        for loop in loops_within(problem, self.start, self.end):
            place = bisect_left(steps, loop.start)
            if place < len(steps) and steps[place] < loop.end:
                self.loops.append(loop)
                points |= {loop.start, loop.end}
            else:
                closed[loop.start + 1 : loop.end] = True
        for tensor in self.free:
            points |= {point for r in timeline.residencies[tensor] for point in (r.start, r.end)}
            points |= {point for _, copy in timeline.copies[tensor] for point in (copy.start, copy.end)}
        if len(points) < detail:
            stride = max(1, (self.end - self.start) // (detail - len(points)))
            points |= set(range(self.start, self.end, stride))
        return [point for point in sorted(points) if self.start <= point <= self.end and not closed[point]]

    def boundary(self, point: int) -> int:
        """The boundary of the small problem for a boundary of the program, which must be on the time axis; otherwise
        AssertionError or IndexError is raised."""
        place = bisect_left(self.axis, point)
        assert self.axis[place] == point
        return place + 1

    def point(self, boundary: int) -> int:
        """The boundary of the program for a boundary of the small problem. The first and the last boundary, which lie outside
        the two added steps, count as the borders of the window."""
        return self.axis[min(max(0, boundary - 1), len(self.axis) - 1)]

    # --------------------------------------------------------------------------------------------------------- problem

    def _make_problem(self) -> None:
        """Build the small problem: a step at each border, and the steps of the neighbourhood, some of them merged."""
        timeline, problem = self.timeline, self.timeline.facts.problem
        numbers = {tensor: number for number, tensor in enumerate(self.free)}
        is_slow_valid = [timeline.is_slow_valid(tensor, self.start) for tensor in self.free]
        written_at_start = [
            number
            for number, (residency, accesses) in enumerate(zip(self.entering, self.inside, strict=True))
            if residency is not None
            and not is_slow_valid[number]
            and (accesses or self.leaving[number] is not None or timeline.is_slow_needed(self.free[number], self.end))
        ]
        self.is_begun = [number in written_at_start for number in range(len(self.free))]
        """[free tensors] whether it enters with content that slow memory lacks, so that the added first step writes it."""
        read_at_end = [number for number, residency in enumerate(self.leaving) if residency is not None]
        steps = [self._border_step("enter", written_at_start, is_output=True)]
        for first, last in zip(self.axis, self.axis[1:], strict=False):
            steps.append(self._reduced(first, numbers) if last == first + 1 else self._merged(first, last))
        steps.append(self._border_step("leave", read_at_end, is_output=False))
        tensors = tuple(
            msgspec.structs.replace(
                problem.tensors[tensor],
                is_input=is_slow_valid[number],
                is_output=timeline.is_slow_needed(tensor, self.end) and (is_slow_valid[number] or self._is_written(number)),
            )
            for number, tensor in enumerate(self.free)
        )
        self.problem = sub_problem(
            problem,
            name=problem.name,
            steps=steps,
            tensors=tensors,
            loops=self.loops,
            boundary=self.boundary,
            max_preloads=len(tensors) + 1,
            stalls="forbidden" if self.is_frozen else "allowed",
        )
        self.sequences = [
            self._with_borders(sequence, timeline.facts.sequences[tensor])
            for sequence, tensor in zip(access_sequences(self.problem), self.free, strict=True)
        ]

    def _is_written(self, number: int) -> bool:
        """Whether the added first step or a step within the window writes a free tensor."""
        return self.is_begun[number] or any(access.write is not None for access in self.inside[number])

    def _border_step(self, name: str, numbers: list[int], *, is_output: bool) -> Step:
        """One of the two added steps, which writes or reads these free tensors."""
        self.use_of += [-1] * len(numbers)
        return border_step(name, numbers, is_output=is_output, slow_ps=1)

    def _merged(self, first: int, last: int) -> Step:
        """One step for the steps ``[first, last)`` of the program, with the time that they take in the given plan. With a
        frozen clock it takes no time, because the times of boundaries are constants."""
        moments = self.timeline.moments
        base = 0 if self.is_frozen else moments.reached[last] - moments.left[first]
        return Step("merged", "merged", 1, (), (Piece(base, (), ()),))

    def _reduced(self, index: int, numbers: dict[int, int]) -> Step:
        """A step in which all uses are fixed except those of free tensors."""
        facts = self.timeline.facts
        step, first = facts.problem.steps[index], facts.problem.first_use[index]
        positions = [first + place for place, use in enumerate(step.uses) if use.tensor in numbers]
        if not positions:
            return self._merged(index, index + 1)
        self.use_of += positions
        return restricted(step, numbers, self.timeline.fast[first : first + len(step.uses)])

    def _with_borders(self, cut: TensorAccesses, whole: TensorAccesses) -> TensorAccesses:
        """The accesses of a free tensor. ``cut`` has those in the small problem, and ``whole`` those in the program.

        A tensor that is used only inside one loop must not be copied. In the small problem, a tensor may seem to be of this
        sort because its uses outside the loop are left out. It may be copied nevertheless.
        """
        if cut.may_copy or not whole.may_copy:
            return cut
        return replace(cut, may_copy=True, residency=cut.copy)

    # ------------------------------------------------------------------------------------------------------------ plan

    def _make_plan(self) -> Plan:
        """The given plan as a plan of the small problem. Its objective is not set."""
        timeline, last = self.timeline, self.problem.horizon
        residencies: list[Residency] = []
        copies: list[tuple[int, Copy]] = []
        for number, tensor in enumerate(self.free):
            for stay in timeline.residencies[tensor]:
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
                for place, copy in timeline.copies[tensor]
                if self.start <= copy.start < self.end
            ]
        copies.sort(key=lambda item: item[0])
        fast = [use for use, origin in enumerate(self.use_of) if origin < 0 or timeline.fast[origin]]
        return Plan(
            problem="",
            objective=0,
            residencies=tuple(residencies),
            copies=tuple(copy for _, copy in copies),
            fast_uses=tuple(fast),
        )

    # ---------------------------------------------------------------------------------------------------- fixed part

    def _make_fixed_part(self) -> FixedPart:
        """Collect the constants that fixed decisions contribute to the model: times, copies, offsets and preloads."""
        timeline, problem = self.timeline, self.timeline.facts.problem
        moments, zero = timeline.moments, timeline.moments.reached[self.start]
        align, fast = problem.alignment, set(self.plan.fast_uses)
        before = [place for place, copy in enumerate(timeline.plan.copies) if copy.start < self.start]
        busy = [
            (max(0, moments.begin[place] - zero), timeline.end_ps(place) - zero)
            for place in before
            if timeline.end_ps(place) > zero
        ]
        copies = self._fixed_copies(zero, busy)
        floor_until, waits = self._moments(zero), {}
        tail = None
        if not self.is_frozen:
            waits = self._waits(before, zero)
            tail = timeline.tail_ps(self.end)
            most = timeline.objective - zero
            slack = most - tail - floor_until[-1]
        else:
            slack, most = 0, sum(step_durations(self.problem, [use in fast for use in range(self.problem.use_count)]))
        free = np.zeros(len(problem.tensors), np.bool_)
        free[self.free] = True
        table = timeline.table[~free[timeline.table[:, 0]]]
        table = table[(table[:, 1] < self.end) & (table[:, 2] > self.start)]
        boundaries = [self.axis[0], *self.axis, self.axis[-1]]
        space = FixedSpace(boundaries, table[:, 1], table[:, 2], table[:, 3], table[:, 4], -(-problem.capacity // align))
        preloads = None
        if self.start == 0:
            preloads = problem.max_preloads - sum(r.preloaded for r in timeline.plan.residencies if not free[r.tensor])
        return FixedPart(
            floor_until=floor_until,
            slack_ps=slack,
            busy=busy,
            waits=waits,
            copies=copies,
            tail_ps=tail,
            most_ps=most,
            entering={
                number: residency.offset // align
                for number, residency in enumerate(self.entering)
                if residency is not None and (self.is_begun[number] or self._may_keep(number))
            },
            leaving={
                number: residency.offset // align for number, residency in enumerate(self.leaving) if residency is not None
            },
            preloads=preloads,
            given_in=self._given_boundaries("in"),
            given_out=self._given_boundaries("out"),
            space=space,
        )

    def _given_boundaries(self, direction: str) -> dict[int, list[int]]:
        """For each free tensor, the boundaries at which the given plan starts its copies-in or ends its copies-out."""
        boundaries: dict[int, list[int]] = {number: [] for number in range(len(self.free))}
        for copy in self.plan.copies:
            if copy.direction == direction:
                boundaries[copy.tensor].append(copy.start if direction == "in" else copy.end)
        return boundaries

    def _may_keep(self, number: int) -> bool:
        """Whether it may help to keep a tensor in fast memory from the start of the window to its first access, if it is
        resident at the start and slow memory has the same content. It does not help if there is no access, or if the first one
        overwrites the content and can begin a residency itself."""
        sequence = self.sequences[number]
        return len(sequence) > 0 and not sequence.is_dead(0)

    def _moments(self, zero: int) -> Sequence[int]:
        """Earliest times of the boundaries of the small problem; with a frozen clock, the times of the given plan.

        ``zero`` is the time at which the first boundary of the window is reached.
        """
        if self.is_frozen:
            middle = [self.timeline.moments.left[point] - zero for point in self.axis]
            return [middle[0], *middle, middle[-1]]
        return self.problem.floor_until

    def _moment(self, point: int, absolute_ps: int) -> Moment:
        """A moment of the given plan relative to the time axis: the last boundary of the axis that is not after ``point``, and
        the time from the program's departure from that boundary to the moment.

        The moment is given as ``point``, a boundary of the program, and ``absolute_ps``, its time counted from the start of the
        program. If ``point`` is on the axis and the clock is not frozen, the second number is 0: the model has the time of that
        boundary as a variable.
        """
        place = bisect_right(self.axis, point) - 1
        is_on_axis = self.axis[place] == point and not self.is_frozen
        return Moment(place + 1, 0 if is_on_axis else absolute_ps - self.timeline.moments.left[self.axis[place]])

    def _waits(self, before: Collection[int], zero: int) -> dict[int, int]:
        """The waits of the program for copies that were queued before the window: for a boundary of the small problem, the time
        before which the program must not leave it. If the program waits inside a merged step, the entry is that of the boundary
        before the merged step, and the time is earlier by the time from there to the wait.

        ``before`` has the positions of these copies in the queue, and times count from ``zero``.
        """
        timeline, waits = self.timeline, dict[int, int]()
        for place in before:
            due = timeline.plan.copies[place].end
            if self.start <= due <= self.end and timeline.end_ps(place) > zero:
                moment = self._moment(due, timeline.moments.left[due])
                waits[moment.boundary] = max(waits.get(moment.boundary, 0), timeline.end_ps(place) - zero - moment.after_ps)
        return waits

    def _fixed_copies(self, zero: int, busy: Collection[tuple[int, int]]) -> list[FixedCopy]:
        """The copies of other tensors that are queued within the window. Times count from ``zero``, and ``busy`` has the begin
        and end of copies that were queued before the window."""
        timeline, moments = self.timeline, self.timeline.moments
        free, copies = set(self.free), []
        inside = [
            (place, copy)
            for place, copy in enumerate(timeline.plan.copies)
            if self.start <= copy.start < self.end and copy.tensor not in free
        ]
        crossing = [timeline.end_ps(place) - zero for place, copy in inside if copy.end > self.end]
        latest = max([moments.left[self.end] - zero, *crossing, *(end for _, end in busy)])
        has_later_copies = any(copy.start >= self.end for copy in timeline.plan.copies)
        late_ps = 2 * moments.left[-1] + 1
        for place, copy in inside:
            is_due_later = copy.end > self.end
            tail = 0
            if is_due_later and not self.is_frozen:
                # The time from the end of this copy to the end of the program is bounded from below in two ways. First, the
                # steps after the boundary that waits for the copy still have to run. Second, copies that are queued after the
                # window have to wait until this copy leaves the channel. For the second bound, the program after the window is
                # simulated with a channel that becomes free at ``late_ps``, which is later than the end of the program.
                tail = timeline.tail_ps(copy.end)
                if has_later_copies:
                    tail = max(tail, timeline.tail_ps(self.end, late_ps) - late_ps)
            copies.append(
                FixedCopy(
                    place=place,
                    queued=self._moment(copy.start, moments.open[copy.start]),
                    due=None if is_due_later else self._moment(copy.end, moments.left[copy.end]),
                    duration_ps=timeline.windows[place].duration_ps,
                    begin_ps=moments.begin[place] - zero,
                    tail_ps=tail,
                    latest_end_ps=min(moments.left[copy.end] - zero, latest) if is_due_later else 0,
                )
            )
        return copies
