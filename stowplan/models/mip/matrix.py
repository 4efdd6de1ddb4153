"""Mixed-integer linear programs (MILPs): how they are built, their form as arrays, results of solvers, and safe bounds.

A program is ``min cost·x + offset`` subject to ``row_lower <= matrix x <= row_upper`` and bounds of the columns. The models of
several kinds of problems build it column by column and row by row (:class:`Program`). Solvers get it as arrays
(:class:`MatrixModel`).

*Safe bounds* (:func:`proven_bound`). For ``min c·x`` subject to ``lower_i <= A_i·x <= upper_i`` and ``l <= x <= u``, any
multipliers ``y`` give the lower bound

    sum_i (y_i·lower_i if y_i > 0 else y_i·upper_i) + sum_j min((c - yA)_j·l_j, (c - yA)_j·u_j)

(Lagrangian duality; Neumaier and Shcherbina, "Safe bounds in linear and mixed-integer linear programming", 2004). The duals of
the solver, which are floating-point numbers, are rounded to multiples of 2**-40, and the sum is computed exactly in integers.
The tolerances of the solver can therefore make the bound weaker, but never wrong.

Shapes of arrays are in brackets. Functions raise no errors except those that they document, provided that arrays have these
shapes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from scipy import sparse

FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]
IntArray = npt.NDArray[np.int64]

#: Tolerance for rows, bounds and integrality that solvers promise by default.
TOLERANCE = 1e-6


@dataclass(frozen=True)
class MatrixModel:
    """A program as arrays, for solvers. Missing limits of rows and columns are ``±inf``.

    Numbers should be near one, since the tolerances of solvers are absolute. The caller has to scale them.
    """

    name: str
    """Name of the model, for files and solvers."""
    cost: FloatArray
    """[columns] coefficients of the objective."""
    lower: FloatArray
    """[columns] lower bounds."""
    upper: FloatArray
    """[columns] upper bounds."""
    is_integer: BoolArray
    """[columns] whether the column must be a whole number."""
    matrix: sparse.csr_matrix
    """[rows, columns] coefficients of the rows."""
    row_lower: FloatArray
    """[rows] lower limits."""
    row_upper: FloatArray
    """[rows] upper limits."""
    offset: float = 0.0
    """Constant of the objective. HiGHS and the solvers of PuLP get the model without it, since it may be large and they print
    only a few digits."""
    column_names: Sequence[str] = ()
    """Unique names of the columns; empty if there are none."""
    row_names: Sequence[str] = ()
    """Unique names of the rows; empty if there are none."""

    @property
    def columns(self) -> int:
        """Number of columns."""
        return len(self.cost)

    @property
    def rows(self) -> int:
        """Number of rows."""
        return len(self.row_lower)

    def relaxed(self) -> MatrixModel:
        """The linear relaxation: the same model without integrality."""
        return replace(self, is_integer=np.zeros(self.columns, dtype=bool))

    def column_name(self, column: int) -> str:
        """Name of a column; ``c0``, ``c1`` and so on if the model has no names."""
        return self.column_names[column] if self.column_names else f"c{column}"

    def row_name(self, row: int) -> str:
        """Name of a row; ``r0``, ``r1`` and so on if the model has no names."""
        return self.row_names[row] if self.row_names else f"r{row}"

    def one_sided(self) -> Iterator[tuple[str, list[tuple[int, float]], str, float]]:
        """The rows as (name, terms, ``=`` or ``>=`` or ``<=``, right-hand side), where terms are (column, coefficient).

        A row with two different finite limits comes twice.
        """
        starts, columns, data = self.matrix.indptr.tolist(), self.matrix.indices.tolist(), self.matrix.data.tolist()
        for row, (low, high) in enumerate(zip(self.row_lower.tolist(), self.row_upper.tolist(), strict=True)):
            name, entries = self.row_name(row), slice(starts[row], starts[row + 1])
            terms = list(zip(columns[entries], data[entries], strict=True))
            if low == high:
                yield name, terms, "=", low
                continue
            if np.isfinite(low):
                yield name, terms, ">=", low
            if np.isfinite(high):
                yield f"{name}_upper" if np.isfinite(low) else name, terms, "<=", high

    def objective(self, values: FloatArray) -> float:
        """Objective of a solution, including the offset."""
        return float(self.cost @ values) + self.offset

    def violation(self, values: FloatArray) -> float:
        """The largest violation of rows, bounds and integrality by a solution ``[columns]``; 0 if there is none.

        The violation of a row is divided by its largest term, and that of a bound by the bound, if these are larger than 1,
        since rounding errors grow with them.
        """
        terms = abs(self.matrix).multiply(np.abs(values)).tocsr() if self.rows else self.matrix
        largest = np.maximum(1.0, terms.max(axis=1).toarray().ravel()) if self.rows and self.columns else np.ones(self.rows)
        activity = self.matrix @ values
        parts = [
            (self.row_lower - activity) / largest,
            (activity - self.row_upper) / largest,
            (self.lower - values) / np.maximum(1.0, np.abs(self.lower)),
            (values - self.upper) / np.maximum(1.0, np.abs(self.upper)),
            np.abs(values - np.rint(values))[self.is_integer],
        ]
        return max([0.0, *(float(part.max()) for part in parts if len(part))])

    def is_feasible(self, values: FloatArray) -> bool:
        """Whether a solution is feasible and integral, within ten times the tolerance."""
        return bool(np.all(np.isfinite(values))) and self.violation(values) <= 10 * TOLERANCE


#: The value that stands for a missing limit of a row. It is larger than any sum of picoseconds or bytes and fits in 64 bits.
INFINITE = 1 << 62


@dataclass
class Rows:
    """Rows ``lower <= sum(coefficient * column) <= upper``, to which more can be added, in whole numbers or floats."""

    starts: list[int] = field(default_factory=lambda: [0])
    """The terms of row ``i`` are those from ``starts[i]`` up to, but not including, ``starts[i + 1]``."""
    columns: list[int] = field(default_factory=list)
    """[terms] column of each term."""
    values: list[Any] = field(default_factory=list)
    """[terms] coefficient of each term."""
    lower: list[Any] = field(default_factory=list)
    """[rows] lower limits; ``-INFINITE`` for none."""
    upper: list[Any] = field(default_factory=list)
    """[rows] upper limits; ``INFINITE`` for none."""

    def add(self, terms: Iterable[tuple[int, float]], lower: float = -INFINITE, upper: float = INFINITE) -> None:
        """Add a row; a column may appear in ``terms`` several times."""
        for column, value in terms:
            self.columns.append(column)
            self.values.append(value)
        self.starts.append(len(self.columns))
        self.lower.append(lower)
        self.upper.append(upper)

    def entries(self, columns: int, dtype: type = np.int64) -> sparse.csr_matrix:
        """Coefficients of shape ``[rows, columns]``, in the order in which they were added; duplicates are not summed."""
        values: npt.NDArray[Any] = np.array(self.values, dtype)
        places = np.array(self.columns, np.int64), np.array(self.starts, np.int64)
        return sparse.csr_matrix((values, *places), shape=(len(self.lower), columns))

    def matrix(self, columns: int, dtype: type = np.int64) -> sparse.csr_matrix:
        """Coefficients of shape ``[rows, columns]``, with duplicates summed and without zeros."""
        matrix = self.entries(columns, dtype)
        matrix.sum_duplicates()
        matrix.eliminate_zeros()
        return matrix


class Program:
    """A program that is built column by column and row by row.

    Attributes
    ----------
    lower, upper, cost : list, one for each column
        Bounds and objective coefficients of the columns.
    is_integer : list of bool
        Whether each column must be a whole number.
    names : list of str
        Names of the columns; a column without a name has the empty text.
    rows : Rows
        The rows.
    """

    def __init__(self) -> None:
        self.lower: list[Any] = []
        self.upper: list[Any] = []
        self.cost: list[Any] = []
        self.is_integer: list[bool] = []
        self.names: list[str] = []
        self.rows = Rows()

    def column(self, upper: float = 1, *, lower: float = 0, cost: float = 0, integer: bool = True, name: str = "") -> int:
        """Add a column; returns its number."""
        self.lower.append(lower)
        self.upper.append(upper)
        self.cost.append(cost)
        self.is_integer.append(integer)
        self.names.append(name)
        return len(self.cost) - 1

    def add_row(self, terms: Iterable[tuple[int, float]], lower: float = -INFINITE, upper: float = INFINITE) -> None:
        """Add a row; a column may appear in ``terms`` several times."""
        self.rows.add(terms, lower, upper)

    def model(self, name: str, offset: float = 0.0) -> MatrixModel:
        """The program as arrays, without scaling; its numbers should be near one.

        The columns have names if all columns of the program have one.
        """
        arrays = self._arrays(name, self.rows.matrix(len(self.cost), np.float64))
        return replace(arrays, offset=offset, column_names=self.names if all(self.names) else ())

    def scaled(self, name: str, scale: FloatArray, unit: float) -> tuple[MatrixModel, FloatArray]:
        """The program as scaled arrays, and the factors of the rows.

        Columns are divided by ``scale``, of shape ``[columns]``, and the objective by ``unit``. Rows are multiplied by powers
        of two (:func:`row_scales`). The arrays have neither names of columns nor an offset. Returns the arrays, and the factors
        with shape ``[rows]``.
        """
        matrix = self.rows.entries(len(self.cost), np.float64) @ sparse.diags(scale)
        row_scale = row_scales(matrix)
        return self._arrays(name, sparse.csr_matrix(sparse.diags(row_scale) @ matrix), scale, unit, row_scale), row_scale

    def _arrays(
        self,
        name: str,
        matrix: sparse.csr_matrix,
        scale: FloatArray | float = 1.0,
        unit: float = 1.0,
        row_scale: FloatArray | float = 1.0,
    ) -> MatrixModel:
        return MatrixModel(
            name=name,
            cost=np.array(self.cost, np.float64) * scale / unit,
            lower=np.array(self.lower, np.float64) / scale,
            upper=np.array(self.upper, np.float64) / scale,
            is_integer=np.array(self.is_integer, bool),
            matrix=matrix,
            row_lower=sides(self.rows.lower, row_scale),
            row_upper=sides(self.rows.upper, row_scale),
        )

    def dual_bound(self, duals: FloatArray, limits: Mapping[int, tuple[int, int]] | None = None) -> int:
        """The bound that row duals ``[rows]`` prove for a program in whole numbers without scaling (:func:`proven_bound`).

        ``limits`` are (lower, upper) bounds by column, which replace those of the program.
        """
        row_lower, row_upper, lower, upper, cost = (
            np.array(numbers, np.int64) for numbers in (self.rows.lower, self.rows.upper, self.lower, self.upper, self.cost)
        )
        for column, (least, most) in (limits or {}).items():
            lower[column], upper[column] = least, most
        return proven_bound(self.rows.entries(len(self.cost)), row_lower, row_upper, lower, upper, cost, duals)


def sides(limits: Sequence[float] | IntArray, scale: FloatArray | float = 1.0) -> FloatArray:
    """The limits of rows, multiplied by a scale; ``±inf`` for missing limits."""
    values = np.array(limits, np.float64)
    return np.where(np.abs(values) >= INFINITE, np.copysign(np.inf, values), values * scale)


def row_scales(matrix: sparse.csr_matrix) -> FloatArray:
    """[rows] the reciprocal of the largest absolute coefficient of each row, rounded to a power of two; 1 for an empty row."""
    largest = abs(matrix).max(axis=1).toarray().ravel() if all(matrix.shape) else np.zeros(matrix.shape[0])
    return np.exp2(-np.rint(np.log2(np.where(largest > 0, largest, 1.0))))


#: Duals are rounded to multiples of ``2 ** -PRECISION``.
PRECISION = 40


def proven_bound(
    matrix: sparse.csr_matrix,
    row_lower: IntArray,
    row_upper: IntArray,
    lower: IntArray,
    upper: IntArray,
    cost: IntArray,
    duals: FloatArray,
) -> int:
    """Lower bound on an objective that is a whole number, from row duals; see the docstring of this module.

    Parameters
    ----------
    matrix
        Coefficients ``[rows, columns]``.
    row_lower, row_upper
        Limits of the rows, ``[rows]``.
    lower, upper
        Bounds of the columns, ``[columns]``; they must be finite.
    cost
        Objective, ``[columns]``.
    duals
        Row duals in the units of the objective, ``[rows]``; positive if the lower limit of the row binds.
    """
    unit = 1 << PRECISION
    usable = np.isfinite(duals) & ((duals <= 0) | (row_lower > -INFINITE)) & ((duals >= 0) | (row_upper < INFINITE))
    active = np.flatnonzero(usable & (duals != 0))
    multipliers = [round(value) for value in (duals[active] * float(unit)).tolist()]
    sides = np.where(duals > 0, row_lower, row_upper)[active].tolist()
    total: int = sum(y * side for y, side in zip(multipliers, sides, strict=True))
    reduced = _reduced_costs(matrix[active], cost, multipliers, unit)
    for value, low, high in zip(reduced, lower.tolist(), upper.tolist(), strict=True):
        total += value * (low if value > 0 else high)
    # The objective is a whole number, so the bound can be rounded up.
    return -(-total // unit)


def _reduced_costs(matrix: sparse.csr_matrix, cost: IntArray, multipliers: list[int], unit: int) -> list[int]:
    """``unit * cost - multipliers @ matrix``, computed in Python integers."""
    by_column = matrix.tocsc()
    products = by_column.data.astype(object) * np.array(multipliers, dtype=object)[by_column.indices]
    result = [unit * value for value in cost.tolist()]
    filled = np.flatnonzero(np.diff(by_column.indptr))
    if len(filled):
        sums = np.add.reduceat(products, by_column.indptr[filled])
        for column, value in zip(filled.tolist(), sums, strict=True):
            result[column] -= value
    return result


#: ``unbounded``: there are solutions with arbitrarily small objectives. The other values are those of
#: :data:`stowplan.models.outcome.Status`.
Status = Literal["optimal", "feasible", "infeasible", "unbounded", "unknown"]

#: Solvers that run in this process.
IN_PROCESS = ("gscip", "highs")


@dataclass(frozen=True)
class Options:
    """The options of a solve; see the parameters of :func:`stowplan.models.mip.solve.solve`."""

    time_limit: float = 30.0
    seed: int = 0
    start: FloatArray | None = None
    node_limit: int | None = None
    on_bound: Callable[[float], None] | None = None
    should_stop: Callable[[], bool] | None = None


@dataclass(frozen=True)
class Outcome:
    """The result of a solver. Objective and bound include the offset of the model."""

    status: Status
    """``optimal`` and ``infeasible`` are proven by the solver. If time runs out, the status is ``feasible`` or ``unknown``."""
    objective: float | None
    """Objective of the best solution; None if there is none."""
    bound: float | None
    """Lower bound that the solver claims, in floating-point arithmetic (see :func:`proven`); None if it reports none."""
    values: FloatArray | None = None
    """The best solution ``[columns]``, which satisfies the model within tolerances; None if there is none."""


def lowered(bound: float, spread: float, tolerance: float = TOLERANCE) -> float:
    """A solver's bound minus a margin for its tolerances. The same rule is used for all MILP solvers.

    Branch and bound in floating-point arithmetic leaves no certificate that could be checked. Solvers accept rows and integers
    that are violated by up to their tolerance, and prune nodes that are better by about as much. The margin is the tolerance
    times the range of the objective, plus, for rounding errors, a thousandth of the tolerance times the bound. Observed errors
    are much smaller if the numbers of the model are near one.

    Parameters
    ----------
    bound
        The bound that the solver claims.
    spread
        Range of the objective, from good to bad solutions, in the units of ``bound``.
    tolerance
        Tolerance of the solver for rows and integers.
    """
    return bound - tolerance * max(1.0, spread) - 1e-3 * tolerance * abs(bound)


def proven(bound: float, spread: float, *, unit: float = 1.0, tolerance: float = TOLERANCE) -> int:
    """The bound that a solver's ``bound`` proves on an objective that is a whole number in every plan.

    ``bound`` and ``spread`` are those of :func:`lowered`, whose margin is subtracted. The result is multiplied by ``unit``, the
    size of a unit of ``bound`` in units of the objective, and then rounded up, since the objective is a whole number. ``bound``
    must be finite; otherwise ValueError or OverflowError is raised.
    """
    return math.ceil(lowered(bound, spread, tolerance) * unit)


def rounded_down(text: str) -> float:
    """The value of a printed number minus one unit of its last digit, since it may have been rounded up.

    Raises ValueError if the text is not a number.
    """
    mantissa, _, exponent = text.lower().partition("e")
    digits = len(mantissa.partition(".")[2])
    value = float(text) - 10.0 ** (int(exponent or 0) - digits)
    return math.nextafter(value, -math.inf)
