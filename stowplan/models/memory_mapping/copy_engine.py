"""The copy engine for the models: when copies begin and when steps run; and plans as it sees them.

The rules are in ``docs/reference/memory-mapping.md``. Verifier, simulator and the compiled replay of local search have
engines of their own, written apart, so that an error in one of them shows as a difference.

Beside the engine stand plans with sliced prefetches, for models and searches that know whole copies only, and a plan's
timeline: its run, and who stands where and is copied when, as neighbourhoods ask.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from msgspec.structs import replace

from stowplan.models.memory_mapping.accesses import IntArray, TensorAccesses, access_sequences
from stowplan.models.memory_mapping.latency import Savings
from stowplan.models.memory_mapping.plan import Copy, Plan, Residency, by_tensor
from stowplan.models.memory_mapping.problem import Problem


@dataclass(frozen=True, slots=True)
class CopyWindow:
    """A queued copy: boundaries at which it is queued and must be complete, and what it takes on an idle channel.

    In a neighbourhood's program, in which several steps may be merged into one, both may lie inside a merged step.
    """

    start: int
    end: int
    """One past the last boundary where nothing waits for it here."""
    duration_ps: int
    queued_after_ps: int = 0
    """How long after ``start`` is left it is queued, where that lies inside a step."""
    due_after_ps: int = 0
    """How long after ``end`` is left it must be complete, where that lies inside a step."""
    queue: int = 0
    """Number of the queue that it stands in."""


def copy_window(problem: Problem, copy: Copy) -> CopyWindow:
    """A plan's copy as the copy engine sees it."""
    tensor = problem.tensors[copy.tensor]
    duration = tensor.copy_in_ps if copy.direction == "in" else tensor.copy_out_ps
    if copy.part is not None:
        low, high = copy.part
        duration = duration * high // tensor.size - duration * low // tensor.size
    return CopyWindow(copy.start, copy.end, duration)


@dataclass(frozen=True)
class Moments:
    """Moments in ps: a boundary is *reached* after the step before, *open* when it queues its copies, *left* by its step."""

    begin: tuple[int, ...]
    """When each copy begins, in queue order."""
    reached: tuple[int, ...]
    open: tuple[int, ...]
    left: tuple[int, ...]


def play(
    copies: Sequence[CopyWindow],
    step_ps: Sequence[int],
    *,
    waits: bool,
    channels: int = 1,
    queues: int = 1,
    first: int = 0,
    now_ps: int = 0,
    free_ps: int = 0,
    due_ps: Mapping[int, int] | None = None,
) -> Moments:
    """Play copies against steps.

    Parameters
    ----------
    copies
        In queue order: sorted by ``start``, at each boundary those queued inside its step last.
    step_ps
        Duration of every step.
    waits
        Whether boundaries wait for the copies that end there. Where they do not, whether every copy makes its end is for the
        caller to see.
    channels
        Of each queue.
    first
        Boundary to begin with; no copy is queued before it.
    now_ps
        When that boundary is reached.
    free_ps
        When the channels are free.
    due_ps
        Boundaries that wait for other copies, and until when.

    Returns
    -------
    Moments
        Of the boundaries from ``first`` on.
    """
    free = [[free_ps] * channels for _ in range(queues)]
    due = [0] * (len(step_ps) + 2)
    for boundary, moment in (due_ps or {}).items():
        due[boundary] = moment
    begin: list[int] = []
    reached, opened, left = [], [], []
    now, place = now_ps, 0
    for boundary in range(first, len(step_ps) + 1):
        reached.append(now)
        if waits:
            now = max(now, due[boundary])
        opened.append(now)
        is_left = False
        while place < len(copies) and copies[place].start == boundary:
            copy = copies[place]
            if copy.queued_after_ps and not is_left:
                is_left = True
                now = max(now, due[boundary]) if waits else now
            start = max(now + copy.queued_after_ps, heapq.heappop(free[copy.queue]))
            end = start + copy.duration_ps
            heapq.heappush(free[copy.queue], end)
            begin.append(start)
            due[copy.end] = max(due[copy.end], end - copy.due_after_ps)
            place += 1
        if waits and not is_left:
            now = max(now, due[boundary])
        left.append(now)
        if boundary < len(step_ps):
            now += step_ps[boundary]
    return Moments(tuple(begin), tuple(reached), tuple(opened), tuple(left))


