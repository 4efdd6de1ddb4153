"""The data of the verifier: codes of violations, tables of the parts of a problem and a plan, and the violations found so far.

It is written separately from the models of memory mapping and their simulation of copies (``copy_engine``) on purpose, so that
an error in one of them shows as a difference.

A *use* is a read or a write of one tensor by one step, a *residency* is one stay of a tensor in fast memory, and a *boundary*
is the moment before a step. A use is *fast* if the plan serves it from fast memory. The *window* of a copy goes from the
boundary at which it is queued to the boundary at which it must be complete; it is *empty* if both are the same. A *slice* is a
copy-in of a part of a tensor. A tensor is *internal* to a loop if all its uses are in the loop and it is neither an input nor
an output of the program.

Where the documentation of an attribute begins with a word in brackets, the attribute has one entry for each of these things.
Nothing here raises an error for valid arguments.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from enum import StrEnum

from stowplan import verification
from stowplan.models.memory_mapping.plan import Copy, Plan, Residency
from stowplan.models.memory_mapping.problem import Problem

#: Largest number of violations of one code that are listed; further ones are only counted.
MAX_LISTED = 100


class Reason(StrEnum):
    """The rule that a plan breaks; ``docs/reference/memory-mapping.md`` states each rule."""

    WRONG_PROBLEM = "wrong_problem"
    BAD_INDEX = "bad_index"
    BAD_INTERVAL = "bad_interval"
    BAD_OFFSET = "bad_offset"
    OVERLAP = "overlap"
    DOUBLE_RESIDENCY = "double_residency"
    NO_SOURCE = "no_source"
    BAD_PRELOAD = "bad_preload"
    COPY_ORDER = "copy_order"
    BAD_PART = "bad_part"
    COPY_WITHOUT_RESIDENCY = "copy_without_residency"
    COPY_IN_LATE = "copy_in_late"
    COPY_OUT_EARLY = "copy_out_early"
    FAST_USE_NOT_RESIDENT = "fast_use_not_resident"
    COPY_DURING_WRITE = "copy_during_write"
    STALE_SLOW = "stale_slow"
    STALE_FAST = "stale_fast"
    SPLIT_IN_PLACE = "split_in_place"
    OUTPUT_NOT_SLOW = "output_not_slow"
    LOOP_PARTIAL = "loop_partial"
    LOOP_MIXED = "loop_mixed"
    IN_FLIGHT = "in_flight"
    ALIAS_NOT_UNIFORM = "alias_not_uniform"
    STALLED_COPY = "stalled_copy"
    WRONG_OBJECTIVE = "wrong_objective"


Violation = verification.Violation[Reason]
Verification = verification.Verification[Reason]


class ViolationLog:
    """Collects violations by code, at most :data:`MAX_LISTED` of each, and counts the others."""

    def __init__(self) -> None:
        self._listed: dict[Reason, list[Violation]] = {reason: [] for reason in Reason}
        self._more: Counter[Reason] = Counter()

    def has_room(self, code: Reason) -> bool:
        """Whether another violation of this code would be listed."""
        return len(self._listed[code]) < MAX_LISTED

    def add(self, code: Reason, message: str, **concerns: Iterable[int]) -> None:
        """List a violation, or only count it if the list of its code is full. ``concerns`` has the numbers of the tensors,
        steps, uses, residencies or copies that break the rule, such as ``tensors=[3]``."""
        if self.has_room(code):
            self._listed[code].append(Violation(code, message, {sort: tuple(numbers) for sort, numbers in concerns.items()}))
        else:
            self._more[code] += 1

    def add_unlisted(self, code: Reason, count: int) -> None:
        """Count further violations of a code without listing them."""
        self._more[code] += count

    def violations(self) -> Iterator[Violation]:
        """The listed violations, code by code. If a code has more violations, an entry after its list says how many."""
        for code, listed in self._listed.items():
            yield from listed
            if self._more[code]:
                yield Violation(code, f"and {self._more[code]} more")


class Ranges:
    """A collection of byte ranges. It counts the ranges that overlap a given one without visiting each of them."""

    def __init__(self) -> None:
        self._lows: list[int] = []
        self._highs: list[int] = []

    def add(self, low: int, high: int) -> None:
        """Add the range ``[low, high)``; the same range may be added several times."""
        insort(self._lows, low)
        insort(self._highs, high)

    def remove(self, low: int, high: int) -> None:
        """Remove the range ``[low, high)``, which must have been added."""
        del self._lows[bisect_left(self._lows, low)]
        del self._highs[bisect_left(self._highs, high)]

    def overlapping(self, low: int, high: int) -> int:
        """Number of ranges that share a byte with ``[low, high)``."""
        return bisect_left(self._lows, high) - bisect_right(self._highs, low)

    def __len__(self) -> int:
        return len(self._lows)


def is_range(start: int, end: int, horizon: int) -> bool:
    """Whether ``[start, end)`` is a range, possibly empty, within a program of ``horizon`` steps."""
    return 0 <= start <= end <= horizon


class Audit:
    """Tables of the parts of a problem and a plan, by which the rules are checked, and the violations found so far.

    The tables leave out residencies, copies and fast uses that are malformed by themselves, for example because they name a
    tensor that does not exist.
    """

    def __init__(self, problem: Problem, plan: Plan) -> None:
        self.problem, self.plan = problem, plan
        self.log = ViolationLog()
        self.horizon = len(problem.steps)
        tensors = range(len(problem.tensors))
        self.use_tensor: list[int] = []
        """[uses] tensor of each use."""
        self.use_step: list[int] = []
        """[uses] step of each use."""
        self.first_use: list[int] = []
        """[steps] number of the first use of each step."""
        self.reads: list[dict[int, int]] = [{} for _ in tensors]
        """For each tensor, the steps that read it, each with the number of that use."""
        self.writes: list[dict[int, int]] = [{} for _ in tensors]
        """For each tensor, the steps that write it, each with the number of that use."""
        for index, step in enumerate(problem.steps):
            self.first_use.append(len(self.use_tensor))
            for use in step.uses:
                (self.writes if use.is_output else self.reads)[use.tensor][index] = len(self.use_tensor)
                self.use_tensor.append(use.tensor)
                self.use_step.append(index)
        self.fast = [False] * len(self.use_tensor)
        """[uses] whether the plan serves the use from fast memory."""
        for number in plan.fast_uses:
            if 0 <= number < len(self.fast):
                self.fast[number] = True

        self.in_fast_memory = {self.use_tensor[number] for number, is_fast in enumerate(self.fast) if is_fast}
        """Tensors that have a fast use or a residency."""
        self.in_fast_memory |= {item.tensor for item in plan.residencies}
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
        """Numbers of residencies by tensor and start."""
        self.copy_ins: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
        """Numbers of copies of whole tensors into fast memory, by tensor and start."""
        self.slices: defaultdict[int, list[int]] = defaultdict(list)
        """For each residency, the numbers of the slices of its tensor that are queued for a copy-in while it lasts."""
        self.ending: dict[tuple[int, int], int] = {}
        """Number of a residency by tensor and end; if there are several, one of them."""
        self._homes: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
        for number, residency in sorted(self.residencies.items(), key=lambda item: item[1].start):
            self.starting[residency.tensor, residency.start].append(number)
            self.ending[residency.tensor, residency.end] = number
            # For each start, keep the residency that has started by then and ends last: if any of them covers a later step,
            # this one does.
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
        self.internal_loops = [self._loops_holding(tensor) if problem.loops else [] for tensor in tensors]
        """For each tensor, the loops that it is internal to."""

    def home(self, tensor: int, step: int) -> int | None:
        """The residency of ``tensor`` that covers ``step``; if there are several, the one that ends last."""
        homes = self._homes.get(tensor)
        if homes is None:
            return None
        place = bisect_right(homes, step, key=lambda item: item[0]) - 1
        if place < 0:
            return None
        number = homes[place][1]
        return number if step < self.residencies[number].end else None

    def freed_by(self, copy: Copy) -> int | None:
        """The residency whose bytes a copy-out frees between two steps: it ends at the boundary of the copy's empty window."""
        if self.problem.evictions != "between_steps" or copy.direction != "out" or copy.start != copy.end:
            return None
        return self.ending.get((copy.tensor, copy.end))

    def is_part_within(self, copy: Copy) -> bool:
        """Whether a copy is of the whole tensor, or of bytes that exist. The tensor must exist."""
        if copy.part is None:
            return True
        low, high = copy.part
        return 0 <= low < high <= self.problem.tensors[copy.tensor].size

    def may_be_part(self, copy: Copy) -> bool:
        """Whether the problem allows this copy of a part of a tensor."""
        is_known = 0 <= copy.tensor < len(self.problem.tensors)
        return self.problem.prefetches == "sliced" and copy.direction == "in" and is_known and self.is_part_within(copy)

    def arriving(self, number: int) -> list[int]:
        """Numbers of the copies that bring the content of residency ``number``."""
        item = self.residencies[number]
        return [*self.copy_ins.get((item.tensor, item.start), []), *self.slices.get(number, [])]

    def is_filled(self, number: int) -> bool:
        """Whether slices bring each byte of residency ``number`` exactly once, and the first slice starts when the residency
        starts. False if there are no slices."""
        item = self.residencies[number]
        copies = [self.copies[copy] for copy in self.slices.get(number, [])]
        parts = sorted(copy.part for copy in copies if copy.part is not None)
        ends = [0, *(high for _, high in parts)]
        is_partition = ends == [*(low for low, _ in parts), self.problem.tensors[item.tensor].size]
        return is_partition and min(copy.start for copy in copies) == item.start

    def boxes(self, number: int) -> list[tuple[int, int, int]]:
        """The bytes that residency ``number`` occupies until it ends, as (first step, low byte, high byte).

        There is one entry, or one for each slice if slices fill the residency.
        """
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
        """The loops that have the boundary strictly inside."""
        if boundary >= self.horizon:
            return []
        return [loop for loop in self.loops_around[boundary] if self.problem.loops[loop].start < boundary]

    def _loops_holding(self, tensor: int) -> list[int]:
        """Loops that contain every use of a tensor; none if it is an input or output of the program."""
        steps = self.reads[tensor].keys() | self.writes[tensor].keys()
        if not steps or self.problem.tensors[tensor].is_input or self.problem.tensors[tensor].is_output:
            return []
        last = max(steps)
        return [loop for loop in self.loops_around[min(steps)] if last < self.problem.loops[loop].end]

    def step_name(self, step: int) -> str:
        """Description of a step for messages."""
        return f"step {step} ({self.problem.steps[step].name})"

    def loop_name(self, loop: int) -> str:
        """Description of a loop for messages."""
        return f"loop [{self.problem.loops[loop].start}, {self.problem.loops[loop].end})"

    def residency_name(self, number: int) -> str:
        """Description of a residency for messages."""
        item = self.plan.residencies[number]
        return f"residency {number} of {self.problem.tensors[item.tensor].name} [{item.start}, {item.end})"

    def copy_name(self, number: int) -> str:
        """Description of a copy for messages."""
        item = self.plan.copies[number]
        return f"copy-{item.direction} {number} of {self.problem.tensors[item.tensor].name} [{item.start}, {item.end})"

    def report_residency(self, code: Reason, number: int, fault: str) -> None:
        """Report a violation by residency ``number``, whose tensor exists; ``fault`` completes the message."""
        item = self.plan.residencies[number]
        message = f"{self.residency_name(number)} {fault}"
        self.log.add(code, message, tensors=[item.tensor], steps=[item.start], residencies=[number])

    def report_copy(self, code: Reason, number: int, fault: str) -> None:
        """Report a violation by copy ``number``, whose tensor exists; ``fault`` completes the message."""
        item = self.plan.copies[number]
        self.log.add(code, f"{self.copy_name(number)} {fault}", tensors=[item.tensor], steps=[item.start], copies=[number])

    def report_use(self, code: Reason, number: int, fault: str) -> None:
        """Report a violation by use ``number``, which exists; ``fault`` completes the message."""
        step = self.use_step[number]
        self.log.add(code, f"{self.step_name(step)} {fault}", tensors=[self.use_tensor[number]], steps=[step], uses=[number])


def _loops_around(problem: Problem) -> list[tuple[int, ...]]:
    """For each step, the loops that contain it."""
    starting: defaultdict[int, list[int]] = defaultdict(list)
    for number, loop in enumerate(problem.loops):
        starting[loop.start].append(number)
    around: list[tuple[int, ...]] = []
    open_loops: tuple[int, ...] = ()
    for step in range(len(problem.steps)):
        open_loops = (*(loop for loop in open_loops if step < problem.loops[loop].end), *starting.get(step, ()))
        around.append(open_loops)
    return around
