"""The copy engine for the models: when copies begin and when steps run, for what was decided.

The rules are in ``docs/reference/memory-mapping.md``. Verifier, simulator and the compiled replay of local search have engines
of their own, written apart, so that an error in one of them shows as a difference.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from stowplan.models.memory_mapping.plan import Copy
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
    free = [free_ps] * channels
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
            start = max(now + copy.queued_after_ps, heapq.heappop(free))
            end = start + copy.duration_ps
            heapq.heappush(free, end)
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
    durations, number = [], 0
    for step in problem.steps:
        count = len(step.uses)
        durations.append(step.weight * step.latency_ps(fast[number : number + count]))
        number += count
    return durations
