"""The copy engine of ``docs/memory-mapping.md``, played for a given plan: when copies begin and when steps run."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

from stowplan.models.memory_mapping.problem import Problem


@dataclass(frozen=True, slots=True)
class Window:
    """A queued copy: boundaries at which it is queued and must be complete, and what it takes on an idle channel."""

    start: int
    end: int
    duration_ps: int


@dataclass(frozen=True)
class Timeline:
    """Moments in ps: a boundary is *reached* after the step before, *open* when it queues its copies, *left* by its step."""

    begin: tuple[int, ...]
    """When each copy begins, in queue order."""
    reached: tuple[int, ...]
    open: tuple[int, ...]
    left: tuple[int, ...]


def play(problem: Problem, windows: Sequence[Window], step_ps: Sequence[int]) -> Timeline:
    """Play copies in queue order (sorted by start) against steps of the given durations.

    Where stalls are allowed, boundaries wait for the copies that end there; where they are forbidden, nothing waits, and
    whether every copy makes its end is for the caller to see.
    """
    waits = problem.stalls == "allowed"
    free = [0] * problem.channels
    begin: list[int] = []
    due = [0] * (problem.horizon + 1)
    reached, opened, left = [], [], []
    now, place = 0, 0
    for boundary in range(problem.horizon + 1):
        reached.append(now)
        if waits:
            now = max(now, due[boundary])
        opened.append(now)
        while place < len(windows) and windows[place].start == boundary:
            window = windows[place]
            start = max(now, heapq.heappop(free))
            heapq.heappush(free, start + window.duration_ps)
            begin.append(start)
            due[window.end] = max(due[window.end], start + window.duration_ps)
            place += 1
        if waits:
            now = max(now, due[boundary])
        left.append(now)
        if boundary < problem.horizon:
            now += step_ps[boundary]
    return Timeline(tuple(begin), tuple(reached), tuple(opened), tuple(left))


def step_durations(problem: Problem, fast: Sequence[bool]) -> list[int]:
    """Duration of every step, all its runs together, for the given choice of fast uses; in ps."""
    durations, number = [], 0
    for step in problem.steps:
        count = len(step.uses)
        durations.append(step.weight * step.latency_ps(fast[number : number + count]))
        number += count
    return durations
