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

from stowplan.models.memory_mapping.milp_latency import INFINITE

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

    Parameters are those of the problem in the module's text, of shapes ``[rows, columns]``, ``[rows]``, ``[rows]``, ``[columns]``,
    ``[columns]``, ``[columns]``, ``[rows]``. All columns have finite bounds.
    """
    unit = 1 << PRECISION
    # Duals beyond 2**62 / unit would not be meant; they are clipped, which is as valid as any other choice.
    scaled = np.nan_to_num(duals * float(unit), nan=0.0, posinf=0.0, neginf=0.0).clip(-(2.0**62), 2.0**62)
    multipliers = np.rint(scaled).astype(np.int64)
    multipliers[(multipliers > 0) & (row_lower <= -INFINITE)] = 0
    multipliers[(multipliers < 0) & (row_upper >= INFINITE)] = 0
    sides = np.where(multipliers > 0, row_lower, row_upper)
    active = np.flatnonzero(multipliers)
    total = sum(y * side for y, side in zip(multipliers[active].tolist(), sides[active].tolist(), strict=True))
    reduced = _reduced_costs(matrix[active], cost, multipliers[active], unit)
    for value, low, high in zip(reduced, lower.tolist(), upper.tolist(), strict=True):
        total += value * (low if value > 0 else high)
    # The objective is an integer, so the bound may be rounded up.
    return -(-total // unit)


def _reduced_costs(matrix: sparse.csr_matrix, cost: IntArray, multipliers: IntArray, unit: int) -> list[int]:
    """``unit * cost - multipliers @ matrix`` in integers of any size."""
    by_column = matrix.tocsc()
    products = by_column.data.astype(object) * multipliers[by_column.indices].astype(object)
    result = [unit * value for value in cost.tolist()]
    filled = np.flatnonzero(np.diff(by_column.indptr))
    if len(filled):
        sums = np.add.reduceat(products, by_column.indptr[filled])
        for column, value in zip(filled.tolist(), sums, strict=True):
            result[column] -= value
    return result
