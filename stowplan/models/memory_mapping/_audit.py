"""Problem and plan as the verifier reads them: an index of both, and its own clock.

It is written apart from the simulator on purpose, so that an error in one of them shows as a difference.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections import defaultdict
from itertools import accumulate, pairwise

from stowplan.models.memory_mapping.plan import Copy, Plan, Residency
from stowplan.models.memory_mapping.problem import Problem, Step
from stowplan.models.memory_mapping.violations import Reason, ViolationLog


def is_range(start: int, end: int, horizon: int) -> bool:
    """Whether ``[start, end)`` is a range, perhaps empty, of a program of ``horizon`` steps."""
    return 0 <= start <= end <= horizon


class Audit:
    """Problem and plan indexed for the rules, and the violations found so far.

    Residencies, copies and fast uses that make no sense by themselves are left out of the index.
    """

    def __init__(self, problem: Problem, plan: Plan) -> None:
        self.problem, self.plan = problem, plan
        self.log = ViolationLog()
        self.horizon = len(problem.steps)
        tensors = range(len(problem.tensors))
        self.use_tensor: list[int] = []
        self.use_step: list[int] = []
        self.first_use: list[int] = []
        """Number of each step's first use."""
        self.reads: list[dict[int, int]] = [{} for _ in tensors]
        """For each tensor, the steps that read it, each with the number of that use."""
        self.writes: list[dict[int, int]] = [{} for _ in tensors]
        for index, step in enumerate(problem.steps):
            self.first_use.append(len(self.use_tensor))
            for use in step.uses:
                (self.writes if use.is_output else self.reads)[use.tensor][index] = len(self.use_tensor)
                self.use_tensor.append(use.tensor)
                self.use_step.append(index)
        self.fast = [False] * len(self.use_tensor)
        for number in plan.fast_uses:
            if 0 <= number < len(self.fast):
                self.fast[number] = True

        self.residencies = {
            number: item
            for number, item in enumerate(plan.residencies)
            if item.tensor in tensors and item.start < item.end and is_range(item.start, item.end, self.horizon)
        }
        self.copies = {
            number: item
            for number, item in enumerate(plan.copies)
            if item.tensor in tensors and is_range(item.start, item.end, self.horizon) and self.is_part_within(item)
        }
        self.copies_well_formed = len(self.copies) == len(plan.copies)
        self.starting: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
        """Residencies by tensor and start."""
        self.copy_ins: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
        """Copies of whole tensors into fast memory by tensor and start."""
        self.slices: defaultdict[int, list[int]] = defaultdict(list)
        """For each residency, the copies of parts of its tensor into fast memory that start while it lasts."""
        self.ending: dict[tuple[int, int], int] = {}
        """Residencies by tensor and end; of several one."""
        self._homes: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
        for number, residency in sorted(self.residencies.items(), key=lambda item: item[1].start):
            self.starting[residency.tensor, residency.start].append(number)
            self.ending[residency.tensor, residency.end] = number
            # Of the residencies that started by now, the one that ends last holds a later step if any of them does.
            homes = self._homes[residency.tensor]
            if homes and self.residencies[homes[-1][1]].end > residency.end:
                homes.append((residency.start, homes[-1][1]))
            else:
                homes.append((residency.start, number))
        for number, copy in self.copies.items():
            if copy.direction == "in" and copy.part is None:
                self.copy_ins[copy.tensor, copy.start].append(number)
            elif copy.direction == "in":
                home = self.home(copy.tensor, copy.start)
                if home is not None:
                    self.slices[home].append(number)

        self.loops_around = _loops_around(problem)
        self.internal_loops = [self._loops_holding(tensor) for tensor in tensors]
        """For each tensor, the loops it is internal to."""

    def home(self, tensor: int, step: int) -> int | None:
        """A residency of ``tensor`` that holds ``step``, and of these the one that ends last."""
        homes = self._homes.get(tensor, [])
        place = bisect_right(homes, step, key=lambda item: item[0]) - 1
        if place < 0:
            return None
        number = homes[place][1]
        return number if step < self.residencies[number].end else None

    def left_by(self, copy: Copy) -> int | None:
        """The residency whose place a copy-out leaves between two steps: it ends where the copy has its empty window."""
        if self.problem.evictions != "between_steps" or copy.direction != "out" or copy.start != copy.end:
            return None
        return self.ending.get((copy.tensor, copy.end))

    def is_part_within(self, copy: Copy) -> bool:
        """Whether a copy is of a whole tensor, or of some bytes of one that exists."""
        if copy.part is None:
            return True
        low, high = copy.part
        return 0 <= low < high <= self.problem.tensors[copy.tensor].size

    def may_be_part(self, copy: Copy) -> bool:
        """Whether a copy of a part is one that the problem allows."""
        is_known = 0 <= copy.tensor < len(self.problem.tensors)
        return self.problem.prefetches == "sliced" and copy.direction == "in" and is_known and self.is_part_within(copy)

    def arriving(self, number: int) -> list[int]:
        """Copies that bring residency ``number`` its content."""
        item = self.residencies[number]
        return [*self.copy_ins.get((item.tensor, item.start), []), *self.slices.get(number, [])]

    def is_filled(self, number: int) -> bool:
        """Whether slices bring each byte of residency ``number`` once, the first of them as it starts."""
        item = self.residencies[number]
        copies = [self.copies[copy] for copy in self.slices.get(number, [])]
        parts = sorted(copy.part for copy in copies if copy.part is not None)
        ends = [0, *(high for _, high in parts)]
        is_partition = ends == [*(low for low, _ in parts), self.problem.tensors[item.tensor].size]
        return is_partition and min(copy.start for copy in copies) == item.start

    def boxes(self, number: int) -> list[tuple[int, int, int]]:
        """What residency ``number`` takes until it ends: (from step, low byte, high byte), slices one by one."""
        item = self.residencies[number]
        slices = self.slices.get(number, []) if self.problem.prefetches == "sliced" else []
        parts = [(self.copies[copy].start, part) for copy in slices if (part := self.copies[copy].part) is not None]
        if not parts or not self.is_filled(number):
            return [(item.start, *self.span(number))]
        return [(start, item.offset + low, item.offset + high) for start, (low, high) in parts]

    def is_defined_at_start(self, residency: Residency) -> bool:
        """Whether the residency's first step writes the whole tensor to fast memory."""
        written = self.writes[residency.tensor].get(residency.start)
        return written is not None and self.fast[written] and residency.start not in self.reads[residency.tensor]

    def span(self, number: int) -> tuple[int, int]:
        """Bytes ``[low, high)`` of a residency."""
        item = self.residencies[number]
        return item.offset, item.offset + self.problem.tensors[item.tensor].size

    def loops_crossing(self, boundary: int) -> list[int]:
        """Loops with the boundary strictly inside."""
        if boundary >= self.horizon:
            return []
        return [loop for loop in self.loops_around[boundary] if self.problem.loops[loop].start < boundary]

    def _loops_holding(self, tensor: int) -> list[int]:
        """Loops that hold every use of a tensor that is neither input nor output."""
        steps = self.reads[tensor].keys() | self.writes[tensor].keys()
        if not steps or self.problem.tensors[tensor].is_input or self.problem.tensors[tensor].is_output:
            return []
        last = max(steps)
        return [loop for loop in self.loops_around[min(steps)] if last < self.problem.loops[loop].end]

    def step_name(self, step: int) -> str:
        """A step in words."""
        return f"step {step} ({self.problem.steps[step].name})"

    def loop_name(self, loop: int) -> str:
        """A loop in words."""
        return f"loop [{self.problem.loops[loop].start}, {self.problem.loops[loop].end})"

    def residency_name(self, number: int) -> str:
        """A residency in words."""
        item = self.plan.residencies[number]
        return f"residency {number} of {self.problem.tensors[item.tensor].name} [{item.start}, {item.end})"

    def copy_name(self, number: int) -> str:
        """A copy in words."""
        item = self.plan.copies[number]
        return f"copy-{item.direction} {number} of {self.problem.tensors[item.tensor].name} [{item.start}, {item.end})"

    def blame_residency(self, code: Reason, number: int, fault: str) -> None:
        """Report residency ``number``, whose tensor exists."""
        item = self.plan.residencies[number]
        message = f"{self.residency_name(number)} {fault}"
        self.log.add(code, message, tensor=item.tensor, step=item.start, residencies=[number])

    def blame_copy(self, code: Reason, number: int, fault: str) -> None:
        """Report copy ``number``, whose tensor exists."""
        item = self.plan.copies[number]
        self.log.add(code, f"{self.copy_name(number)} {fault}", tensor=item.tensor, step=item.start, copies=[number])

    def blame_use(self, code: Reason, number: int, fault: str) -> None:
        """Report use ``number``, which exists."""
        step = self.use_step[number]
        self.log.add(code, f"{self.step_name(step)} {fault}", tensor=self.use_tensor[number], step=step, uses=[number])


