"""A valid plan with what a neighbourhood asks about it: its run on the copy engine, and who stands where and is copied when."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import numpy.typing as npt

from stowplan.models.memory_mapping.accesses import TensorAccesses, access_sequences
from stowplan.models.memory_mapping.copy_engine import copy_window, play, step_durations
from stowplan.models.memory_mapping.latency import Savings
from stowplan.models.memory_mapping.plan import Copy, Plan, Residency
from stowplan.models.memory_mapping.problem import Problem

IntArray = npt.NDArray[np.int64]


class ProblemFacts:
    """What is known of a problem whatever the plan; made once."""

    def __init__(self, problem: Problem):
        self.problem = problem
        self.sequences: tuple[TensorAccesses, ...] = access_sequences(problem)
        savings = Savings(problem)
        self.is_candidate = [savings.is_candidate(sequence) for sequence in self.sequences]
        """Tensors that may be worth having in fast memory."""
        self.first_use = [0]
        """Number of the first use of each step."""
        for step in problem.steps:
            self.first_use.append(self.first_use[-1] + len(step.uses))
        self.floor_ps = [step.weight * step.floor_ps for step in problem.steps]
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
            self.windows, self.durations if self.waits else facts.floor_ps, waits=self.waits, channels=problem.channels
        )
        self.objective_ps = self.moments.left[-1] if self.waits else sum(self.durations)
        self.residencies: defaultdict[int, list[Residency]] = defaultdict(list)
        for residency in plan.residencies:
            self.residencies[residency.tensor].append(residency)
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
        problem, first_use = self.facts.problem, self.facts.first_use
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
