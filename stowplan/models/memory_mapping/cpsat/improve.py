"""Improves a memory-mapping plan within a neighbourhood: builds a CP-SAT model, solves it, and puts the new plan together.

A *neighbourhood* is a window of steps and some tensors that may change there; these are called *free*. The rest of the plan is
the *fixed part*, whose data are constants of the model (:mod:`stowplan.models.memory_mapping.cpsat.neighbourhood`). A
*boundary* is the moment before a step. Because steps in which no free tensor may change are merged, the neighbourhood has
boundaries of its own; ``Neighbourhood.point`` returns the corresponding boundary of the program. The *window of a copy* is the
interval of boundaries in which the copy may run. With a *frozen clock*, boundaries keep the times that they have in the given
plan. A *residency* is one stay of a tensor in fast memory. Functions raise no errors except those that they document.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Literal, NamedTuple, Unpack

import msgspec
from ortools.sat.python import cp_model

from stowplan.models import cpsat_runner
from stowplan.models.cpsat_runner import Limits, Value
from stowplan.models.memory_mapping.copy_engine import CopyWindow, Moments, play, step_durations
from stowplan.models.memory_mapping.cpsat.decisions import Decisions
from stowplan.models.memory_mapping.cpsat.fixed_part import Moment
from stowplan.models.memory_mapping.cpsat.hint import decisions_of
from stowplan.models.memory_mapping.cpsat.model import WITHOUT_PROBING, MemoryMappingModel, size_estimate
from stowplan.models.memory_mapping.cpsat.neighbourhood import Neighbourhood
from stowplan.models.memory_mapping.plan import Copy, Plan, Residency


class LocalRun(NamedTuple):
    """The times of a neighbourhood, from a simulation of the copy engine."""

    moments: Moments
    """Times of boundaries, and times at which the copies of free tensors begin."""
    fixed_begin: list[int]
    """Times at which the copies of the fixed part begin."""


def play_locally(neighbourhood: Neighbourhood, decisions: Decisions) -> LocalRun:
    """Simulates the copies of free tensors, as ``decisions`` queue them, together with the copies of the fixed part, on one
    channel.

    Copies that are queued at the same boundary have the same order as in the given plan.
    """
    fixed, plan = neighbourhood.fixed_part, neighbourhood.timeline.plan
    places = {
        (number, copy.direction, neighbourhood.boundary(copy.start)): place
        for number, tensor in enumerate(neighbourhood.free)
        for place, copy in neighbourhood.timeline.copies[tensor]
        if neighbourhood.start <= copy.start < neighbourhood.end
    }
    # For each copy: its sort key, its number in the queue of ``decisions`` (``~number`` for a copy of the fixed part), its
    # window.
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
    starts = tuple(begin[number] for number in range(len(decisions.queue)))
    return LocalRun(replace(moments, begin=starts), [begin[~number] for number in range(len(fixed.copies))])


def total_ps(neighbourhood: Neighbourhood, run: LocalRun) -> int:
    """Time in ps from the neighbourhood's first boundary to the end of the program.

    It is computed from the times of the neighbourhood and the constants of the fixed part after it.
    """
    fixed = neighbourhood.fixed_part
    assert fixed.tail_ps is not None
    total = run.moments.left[-1] + fixed.tail_ps
    for copy, begin in zip(fixed.copies, run.fixed_begin, strict=True):
        if copy.due is None:
            total = max(total, begin + copy.duration_ps + copy.tail_ps)
    return total


class Merger:
    """Puts a solution of a neighbourhood's model in the place of the part of the plan that the neighbourhood covers."""

    def __init__(self, neighbourhood: Neighbourhood, model: MemoryMappingModel, value: Value):
        self._neighbourhood = neighbourhood
        self._complete = model
        self._value = value
        self._decisions = model.decisions(value)
        last = neighbourhood.problem.horizon - 1
        for sequence, decided in zip(neighbourhood.sequences, self._decisions.tensors, strict=True):
            for access, start in decided.copy_in.items():
                decided.copy_in[access] = min(start, int(sequence.copy.prev[last - 1]))
        self._moved: dict[tuple[int, int], int] = {}
        """The new start of each copy-in of the fixed part that is queued later than before, by tensor and old start."""

    def plan(self) -> Plan:
        """The new plan of the whole program. Its field ``objective`` is still that of the given plan."""
        neighbourhood, given_plan = self._neighbourhood, self._neighbourhood.timeline.plan
        copies = self._copies()
        residencies = self._residencies()
        problem = neighbourhood.timeline.facts.problem
        begin, end = problem.first_use[neighbourhood.start], problem.first_use[neighbourhood.end]
        free = set(neighbourhood.free)
        fast = {use for use in given_plan.fast_uses if not (begin <= use < end and problem.tensor_of_use[use] in free)}
        chosen = self._decisions.fast_uses()
        fast |= {origin for origin, served in zip(neighbourhood.use_of, chosen, strict=True) if served and origin >= 0}
        return without_idle(
            neighbourhood,
            msgspec.structs.replace(
                given_plan,
                residencies=tuple(sorted(residencies, key=lambda item: (item.start, item.tensor))),
                copies=tuple(copies),
                fast_uses=tuple(sorted(fast)),
            ),
        )

    def _copies(self) -> list[Copy]:
        """All copies of the new plan. Within the neighbourhood, they are in the order in which they begin.

        The copy of a free tensor is queued at the last boundary before it begins. The copies of the fixed part must be queued
        in the order in which they begin, too. If the given plan queues one of them too early for this order, it is queued
        later. If it is a copy-in, its residency also starts later.
        """
        neighbourhood, value, variables = self._neighbourhood, self._value, self._complete.variables
        given_copies, free = neighbourhood.timeline.plan.copies, set(neighbourhood.free)
        queue: list[tuple[int, int, Copy]] = []
        for key in self._decisions.queue:
            window = self._decisions.window(key)
            access = variables.tensors[key.tensor].access[key.access]
            chosen = access.copy_in if key.direction == "in" else access.copy_out
            assert chosen is not None
            copy = Copy(
                neighbourhood.free[key.tensor],
                key.direction,
                neighbourhood.point(window.start),
                neighbourhood.point(window.end),
            )
            queue.append((value(chosen.begin), len(queue), copy))
        for fixed, begin in zip(neighbourhood.fixed_part.copies, variables.fixed_begin, strict=True):
            queue.append((value(begin), len(queue), given_copies[fixed.place]))
        queue.sort(key=lambda item: item[:2])
        inside: list[Copy] = []
        latest = neighbourhood.start
        boundaries = neighbourhood.timeline.facts.sequences[0].copy
        for _, _, copy in queue:
            start = copy.start
            if copy.tensor not in free and start < copy.end:
                start = max(start, min(latest, int(boundaries.prev[copy.end - 1])))
                if copy.direction == "in":
                    self._moved[copy.tensor, copy.start] = start
            inside.append(msgspec.structs.replace(copy, start=start))
            latest = max(latest, start)
        between = variables.leaves_between_steps
        # A copy-in may use bytes that a copy-out between the same two steps frees, so it is queued behind that copy-out.
        inside.sort(key=lambda copy: (copy.start, not (between and copy.direction == "out" and copy.start == copy.end)))
        before = [copy for copy in given_copies if copy.start < neighbourhood.start]
        after = [copy for copy in given_copies if copy.start >= neighbourhood.end]
        return [*before, *inside, *after]

    def _residencies(self) -> list[Residency]:
        """All residencies of the new plan: those outside the neighbourhood, and those of the solution.

        If a residency continues across the beginning or the end of the neighbourhood, its parts are joined to one.
        """
        neighbourhood = self._neighbourhood
        free = set(neighbourhood.free)
        residencies = []
        for stay in neighbourhood.timeline.plan.residencies:
            outside = stay.end <= neighbourhood.start or stay.start >= neighbourhood.end
            if stay.tensor not in free or outside:
                start = self._moved.get((stay.tensor, stay.start), stay.start)
                residencies.append(msgspec.structs.replace(stay, start=start))
        joined: set[int] = set()
        offsets = self._complete.offsets
        assert offsets is not None
        for chosen in self._decisions.stays():
            number, tensor = chosen.tensor, neighbourhood.free[chosen.tensor]
            entering, leaving = neighbourhood.entering[number], neighbourhood.leaving[number]
            is_first = chosen.first == 0 and entering is not None
            enters = is_first and (neighbourhood.is_begun[number] or (chosen.preloaded and neighbourhood.start > 0))
            leaves = leaving is not None and chosen.last == len(neighbourhood.sequences[number]) - 1
            place = offsets.access[number][chosen.first]
            assert place is not None
            start, end = neighbourhood.point(chosen.start), neighbourhood.point(chosen.end)
            residencies.append(
                Residency(
                    tensor,
                    entering.start if enters and entering is not None else start,
                    leaving.end if leaves and leaving is not None else end,
                    self._value(place) * neighbourhood.problem.alignment,
                    entering.preloaded if enters and entering is not None else chosen.preloaded,
                )
            )
            if enters:
                joined.add(number)
        for number, cut in enumerate(neighbourhood.entering):
            if cut is not None and number not in joined:
                residencies.append(msgspec.structs.replace(cut, end=neighbourhood.start))
        return residencies


