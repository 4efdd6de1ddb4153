"""Packing as a CP-SAT model: rectangles of fixed place in time and free offset that do not overlap in two dimensions.

:func:`solve_closest` has as few buffers as can be away from offsets that they had. It is the same model with a capacity, and
a Boolean variable for each buffer that is 1 only where the buffer keeps its offset; the number of those that do not is
minimised. Two buffers whose earlier places collide do not both keep them: a row for each such pair says so, which the
relaxation lacks otherwise. Buffers that keep nothing may be lowered until they stand on others or at 0. So some best plan has
offsets that are sums of sizes and earlier offsets, rounded up to alignments, and the unit of the model's offsets may be what
divides all of those.

A buffer that may take bytes of its operands is left out of the two dimensions while they live. There a Boolean variable for
each buffer that it meets says which of the two lies below; sums of separations (:mod:`.overlaps`) then take the place of sums
of sizes. Of two buffers that hold the same bytes a second Boolean variable says that they have the same offset instead.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import gcd
from typing import Unpack

import numpy as np
from ortools.sat.python import cp_model

from stowplan.models import cpsat_runner
from stowplan.models.cpsat_runner import Search, Value
from stowplan.models.outcome import Outcome
from stowplan.models.packing.bounds import load_bound
from stowplan.models.packing.overlaps import allows, separations
from stowplan.models.packing.plan import Plan
from stowplan.models.packing.problem import Problem


@dataclass
class Model:
    """A built model; ``offsets`` count units of ``unit`` bytes."""

    problem: Problem
    unit: int
    model: cp_model.CpModel = field(default_factory=cp_model.CpModel)
    offsets: list[cp_model.IntVar] = field(default_factory=list)
    multiples: dict[int, tuple[cp_model.IntVar, int]] = field(default_factory=dict)
    """Offset of a buffer in steps of several units, and units in a step, where it is aligned to that, by buffer."""
    height: cp_model.IntVar | None = None
    keeps: dict[int, tuple[cp_model.IntVar, int]] = field(default_factory=dict)
    """Whether a buffer has its earlier offset, and that offset in bytes, by buffer; of :func:`solve_closest`."""
    orders: list[tuple[cp_model.IntVar, int, int, int | None]] = field(default_factory=list)
    """Whether the first buffer lies below the second, their numbers, and the units from its offset to the other's then; None:
    whether both have the same offset."""

    def add_hint(self, plan: Plan) -> None:
        """Start the solver from a plan; every variable gets a value, unless offsets are to be kept that are no whole units."""
        places = [offset // self.unit for offset in plan.offsets]
        values = list(zip(self.offsets, places, strict=True))
        values += [(variable, places[number] // step) for number, (variable, step) in self.multiples.items()]
        if self.height is not None:
            values.append((self.height, plan.objective // self.unit))
        values += [(variable, int(plan.offsets[at] == before)) for at, (variable, before) in self.keeps.items()]
        for variable, one, other, apart in self.orders:
            gap = places[other] - places[one]
            values.append((variable, int(gap == 0 if apart is None else gap >= apart)))
        cpsat_runner.add_hint(self.model, values, complete=not self.keeps)

    def extract(self, value: Value) -> Plan:
        """Plan of a solution.

        Parameters
        ----------
        value
            Gives the value of a variable of the model.

        Returns
        -------
        Plan
            With its height in bytes as objective.
        """
        offsets = tuple(value(variable) * self.unit for variable in self.offsets)
        height = max((at + buffer.size for at, buffer in zip(offsets, self.problem.buffers, strict=True)), default=0)
        return Plan(problem=self.problem.digest, objective=height, offsets=offsets)


def build(problem: Problem, ceiling: int, grid: Iterable[int] = ()) -> Model:
    """Variables, constraints, objective. With a capacity any plan within it will do, and there is no objective.

    Parameters
    ----------
    ceiling
        Bytes: a height that some best plan does not exceed.
    grid
        Bytes: offsets that are wanted besides those of buffers that stand on each other.

    Returns
    -------
    Model
        Not yet hinted; offsets and height count units of ``unit`` bytes.
    """
    # Lowered as far as they go, offsets are sums of sizes rounded up to alignments: multiples of what divides all of those.
    unit = gcd(*(value for buffer in problem.buffers for value in (buffer.size, buffer.offset or 0)))
    least = separations(problem)
    alignments = (buffer.alignment for buffer in problem.buffers if buffer.alignment != 1)
    unit = gcd(unit, *alignments, *grid, *filter(None, least.values())) or 1
    sharing = _sharing_until(problem, least)
    built = Model(problem, unit)
    limit = (ceiling if problem.capacity is None else problem.capacity) // unit
    model = built.model
    times, spaces, sizes = [], [], []
    for number, buffer in enumerate(problem.buffers):
        size = buffer.size // unit
        last = max(0, limit - size)
        step = max(1, buffer.alignment // unit)
        if buffer.offset is not None:
            offset = model.new_constant(buffer.offset // unit)
        elif step == 1:
            offset = model.new_int_var(0, last, f"offset {number}")
        else:
            multiple = model.new_int_var(0, last // step, f"multiple {number}")
            offset = model.new_int_var(0, last, f"offset {number}")
            model.add(offset == step * multiple)
            built.multiples[number] = multiple, step
        built.offsets.append(offset)
        if size == 0:
            continue
        model.add(offset + size <= limit)
        space = model.new_fixed_size_interval_var(offset, size, f"space {number}")
        for start, end in buffer.pieces if number not in sharing else ((sharing[number], buffer.upper),):
            if start == end:
                continue
            times.append(model.new_fixed_size_interval_var(start, end - start, f"time {number}"))
            spaces.append(space)
            sizes.append(size)
    model.add_no_overlap_2d(times, spaces)
    _order(built, _ordered(problem, sharing), least)
    if problem.capacity is None:
        height = built.height = model.new_int_var(-(-load_bound(problem) // unit), limit, "height")
        for offset, buffer in zip(built.offsets, problem.buffers, strict=True):
            model.add(height >= offset + buffer.size // unit)
        model.add_cumulative(times, sizes, height)
        model.minimize(height)
    else:
        model.add_cumulative(times, sizes, limit)
    return built


def _sharing_until(problem: Problem, least: Iterable[tuple[int, int]]) -> dict[int, int]:
    """By buffer that may share bytes, the moment after the last at which it may."""
    until: dict[int, int] = {}
    for result, operand in least:
        end = min(problem.buffers[operand].upper, problem.buffers[result].upper)
        until[result] = max(until.get(result, end), end)
    return until


def _ordered(problem: Problem, sharing: Mapping[int, int]) -> list[tuple[int, int]]:
    """Pairs of which one buffer may share bytes at a moment at which both live; the smaller number first."""
    spans = problem.spans
    pairs = {
        (min(one, other), max(one, other))
        for one, until in sharing.items()
        for other in spans.owner[(spans.start < until) & (spans.end > problem.buffers[one].lower)].tolist()
        if other != one and problem.buffers[other].size
    }
    return sorted(pairs)


def _order(built: Model, pairs: Iterable[tuple[int, int]], least: Mapping[tuple[int, int], int | None]) -> None:
    """Put one of each pair below the other, or both at the same offset where that is allowed."""
    model, offsets, buffers = built.model, built.offsets, built.problem.buffers
    for one, other in pairs:
        is_below, otherwise = model.new_bool_var(f"{one} below {other}"), []
        if None in (least.get((one, other), 0), least.get((other, one), 0)):
            is_same = model.new_bool_var(f"{one} at {other}")
            model.add(offsets[one] == offsets[other]).only_enforce_if(is_same)
            built.orders.append((is_same, one, other, None))
            otherwise = [~is_same]
        for below, above, literal in ((one, other, is_below), (other, one, ~is_below)):
            apart = least.get((below, above))
            units = (buffers[below].size if apart is None else apart) // built.unit
            model.add(offsets[below] + units <= offsets[above]).only_enforce_if([literal, *otherwise])
            if below == one:
                built.orders.append((is_below, one, other, units))


def solve(problem: Problem, **search: Unpack[Search[Plan]]) -> Outcome[Plan]:
    """Solve the model of a problem; its heights and bounds are bytes.

    Parameters
    ----------
    search
        As :func:`stowplan.models.cpsat_runner.find_plan` takes it: limits, a hint, what to call.

    Returns
    -------
    Outcome
        Best plan, and what is proven, which with a capacity is no height; running out of time is never ``infeasible``.
        Nothing where more than :data:`MOST_PAIRS` pairs of buffers meet while one may share bytes.
    """
    if problem.overlaps and len(_ordered(problem, _sharing_until(problem, separations(problem)))) > MOST_PAIRS:
        return Outcome("unknown", None, None)
    hint = search.get("hint")
    # Buffers on top of each other, the free ones above the fixed: a plan like that exists wherever there is one.
    top = max((buffer.offset + buffer.size for buffer in problem.buffers if buffer.offset is not None), default=0)
    ceiling = hint.objective if hint else top + sum(buffer.size + buffer.alignment - 1 for buffer in problem.buffers)
    built = build(problem, ceiling)
    return cpsat_runner.find_plan(
        built,
        objective=lambda units: units * built.unit,
        parameters={"use_energetic_reasoning_in_no_overlap_2d": True},
        **search,
    )


#: Rows for colliding pairs at most.
MOST_PAIRS = 100_000


def solve_closest(problem: Problem, earlier: Sequence[int | None], **search: Unpack[Search[Plan]]) -> Outcome[Plan]:
    """The plan within a capacity in which the fewest buffers are away from their earlier offsets.

    Parameters
    ----------
    problem
        With a capacity, in bytes.
    earlier
        Earlier offset of each buffer, in bytes; None for one that has none. Those that cannot be kept are of no consequence.
    search
        As :func:`stowplan.models.cpsat_runner.find_plan` takes it.

    Returns
    -------
    Outcome
        With the number of buffers that move, of those that have an earlier offset within the capacity, as bound.
    """
    assert problem.capacity is not None
    kept = {
        at: offset
        for at, (buffer, offset) in enumerate(zip(problem.buffers, earlier, strict=True))
        if offset is not None
        and 0 <= offset <= problem.capacity - buffer.size
        and offset % buffer.alignment == 0
        and buffer.offset in (None, offset)
    }
    built = build(problem, problem.capacity, kept.values())
    for at, offset in kept.items():
        variable = built.model.new_bool_var(f"keeps {at}")
        built.model.add(built.offsets[at] == offset // built.unit).only_enforce_if(variable)
        built.keeps[at] = variable, offset
    for one, other in _colliding(problem, kept):
        built.model.add_at_most_one(built.keeps[one][0], built.keeps[other][0])
    built.model.maximize(sum(variable for variable, _ in built.keeps.values()))
    return cpsat_runner.find_plan(
        built,
        objective=lambda moved: moved,
        parameters={"use_energetic_reasoning_in_no_overlap_2d": True},
        **search,
    )


def _colliding(problem: Problem, offsets: dict[int, int]) -> list[tuple[int, int]]:
    """Pairs of buffers that would share a byte at a moment at these offsets."""
    spans = problem.spans
    inside = np.isin(spans.owner, np.fromiter(offsets, np.int64, len(offsets)))
    owner, start, end = spans.owner[inside], spans.start[inside], spans.end[inside]
    low = np.array([offsets[number] for number in owner.tolist()], np.int64)
    high = low + spans.size[owner]
    pairs: dict[tuple[int, int], None] = {}
    least = separations(problem)
    for at in range(len(owner)):
        later = slice(at + 1, None)
        meet = (start[later] < end[at]) & (start[at] < end[later]) & (low[later] < high[at]) & (low[at] < high[later])
        for other in owner[later][meet].tolist():
            if other != owner[at] and not allows(least, int(owner[at]), other, int(low[at]), offsets[other]):
                pairs[min(int(owner[at]), other), max(int(owner[at]), other)] = None
        if len(pairs) > MOST_PAIRS:
            break
    return list(pairs)
