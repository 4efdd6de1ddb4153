"""The copy engine played for a neighbourhood: its own copies among those that are made in any case."""

from __future__ import annotations

from typing import NamedTuple

from stowplan.models.memory_mapping.cpsat.decisions import Decisions
from stowplan.models.memory_mapping.cpsat.neighbourhood import Neighbourhood
from stowplan.models.memory_mapping.cpsat.surroundings import Moment
from stowplan.models.memory_mapping.cpsat.timeline import Timeline, step_durations


class LocalRun(NamedTuple):
    """A run of a neighbourhood on the copy engine."""

    timeline: Timeline
    """Begins are those of the queue of the decisions."""
    fixed_begin: list[int]


class _Arrival(NamedTuple):
    """A copy in the order in which the plan queues it."""

    start: int
    place: int
    number: int
    """In the queue of the decisions; ``~number`` of a fixed copy."""
    duration_ps: int
    due: Moment | None
    after_ps: int
    """How long after the boundary is left, where it is queued in a merged step."""


def _arrivals(hood: Neighbourhood, decisions: Decisions) -> list[list[_Arrival]]:
    """Copies queued at each of the problem's boundaries, free and fixed."""
    plan = hood.situation.plan
    found: list[list[_Arrival]] = [[] for _ in range(hood.problem.horizon + 1)]
    for number, copy in enumerate(hood.surroundings.copies):
        start, queued = plan.copies[copy.place].start, copy.queued
        found[queued.boundary].append(_Arrival(start, copy.place, ~number, copy.duration_ps, copy.due, queued.after_ps))
    places = {
        (number, copy.direction, hood.boundary(copy.start)): place
        for number, tensor in enumerate(hood.free)
        for place, copy in hood.situation.copies[tensor]
        if hood.start <= copy.start < hood.end
    }
    for number, key in enumerate(decisions.queue):
        window = decisions.window(key)
        place = places.get((key.tensor, key.direction, window.start), len(plan.copies))
        found[window.start].append(_Arrival(hood.point(window.start), place, number, window.duration_ps, Moment(window.end), 0))
    for arrivals in found:
        arrivals.sort()
    return found


def play_locally(hood: Neighbourhood, decisions: Decisions) -> LocalRun:
    """Play decisions among the surroundings, on one channel."""
    around = hood.surroundings
    waits = around.tail_ps is not None
    begin, fixed_begin = [0] * len(decisions.queue), [0] * len(around.copies)
    free = max([0, *(end for _, end in around.busy)])
    due = dict(around.waits)
    reached, opened, left = [], [], []
    durations = step_durations(hood.problem, decisions.fast_uses())
    now = 0
    for boundary, arrivals in enumerate(_arrivals(hood, decisions)):
        if not waits:
            now = around.floor_until[boundary]
        reached.append(now)
        if waits:
            now = max(now, due.get(boundary, 0))
        opened.append(now)
        for is_inside in (False, True):
            for copy in arrivals:
                if bool(copy.after_ps) != is_inside:
                    continue
                start = max(now + copy.after_ps, free)
                free = start + copy.duration_ps
                if copy.number < 0:
                    fixed_begin[~copy.number] = start
                else:
                    begin[copy.number] = start
                if copy.due is not None:
                    due[copy.due.boundary] = max(due.get(copy.due.boundary, 0), free - copy.due.after_ps)
            if waits and not is_inside:
                now = max(now, due.get(boundary, 0))
        left.append(now)
        if boundary < hood.problem.horizon:
            now += durations[boundary]
    return LocalRun(Timeline(tuple(begin), tuple(reached), tuple(opened), tuple(left)), fixed_begin)


def total_ps(hood: Neighbourhood, run: LocalRun) -> int:
    """When the program ends after a run of its neighbourhood."""
    around = hood.surroundings
    assert around.tail_ps is not None
    total = run.timeline.left[-1] + around.tail_ps
    for copy, begin in zip(around.copies, run.fixed_begin, strict=True):
        if copy.due is None:
            total = max(total, begin + copy.duration_ps + copy.tail_ps)
    return total
