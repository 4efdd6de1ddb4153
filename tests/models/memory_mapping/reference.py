"""The reference implementation, slow and independent: run the program and look whether every read sees the right content.

Memory is a map from byte to the contents it *may* hold: while a copy is under way, each byte it fills may be old or new. Loops
run twice, because what goes wrong from one iteration to the next shows in the second. The verifier reasons about rules; this
file executes. ``test_verify.py`` holds the two against each other.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from stowplan.models.memory_mapping.plan import Copy, Plan, Residency
from stowplan.models.memory_mapping.problem import Loop, Problem

Content = tuple[int, int]
"""Tensor and number of the write that made it; (-1, -1) is what memory holds before anybody writes."""
GARBAGE: Content = (-1, -1)


def is_valid(problem: Problem, plan: Plan) -> bool:
    """Whether the plan is valid and claims the right objective."""
    return not (form_faults(problem, plan) or execution_faults(problem, plan) or clock_faults(problem, plan))


def internal(problem: Problem, tensor: int, loop: Loop) -> bool:
    """Whether a tensor lives only in a loop."""
    info = problem.tensors[tensor]
    steps = [index for index, step in enumerate(problem.steps) if any(use.tensor == tensor for use in step.uses)]
    return bool(steps) and not info.is_input and not info.is_output and all(loop.start <= step < loop.end for step in steps)


def form_faults(problem: Problem, plan: Plan) -> list[str]:
    """What is wrong with a plan before anything runs."""
    faults = []
    horizon, tensors = problem.horizon, range(len(problem.tensors))
    if plan.problem != problem.digest:
        faults.append("digest")
    if any(item.tensor not in tensors for item in [*plan.residencies, *plan.copies]):
        return [*faults, "tensor"]
    if any(use not in range(problem.use_count) for use in plan.fast_uses):
        return [*faults, "use"]
    if list(plan.fast_uses) != sorted(set(plan.fast_uses)):
        faults.append("fast uses not ascending")
    if any(not 0 <= item.start < item.end <= horizon for item in plan.residencies):
        return [*faults, "residency range"]
    for copy in plan.copies:
        size = problem.tensors[copy.tensor].size
        if copy.part is not None and not 0 <= copy.part[0] < copy.part[1] <= size:
            return [*faults, "part"]
        if copy.part is not None and (problem.prefetches == "whole" or copy.direction == "out"):
            faults.append("part of what is copied whole")
    least = 1 if problem.stalls == "forbidden" else 0
    if any(not 0 <= item.start <= item.end <= horizon or item.end - item.start < least for item in plan.copies):
        return [*faults, "copy window"]
    for item in plan.residencies:
        if item.offset not in range(0, problem.capacity - problem.tensors[item.tensor].size + 1, problem.alignment):
            faults.append("offset")
        if item.preloaded and (item.start > 0 or not problem.tensors[item.tensor].is_input):
            faults.append("preload")
    if sum(item.preloaded for item in plan.residencies) > problem.max_preloads:
        faults.append("too many preloads")
    if any(one.start > two.start for one, two in zip(plan.copies, plan.copies[1:], strict=False)):
        faults.append("copy order")
    for loop in problem.loops:
        faults += _loop_faults(problem, plan, loop)
    for tensor in tensors:
        if problem.alias_rule == "uniform" and len(problem.tensors[tensor].members) > 1:
            served = {is_fast for _, other, _, is_fast in _served(problem, plan) if other == tensor}
            offsets = {item.offset for item in plan.residencies if item.tensor == tensor}
            if len(served) > 1 or len(offsets) > 1 or (offsets and served == {False}):
                faults.append("alias group")
    return faults


def _served(problem: Problem, plan: Plan) -> Iterator[tuple[int, int, bool, bool]]:
    """(step, tensor, is a write, is fast) of every use."""
    number = 0
    for index, step in enumerate(problem.steps):
        for use in step.uses:
            yield index, use.tensor, use.is_output, number in plan.fast_uses
            number += 1


def _loop_faults(problem: Problem, plan: Plan, loop: Loop) -> list[str]:
    faults = []
    body = set(range(loop.start, loop.end))
    for item in plan.residencies:
        covered = set(range(item.start, item.end)) & body
        if internal(problem, item.tensor, loop):
            if len(covered) < item.end - item.start:
                faults.append("a residency leaves the loop of its tensor")
        elif covered and covered != body:
            faults.append("a residency covers a part of a loop")
    for copy in plan.copies:
        if {copy.start, copy.end} & set(range(loop.start + 1, loop.end)):
            faults.append("a copy starts or ends in a loop")
        if internal(problem, copy.tensor, loop):
            faults.append("a copy of a tensor that lives in a loop")
    for tensor in range(len(problem.tensors)):
        inside = [use for use in _served(problem, plan) if use[0] in body and use[1] == tensor]
        if any(write for _, _, write, _ in inside) and not internal(problem, tensor, loop) and len({u[3] for u in inside}) > 1:
            faults.append("a tensor written in a loop is used in both memories")
    return faults


def trace(problem: Problem, repeats: int = 2) -> list[tuple[int, Loop | None]]:
    """Steps in the order in which they run, every loop ``repeats`` times.

    With each step the loop whose next iteration it begins, None where the program just went on.
    """

    def run(start: int, end: int, loops: list[Loop]) -> list[tuple[int, Loop | None]]:
        result: list[tuple[int, Loop | None]] = []
        step = start
        while step < end:
            # The widest loop that starts here; of equal ones the first.
            here = max((loop for loop in loops if loop.start == step), key=lambda loop: loop.end, default=None)
            if here is None:
                result.append((step, None))
                step += 1
                continue
            inner = [loop for loop in loops if loop is not here and here.start <= loop.start and loop.end <= here.end]
            for turn in range(repeats):
                body = run(here.start, here.end, inner)
                result += body if turn == 0 else [(here.start, here), *body[1:]]
            step = here.end
        return result

    return run(0, problem.horizon, list(problem.loops))


@dataclass
class Place:
    """A residency while it lasts."""

    residency: Residency
    bytes: range
    sliced: bool = False
    copied_in: bool = False
    taken: set[int] = field(default_factory=set)


@dataclass
class Transfer:
    """A copy under way: all contents that it may have picked up, and all that others wrote where it goes."""

    copy: Copy
    place: Place
    bytes: range
    seen: set[Content] = field(default_factory=set)


@dataclass
class Machine:
    """A computer with a slow place for each tensor and a fast memory of bytes."""

    problem: Problem
    plan: Plan
    faults: list[str] = field(default_factory=list)
    fast: dict[int, set[Content]] = field(default_factory=dict)
    slow: dict[int, set[Content]] = field(default_factory=dict)
    current: dict[int, Content] = field(default_factory=dict)
    places: list[Place] = field(default_factory=list)
    under_way: list[Transfer] = field(default_factory=list)
    writes: int = 0

    def __post_init__(self) -> None:
        for number, tensor in enumerate(self.problem.tensors):
            self.current[number] = (number, 0) if tensor.is_input else (number, -1)
            self.slow[number] = {(number, 0) if tensor.is_input else GARBAGE}

    def place_of(self, tensor: int) -> Place | None:
        return next((place for place in self.places if place.residency.tensor == tensor), None)

    def holds(self, place: Place) -> set[Content]:
        missing = {GARBAGE} if len(place.taken) < len(place.bytes) else set()
        return missing.union(*(self.fast[byte] for byte in place.taken))

    def reserve(self, item: Residency) -> None:
        if self.place_of(item.tensor) is not None:
            self.faults.append("a tensor in two places")
            return
        place = Place(item, range(item.offset, item.offset + self.problem.tensors[item.tensor].size))
        slices = [copy for copy in self.plan.copies if copy.tensor == item.tensor and copy.part and item.start <= copy.start]
        slices = [copy for copy in slices if copy.start < item.end]
        if slices and min(copy.start for copy in slices) > item.start:
            self.faults.append("slices that come after their residency begins")
        place.sliced = bool(slices) and all(copy.start >= item.start for copy in slices)
        if not place.sliced:
            self.take(place, place.bytes, self.slow[item.tensor] if item.preloaded else {GARBAGE})
        self.places.append(place)

    def take(self, place: Place, wanted: range, content: set[Content]) -> None:
        if any(byte in self.fast for byte in wanted):
            self.faults.append("a place taken twice")
            return
        self.fast.update({byte: set(content) for byte in wanted})
        place.taken |= set(wanted)

    def release(self, item: Residency) -> None:
        place = next((place for place in self.places if place.residency is item), None)
        if place is None:
            return
        if any(transfer.place is place for transfer in self.under_way):
            self.faults.append("a place released under a copy")
            self.under_way = [transfer for transfer in self.under_way if transfer.place is not place]
        self.places.remove(place)
        if len(place.taken) < len(place.bytes):
            self.faults.append("a place that was never filled")
        for byte in place.taken:
            del self.fast[byte]

    def begin(self, copy: Copy, boundary: int) -> None:
        place = self.place_of(copy.tensor)
        if place is None:
            self.faults.append("a copy without a place")
            return
        low, high = copy.part or (0, len(place.bytes))
        transfer = Transfer(copy, place, place.bytes[low:high])
        if copy.direction == "in":
            if copy.part is not None and place.sliced and not place.residency.preloaded:
                self.take(place, transfer.bytes, {GARBAGE})
            elif place.residency.start != boundary or place.copied_in or place.residency.preloaded or place.sliced:
                self.faults.append("a copy into a place in use")
                return
            place.copied_in = True
            transfer.seen |= self.slow[copy.tensor]
            if not place.taken.issuperset(transfer.bytes):
                return
            for byte in transfer.bytes:
                self.fast[byte] |= transfer.seen
        else:
            transfer.seen |= self.holds(place)
            self.slow[copy.tensor] |= transfer.seen
        self.under_way.append(transfer)

    def complete(self, boundary: int, queued_before: bool) -> None:
        for transfer in [*self.under_way]:
            copy = transfer.copy
            if copy.end != boundary or (copy.start < boundary) != queued_before:
                continue
            self.under_way.remove(transfer)
            if transfer.seen != {self.current[copy.tensor]}:
                self.faults.append("a copy that did not deliver the tensor's content")
            if copy.direction == "in":
                self.fast.update({byte: set(transfer.seen) for byte in transfer.bytes})
            else:
                self.slow[copy.tensor] = set(transfer.seen)

    def arrive(self, boundary: int) -> None:
        self.complete(boundary, queued_before=True)
        queued = [copy for copy in self.plan.copies if copy.start == boundary]
        leaving = [
            item
            for item in self.plan.residencies
            if item.end == boundary and self.problem.evictions == "between_steps"
            if any(copy.tensor == item.tensor and copy.direction == "out" and copy.end == boundary for copy in queued)
        ]
        for item in self.plan.residencies:
            if item.end == boundary and item not in leaving:
                self.release(item)
        arriving = [item for item in self.plan.residencies if item.start == boundary]
        if leaving:
            queued = self.hand_over(boundary, queued, leaving, arriving)
        for item in arriving:
            self.reserve(item)
        for copy in queued:
            self.begin(copy, boundary)
        self.complete(boundary, queued_before=False)

    def hand_over(self, boundary: int, queued: list[Copy], leaving: list[Residency], arriving: list[Residency]) -> list[Copy]:
        """Begin the copies of a boundary in their order, up to the last that leaves a place; returns those that follow it."""
        for place, copy in enumerate(queued):
            item = next((item for item in leaving if item.tensor == copy.tensor), None)
            if copy.direction == "in":
                for entering in [each for each in arriving if each.tensor == copy.tensor]:
                    arriving.remove(entering)
                    self.reserve(entering)
            self.begin(copy, boundary)
            if item is not None and copy.direction == "out" and copy.end == boundary:
                self.complete(boundary, queued_before=False)
                if not any(c.tensor == copy.tensor and c.direction == "out" and c.end == boundary for c in queued[place + 1 :]):
                    leaving.remove(item)
                    self.release(item)
            if not leaving:
                return queued[place + 1 :]
        return []

    def go_back(self, loop: Loop) -> None:
        """Begin another iteration: what lives in the loop goes and comes again, all else stays as it is."""
        inside = [item for item in self.plan.residencies if internal(self.problem, item.tensor, loop)]
        for item in inside:
            if item.end == loop.end:
                self.release(item)
        for item in inside:
            if item.start == loop.start:
                self.reserve(item)

    def run(self, step: int, served: list[tuple[int, bool, bool]]) -> None:
        """Run a step; ``served`` has (tensor, is a write, is fast) of its uses."""
        for tensor, is_write, is_fast in served:
            if is_write:
                continue
            place = self.place_of(tensor)
            found = (self.holds(place) if place else {GARBAGE}) if is_fast else self.slow[tensor]
            if found != {self.current[tensor]}:
                self.faults.append(f"step {step} reads wrong content of tensor {tensor}")
        for tensor, is_write, is_fast in served:
            if not is_write:
                continue
            updates = [fast for other, write, fast in served if other == tensor and not write]
            if updates and updates != [is_fast]:
                self.faults.append("an update in place, in two places")
            self.write(step, tensor, is_fast, whole=not updates)
        for place in self.places:
            filling = any(transfer.place is place and transfer.copy.direction == "in" for transfer in self.under_way)
            filling = filling or len(place.taken) < len(place.bytes)
            if not filling and self.holds(place) != {self.current[place.residency.tensor]}:
                self.faults.append("a place without its tensor's content")

    def write(self, step: int, tensor: int, is_fast: bool, whole: bool) -> None:
        self.writes += 1
        content = self.current[tensor] = (tensor, self.writes)
        place = self.place_of(tensor)
        if is_fast and place is None:
            self.faults.append("a fast write without a place")
        elif is_fast and place is not None:
            if whole and place.copied_in and place.residency.start == step:
                self.faults.append("a copy in that is overwritten at once")
            if len(place.taken) < len(place.bytes):
                self.faults.append("a write to a place that is not filled")
            self.fast.update({byte: {content} for byte in place.taken})
        else:
            self.slow[tensor] = {content}
        for transfer in self.under_way:
            if transfer.copy.tensor == tensor:
                # Written at its source or at its destination: either way the outcome is a matter of chance.
                transfer.seen.add(content)


def execution_faults(problem: Problem, plan: Plan) -> list[str]:
    """Run a well-formed plan; what went wrong, in order."""
    machine = Machine(problem, plan)
    served: list[list[tuple[int, bool, bool]]] = [[] for _ in problem.steps]
    for step, tensor, is_write, is_fast in _served(problem, plan):
        served[step].append((tensor, is_write, is_fast))
    for step, again in trace(problem):
        if again is None:
            machine.arrive(step)
        else:
            machine.go_back(again)
        machine.run(step, served[step])
    machine.arrive(problem.horizon)
    for number, tensor in enumerate(problem.tensors):
        if tensor.is_output and machine.slow[number] != {machine.current[number]}:
            machine.faults.append("an output that is not in slow memory")
    return machine.faults


def clock_faults(problem: Problem, plan: Plan) -> list[str]:
    """Late copies where none may be, and a wrong objective."""
    served: list[list[bool]] = [[] for _ in problem.steps]
    for step, _, _, is_fast in _served(problem, plan):
        served[step].append(is_fast)
    real = [step.weight * step.latency_ps(fast) for step, fast in zip(problem.steps, served, strict=True)]
    faults = []
    if problem.stalls == "forbidden":
        late, _ = play(problem, plan, [step.weight * step.floor_ps for step in problem.steps], waits=False)
        if late:
            faults.append("a late copy")
        total = sum(real)
    else:
        _, total = play(problem, plan, real, waits=True)
    if total != plan.objective:
        faults.append("objective")
    return faults


def play(problem: Problem, plan: Plan, lasts_ps: list[int], *, waits: bool) -> tuple[bool, int]:
    """Whether a copy was late, and when the program ended."""
    engines = [0] * problem.channels
    done_ps: dict[int, int] = {}
    now, late = 0, False
    for boundary in range(problem.horizon + 1):
        for queue_first in (False, True):
            if queue_first:
                for number, copy in enumerate(plan.copies):
                    if copy.start == boundary:
                        engine = engines.index(min(engines))
                        tensor = problem.tensors[copy.tensor]
                        needs = tensor.copy_in_ps if copy.direction == "in" else tensor.copy_out_ps
                        if copy.part is not None:
                            low, high = copy.part
                            needs = needs * high // tensor.size - needs * low // tensor.size
                        engines[engine] = done_ps[number] = max(now, engines[engine]) + needs
            due = [done_ps[number] for number, copy in enumerate(plan.copies) if copy.end == boundary and number in done_ps]
            late |= any(moment > now for moment in due)
            if waits:
                now = max([now, *due])
        if boundary < problem.horizon:
            now += lasts_ps[boundary]
    return late, now
