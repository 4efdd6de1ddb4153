"""The copy engine that the models use: it computes when copies begin and when steps run.

The rules are in ``docs/reference/memory-mapping.md``: each channel makes one copy after the other, in the order of the plan.
The verifier and the compiled search of memory mapping have implementations of their own, so that an error in one of them shows
as a difference.

A *residency* is one stay of a tensor in fast memory, and boundary ``t`` is the moment before step ``t``; the last one, ``T``,
is the end of a program of ``T`` steps. A copy into fast memory (a *prefetch*) may be *sliced*, that is, made as several copies
of parts of the tensor. :func:`with_whole_copies` turns plans with sliced prefetches into plans with whole copies, for models
that cannot represent slices. :class:`PlanTimeline` is a plan with its times. From it, *neighbourhoods* of the plan are built:
some tensors in a window of steps, whose residencies and copies a local search may change. Nothing here raises an error for a
valid plan.

A use of a tensor is *fast* if it is served from fast memory. The *least latency* of a step is its smallest latency over all
choices of fast uses.
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
    """A queued copy: the boundaries at which it is queued and must be complete, and its duration on an idle channel.

    A neighbourhood may merge several steps into one. The copy may then be queued, or have to be complete, inside a merged step.
    """

    start: int
    """Boundary at which the copy is queued."""
    end: int
    """Boundary at which the copy must be complete; ``T + 1`` if the program does not wait for it."""
    duration_ps: int
    """Duration on an idle channel."""
    queued_after_ps: int = 0
    """Time from leaving boundary ``start`` until the copy is queued, if that is inside a merged step."""
    due_after_ps: int = 0
    """Time from leaving boundary ``end`` until the copy must be complete, if that is inside a merged step."""
    queue: int = 0
    """Number of the queue that the copy belongs to, from 0."""


def copy_window(problem: Problem, copy: Copy) -> CopyWindow:
    """The copy of a plan in the form that :func:`play` takes."""
    tensor = problem.tensors[copy.tensor]
    duration = tensor.copy_in_ps if copy.direction == "in" else tensor.copy_out_ps
    if copy.part is not None:
        low, high = copy.part
        duration = duration * high // tensor.size - duration * low // tensor.size
    return CopyWindow(copy.start, copy.end, duration)


@dataclass(frozen=True)
class Moments:
    """The times in ps at which copies begin, and at which the program reaches, opens and leaves each boundary."""

    begin: tuple[int, ...]
    """Time at which each copy begins, in queue order."""
    reached: tuple[int, ...]
    """[boundaries] time at which the step before the boundary ends."""
    open: tuple[int, ...]
    """[boundaries] time at which the copies of the boundary are queued, after waiting for copies that were queued before."""
    left: tuple[int, ...]
    """[boundaries] time at which the step after the boundary begins, or at which the program ends."""


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
    """Simulate the copies and the steps of a program.

    Parameters
    ----------
    copies
        Copies in queue order, that is, ascending in ``start``. Copies that are queued inside the step after a boundary follow
        the copies that are queued at the boundary.
    step_ps
        Duration of every step.
    waits
        Whether the program waits at boundaries for the copies that must be complete there. If not, the caller has to check that
        every copy is complete in time.
    channels
        Number of channels of each queue.
    queues
        Number of queues. Each has its own channels, and their copies do not wait for each other.
    first
        Boundary at which the simulation begins; no copy is queued before it.
    now_ps
        Time at which that boundary is reached.
    free_ps
        Time from which all channels are free.
    due_ps
        Boundaries at which the program also waits for copies that are not in ``copies``, each with the time at which the last
        of them is complete.

    Returns
    -------
    Moments
        The times of the boundaries from ``first`` on.
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
    """Duration in ps of all runs of every step, for a choice of fast uses; ``fast`` has an entry for each use."""
    return [step.weight * step.latency_ps(here) for step, here in zip(problem.steps, problem.by_step(fast), strict=True)]


def slices_of(plan: Plan) -> dict[tuple[int, int], list[int]]:
    """For each residency that is filled by slices, the indices of the slices in a valid plan's list of copies.

    A residency is given by its tensor and its start.
    """
    slices: dict[tuple[int, int], list[int]] = {}
    starts: defaultdict[int, list[int]] = defaultdict(list)
    sliced = [(place, copy) for place, copy in enumerate(plan.copies) if copy.part is not None]
    if sliced:
        for residency in plan.residencies:
            starts[residency.tensor].append(residency.start)
        for tensor_starts in starts.values():
            tensor_starts.sort()
    for place, copy in sliced:
        tensor_starts = starts[copy.tensor]
        slices.setdefault((copy.tensor, tensor_starts[bisect_right(tensor_starts, copy.start) - 1]), []).append(place)
    return slices