def step_durations(problem: Problem, fast: Sequence[bool]) -> list[int]:
    """Duration of every step, all its runs together, for the given choice of fast uses; in ps."""
    return [step.weight * step.latency_ps(here) for step, here in zip(problem.steps, problem.by_step(fast), strict=True)]


def slices_of(plan: Plan) -> dict[tuple[int, int], list[int]]:
    """Places of the slices in a valid plan's list of copies, by tensor and start of their residency."""
    slices: dict[tuple[int, int], list[int]] = {}
    starts: defaultdict[int, list[int]] = defaultdict(list)
    sliced = [(place, copy) for place, copy in enumerate(plan.copies) if copy.part is not None]
    if sliced:
        for residency in plan.residencies:
            starts[residency.tensor].append(residency.start)
        for own in starts.values():
            own.sort()
    for place, copy in sliced:
        own = starts[copy.tensor]
        slices.setdefault((copy.tensor, own[bisect_right(own, copy.start) - 1]), []).append(place)
    return slices


def with_whole_copies(problem: Problem, plan: Plan) -> Plan:
    """A valid plan with every sliced prefetch made whole, from when its last slice starts: all of its place is free then.

    Where stalls are allowed the plan stays valid; it may be slower. Where they are not, a copy may turn out to be late.
    """
    slices = slices_of(plan)
    if not slices:
        return plan
    merged: dict[int, Copy] = {}
    gone: set[int] = set()
    moved: dict[tuple[int, int], int] = {}
    for (tensor, start), places in slices.items():
        last = max(places)
        gone.update(places)
        moved[tensor, start] = plan.copies[last].start
        if _overwrites(problem, plan.copies[last].start, tensor):
            continue  # whose content nobody reads
        merged[last] = Copy(tensor, "in", plan.copies[last].start, max(plan.copies[place].end for place in places))
    copies = [merged.get(place, copy) for place, copy in enumerate(plan.copies) if place in merged or place not in gone]

    def later(residency: Residency) -> Residency:
        return replace(residency, start=moved.get((residency.tensor, residency.start), residency.start))

    fast = set(plan.fast_uses)
    durations = step_durations(problem, [use in fast for use in range(problem.use_count)])
    total = sum(durations)
    if problem.stalls == "allowed":
        total = play([copy_window(problem, copy) for copy in copies], durations, waits=True, channels=problem.channels).left[-1]
    residencies = tuple(later(residency) for residency in plan.residencies)
    return replace(plan, residencies=residencies, copies=tuple(copies), objective=total)


def _overwrites(problem: Problem, step: int, tensor: int) -> bool:
    """Whether a step writes a tensor without reading it."""
    roles = {use.is_output for use in problem.steps[step].uses if use.tensor == tensor} if step < problem.horizon else set()
    return roles == {True}


