"""From a valid plan to a point of the relaxation, and from the relaxation's solution to what it says of each access.

The point has values of all columns and is no worse than the plan: a start for any solver. That there is one for *every* valid
plan is what makes the relaxation's bound a bound; the tests draw plans and check it, in whole numbers and without a solver.

As a guide the relaxation is solved with the windows of the copy channels, and to the end where time allows: without windows it
brings in far more than the channels can copy.
"""

from __future__ import annotations

import numpy as np

from stowplan.models.hint import Hint
from stowplan.models.memory_mapping import hint as hints
from stowplan.models.memory_mapping.accesses import TensorAccesses
from stowplan.models.memory_mapping.copy_engine import copy_window, play, slices_of, step_durations
from stowplan.models.memory_mapping.latency import MAX_HULL_USES, hull_bits, open_entries
from stowplan.models.memory_mapping.milp.matrix import Formulation
from stowplan.models.memory_mapping.milp.model import AccessColumns, RelaxationModel, Terms
from stowplan.models.memory_mapping.milp.solve import Effort, RelaxationSearch
from stowplan.models.memory_mapping.plan import Copy, Plan, Residency, by_tensor
from stowplan.models.memory_mapping.problem import Problem
from stowplan.models.mip.matrix import INFINITE, FloatArray, IntArray


def add_hint(formulation: Formulation, plan: Plan) -> FloatArray:
    """A point of the matrix for a valid plan, shape ``[columns]``: a ``start`` for :func:`stowplan.models.mip.solve.solve`."""
    return formulation.scaled(hint_values(formulation, plan))


def hint_values(formulation: Formulation, plan: Plan) -> IntArray:
    """Values of all columns in the model's own units, shape ``[columns]``, for a valid plan of the problem.

    The point satisfies every row, and its objective is at most the plan's. It says less than the plan does (no offsets, no
    order of copies), and in places better: reads that gain by it are fast wherever the tensor is resident. For a plan slower
    than having everything in slow memory it is the point that stands for that.
    """
    model = formulation.model
    values = _decisions(model, plan)
    moments = _waits(model, plan, values)
    if moments is None:
        values = dict.fromkeys(values, 0)
        moments = [0] * len(model.stall)
    values |= dict(zip(model.stall, moments, strict=True))
    _choose_tables(model, values)
    return _complete(formulation, values)


def _decisions(model: RelaxationModel, plan: Plan) -> dict[int, int]:
    """Values of the columns that decide something."""
    values: dict[int, int] = {}
    fast_uses = set(plan.fast_uses)
    residencies = by_tensor(plan.residencies)
    copies = by_tensor(copy for copy in plan.copies if copy.part is None)
    for (tensor, start), slices in slices_of(plan).items():
        copies[tensor].append(Copy(tensor, "in", start, max(plan.copies[place].end for place in slices)))
    for number, (sequence, columns) in enumerate(zip(model.sequences, model.access, strict=True)):
        if not model.savings.is_candidate(sequence):
            continue
        reader = _TensorReader(sequence, columns, model.out[number], fast_uses)
        for residency in residencies[number]:
            reader.read(residency, [copy for copy in copies[number] if copy.direction == "in"])
        values |= reader.values([copy for copy in copies[number] if copy.direction == "out"])
    return values


