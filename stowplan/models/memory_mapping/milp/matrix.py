"""The relaxation as one matrix, scaled and with readable names, for files and for solvers other than the built-in HiGHS.

A *boundary* is the moment before a step, and a *window* is a row of the relaxation: the copies that must run between two
boundaries take no more than the time of the channels in between. The built-in search adds windows when solutions violate them.
A model for another solver must contain them from the start. :func:`linear_windows` finds the windows that the linear relaxation
needs, and :func:`all_windows` lists every window. ``stowplan export`` writes the matrix to a file.

Columns of time are in a unit of 1, 10, 100, … picoseconds, such that the range of the objective is between one and ten thousand
units. Decisions are 0 or 1, and rows are divided by powers of ten. All numbers thus have the same decimal digits as the
picoseconds and bytes that they represent. Nothing here raises an error for valid arguments.

The *all-slow latency* is the time of the program with all tensors in slow memory. The *least latency* of a step is its smallest
latency over all choices of memories.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from itertools import pairwise

import numpy as np
from scipy import sparse

from stowplan.models.memory_mapping.milp.model import AccessColumns, RelaxationModel
from stowplan.models.memory_mapping.milp.solve import Effort, RelaxationSearch
from stowplan.models.memory_mapping.milp.tightening import Window, WindowSeparator
from stowplan.models.mip.matrix import INFINITE, FloatArray, IntArray, MatrixModel, Rows, proven

#: After scaling, the range of the objective is between this number and ten times this number, unless it is smaller in ps.
OBJECTIVE_RANGE = 1e3

#: After scaling, the range of other continuous columns, and the coefficients of rows, are at most about this number.
LARGEST = 1e3

#: Largest number of characters of a tensor's name in the names of columns.
MAX_NAME = 40

#: Number of successive rounds without progress after which the search for windows ends. A round solves a linear program and
#: adds the windows that its solution violates.
PATIENCE = 30


@dataclass(frozen=True)
class Formulation:
    """A relaxation with a fixed set of windows, in whole numbers and as a scaled matrix."""

    model: RelaxationModel
    """The columns, and the rows without windows, in whole numbers."""
    matrix: MatrixModel
    """The scaled matrix. Its objective is in units of :attr:`unit_ps`."""
    unit_ps: int
    """Picoseconds in a unit of the objective and of columns of time."""
    scale: FloatArray
    """[columns] unscaled value that corresponds to 1 in the matrix."""
    row_scale: FloatArray
    """[rows] factor by which each row was multiplied."""
    rows: Rows
    """All rows in whole numbers; the windows come last."""

    @cached_property
    def spread_ps(self) -> int:
        """The all-slow latency minus the sum of the least latencies of all steps, in ps: the range in which good objectives
        lie."""
        return max(1, self.model.problem.all_slow_ps - self.model.floor_until[-1])

    @cached_property
    def integers(self) -> sparse.csr_matrix:
        """Coefficients of :attr:`rows`, of dtype int64."""
        return self.rows.matrix(len(self.model.cost))

    def bound_ps(self, bound: float) -> int:
        """The bound in whole picoseconds that a solver's bound for the matrix proves, after its tolerances are subtracted."""
        return proven(bound, self.spread_ps / self.unit_ps, unit=self.unit_ps)

    def own_units(self, values: FloatArray) -> FloatArray:
        """Values of the columns in picoseconds, units of memory or 0/1, from values for the scaled matrix."""
        return values * self.scale

    def scaled(self, values: IntArray) -> FloatArray:
        """The inverse of :meth:`own_units`."""
        result: FloatArray = values / self.scale
        return result


def formulate(model: RelaxationModel, windows: Sequence[Window] = (), *, names: bool = True) -> Formulation:
    """Build the matrix of a relaxation, with rows for these windows.

    Parameters
    ----------
    names
        Whether columns and rows get readable names. Building the matrix is faster without names.
    """
    extra = WindowSeparator(model).rows(windows)
    rows = _joined(model.rows, extra)
    columns = len(model.cost)
    lower, upper = np.array(model.lower, dtype=np.float64), np.array(model.upper, dtype=np.float64)
    is_integer = np.array(model.is_integer, dtype=bool)
    spread = max(1, model.problem.all_slow_ps - model.floor_until[-1])
    unit = int(10 ** max(0, math.floor(math.log10(spread / OBJECTIVE_RANGE))))
    scale = np.where(is_integer, 1.0, _power_of_ten(upper - lower))
    scale[np.array([*model.stall, *model.clock], dtype=np.int64)] = unit
    coefficients = rows.matrix(columns)
    scaled = (
        sparse.csr_matrix(coefficients.astype(np.float64) @ sparse.diags(scale)) if columns else coefficients.astype(np.float64)
    )
    largest = abs(scaled).max(axis=1).toarray().ravel() if columns and rows.lower else np.zeros(len(rows.lower))
    power = _power_of_ten(largest)
    # Divide by powers of ten instead of multiplying by their inverses, so that the numbers still have few decimal digits.
    scaled.data /= np.repeat(power, np.diff(scaled.indptr))
    low, high = np.array(rows.lower, dtype=np.float64), np.array(rows.upper, dtype=np.float64)
    matrix = MatrixModel(
        name=model.problem.name,
        cost=np.array(model.cost, dtype=np.float64) * scale / unit,
        lower=lower / scale,
        upper=upper / scale,
        is_integer=is_integer,
        matrix=scaled,
        row_lower=np.where(low <= -INFINITE, -np.inf, low / power),
        row_upper=np.where(high >= INFINITE, np.inf, high / power),
        offset=model.offset_ps / unit,
        column_names=(labels := _Labels(model)).columns if names else (),
        row_names=labels.rows(rows, windows) if names else (),
    )
    return Formulation(model, matrix, unit, scale, 1.0 / power, rows)


