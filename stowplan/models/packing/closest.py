"""Packing with as few buffers as can be away from offsets that they had, as a CP-SAT model.

It is the model of :mod:`stowplan.models.packing.cpsat` with a capacity, and a Boolean variable for each buffer that is 1 only
where the buffer keeps its offset; the number of those that do not is minimised. Two buffers whose earlier places collide do
not both keep them: a row for each such pair says so, which the relaxation lacks otherwise.

Buffers that keep nothing may be lowered until they stand on others or at 0. So some best plan has offsets that are sums of
sizes and earlier offsets, rounded up to alignments, and the unit of the model's offsets may be what divides all of those.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Unpack

import numpy as np
from ortools.sat.python import cp_model

from stowplan.models import cpsat_runner
from stowplan.models.cpsat_runner import Search, Value
from stowplan.models.outcome import Outcome
from stowplan.models.packing.cpsat import Model, build
from stowplan.models.packing.plan import Plan
from stowplan.models.packing.problem import Problem

#: Rows for colliding pairs at most.
MOST_PAIRS = 100_000


@dataclass
class _Closest:
    """The model of offsets with what keeps them."""

    offsets: Model
    keeps: dict[int, tuple[cp_model.IntVar, int]]
    """Variable and earlier offset of each buffer that has one within the capacity."""

    @property
    def model(self) -> cp_model.CpModel:
        """Of CP-SAT."""
        return self.offsets.model

    def add_hint(self, plan: Plan) -> None:
        """Start the solver from a plan; a hint, for its offsets need not be whole units."""
        unit = self.offsets.unit
        values = [(variable, plan.offsets[at] // unit) for at, variable in enumerate(self.offsets.offsets)]
        values += [(variable, plan.offsets[at] // unit // step) for at, (variable, step) in self.offsets.multiples.items()]
        values += [(variable, int(plan.offsets[at] == before)) for at, (variable, before) in self.keeps.items()]
        cpsat_runner.add_hint(self.model, values, complete=False)

    def extract(self, value: Value) -> Plan:
        """Plan of a solution."""
        return self.offsets.extract(value)


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
    keeps: dict[int, tuple[cp_model.IntVar, int]] = {}
    for at, offset in kept.items():
        variable = built.model.new_bool_var(f"keeps {at}")
        built.model.add(built.offsets[at] == offset // built.unit).only_enforce_if(variable)
        keeps[at] = variable, offset
    for one, other in _colliding(problem, kept):
        built.model.add_at_most_one(keeps[one][0], keeps[other][0])
    built.model.maximize(sum(variable for variable, _ in keeps.values()))
    return cpsat_runner.find_plan(
        _Closest(built, keeps),
        objective=lambda moved: moved,
        parameters={"use_energetic_reasoning_in_no_overlap_2d": True},
        **search,
    )


def _colliding(problem: Problem, offsets: dict[int, int]) -> list[tuple[int, int]]:
    """Pairs of buffers that would share a byte at a moment at these offsets."""
    spans = problem.spans
    inside = np.isin(spans.owner, np.fromiter(offsets, np.int64, len(offsets)))
    owner, start, end = spans.owner[inside], spans.start[inside], spans.end[inside]
    low = np.array([offsets[each] for each in owner.tolist()], np.int64)
    high = low + spans.size[owner]
    found: dict[tuple[int, int], None] = {}
    for at in range(len(owner)):
        later = slice(at + 1, None)
        meet = (start[later] < end[at]) & (start[at] < end[later]) & (low[later] < high[at]) & (low[at] < high[later])
        for other in owner[later][meet].tolist():
            if other != owner[at]:
                found[min(int(owner[at]), other), max(int(owner[at]), other)] = None
        if len(found) > MOST_PAIRS:
            break
    return list(found)