class _TensorReader:
    """Reads one tensor's columns off its residencies and copies."""

    def __init__(
        self,
        sequence: TensorAccesses,
        columns: list[AccessColumns],
        out: dict[tuple[int, int], int],
        fast_uses: set[int],
    ):
        self._sequence = sequence
        self._columns = columns
        self._out = out
        self._was_fast = [access.uses[0] in fast_uses for access in sequence.accesses]
        self._landed = [False] * len(sequence)
        self._chosen: set[int] = set()

    def read(self, residency: Residency, copies_in: list[Copy]) -> None:
        """Take over one residency, as far as it serves anything."""
        sequence = self._sequence
        copy = next((copy for copy in copies_in if copy.start == residency.start), None)
        ready = residency.start if copy is None else copy.end
        inside = [j for j, access in enumerate(sequence.accesses) if residency.start <= access.step < residency.end]
        part: list[int] = []
        for j in inside:
            if sequence.is_dead(j):
                # A write that needs nothing from before begins a residency of its own, be it inside another one.
                self._land(part, residency, copy)
                part = [j]
            elif part or sequence.accesses[j].step >= ready:
                part.append(j)
        self._land(part, residency, copy)

    def _land(self, part: list[int], residency: Residency, copy: Copy | None) -> None:
        """One content of a residency: the accesses that find it there."""
        sequence = self._sequence
        fast = [j for j in part if self._was_fast[j]]
        if not fast:
            return
        last = fast[-1]
        while sequence.is_glued(last + 1):
            last += 1
        first = part[0]
        here = self._columns[first]
        if sequence.is_dead(first):
            self._choose(here.begun)
        elif copy is None:
            self._choose(here.preload if residency.preloaded else here.begun)
        else:
            self._choose(here.copy_in if copy.start >= sequence.gap(first)[0] else here.in_flight)
        for j in range(first, last + 1):
            self._landed[j] = True
            if j > first and not sequence.is_glued(j):
                self._choose(self._columns[j].keep)

    def _choose(self, column: int | None) -> None:
        if column is not None:
            self._chosen.add(column)

    def values(self, copies_out: list[Copy]) -> dict[int, int]:
        """Values of the columns, copies out included."""
        sequence = self._sequence
        hinted: dict[int, int] = {}
        for j, here in enumerate(self._columns):
            for column in (here.keep, here.copy_in, here.in_flight, here.begun, here.preload, *here.landed):
                if column is not None:
                    hinted[column] = int(column in self._chosen)
            if here.fast != here.landed:
                hinted |= dict.fromkeys(here.fast, int(self._landed[j] and self._was_fast[j]))
        for (write, gap), column in self._out.items():
            begin, end = sequence.accesses[write].step + 1, sequence.gap(gap)[1]
            done = any(begin <= copy.start and copy.end <= end for copy in copies_out)
            hinted[column] = int(done and self._landed[write])
        return hinted


def _total(values: dict[int, int], columns: Terms) -> int:
    return sum(values[column] for column in columns)


def _waits(model: RelaxationModel, plan: Plan, values: dict[int, int]) -> list[int] | None:
    """How long each boundary waits for copies, in ps; None where the plan is slower than all slow.

    All copies of the plan are played, needed or not, with steps as fast as the point has them: no later than in the plan.
    """
    problem = model.problem
    durations = step_durations(problem, [bool(_total(values, columns)) for columns in model.fast])
    if problem.stalls == "forbidden":
        return [] if sum(durations) <= problem.all_slow_ps else None
    windows = [copy_window(problem, copy) for copy in plan.copies]
    moments = play(windows, durations, waits=True, channels=problem.channels)
    if moments.left[-1] > problem.all_slow_ps:
        return None
    return [left - reached for left, reached in zip(moments.left, moments.reached, strict=True)]


def _choose_tables(model: RelaxationModel, values: dict[int, int]) -> None:
    """Steps whose table has a column for each entry, or for each subset of some uses: that which the uses choose."""
    problem = model.problem
    for step, columns, fast in zip(problem.steps, model.latency_columns, problem.by_step(model.fast), strict=True):
        if step.table is None or len(columns) < 2:
            continue
        open_uses = [use for use in step.table.uses if fast[use]]
        if len(open_uses) > MAX_HULL_USES:
            # Before them stands the column of the latency: the rows only bound it from below, but copies need all of its time.
            here = [bool(_total(values, fast[use])) for use in range(len(step.uses))]
            values[columns[0]] = step.latency_ps(here)
            columns = columns[1:]
            bits = hull_bits(open_entries(step.table.latency_ps, [bool(fast[use]) for use in step.table.uses]))
            open_uses = [open_uses[bit] for bit in bits]
        entry = sum(_total(values, fast[use]) << bit for bit, use in enumerate(open_uses))
        values |= {column: int(place == entry) for place, column in enumerate(columns)}


