"""A proven bound from a solver's duals, however rough they are.

For ``min c·x`` over ``lower_i <= A_i·x <= upper_i`` and boxes ``l <= x <= u``, any multipliers ``y`` give the bound

    sum_i (y_i·lower_i if y_i > 0 else y_i·upper_i) + sum_j min((c - yA)_j·l_j, (c - yA)_j·u_j)

(Lagrangian duality; Neumaier and Shcherbina, "Safe bounds in linear and mixed-integer linear programming", 2004). The solver's
floating-point duals are rounded to multiples of 2**-40 and the sum is done in integers, without any rounding: the solver's
tolerances can make the bound weaker, never wrong.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
from scipy import sparse

from stowplan.models.memory_mapping.latency import INFINITE

#: Duals are rounded to multiples of ``2 ** -PRECISION``.
PRECISION = 40

FloatArray = npt.NDArray[np.float64]
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


#: Unit roundoff of double precision, and the largest integer up to which all are doubles.
ROUNDOFF = 2.0**-53
EXACT = 1 << 53


class RoundedBound:
    """The same bound in floating point, less all that rounding may have done: for the many nodes of a branch and bound.

    The errors are bounded by the usual ``n * u * sum(|terms|)`` of sums in any order (Higham, "Accuracy and Stability of
    Numerical Algorithms", section 4.2), doubled.

    Parameters
    ----------
    matrix, row_lower, row_upper, cost
        As in :func:`proven_bound`; boxes and duals differ from node to node.
    """

    def __init__(self, matrix: sparse.csr_matrix, row_lower: IntArray, row_upper: IntArray, cost: IntArray):
        finite = [side[abs(side) < INFINITE] for side in (row_lower, row_upper)]
        self.is_exact = all(not len(part) or int(abs(part).max()) < EXACT for part in (matrix.data, cost, *finite))
        """Whether all numbers are doubles; without, there is no bound."""
        self._columns = sparse.csr_matrix(matrix.T.astype(np.float64))
        self._sizes = abs(self._columns)
        self._row_lower = row_lower
        self._row_upper = row_upper
        self._cost = cost.astype(np.float64)
        self._terms = 4 + (int(np.diff(self._columns.indptr).max()) if matrix.nnz else 0)

    def bound(self, lower: FloatArray, upper: FloatArray, duals: FloatArray) -> int | None:
        """Lower bound over a box, from row duals; None where doubles do not do. Shapes ``[columns]`` and ``[rows]``."""
        usable = (
            np.isfinite(duals) & ((duals <= 0) | (self._row_lower > -INFINITE)) & ((duals >= 0) | (self._row_upper < INFINITE))
        )
        duals = np.where(usable, duals, 0.0)
        sides = np.where(duals > 0, self._row_lower, np.where(duals < 0, self._row_upper, 0)) * duals
        reduced = self._cost - self._columns @ duals
        doubt = self._terms * ROUNDOFF * (abs(self._cost) + self._sizes @ abs(duals))
        parts = np.minimum(reduced * lower, reduced * upper)
        doubts = float(doubt @ np.maximum(abs(lower), abs(upper)))
        doubts += (len(sides) + len(parts) + 4) * ROUNDOFF * float(abs(sides).sum() + abs(parts).sum())
        total = float(sides.sum() + parts.sum()) - 2.0 * doubts
        return math.ceil(total) if self.is_exact and math.isfinite(total) else None
