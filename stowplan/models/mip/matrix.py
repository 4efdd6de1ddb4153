"""A mixed-integer linear program as arrays, and a proven bound from a solver's duals, however rough they are.

The program is ``min cost·x + offset`` over ``row_lower <= matrix x <= row_upper`` and boxes.

For ``min c·x`` over ``lower_i <= A_i·x <= upper_i`` and boxes ``l <= x <= u``, any multipliers ``y`` give the bound

    sum_i (y_i·lower_i if y_i > 0 else y_i·upper_i) + sum_j min((c - yA)_j·l_j, (c - yA)_j·u_j)

(Lagrangian duality; Neumaier and Shcherbina, "Safe bounds in linear and mixed-integer linear programming", 2004). The solver's
floating-point duals are rounded to multiples of 2**-40 and the sum is done in integers, without any rounding: the solver's
tolerances can make the bound weaker, never wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from scipy import sparse

FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]

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

    @property
    def is_pure(self) -> bool:
        """All columns and all coefficients are integers: what solvers on whole numbers solve exactly."""
        return bool(self.is_integer.all()) and bool(np.all(self.matrix.data == np.rint(self.matrix.data)))

    def relaxed(self) -> MatrixModel:
        """The linear relaxation: the same without integrality."""
        return replace(self, is_integer=np.zeros(self.columns, dtype=bool))

    def column_name(self, column: int) -> str:
        """Name of a column; ``c0``, ``c1`` … where the model has none."""
        return self.column_names[column] if self.column_names else f"c{column}"

    def row_name(self, row: int) -> str:
        """Name of a row; ``r0``, ``r1`` … where the model has none."""
        return self.row_names[row] if self.row_names else f"r{row}"

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

    def is_feasible(self, values: FloatArray, tolerance: float = 10 * TOLERANCE) -> bool:
        """Whether a point is feasible and integral, within a tolerance."""
        return bool(np.all(np.isfinite(values))) and self.violation(values) <= tolerance


#: Bound of a row that has none on this side: far beyond any sum of picoseconds or bytes, and safe in 64 bits.
INFINITE = 1 << 62

#: Duals are rounded to multiples of ``2 ** -PRECISION``.
PRECISION = 40

IntArray = npt.NDArray[np.int64]


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
