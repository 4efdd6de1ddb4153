"""Plans with sliced prefetches for whoever knows whole copies only: models and searches that stay in the smaller space."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict

from msgspec.structs import replace

from stowplan.models.memory_mapping.copy_engine import copy_window, play, step_durations
from stowplan.models.memory_mapping.plan import Copy, Plan, Residency
from stowplan.models.memory_mapping.problem import Problem


def slices_of(plan: Plan) -> dict[tuple[int, int], list[int]]:
    """Places of the slices in a valid plan's list of copies, by tensor and start of their residency."""
    found: dict[tuple[int, int], list[int]] = {}
    starts: defaultdict[int, list[int]] = defaultdict(list)
    sliced = [(place, copy) for place, copy in enumerate(plan.copies) if copy.part is not None]
    if sliced:
        for residency in plan.residencies:
            starts[residency.tensor].append(residency.start)
        for own in starts.values():
            own.sort()
    for place, copy in sliced:
        own = starts[copy.tensor]
        found.setdefault((copy.tensor, own[bisect_right(own, copy.start) - 1]), []).append(place)
    return found


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
    return replace(plan, residencies=residencies, copies=tuple(copies), objective_ps=total)


def _overwrites(problem: Problem, step: int, tensor: int) -> bool:
    """Whether a step writes a tensor without reading it."""
    roles = {use.is_output for use in problem.steps[step].uses if use.tensor == tensor} if step < problem.horizon else set()
    return roles == {True}
