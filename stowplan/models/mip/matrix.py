"""A mixed-integer linear program, as it is written and as arrays; what solvers find, and what that proves, however rough it is.

The program is ``min cost·x + offset`` over ``row_lower <= matrix x <= row_upper`` and boxes. Kinds write it column by column
and row by row (:class:`Program`); solvers take the arrays (:class:`MatrixModel`).

For ``min c·x`` over ``lower_i <= A_i·x <= upper_i`` and boxes ``l <= x <= u``, any multipliers ``y`` give the bound

    sum_i (y_i·lower_i if y_i > 0 else y_i·upper_i) + sum_j min((c - yA)_j·l_j, (c - yA)_j·u_j)

(Lagrangian duality; Neumaier and Shcherbina, "Safe bounds in linear and mixed-integer linear programming", 2004). The solver's
floating-point duals are rounded to multiples of 2**-40 and the sum is done in integers, without any rounding: the solver's
tolerances can make the bound weaker, never wrong.
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

#: A point satisfies a row or a box, and is integral, up to this much: what solvers promise by default.
TOLERANCE = 1e-6


@dataclass(frozen=True)
class MatrixModel:
    """A program in ``columns`` variables and ``rows`` constraints; infinite sides are ``±inf``.

    Numbers should be near one (solvers' tolerances are absolute): scale before, not here.
    """

    name: str
    cost: FloatArray
    """Shape ``[columns]``, as are the three below."""
    lower: FloatArray
    upper: FloatArray
    is_integer: BoolArray
    matrix: sparse.csr_matrix
    """Shape ``[rows, columns]``, duplicates summed."""
    row_lower: FloatArray
    """Shape ``[rows]``, as is the next."""
    row_upper: FloatArray
    offset: float = 0.0
    """Constant of the objective. Solvers are given the model without it: it is large, and their printed digits are few."""
    column_names: Sequence[str] = ()
    """Unique names of the columns, or none."""
    row_names: Sequence[str] = ()

    @property
    def columns(self) -> int:
        """Number of columns."""
        return len(self.cost)

    @property
    def rows(self) -> int:
        """Number of rows."""
        return len(self.row_lower)

    def relaxed(self) -> MatrixModel:
        """The linear relaxation: the same without integrality."""
        return replace(self, is_integer=np.zeros(self.columns, dtype=bool))

    def column_name(self, column: int) -> str:
        """Name of a column; ``c0``, ``c1`` … where the model has none."""
        return self.column_names[column] if self.column_names else f"c{column}"

    def row_name(self, row: int) -> str:
        """Name of a row; ``r0``, ``r1`` … where the model has none."""
        return self.row_names[row] if self.row_names else f"r{row}"

    def one_sided(self) -> Iterator[tuple[str, list[tuple[int, float]], str, float]]:
        """Rows as (name, terms, ``=`` or ``>=`` or ``<=``, side); a row with two sides comes twice."""
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
        """Objective of a point, offset included."""
        return float(self.cost @ values) + self.offset

    def violation(self, values: FloatArray) -> float:
        """How far a point ``[columns]`` is from feasible and integral: 0 where it is both.

        A row may miss its sides by the tolerance for every one of its largest terms, as rounding of large terms does.
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
        """Whether a point is feasible and integral, within ten times the tolerance."""
        return bool(np.all(np.isfinite(values))) and self.violation(values) <= 10 * TOLERANCE


#: Bound of a row that has none on this side: far beyond any sum of picoseconds or bytes, and safe in 64 bits.
INFINITE = 1 << 62


@dataclass
class Rows:
    """Rows as they are written: ``lower <= sum(coefficient * column) <= upper``, in whole numbers or not."""

    starts: list[int] = field(default_factory=lambda: [0])
    """Terms of row ``i`` are those from ``starts[i]`` to ``starts[i + 1]``."""
    columns: list[int] = field(default_factory=list)
    values: list[Any] = field(default_factory=list)
    lower: list[Any] = field(default_factory=list)
    upper: list[Any] = field(default_factory=list)

    def add(self, terms: Iterable[tuple[int, float]], lower: float = -INFINITE, upper: float = INFINITE) -> None:
        """Add a row; a column may appear in ``terms`` several times."""
        for column, value in terms:
            self.columns.append(column)
            self.values.append(value)
        self.starts.append(len(self.columns))
        self.lower.append(lower)
        self.upper.append(upper)

    def entries(self, columns: int, dtype: type = np.int64) -> sparse.csr_matrix:
        """Coefficients of shape ``[rows, columns]``, each where it was written."""
        values: npt.NDArray[Any] = np.array(self.values, dtype)
        places = np.array(self.columns, np.int64), np.array(self.starts, np.int64)
        return sparse.csr_matrix((values, *places), shape=(len(self.lower), columns))

    def matrix(self, columns: int, dtype: type = np.int64) -> sparse.csr_matrix:
        """The same with duplicates summed, and without zeros."""
        matrix = self.entries(columns, dtype)
        matrix.sum_duplicates()
        matrix.eliminate_zeros()
        return matrix


class Program:
    """Columns and rows as they are written.

    Attributes
    ----------
    lower, upper, cost : list, one for each column
    is_integer : list of bool
    names : list of str
        Of the columns; "" where they have none.
    """

    def __init__(self) -> None:
        self.lower: list[Any] = []
        self.upper: list[Any] = []
        self.cost: list[Any] = []
        self.is_integer: list[bool] = []
        self.names: list[str] = []
        self.rows = Rows()

    def column(self, upper: float = 1, *, lower: float = 0, cost: float = 0, integer: bool = True, name: str = "") -> int:
        """Add a column; its number."""
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
        """The program as arrays, in its own numbers, which are near one."""
        made = self._arrays(name, self.rows.matrix(len(self.cost), np.float64))
        return replace(made, offset=offset, column_names=self.names if all(self.names) else ())

    def scaled(self, name: str, scale: FloatArray, unit: float) -> tuple[MatrixModel, FloatArray]:
        """The program with columns divided by ``scale``, the objective by ``unit``, rows by powers of two; the rows' scale."""
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
        """What :func:`proven_bound` says of row duals of a program in whole numbers; ``limits`` in place of columns' bounds."""
        row_lower, row_upper, lower, upper, cost = (
            np.array(numbers, np.int64) for numbers in (self.rows.lower, self.rows.upper, self.lower, self.upper, self.cost)
        )
        for column, (least, most) in (limits or {}).items():
            lower[column], upper[column] = least, most
        return proven_bound(self.rows.entries(len(self.cost)), row_lower, row_upper, lower, upper, cost, duals)


def sides(given: Sequence[float] | IntArray, scale: FloatArray | float = 1.0) -> FloatArray:
    """Sides of rows times a scale, infinite where there is none."""
    values = np.array(given, np.float64)
    return np.where(np.abs(values) >= INFINITE, np.copysign(np.inf, values), values * scale)


def row_scales(matrix: sparse.csr_matrix) -> FloatArray:
    """For each row the reciprocal of its largest coefficient, as a power of two."""
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
    """Lower bound of the integer-valued objective, from row duals in its units (positive where the row's lower side binds).

    Parameters are those of the problem in the module's text: ``matrix`` of shape ``[rows, columns]``, ``row_lower``,
    ``row_upper`` and ``duals`` of ``[rows]``, ``lower``, ``upper`` and ``cost`` of ``[columns]``. Columns have finite bounds.
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
    # The objective is an integer, so the bound may be rounded up.
    return -(-total // unit)


def _reduced_costs(matrix: sparse.csr_matrix, cost: IntArray, multipliers: list[int], unit: int) -> list[int]:
    """``unit * cost - multipliers @ matrix`` in integers of any size."""
    by_column = matrix.tocsc()
    products = by_column.data.astype(object) * np.array(multipliers, dtype=object)[by_column.indices]
    result = [unit * value for value in cost.tolist()]
    filled = np.flatnonzero(np.diff(by_column.indptr))
    if len(filled):
        sums = np.add.reduceat(products, by_column.indptr[filled])
        for column, value in zip(filled.tolist(), sums, strict=True):
            result[column] -= value
    return result


Status = Literal["optimal", "feasible", "infeasible", "unbounded", "unknown"]

#: Solvers that run in this process.
IN_PROCESS = ("gscip", "highs")


@dataclass(frozen=True)
class Options:
    """How to solve: the parameters of :func:`stowplan.models.mip.solve.solve`, which says what they mean."""

    time_limit: float = 30.0
    seed: int = 0
    start: FloatArray | None = None
    node_limit: int | None = None
    on_bound: Callable[[float], None] | None = None
    should_stop: Callable[[], bool] | None = None


@dataclass(frozen=True)
class Outcome:
    """What a solver found, and what it proved. Smaller objectives are better; offsets of the model are included."""

    status: Status
    """``optimal`` and ``infeasible`` only where the solver proved it; running out of time is neither."""
    objective: float | None
    """Of the best point found; None where there is none."""
    bound: float | None
    """Proven by the solver, in floating-point arithmetic: see :func:`proven`. None where it proved none or says none."""
    values: FloatArray | None = None
    """Best point found, shape ``[columns]``, checked against the model; None where there is none."""


def lowered(bound: float, spread: float, tolerance: float = TOLERANCE) -> float:
    """A bound less what a solver's tolerances may amount to: the one rule for all solvers of MILPs.

    Branch and bound in floating point leaves no certificate to check. Solvers take rows for satisfied that miss by their
    tolerance, values for integers that miss by it, and prune nodes that are better by it or so. The tolerance is taken off as
    a part of the objective's whole range. For rounding, a thousandth of it is taken off as a part of the bound itself: far
    more than was ever seen in models scaled to numbers near one.

    Parameters
    ----------
    bound
        As the solver claims it.
    spread
        How far apart the objectives of good and bad points lie, in the units of ``bound``.
    tolerance
        By how much the solver was allowed to miss rows and integers.
    """
    return bound - tolerance * max(1.0, spread) - 1e-3 * tolerance * abs(bound)


def proven(bound: float, spread: float, *, unit: float = 1.0, tolerance: float = TOLERANCE) -> int:
    """The whole number that a claimed bound proves for an objective that is a whole number in every plan.

    :func:`lowered`, in ``unit`` times the units of ``bound``, and rounded up: no whole number lies between.
    """
    return math.ceil(lowered(bound, spread, tolerance) * unit)


def rounded_down(text: str) -> float:
    """Value of a printed number, less one unit of its last digit."""
    mantissa, _, exponent = text.lower().partition("e")
    digits = len(mantissa.partition(".")[2])
    value = float(text) - 10.0 ** (int(exponent or 0) - digits)
    return math.nextafter(value, -math.inf)
