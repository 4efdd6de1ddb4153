"""Plays a program with a memory-mapping plan on a copy engine, with stalls.

This is the machine of ``docs/reference/memory-mapping.md`` ("Copy engine"): steps run one after the other, copies run beside
them on a few channels, first come, first served, and a step waits for the copies that must be complete before it. Any plan can
be played, also one that breaks the rule against stalls (a production compiler's, say); whether it is valid in every other
respect is the verifier's business.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from typing import Literal

import msgspec

from stowplan.models.memory_mapping.plan import Copy, Plan
from stowplan.models.memory_mapping.problem import Problem


class Transfer(msgspec.Struct, frozen=True):
    """One copy as it ran: queued, begun and complete, in picoseconds from the start of the program."""

    copy: int
    """Position in ``plan.copies``."""
    tensor: int
    direction: Literal["in", "out"]
    queued_ps: int
    begin_ps: int
    end_ps: int


class Timeline(msgspec.Struct, frozen=True):
    """A played program. Lists over boundaries have ``T + 1`` entries, the last for the end of the program."""

    total_ps: int
    stall_ps: int
    step_start_ps: list[int]
    """When each step begins, after its wait; the last entry is ``total_ps``."""
    step_wait_ps: list[int]
    """How long the program waits for copies at each boundary."""
    transfers: list[Transfer]
    """In the order of ``plan.copies``."""

    @property
    def channel_busy_ps(self) -> int:
        """Time spent copying, summed over the channels."""
        return sum(transfer.end_ps - transfer.begin_ps for transfer in self.transfers)


class CopyEngine:
    """Copy channels that serve a queue first come, first served, each one copy at a time."""

    def __init__(self, channels: int):
        self._free_ps = [0] * channels

    def submit(self, now_ps: int, duration_ps: int) -> tuple[int, int]:
        """Queue a copy at ``now_ps``; returns when it begins and ends."""
        begin = max(now_ps, self._free_ps[0])
        heapq.heapreplace(self._free_ps, begin + duration_ps)
        return begin, begin + duration_ps


def simulate(problem: Problem, plan: Plan) -> Timeline:
    """Play ``plan``; its indices must be in range (the verifier says whether they are)."""
    return play(problem, plan, durations_ps(problem, plan.fast_uses))


def durations_ps(problem: Problem, fast_uses: Iterable[int]) -> list[int]:
    """How long each step lasts, all runs together, where these uses are served from fast memory."""
    fast, number = set(fast_uses), 0
    durations: list[int] = []
    for step in problem.steps:
        durations.append(step.weight * step.latency_ps([use in fast for use in range(number, number + len(step.uses))]))
        number += len(step.uses)
    return durations


def _transfer_ps(problem: Problem, copy: Copy) -> int:
    """What a copy takes; the slices of one together as long as the whole."""
    tensor = problem.tensors[copy.tensor]
    whole = tensor.copy_in_ps if copy.direction == "in" else tensor.copy_out_ps
    if copy.part is None:
        return whole
    return whole * copy.part[1] // tensor.size - whole * copy.part[0] // tensor.size


def play(problem: Problem, plan: Plan, durations_ps: list[int]) -> Timeline:
    """Play the plan's copies beside steps of given durations (all runs of a step together)."""
    horizon = problem.horizon
    queued_at: list[list[int]] = [[] for _ in range(horizon + 1)]
    due_at: list[list[int]] = [[] for _ in range(horizon + 1)]
    for index, copy in enumerate(plan.copies):
        queued_at[copy.start].append(index)
        due_at[copy.end].append(index)

    engine = CopyEngine(problem.channels)
    transfers: list[Transfer | None] = [None] * len(plan.copies)
    starts: list[int] = []
    waits: list[int] = []
    now = 0
    for boundary in range(horizon + 1):
        arrival = now
        # Copies queued earlier first; one whose window is empty is not yet under way here.
        for index in due_at[boundary]:
            transfer = transfers[index]
            if transfer is not None:
                now = max(now, transfer.end_ps)
        for index in queued_at[boundary]:
            copy = plan.copies[index]
            begin, end = engine.submit(now, _transfer_ps(problem, copy))
            transfers[index] = Transfer(index, copy.tensor, copy.direction, now, begin, end)
        for index in due_at[boundary]:
            transfer = transfers[index]
            if transfer is not None:
                now = max(now, transfer.end_ps)
        starts.append(now)
        waits.append(now - arrival)
        if boundary < horizon:
            now += durations_ps[boundary]
    return Timeline(now, sum(waits), starts, waits, [transfer for transfer in transfers if transfer is not None])