def _power_of_ten(largest: FloatArray) -> FloatArray:
    """The smallest powers of ten, at least 1, that divide these numbers to at most ``LARGEST``."""
    over = np.maximum(1.0, largest / LARGEST)
    result: FloatArray = 10.0 ** np.ceil(np.log10(over))
    return result


def _joined(first: Rows, second: Rows) -> Rows:
    """The rows of both, the first ones first."""
    shift = first.starts[-1]
    return Rows(
        first.starts + [shift + start for start in second.starts[1:]],
        first.columns + second.columns,
        first.values + second.values,
        first.lower + second.lower,
        first.upper + second.upper,
    )


def all_windows(model: RelaxationModel) -> list[Window]:
    """Every window in which some copy must run. There are about as many as pairs of boundaries, too many for large problems."""
    jobs = [job for job in model.jobs if job.duration_ps]
    return [
        (start, end)
        for start in sorted({job.release for job in jobs})
        for end in sorted({job.deadline for job in jobs})
        if any(start <= job.release and job.deadline <= end for job in jobs)
    ]


def linear_windows(
    model: RelaxationModel,
    *,
    time_limit: float = 30.0,
    seed: int = 0,
    should_stop: Callable[[], bool] | None = None,
    on_bound: Callable[[int], None] | None = None,
) -> list[Window]:
    """Returns the windows that solutions of the linear relaxation violate. They are found in rounds, until a solution violates
    none, time runs out, or :data:`PATIENCE` rounds bring no progress.

    Parameters
    ----------
    time_limit
        Limit in seconds.
    should_stop
        The search ends when it returns True.
    on_bound
        Called with every better bound in ps.
    """
    search = RelaxationSearch(model, Effort(time.monotonic() + time_limit, seed, should_stop=should_stop), on_bound)
    search.linear(patience=PATIENCE)
    return [*search.windows.returned]


class _Labels:
    """Readable names of columns and rows: their meaning, the tensor and the step."""

    def __init__(self, model: RelaxationModel):
        self._model = model
        self._owner = [""] * len(model.cost)
        """[columns] the tensor or the family of rows that each column belongs to; rows are named after it."""
        self.columns = [""] * len(model.cost)
        for number, (sequence, accesses) in enumerate(zip(model.sequences, model.access, strict=True)):
            tensor = f"t{number}.{_plain(model.problem.tensors[number].name)}"
            for access, columns in zip(sequence.accesses, accesses, strict=False):
                for field in fields(AccessColumns):
                    value = getattr(columns, field.name)
                    if isinstance(value, int):
                        self._name(value, f"{field.name}.{tensor}.s{access.step}", tensor)
                if len(columns.fast) == 1:
                    self._name(columns.fast[0], f"fast.{tensor}.s{access.step}", tensor)
            for (write, gap), column in model.out[number].items():
                until = f"s{sequence.accesses[gap].step}" if gap < len(sequence) else "end"
                self._name(column, f"copy_out.{tensor}.s{sequence.accesses[write].step}.{until}", tensor)
        for step, column in model.levels.items():
            self._name(column, f"occupied.s{step}", f"capacity.s{step}")
        for step, new in enumerate(model.latency_columns):
            for place, column in enumerate(new):
                self._name(column, f"latency.s{step}" + (f".{place}" if len(new) > 1 else ""), f"latency.s{step}")
        for boundary, column in enumerate(model.stall):
            self._name(column, f"wait.b{boundary}", "wait")
        for place, column in enumerate(model.clock):
            self._name(column, f"clock.{place}", f"clock.{place}")
        for column, name in enumerate(self.columns):
            if not name:
                self._name(column, f"column.{column}", "column")

    def _name(self, column: int, name: str, owner: str) -> None:
        """Name a column and set its owner, unless it has a name already."""
        if not self.columns[column]:
            self.columns[column], self._owner[column] = name, owner

    def rows(self, rows: Rows, windows: Sequence[Window]) -> list[str]:
        """A name for every row; the rows of the windows come last."""
        owners: list[str] = [""] * len(rows.lower)
        for row, (start, end) in enumerate(pairwise(rows.starts)):
            for column in rows.columns[start:end]:
                owner = self._owner[column]
                # A row of memory, elapsed time or latency is named after that family, not after its tensors; of several steps
                # of the family, the last one counts.
                if _rank(owner) >= _rank(owners[row]):
                    owners[row] = owner
        first = len(owners) - len(windows)
        names = [f"{owner or 'row'}.r{row}" for row, owner in enumerate(owners[:first])]
        return names + [f"window.b{start}.b{end}" for start, end in windows]


def _rank(owner: str) -> int:
    """The priority of an owner for the name of a row; the owner with the highest one gives the name."""
    if not owner:
        return -1
    return ("t", "wait", "latency", "clock", "capacity").index(kind) if (kind := _kind(owner)) else 0


def _kind(owner: str) -> str:
    """The family of rows of an owner; empty for a tensor and for other owners."""
    head = owner.partition(".")[0]
    return head if head in ("wait", "latency", "clock", "capacity") else ""


def _plain(name: str) -> str:
    """A tensor's name without characters that readers of LP files reject, and shortened."""
    return "".join(letter if letter.isascii() and (letter.isalnum() or letter in "._") else "_" for letter in name)[:MAX_NAME]
