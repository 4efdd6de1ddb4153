"""The copy engine played for a neighbourhood: its own copies among those that are made in any case."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

from stowplan.models.memory_mapping.copy_engine import CopyWindow, Moments, play, step_durations
from stowplan.models.memory_mapping.cpsat.decisions import Decisions
from stowplan.models.memory_mapping.cpsat.fixed_part import Moment
from stowplan.models.memory_mapping.cpsat.neighbourhood import Neighbourhood


class LocalRun(NamedTuple):
    """A run of a neighbourhood on the copy engine."""

    moments: Moments
    """Begins are those of the queue of the decisions."""
    fixed_begin: list[int]


def play_locally(neighbourhood: Neighbourhood, decisions: Decisions) -> LocalRun:
    """Play decisions beside the fixed part, on one channel; copies are queued in the order of the given plan."""
    fixed, plan = neighbourhood.fixed_part, neighbourhood.timeline.plan
    places = {
        (number, copy.direction, neighbourhood.boundary(copy.start)): place
        for number, tensor in enumerate(neighbourhood.free)
        for place, copy in neighbourhood.timeline.copies[tensor]
        if neighbourhood.start <= copy.start < neighbourhood.end
    }
    # Of each copy what orders it, its number in the queue of the decisions (``~number`` of a fixed one), and its window.
    queue: list[tuple[tuple[int, bool, int, int], int, CopyWindow]] = []
    for number, copy in enumerate(fixed.copies):
        queued, due = copy.queued, copy.due or Moment(neighbourhood.problem.horizon + 1)
        window = CopyWindow(queued.boundary, due.boundary, copy.duration_ps, queued.after_ps, due.after_ps)
        order = queued.boundary, queued.after_ps != 0, plan.copies[copy.place].start, copy.place
        queue.append((order, ~number, window))
    for number, key in enumerate(decisions.queue):
        window = decisions.window(key)
        place = places.get((key.tensor, key.direction, window.start), len(plan.copies))
        queue.append(((window.start, False, neighbourhood.point(window.start), place), number, window))
    queue.sort(key=lambda item: item[:2])
    waits, floor = fixed.tail_ps is not None, fixed.floor_until
    moments = play(
        [window for _, _, window in queue],
        step_durations(neighbourhood.problem, decisions.fast_uses()) if waits else [b - a for a, b in pairwise(floor)],
        waits=waits,
        now_ps=0 if waits else floor[0],
        free_ps=max([0, *(end for _, end in fixed.busy)]),
        due_ps=fixed.waits,
    )
    begin = {number: moment for (_, number, _), moment in zip(queue, moments.begin, strict=True)}
    own = tuple(begin[number] for number in range(len(decisions.queue)))
    return LocalRun(replace(moments, begin=own), [begin[~number] for number in range(len(fixed.copies))])


def total_ps(neighbourhood: Neighbourhood, run: LocalRun) -> int:
    """When the program ends after a run of its neighbourhood."""
    fixed = neighbourhood.fixed_part
    assert fixed.tail_ps is not None
    total = run.moments.left[-1] + fixed.tail_ps
    for copy, begin in zip(fixed.copies, run.fixed_begin, strict=True):
        if copy.due is None:
            total = max(total, begin + copy.duration_ps + copy.tail_ps)
    return total