def _complete(formulation: Formulation, known: dict[int, int]) -> IntArray:
    """Values of the other columns: those that equations fix, and of the rest the least that the rows allow."""
    model, matrix = formulation.model, formulation.integers
    values = np.zeros(len(model.cost), dtype=np.int64)
    is_open = np.ones(len(model.cost), dtype=bool)
    for column, value in known.items():
        values[column], is_open[column] = value, False
    starts, indices, data = matrix.indptr, matrix.indices, matrix.data
    by_column = matrix.tocsc()
    lower, upper = formulation.rows.lower, formulation.rows.upper
    # How many open columns each row has.
    unknown = np.add.reduceat(np.append(is_open[indices], False).astype(np.int64), starts[:-1]) * (np.diff(starts) > 0)
    ready = [row for row in range(matrix.shape[0]) if unknown[row] == 1 and lower[row] == upper[row]]

    def set_value(column: int, value: int) -> None:
        values[column], is_open[column] = value, False
        for row in by_column.indices[by_column.indptr[column] : by_column.indptr[column + 1]].tolist():
            unknown[row] -= 1
            if unknown[row] == 1 and lower[row] == upper[row]:
                ready.append(row)

    def side(row: int, limit: int) -> tuple[int, int, int]:
        """The one open column of a row, its coefficient, and what is left of a side for it."""
        entries = slice(starts[row], starts[row + 1])
        place = int(np.flatnonzero(is_open[indices[entries]])[0])
        coefficient = int(data[entries][place])
        return int(indices[entries][place]), coefficient, limit - int(data[entries] @ values[indices[entries]])

    while True:
        while ready:
            row = ready.pop()
            if unknown[row] == 1:
                column, coefficient, rest = side(row, lower[row])
                set_value(column, rest // coefficient)
        left = np.flatnonzero(is_open)
        if not len(left):
            return values
        column = int(left[0])
        least = model.lower[column]
        for row in by_column.indices[by_column.indptr[column] : by_column.indptr[column + 1]].tolist():
            if unknown[row] == 1 and lower[row] > -INFINITE:
                _, coefficient, rest = side(row, lower[row])
                if coefficient > 0:
                    least = max(least, -(-rest // coefficient))
        set_value(column, least)


def relaxation_hint(problem: Problem, effort: Effort) -> tuple[Hint | None, int]:
    """Values of the plain linear relaxation, and the bound that it proves (ps).

    Parameters
    ----------
    problem
        Any problem.
    effort
        When to end. Stopped between two rounds of windows, the values are those of the last round.

    Returns
    -------
    tuple
        None instead of a hint where not even the first linear program was solved, or there is nothing to decide.
    """
    if effort.is_over():
        return None, problem.floor_ps
    model = RelaxationModel(problem)
    if effort.is_over() or not model.cost:
        return None, problem.floor_ps
    search = RelaxationSearch(model, effort)
    search.linear()
    if search.solution is None:
        return None, search.bound
    return of_values(model, search.solution), search.bound


def of_values(model: RelaxationModel, values: FloatArray) -> Hint:
    """The hint that a solution stands for; ``values`` of shape ``[columns]``."""
    values = np.clip(values, 0.0, 1.0)
    fast: list[float] = []
    keep: list[float] = []
    for sequence, columns in zip(model.sequences, model.access, strict=True):
        for number, here in enumerate(columns):
            fast.append(_sum(values, here.fast))
            following = columns[number + 1] if number + 1 < len(columns) else None
            if following is None:
                keep.append(0.0)
            elif sequence.is_glued(number + 1):
                keep.append(_sum(values, following.landed))
            else:
                keep.append(0.0 if following.keep is None else float(values[following.keep]))
    return hints.hint(model.problem, fast, keep, source="relaxation")


def _sum(values: FloatArray, columns: tuple[int, ...]) -> float:
    return min(1.0, float(sum(values[column] for column in columns)))