def without_idle(neighbourhood: Neighbourhood, plan: Plan) -> Plan:
    """The plan without *idle* residencies and their copies. A residency is idle if no use is served from fast memory during
    it."""
    facts = neighbourhood.timeline.facts
    fast = set(plan.fast_uses)
    remaining: list[Residency] = []
    dropped: list[Residency] = []
    for stay in plan.residencies:
        accesses = facts.sequences[stay.tensor].accesses
        serves = any(stay.start <= access.step < stay.end and fast.intersection(access.uses) for access in accesses)
        (remaining if serves else dropped).append(stay)
    if not dropped:
        return plan
    removed = {(stay.tensor, stay.start, stay.end) for stay in dropped}
    between = facts.problem.evictions == "between_steps"
    ends, dropped_ends = ({(stay.tensor, stay.end) for stay in stays} for stays in (plan.residencies, dropped))

    def is_kept(copy: Copy) -> bool:
        if copy.direction == "in":
            return not any(copy.tensor == tensor and copy.start == start for tensor, start, _ in removed)
        if between and copy.start == copy.end and (copy.tensor, copy.end) in ends:
            return (copy.tensor, copy.end) not in dropped_ends
        return not any(copy.tensor == tensor and start <= copy.start < end for tensor, start, end in removed)

    return msgspec.structs.replace(
        plan, residencies=tuple(remaining), copies=tuple(copy for copy in plan.copies if is_kept(copy))
    )