def with_whole_copies(problem: Problem, plan: Plan) -> Plan:
    """Replace the slices of each prefetch in a valid plan by one whole copy, which starts when the last slice did.

    From then on, the given plan has all bytes of the residency reserved. If stalls are allowed, the new plan is valid, but it
    may be slower. Otherwise a copy may be late, so that the plan is not valid.
    """
    slices = slices_of(plan)
    if not slices:
        return plan
    merged: dict[int, Copy] = {}
    removed: set[int] = set()
    new_start_of: dict[tuple[int, int], int] = {}
    for (tensor, start), places in slices.items():
        last = max(places)
        removed.update(places)
        new_start_of[tensor, start] = plan.copies[last].start
        if _overwrites(problem, plan.copies[last].start, tensor):
            continue  # No step reads the copied content, so no copy is needed.
        merged[last] = Copy(tensor, "in", plan.copies[last].start, max(plan.copies[place].end for place in places))
    copies = [merged.get(place, copy) for place, copy in enumerate(plan.copies) if place in merged or place not in removed]

    def later(residency: Residency) -> Residency:
        return replace(residency, start=new_start_of.get((residency.tensor, residency.start), residency.start))

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
    """Facts about a problem that do not depend on a plan. They are computed once for many timelines."""

    def __init__(self, problem: Problem):
        self.problem = problem
        self.sequences: tuple[TensorAccesses, ...] = access_sequences(problem)
        savings = Savings(problem)
        self.is_candidate = [savings.is_candidate(sequence) for sequence in self.sequences]
        """[tensors] whether some step could become faster by having the tensor in fast memory."""
        self.units = [-(-tensor.size // problem.alignment) for tensor in problem.tensors]
        """[tensors] size in units of the alignment, rounded up."""


class PlanTimeline:
    """A valid plan, indexed by tensor, and with the times of its steps and copies.

    Parameters
    ----------
    before
        The timeline of a similar plan, from which the durations of unchanged steps are taken; None to compute all of them.

    Attributes
    ----------
    fast : list of bool, one for each use
        Whether the use is served from fast memory.
    durations : list of int, one for each step
        Duration of all runs of the step, in ps.
    moments
        The times of copies and boundaries. If stalls are allowed, the program waits for copies. If not, each step takes its
        least latency, since copies must be complete in time even then.
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
        """Copies of each tensor, with their positions in the queue."""
        for place, copy in enumerate(plan.copies):
            self.copies[copy.tensor].append((place, copy))
        align = problem.alignment
        columns = [
            (r.tensor, r.start, r.end, r.offset // align, r.offset // align + facts.units[r.tensor]) for r in plan.residencies
        ]
        self.table: IntArray = np.array(columns, np.int64).reshape(-1, 5)
        """Shape ``[residencies, 5]``: tensor, start, end, first unit, unit after the last."""

    def end_ps(self, place: int) -> int:
        """Time at which a copy, given by its position in the queue, is complete."""
        return self.moments.begin[place] + self.windows[place].duration_ps

    def _changed_durations(self, before: PlanTimeline) -> list[int]:
        """The durations of the steps: those of a similar plan, recomputed for the steps whose fast uses differ."""
        problem, first_use = self.facts.problem, self.facts.problem.first_use
        durations = list(before.durations)
        changed = np.flatnonzero(np.array(self.fast) != np.array(before.fast))
        for index in set((np.searchsorted(first_use, changed, side="right") - 1).tolist()):
            step = problem.steps[index]
            durations[index] = step.weight * step.latency_ps(self.fast[first_use[index] : first_use[index + 1]])
        return durations

    def leaves_at(self, tensor: int, boundary: int) -> bool:
        """Whether a residency of the tensor ends at the boundary and a copy-out of the tensor is queued there and must be
        complete there."""
        return any(copy.direction == "out" and copy.start == copy.end == boundary for _, copy in self.copies[tensor]) and any(
            residency.end == boundary for residency in self.residencies[tensor]
        )

    def is_slow_valid(self, tensor: int, boundary: int) -> bool:
        """Whether slow memory has the content of a tensor at a boundary that no copy of the tensor spans."""
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
        """Whether the plan needs slow memory to have the tensor's content at a boundary that no copy of the tensor spans. A
        later slow read, a later copy-in or the end of the program may need it."""
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
        """Time from a boundary to the end of the program, for one channel, if no copy that was queued before delays it.

        ``channel_ps`` is the time, counted from the boundary, at which the channel is free.
        """
        later = [window for window in self.windows if window.start >= boundary]
        return play(later, self.durations, waits=True, first=boundary, free_ps=channel_ps).left[-1]