class ProblemFacts:
    """What is known of a problem whatever the plan; made once."""

    def __init__(self, problem: Problem):
        self.problem = problem
        self.sequences: tuple[TensorAccesses, ...] = access_sequences(problem)
        savings = Savings(problem)
        self.is_candidate = [savings.is_candidate(sequence) for sequence in self.sequences]
        """Tensors that may be worth having in fast memory."""
        self.units = [-(-tensor.size // problem.alignment) for tensor in problem.tensors]


class PlanTimeline:
    """A valid plan, indexed.

    Attributes
    ----------
    fast : list of bool, one for each use
    durations : list of int, one for each step
        Weighted latencies (ps).
    moments
        The run: with stalls where they are allowed, else with floor latencies.
    """

    def __init__(self, facts: ProblemFacts, plan: Plan, before: PlanTimeline | None = None):
        problem = facts.problem
        self.facts, self.plan = facts, plan
        self.fast = [False] * problem.use_count
        for use in plan.fast_uses:
            self.fast[use] = True
        self.durations = step_durations(problem, self.fast) if before is None else self._changed_durations(before)
        self.windows = [copy_window(problem, copy) for copy in plan.copies]
        self.waits = problem.stalls == "allowed"
        self.moments = play(
            self.windows, self.durations if self.waits else problem.floors_ps, waits=self.waits, channels=problem.channels
        )
        self.objective = self.moments.left[-1] if self.waits else sum(self.durations)
        self.residencies = by_tensor(plan.residencies)
        self.copies: defaultdict[int, list[tuple[int, Copy]]] = defaultdict(list)
        """Copies of each tensor, with their places in the queue."""
        for place, copy in enumerate(plan.copies):
            self.copies[copy.tensor].append((place, copy))
        align = problem.alignment
        columns = [
            (r.tensor, r.start, r.end, r.offset // align, r.offset // align + facts.units[r.tensor]) for r in plan.residencies
        ]
        self.table: IntArray = np.array(columns, np.int64).reshape(-1, 5)
        """Shape ``[residencies, 5]``: tensor, start, end, first unit, unit after the last."""

    def end_ps(self, place: int) -> int:
        """When a copy is complete."""
        return self.moments.begin[place] + self.windows[place].duration_ps

    def _changed_durations(self, before: PlanTimeline) -> list[int]:
        problem, first_use = self.facts.problem, self.facts.problem.first_use
        durations = list(before.durations)
        changed = np.flatnonzero(np.array(self.fast) != np.array(before.fast))
        for index in set((np.searchsorted(first_use, changed, side="right") - 1).tolist()):
            step = problem.steps[index]
            durations[index] = step.weight * step.latency_ps(self.fast[first_use[index] : first_use[index + 1]])
        return durations

    def leaves_at(self, tensor: int, boundary: int) -> bool:
        """Whether a copy-out has an empty window at a boundary at which its residency ends."""
        return any(copy.direction == "out" and copy.start == copy.end == boundary for _, copy in self.copies[tensor]) and any(
            residency.end == boundary for residency in self.residencies[tensor]
        )

    def is_slow_valid(self, tensor: int, boundary: int) -> bool:
        """Whether the slow copy of a tensor is valid at a boundary that no copy of it spans."""
        sequence = self.facts.sequences[tensor]
        written, valid = -1, sequence.is_input
        for access in sequence.accesses:
            if access.write is not None and access.step < boundary:
                written, valid = access.step, not self.fast[access.write]
        return valid or any(
            copy.direction == "out" and written < copy.start < boundary and copy.end <= boundary
            for _, copy in self.copies[tensor]
        )

    def is_slow_needed(self, tensor: int, boundary: int) -> bool:
        """Whether the plan relies, from a boundary that no copy of the tensor spans, on the slow copy being valid there."""
        sequence, copies = self.facts.sequences[tensor], [copy for _, copy in self.copies[tensor] if copy.start >= boundary]
        horizon = sequence.horizon
        later = [access for access in sequence.accesses if access.step >= boundary]
        rewritten = next((access.step for access in later if access.write is not None), horizon)
        needs = [a.step for a in later if a.step <= rewritten and a.read is not None and not self.fast[a.read]]
        needs += [copy.start for copy in copies if copy.direction == "in" and copy.start <= rewritten]
        if rewritten == horizon and sequence.is_output:
            needs.append(horizon)
        if not needs:
            return False
        return not any(copy.direction == "out" and copy.end <= min(needs) for copy in copies)

    def tail_ps(self, boundary: int, channel_ps: int = 0) -> int:
        """From a boundary, reached at 0 and delayed by no copy queued before, to the end (one channel).

        ``channel_ps`` is when the channel is free.
        """
        later = [window for window in self.windows if window.start >= boundary]
        return play(later, self.durations, waits=True, first=boundary, free_ps=channel_ps).left[-1]