def _loops_around(problem: Problem) -> list[tuple[int, ...]]:
    """For each step, the loops it runs in."""
    starting: defaultdict[int, list[int]] = defaultdict(list)
    for number, loop in enumerate(problem.loops):
        starting[loop.start].append(number)
    around: list[tuple[int, ...]] = []
    now: tuple[int, ...] = ()
    for step in range(len(problem.steps)):
        now = (*(loop for loop in now if step < problem.loops[loop].end), *starting.get(step, ()))
        around.append(now)
    return around


def duration_ps(audit: Audit, copy: Copy) -> int:
    """What a copy takes on an idle channel."""
    tensor = audit.problem.tensors[copy.tensor]
    whole = tensor.copy_in_ps if copy.direction == "in" else tensor.copy_out_ps
    if copy.part is None:
        return whole
    # Rounded at the borders of the part, so that slices together take as long as the whole.
    before, through = (whole * border // tensor.size for border in copy.part)
    return through - before


def _latency_ps(step: Step, fast: list[bool]) -> int:
    """One run of a step, by its table or the largest of its pieces."""
    if step.table is not None:
        row = 0
        for bit, use in enumerate(step.table.uses):
            if fast[use]:
                row |= 1 << bit
        return step.table.latency_ps[row]
    longest = None
    for piece in step.pieces:
        total = piece.base_ps
        for use, is_fast in enumerate(fast):
            total += piece.fast_ps[use] if is_fast else piece.slow_ps[use]
        longest = total if longest is None or total > longest else longest
    assert longest is not None
    return longest


def _floor_ps(step: Step) -> int:
    if step.table is not None:
        return min(step.table.latency_ps)
    return max(piece.base_ps + sum(map(min, piece.slow_ps, piece.fast_ps)) for piece in step.pieces)


def objective_ps(audit: Audit) -> tuple[int | None, int | None]:
    """Objective and stalls (ps), or None for both; also reports copies that stall where none may."""
    problem = audit.problem
    copies = list(audit.copies.values())
    playable = audit.copies_well_formed and all(one.start <= two.start for one, two in pairwise(copies))
    if problem.stalls == "forbidden" and playable:
        _check_supply(audit)
    if not playable or any(not 0 <= use < len(audit.fast) for use in audit.plan.fast_uses):
        return None, None
    running = [
        step.weight * _latency_ps(step, audit.fast[first : first + len(step.uses)])
        for first, step in zip(audit.first_use, problem.steps, strict=True)
    ]
    end = sum(running) if problem.stalls == "forbidden" else _play(audit, running)
    return end, end - sum(running)


def _idle_engines(audit: Audit) -> list[int]:
    """Heap of the moments (ps) at which the copy engines become free; no more of them than could be busy."""
    return [0] * max(1, min(audit.problem.channels, len(audit.copies)))


def _check_supply(audit: Audit) -> None:
    """Play the copies against the least latencies, nothing ever waiting: the paper's equation 6, as a queue."""
    clock = [0, *accumulate(step.weight * _floor_ps(step) for step in audit.problem.steps)]
    free = _idle_engines(audit)
    for number, copy in audit.copies.items():
        done = max(clock[copy.start], free[0]) + duration_ps(audit, copy)
        heapq.heapreplace(free, done)
        if done > clock[copy.end]:
            late = done - clock[copy.end]
            audit.blame_copy(Reason.STALLED_COPY, number, f"is {late} ps late at the end of its window")


def _play(audit: Audit, running_ps: list[int]) -> int:
    """Moment (ps) at which the program ends when it waits for the copies it needs."""
    queued: defaultdict[int, list[Copy]] = defaultdict(list)
    for copy in audit.copies.values():
        queued[copy.start].append(copy)
    free = _idle_engines(audit)
    needed_by: defaultdict[int, int] = defaultdict(int)
    """Moment at which the last copy that a boundary waits for is complete."""
    now = 0
    for boundary in range(audit.horizon + 1):
        # First what was queued before, then what is queued here and needed at once.
        now = max(now, needed_by[boundary])
        for copy in queued[boundary]:
            done = max(now, free[0]) + duration_ps(audit, copy)
            heapq.heapreplace(free, done)
            needed_by[copy.end] = max(needed_by[copy.end], done)
        now = max(now, needed_by[boundary])
        if boundary < audit.horizon:
            now += running_ps[boundary]
    return now