#: Maximum number of literals (Boolean variables), as estimated beforehand, of a model that is built for a neighbourhood.
MAX_LITERALS = 30_000

# The values of ``Improvement.status``, where they are explained.
LocalStatus = Literal["optimal", "feasible", "none", "infeasible", "empty"]


class Improvement(NamedTuple):
    """The result of solving a neighbourhood."""

    status: LocalStatus
    """``optimal``: a solution was found that is proven optimal for the model. ``feasible``: another solution was found.
    ``infeasible``: there is no solution, which is possible with a frozen clock if the given plan stalls. ``none``: no solution
    was found in time. ``empty``: no tensor is free, or the model would be too large."""
    plan: Plan | None
    """The whole plan; None if no solution was found. Its field ``objective`` is still that of the given plan, and it may be
    worse than the given plan."""
    seconds: float = 0.0
    """Time in seconds that the solver took, without building the model."""
    deterministic: float = 0.0
    """Work of the solver in CP-SAT's deterministic seconds, which do not depend on the machine."""


class NeighbourhoodModel:
    """The complete model of a neighbourhood. The solver can start from the plan that the neighbourhood was built from.

    Raises
    ------
    NotImplementedError
        The model would be too large, or there are several copy channels and a copy takes no time; see
        :class:`~stowplan.models.memory_mapping.cpsat.model.MemoryMappingModel`.
    """

    def __init__(self, neighbourhood: Neighbourhood):
        self.neighbourhood = neighbourhood
        self.complete = MemoryMappingModel(
            neighbourhood.problem, sequences=neighbourhood.sequences, fixed_part=neighbourhood.fixed_part
        )

    @property
    def model(self) -> cp_model.CpModel:
        """The CP-SAT model."""
        return self.complete.model

    def add_hint(self) -> dict[int, int]:
        """Makes the solver start from the given plan, by a hint with a value for each variable.

        Returns the values by the index of the variable.
        """
        neighbourhood, variables = self.neighbourhood, self.complete.variables
        decisions = decisions_of(variables, neighbourhood.plan)
        run = play_locally(neighbourhood, decisions)
        values = self.complete.values_of(decisions, neighbourhood.plan, run.moments)
        for variable, begin in zip(variables.fixed_begin, run.fixed_begin, strict=True):
            values[variable.index] = begin
        total = self.complete.objective.total
        if total is not None:
            values[total.index] = total_ps(neighbourhood, run)
        cpsat_runner.add_hint(self.model, values)
        return values

    def extract(self, value: Value) -> Plan:
        """The plan of the whole program for a solution. Its field ``objective`` is still that of the given plan.

        The plan is valid, except possibly if the window of a copy lies inside a merged step or if the clock is frozen. Then the
        caller has to verify it.

        Parameters
        ----------
        value
            Returns the value of a variable of the model in the solution.
        """
        return Merger(self.neighbourhood, self.complete, value).plan()


def improve(neighbourhood: Neighbourhood, **limits: Unpack[Limits]) -> Improvement:
    """Find the best plan in a neighbourhood with CP-SAT, by default with one worker.

    Parameters
    ----------
    limits
        Keyword arguments of :func:`stowplan.models.cpsat_runner.run`. They limit the solver, not the building of the model.

    Returns
    -------
    Improvement
        The whole plan with the solution inserted, if one was found.

    Raises
    ------
    NotImplementedError
        There are several copy channels, and a copy takes no time.
    """
    if not neighbourhood.free or size_estimate(neighbourhood.sequences) > MAX_LITERALS:
        return Improvement("empty", None)
    built = NeighbourhoodModel(neighbourhood)
    built.add_hint()
    run = cpsat_runner.run(built.model, parameters=WITHOUT_PROBING, **limits)
    spent = run.seconds, run.deterministic
    if run.is_found:
        return Improvement("optimal" if run.status == "optimal" else "feasible", built.extract(run.value), *spent)
    return Improvement("infeasible" if run.status == "infeasible" else "none", None, *spent)
