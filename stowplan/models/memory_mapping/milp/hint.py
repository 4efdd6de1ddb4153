"""Converts valid plans into solutions of the relaxation, and solutions of the relaxation into hints.

The solution for a plan has values of all columns and costs no more than the plan, so any solver can start from it. The bound of
the relaxation is valid because there is such a solution for *every* valid plan. Tests check this on random plans, in whole
numbers and without a solver.

A tensor is *landed* at an access, a step that uses it, if it is in fast memory with its content. For a hint, the linear
relaxation is solved with *windows*, to optimality if time allows: the copies that must run between two boundaries take no more
than the time of the channels in between. Without windows, its solution would copy in far more than the channels can.

A :class:`~stowplan.models.memory_mapping.milp.model.RelaxationModel` has the columns and rows without windows, and a
:class:`~stowplan.models.memory_mapping.milp.matrix.Formulation` is the relaxation with certain windows. Where a docstring gives
a shape in brackets, the array has an entry for each of these things. Nothing here raises an error for a valid plan.
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
    """Scaled values of all columns for a valid plan, of shape ``[columns]``.

    They are for the parameter ``start`` of :func:`stowplan.models.mip.solve.solve`.
    """
    return formulation.scaled(hint_values(formulation, plan))


def hint_values(formulation: Formulation, plan: Plan) -> IntArray:
    """Values of all columns in unscaled units, shape ``[columns]``, for a valid plan of the problem.

    The values satisfy every row, and their objective is at most that of the plan. It may be lower: in the relaxation, a read
    that cannot make its step slower is fast whenever the tensor is landed. If the plan is slower than having all tensors in
    slow memory, the values are those of the plan without fast memory.
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
    """Values of the columns that are decisions of a plan."""
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
    """Determines the values of one tensor's columns from its residencies and copies."""

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
        """Process one residency; accesses before its copy-in is complete are not landed."""
        sequence = self._sequence
        copy = next((copy for copy in copies_in if copy.start == residency.start), None)
        ready = residency.start if copy is None else copy.end
        inside = [j for j, access in enumerate(sequence.accesses) if residency.start <= access.step < residency.end]
        part: list[int] = []
        for j in inside:
            if sequence.is_dead(j):
                # In the relaxation, a write that needs no old content begins a new residency, even inside another one.
                self._land(part, residency, copy)
                part = [j]
            elif part or sequence.accesses[j].step >= ready:
                part.append(j)
        self._land(part, residency, copy)

    def _land(self, part: list[int], residency: Residency, copy: Copy | None) -> None:
        """Process the accesses of a residency that find the same content there."""
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
        """Set a column to 1; does nothing if the column is None."""
        if column is not None:
            self._chosen.add(column)

    def values(self, copies_out: list[Copy]) -> dict[int, int]:
        """The values of all decisions of the tensor, including those of the given copies-out."""
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
    """The sum of the values of these columns."""
    return sum(values[column] for column in columns)


def _waits(model: RelaxationModel, plan: Plan, values: dict[int, int]) -> list[int] | None:
    """The wait for copies at each boundary, in ps; None if the plan is slower than having all tensors in slow memory.

    All copies of the plan are simulated with the latencies of the solution, which are at most those of the plan.
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
    """Set the columns of tables of latencies: the column of the entry that applies is 1.

    For a long table, it is the column of the subset of its most important uses.
    """
    problem = model.problem
    for step, columns, fast in zip(problem.steps, model.latency_columns, problem.by_step(model.fast), strict=True):
        if step.table is None or len(columns) < 2:
            continue
        open_uses = [use for use in step.table.uses if fast[use]]
        if len(open_uses) > MAX_HULL_USES:
            # The first column is the latency itself. The rows bound it only from below, but it must be the exact latency,
            # because that is the time that passes for copies.
            here = [bool(_total(values, fast[use])) for use in range(len(step.uses))]
            values[columns[0]] = step.latency_ps(here)
            columns = columns[1:]
            bits = hull_bits(open_entries(step.table.latency_ps, [bool(fast[use]) for use in step.table.uses]))
            open_uses = [open_uses[bit] for bit in bits]
        entry = sum(_total(values, fast[use]) << bit for bit, use in enumerate(open_uses))
        values |= {column: int(place == entry) for place, column in enumerate(columns)}


def _complete(formulation: Formulation, given_values: dict[int, int]) -> IntArray:
    """Complete the values of all columns.

    A column without a value is *open*. Open columns that equations determine get the value that follows from the equations. All
    other open columns get the smallest value that the rows allow.
    """
    model, matrix = formulation.model, formulation.integers
    values = np.zeros(len(model.cost), dtype=np.int64)
    is_open = np.ones(len(model.cost), dtype=bool)
    for column, value in given_values.items():
        values[column], is_open[column] = value, False
    starts, indices, data = matrix.indptr, matrix.indices, matrix.data
    by_column = matrix.tocsc()
    lower, upper = formulation.rows.lower, formulation.rows.upper
    # Number of open columns in each row.
    unknown = np.add.reduceat(np.append(is_open[indices], False).astype(np.int64), starts[:-1]) * (np.diff(starts) > 0)
    ready = [row for row in range(matrix.shape[0]) if unknown[row] == 1 and lower[row] == upper[row]]

    def set_value(column: int, value: int) -> None:
        values[column], is_open[column] = value, False
        for row in by_column.indices[by_column.indptr[column] : by_column.indptr[column + 1]].tolist():
            unknown[row] -= 1
            if unknown[row] == 1 and lower[row] == upper[row]:
                ready.append(row)

    def side(row: int, limit: int) -> tuple[int, int, int]:
        """The only open column of a row, its coefficient, and the part of the row's limit that remains for it."""
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
        open_columns = np.flatnonzero(is_open)
        if not len(open_columns):
            return values
        column = int(open_columns[0])
        least = model.lower[column]
        for row in by_column.indices[by_column.indptr[column] : by_column.indptr[column + 1]].tolist():
            if unknown[row] == 1 and lower[row] > -INFINITE:
                _, coefficient, rest = side(row, lower[row])
                if coefficient > 0:
                    least = max(least, -(-rest // coefficient))
        set_value(column, least)


def relaxation_hint(problem: Problem, effort: Effort) -> tuple[Hint | None, int]:
    """Returns a hint with the values of the plain linear relaxation, and the bound in ps that the relaxation proves.

    Parameters
    ----------
    problem
        Any problem.
    effort
        Limits of the search. If it ends between two rounds of windows, the values are those of the last round.

    Returns
    -------
    tuple
        The hint and the bound. The hint is None if the first linear program was not solved, or if no tensor may profit from
        fast memory.
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
    """The hint that corresponds to a solution of the relaxation; ``values`` has shape ``[columns]``."""
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
    """The sum of the values of these columns, at most 1."""
    return min(1.0, float(sum(values[column] for column in columns)))
