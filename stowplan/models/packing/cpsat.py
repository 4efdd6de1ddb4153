"""Packing as a CP-SAT model: each buffer is a rectangle with a fixed extent in time and a free offset, and none overlap.

:func:`solve` minimizes the height, finds any plan within the capacity, or minimizes the sum of the reuse penalties within the
capacity. A reuse penalty is a cost that is paid if two buffers share bytes, one after the other. For each pair of buffers with
a penalty, one Boolean variable says that they share bytes, and two more say which of them lies below the other.

:func:`solve_closest` is for plans that should stay close to an earlier one. It minimizes the number of buffers that leave their
earlier offsets. The model is the same, with a capacity, and a Boolean variable for each buffer says whether it keeps its
earlier offset. If two buffers would overlap at their earlier offsets, a constraint says that not both are kept; it strengthens
the linear relaxation. All buffers that leave their offsets can be lowered until they rest on another buffer or on 0. Some best
plan therefore has offsets that are sums of sizes and earlier offsets, rounded up to alignments. The model can count offsets in
units of the greatest common divisor of these numbers.

The problem may permit a buffer, the result of an operator, to overlap buffers that are still live when it is created, its
operands (:class:`~.problem.Overlap`). Such a result needs further constraints. While the operands are live, the result is left
out of the constraint on rectangles. Instead, for each buffer that is live together with it, a Boolean variable says which of
the two lies below. The distance between their offsets is then at least their *separation*, which is the size of the lower
buffer or, if they may overlap, less (:mod:`.overlaps`). For two buffers that hold the same data, a second Boolean variable says
that they have the same offset.

A hint must be a valid plan. Functions raise no errors except those that they document.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import gcd, lcm
from typing import Unpack

import numpy as np
from ortools.sat.python import cp_model

from stowplan.models import cpsat_runner
from stowplan.models.cpsat_runner import Search, Value
from stowplan.models.outcome import Outcome
from stowplan.models.packing.bounds import crowds, load_bound
from stowplan.models.packing.overlaps import allows, separations
from stowplan.models.packing.plan import Plan, make_plan
from stowplan.models.packing.problem import Problem


@dataclass
class Model:
    """A CP-SAT model of a packing problem with its variables. Offsets and the height count units of ``unit`` bytes."""

    problem: Problem
    """The problem that the model is for."""
    unit: int
    """Number of bytes in a unit of offsets."""
    model: cp_model.CpModel = field(default_factory=cp_model.CpModel)
    """The CP-SAT model."""
    offsets: list[cp_model.IntVar] = field(default_factory=list)
    """Offset of each buffer in units."""
    multiples: dict[int, tuple[cp_model.IntVar, int]] = field(default_factory=dict)
    """For each buffer whose alignment is several units: its offset divided by its alignment, and the alignment in units."""
    height: cp_model.IntVar | None = None
    """The height in units, which is minimized; None if the problem has a capacity."""
    keeps_offset: dict[int, tuple[cp_model.IntVar, int]] = field(default_factory=dict)
    """Only in :func:`solve_closest`, by buffer: whether it keeps its earlier offset, and that offset in bytes."""
    relative_positions: list[tuple[cp_model.IntVar, int, int, int | None]] = field(default_factory=list)
    """For pairs of buffers: a Boolean variable, the numbers of the two buffers, and a separation in units. The variable says
    that the first buffer lies below the second one, at least by the separation. If the separation is None, it says that both
    have the same offset."""
    shares: dict[tuple[int, int], cp_model.IntVar] = field(default_factory=dict)
    """For each pair of buffers with a reuse penalty above 0: whether the two share bytes. Pairs with a buffer of 0 bytes have
    no such variable."""

    def add_hint(self, plan: Plan) -> None:
        """Let the solver start from a valid plan. Every variable gets a value.

        In :func:`solve_closest`, the values need not be a solution, because offsets of the plan may be no multiples of the
        unit.
        """
        places = [offset // self.unit for offset in plan.offsets]
        values = list(zip(self.offsets, places, strict=True))
        values += [(variable, places[number] // step) for number, (variable, step) in self.multiples.items()]
        if self.height is not None:
            values.append((self.height, plan.objective // self.unit))
        values += [(variable, int(plan.offsets[at] == before)) for at, (variable, before) in self.keeps_offset.items()]
        for variable, one, other, separation in self.relative_positions:
            gap = places[other] - places[one]
            values.append((variable, int(gap == 0 if separation is None else gap >= separation)))
        sizes = self.problem.spans.size // self.unit
        for (one, other), variable in self.shares.items():
            is_shared = max(places[one], places[other]) < min(places[one] + sizes[one], places[other] + sizes[other])
            values.append((variable, int(is_shared)))
        cpsat_runner.add_hint(self.model, values, complete=not self.keeps_offset)

    def extract(self, value: Value) -> Plan:
        """Returns the plan of a solution.

        Parameters
        ----------
        value
            A function that returns the value of a variable in the solution.
        """
        return make_plan(self.problem, (value(variable) * self.unit for variable in self.offsets))


def build(problem: Problem, ceiling: int, grid: Iterable[int] = ()) -> Model:
    """Build the model of a problem. If the problem has a capacity and no penalties, any plan within the capacity is a solution,
    and there is no objective.

    Parameters
    ----------
    ceiling
        A height in bytes that some best plan does not exceed. It is used only if the problem has no capacity.
    grid
        Offsets in bytes that the model must be able to represent, in addition to those of buffers that rest on each other.

    Returns
    -------
    Model
        Without a hint.
    """
    # If all buffers are lowered as far as possible, offsets are sums of sizes and fixed offsets, rounded up to alignments. They
    # are multiples of the greatest common divisor of all these numbers.
    unit = gcd(*(value for buffer in problem.buffers for value in (buffer.size, buffer.offset or 0)))
    separation_of = separations(problem)
    alignments = (buffer.alignment for buffer in problem.buffers if buffer.alignment != 1)
    unit = gcd(unit, *alignments, *grid, *filter(None, separation_of.values())) or 1
    sharing = _sharing_until(problem, separation_of)
    built = Model(problem, unit)
    limit = (ceiling if problem.capacity is None else problem.capacity) // unit
    patterns = _normal_patterns(problem, unit, limit) if problem.penalties else None
    model = built.model
    times, spaces, sizes = [], [], []
    for number, buffer in enumerate(problem.buffers):
        size = buffer.size // unit
        last = max(0, limit - size)
        step = max(1, buffer.alignment // unit)
        if buffer.offset is not None:
            offset = model.new_constant(buffer.offset // unit)
        elif patterns is not None:
            within = patterns[: bisect_right(patterns, last)]
            offset = model.new_int_var_from_domain(cp_model.Domain.from_values(within), f"offset {number}")
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
    _add_relative_positions(built, _pairs_to_order(problem, sharing), separation_of)
    if problem.capacity is None:
        height = built.height = model.new_int_var(-(-load_bound(problem) // unit), limit, "height")
        for offset, buffer in zip(built.offsets, problem.buffers, strict=True):
            model.add(height >= offset + buffer.size // unit)
        model.add_cumulative(times, sizes, height)
        model.minimize(height)
    else:
        model.add_cumulative(times, sizes, limit)
        _add_penalties(built)
    return built


#: Largest number of offsets that :func:`_normal_patterns` returns. The domain of each offset variable lists them one by one.
MOST_PATTERNS = 2000


def _normal_patterns(problem: Problem, unit: int, limit: int) -> list[int] | None:
    """The *normal patterns*: offsets in units, up to ``limit``, that are sums of sizes, or such sums above a fixed buffer.

    Some best plan has no other offsets. To see this, take a best plan and lower its buffers as far as possible, but let no two
    buffers share bytes that did not share any before. The new plan costs no more, and its offsets are normal patterns (Herz,
    "Recursive computational procedure for two-dimensional stock cutting", IBM Journal of Research and Development 16, 1972).
    This requires sizes and ends of fixed buffers that are multiples of all alignments. The result is None if they are not, if
    overlaps are permitted, if there are more than :data:`MOST_PATTERNS` patterns, or if ``limit`` is more than 2**20 units.
    """
    buffers = problem.buffers
    step = lcm(*(buffer.alignment for buffer in buffers if buffer.size and buffer.offset is None))
    tops = [buffer.offset + buffer.size for buffer in buffers if buffer.offset is not None]
    if problem.overlaps or any(value % step for value in (*tops, *(buffer.size for buffer in buffers))):
        return None
    # Bit n of ``sums`` is set if the offset of n units is a normal pattern.
    sums = 1
    for top in tops:
        sums |= 1 << top // unit
    within = (1 << limit + 1) - 1
    for buffer in buffers:
        sums = (sums | sums << buffer.size // unit) & within
    if limit > 1 << 20 or sums.bit_count() > MOST_PATTERNS:
        return None
    return [offset for offset in range(limit + 1) if sums >> offset & 1]


def _add_penalties(built: Model) -> None:
    """Add the objective, which is the sum of the penalties of all pairs that share bytes; does nothing without penalties.

    Two buffers share bytes unless one of them lies below the other. For each crowd (:class:`~.bounds.Crowd`), a constraint
    demands the least number of pairs that share bytes.
    """
    model, offsets, buffers = built.model, built.offsets, built.problem.buffers
    costs = []
    for (one, other), cost in built.problem.penalty_of.items():
        if not buffers[one].size or not buffers[other].size:
            continue
        built.shares[one, other] = shares = model.new_bool_var(f"{one} shares bytes with {other}")
        literals = [shares]
        for below, above in ((one, other), (other, one)):
            is_below, units = model.new_bool_var(f"{below} below {above}"), buffers[below].size // built.unit
            model.add(offsets[below] + units <= offsets[above]).only_enforce_if(is_below)
            built.relative_positions.append((is_below, below, above, units))
            literals.append(is_below)
        model.add_bool_or(literals)
        costs.append(cost * shares)
    for crowd in crowds(built.problem):
        model.add(sum(built.shares[pair] for pair in crowd.pairs) >= crowd.least)
    if costs:
        model.minimize(sum(costs))


def _sharing_until(problem: Problem, separation_of: Iterable[tuple[int, int]]) -> dict[int, int]:
    """For each buffer that may overlap operands, the first moment at which none of these operands is live any more, or at which
    the buffer itself ends."""
    until: dict[int, int] = {}
    for result, operand in separation_of:
        end = min(problem.buffers[operand].upper, problem.buffers[result].upper)
        until[result] = max(until.get(result, end), end)
    return until


def _pairs_to_order(problem: Problem, sharing: Mapping[int, int]) -> list[tuple[int, int]]:
    """The pairs of buffers that are live together while one of the two may overlap an operand, the smaller number first."""
    spans = problem.spans
    pairs = {
        (min(one, other), max(one, other))
        for one, until in sharing.items()
        for other in spans.owner[(spans.start < until) & (spans.end > problem.buffers[one].lower)].tolist()
        if other != one and problem.buffers[other].size
    }
    return sorted(pairs)


def _add_relative_positions(
    built: Model, pairs: Iterable[tuple[int, int]], separation_of: Mapping[tuple[int, int], int | None]
) -> None:
    """Add constraints: one buffer of each pair lies below the other, or both have the same offset if that is allowed."""
    model, offsets, buffers = built.model, built.offsets, built.problem.buffers
    for one, other in pairs:
        is_below, otherwise = model.new_bool_var(f"{one} below {other}"), []
        if None in (separation_of.get((one, other), 0), separation_of.get((other, one), 0)):
            is_same = model.new_bool_var(f"{one} at {other}")
            model.add(offsets[one] == offsets[other]).only_enforce_if(is_same)
            built.relative_positions.append((is_same, one, other, None))
            otherwise = [~is_same]
        for below, above, literal in ((one, other, is_below), (other, one, ~is_below)):
            separation = separation_of.get((below, above))
            units = (buffers[below].size if separation is None else separation) // built.unit
            model.add(offsets[below] + units <= offsets[above]).only_enforce_if([literal, *otherwise])
            if below == one:
                built.relative_positions.append((is_below, one, other, units))


def solve(problem: Problem, **search: Unpack[Search[Plan]]) -> Outcome[Plan]:
    """Solve a packing problem with CP-SAT.

    Parameters
    ----------
    search
        Keyword arguments of :func:`stowplan.models.cpsat_runner.find_plan`: limits, a hint and callbacks.

    Returns
    -------
    Outcome
        The best plan, and the bound on the height in bytes or on the sum of the penalties. With a capacity and no penalties,
        nothing is minimized, and there is no bound. Running out of time is never reported as ``infeasible``. The status is
        ``unknown``, and no model is built, if more than :data:`MOST_PAIRS` pairs of buffers are live together while one of them
        may overlap an operand.
    """
    if problem.overlaps and len(_pairs_to_order(problem, _sharing_until(problem, separations(problem)))) > MOST_PAIRS:
        return Outcome("unknown", None, None)
    hint = search.get("hint")
    # If there is a plan at all, then stacking all other buffers on top of each other above the fixed ones gives one, too.
    top = max((buffer.offset + buffer.size for buffer in problem.buffers if buffer.offset is not None), default=0)
    ceiling = (
        hint.objective
        if hint and not problem.penalties
        else top + sum(buffer.size + buffer.alignment - 1 for buffer in problem.buffers)
    )
    built = build(problem, ceiling)
    return cpsat_runner.find_plan(
        built,
        objective=lambda value: value if problem.penalties else value * built.unit,
        parameters={"use_energetic_reasoning_in_no_overlap_2d": True},
        **search,
    )


#: Largest number of pairs of buffers for which constraints are added one by one. It limits the size of the model.
MOST_PAIRS = 100_000


def solve_closest(problem: Problem, earlier: Sequence[int | None], **search: Unpack[Search[Plan]]) -> Outcome[Plan]:
    """Find the plan within the capacity in which the fewest buffers leave their earlier offsets.

    Parameters
    ----------
    problem
        It must have a capacity; otherwise an AssertionError is raised.
    earlier
        Earlier offset in bytes of each buffer; None for a buffer that has none. Offsets that are misaligned, beyond the
        capacity or different from the buffer's fixed offset are ignored.
    search
        Keyword arguments of :func:`stowplan.models.cpsat_runner.find_plan`: limits, a hint and callbacks.

    Returns
    -------
    Outcome
        The best plan found, of status ``optimal`` if it is proven that no plan keeps more offsets. The bound, like those that
        ``on_bound`` is called with, is a lower bound on the number of buffers that leave their earlier offsets, including those
        whose earlier offsets are ignored.
    """
    assert problem.capacity is not None
    attainable = {
        at: offset
        for at, (buffer, offset) in enumerate(zip(problem.buffers, earlier, strict=True))
        if offset is not None
        and 0 <= offset <= problem.capacity - buffer.size
        and offset % buffer.alignment == 0
        and buffer.offset in (None, offset)
    }
    built = build(problem, problem.capacity, attainable.values())
    for at, offset in attainable.items():
        variable = built.model.new_bool_var(f"keeps {at}")
        built.model.add(built.offsets[at] == offset // built.unit).only_enforce_if(variable)
        built.keeps_offset[at] = variable, offset
    for one, other in _colliding(problem, attainable):
        built.model.add_at_most_one(built.keeps_offset[one][0], built.keeps_offset[other][0])
    count = sum(offset is not None for offset in earlier)
    built.model.minimize(count - sum(variable for variable, _ in built.keeps_offset.values()))
    return cpsat_runner.find_plan(
        built,
        objective=lambda moved: moved,
        parameters={"use_energetic_reasoning_in_no_overlap_2d": True},
        **search,
    )


def _colliding(problem: Problem, offsets: dict[int, int]) -> list[tuple[int, int]]:
    """Pairs of buffers that would overlap at these offsets; the list ends soon after :data:`MOST_PAIRS` pairs."""
    spans = problem.spans
    # A buffer of 0 bytes overlaps nothing, even if its offset lies within another buffer.
    inside = np.isin(spans.owner, np.fromiter(offsets, np.int64, len(offsets))) & (spans.size[spans.owner] > 0)
    owner, start, end = spans.owner[inside], spans.start[inside], spans.end[inside]
    low = np.array([offsets[number] for number in owner.tolist()], np.int64)
    high = low + spans.size[owner]
    pairs: dict[tuple[int, int], None] = {}
    separation_of = separations(problem)
    for at in range(len(owner)):
        later = slice(at + 1, None)
        meet = (start[later] < end[at]) & (start[at] < end[later]) & (low[later] < high[at]) & (low[at] < high[later])
        for other in owner[later][meet].tolist():
            if other != owner[at] and not allows(separation_of, int(owner[at]), other, int(low[at]), offsets[other]):
                pairs[min(int(owner[at]), other), max(int(owner[at]), other)] = None
        if len(pairs) > MOST_PAIRS:
            break
    return list(pairs)
