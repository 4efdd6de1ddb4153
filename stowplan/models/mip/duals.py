"""A proven bound from a solver's duals, however rough they are.

For ``min c·x`` over ``lower_i <= A_i·x <= upper_i`` and boxes ``l <= x <= u``, any multipliers ``y`` give the bound

    sum_i (y_i·lower_i if y_i > 0 else y_i·upper_i) + sum_j min((c - yA)_j·l_j, (c - yA)_j·u_j)

(Lagrangian duality; Neumaier and Shcherbina, "Safe bounds in linear and mixed-integer linear programming", 2004). The solver's
floating-point duals are rounded to multiples of 2**-40 and the sum is done in integers, without any rounding: the solver's
tolerances can make the bound weaker, never wrong.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from scipy import sparse

#: Bound of a row that has none on this side: far beyond any sum of picoseconds or bytes, and safe in 64 bits.
INFINITE = 1 << 62

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
