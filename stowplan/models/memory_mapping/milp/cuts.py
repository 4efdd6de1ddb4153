"""Mixed-integer rounding of the rows of a relaxation, in whole numbers: cuts that hold for every plan, whatever a solver errs.

The formula is lemma B4 of ``docs/reference/memory-mapping-models.md`` (Marchand and Wolsey, "Aggregation and mixed integer
rounding to solve MIPs", 2001). Before it, columns x near one are replaced by ``1 - x``, and columns s by their distance from a
bound.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
from scipy import sparse

from stowplan.models.memory_mapping.milp.model import Rows
from stowplan.models.mip.matrix import INFINITE

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

#: A row with more slack than this part of its largest term is left alone.
MOST_SLACK = 0.25

#: Divisors tried on a row: coefficients of the most fractional columns, and parts of them.
COEFFICIENTS = 6
PARTS = (1, 2, 3, 4)

#: A cut is violated by at least this part of its norm.
LEAST_VIOLATION = 1e-3

#: Largest number in a cut: sums of products with values must not lose digits.
LARGEST = 1 << 50


class RoundingCuts:
    """Finds violated cuts of one relaxation.

    Parameters
    ----------
    lower, upper, is_integer : shape ``[columns]``
        Integer columns are 0/1 in every plan.
    """

    def __init__(self, lower: IntArray, upper: IntArray, is_integer: npt.NDArray[np.bool_]):
        self._lower = lower
        self._upper = upper
        self._is_binary = is_integer & (lower == 0) & (upper == 1)
        self._found: set[tuple[bytes, bytes]] = set()

    def find(
        self,
        matrix: sparse.csr_matrix,
        row_lower: IntArray,
        row_upper: IntArray,
        values: FloatArray,
        limit: int,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> Rows:
        """The most violated cuts from rows of a matrix, at most ``limit``, none found before."""
        activity = matrix @ values
        fractional = self._is_binary & (values > 1e-5) & (values < 1 - 1e-5)
        candidates: list[tuple[float, IntArray, IntArray, int]] = []
        for row in np.flatnonzero(abs(matrix) @ fractional.astype(np.int64)).tolist():
            if should_stop():
                break
            entries = slice(matrix.indptr[row], matrix.indptr[row + 1])
            columns, coefficients = matrix.indices[entries].astype(np.int64), matrix.data[entries]
            for sign, side in ((1, int(row_upper[row])), (-1, -int(row_lower[row]))):
                slack = side - sign * activity[row]
                if side < INFINITE and slack <= MOST_SLACK * abs(coefficients).max():
                    best = self._round(columns, sign * coefficients, side, values[columns])
                    if best is not None:
                        candidates.append(best)
        candidates.sort(key=lambda each: -each[0])
        rows = Rows()
        for _, columns, coefficients, side in candidates[:limit]:
            key = columns.tobytes(), coefficients.tobytes()
            if key not in self._found:
                self._found.add(key)
                rows.add(list(zip(columns.tolist(), coefficients.tolist(), strict=True)), upper=side)
        return rows

    def _round(
        self, columns: IntArray, coefficients: IntArray, side: int, values: FloatArray
    ) -> tuple[float, IntArray, IntArray, int] | None:
        """The most violated cut of one row ``<= side``: violation, columns, coefficients and its own side."""
        binary = self._is_binary[columns]
        # Distance of continuous columns from the nearer bound; of binary ones above one half likewise.
        low, high = self._lower[columns], self._upper[columns]
        flipped = (values - low) > (high - values)
        shift = int(sum((coefficients * np.where(flipped, high, low)).astype(object)))
        turned = np.where(flipped, -coefficients, coefficients)
        rest = side - shift
        moved = np.where(flipped, high - values, values - low)
        a, c = turned[binary], np.minimum(turned[~binary], 0)
        x, s = moved[binary], moved[~binary]
        best: tuple[float, int] | None = None
        for divisor in self._divisors(a, x):
            factor = divisor - rest % divisor
            g = _rounded(a, divisor, rest % divisor)
            norm = float(np.sqrt(np.square(g, dtype=np.float64).sum() + np.square(c, dtype=np.float64).sum()))
            excess = float(g @ x + c @ s) - float(factor * (rest // divisor))
            if norm > 0 and excess > LEAST_VIOLATION * norm and (best is None or excess / norm > best[0]):
                best = excess / norm, divisor
        if best is None:
            return None
        divisor = best[1]
        own = np.zeros_like(turned)
        own[binary], own[~binary] = _rounded(a, divisor, rest % divisor), c
        own_side = (divisor - rest % divisor) * (rest // divisor)
        # Back to the columns themselves.
        final = np.where(flipped, -own, own)
        own_side += int(sum((final * np.where(flipped, high, low)).astype(object)))
        kept = final != 0
        if not kept.any() or abs(final).max() > LARGEST or abs(own_side) > LARGEST:
            return None
        return best[0], columns[kept], final[kept], own_side

    def _divisors(self, a: IntArray, x: FloatArray) -> list[int]:
        open_places = np.flatnonzero((x > 1e-5) & (a != 0))
        order = open_places[np.argsort(-np.minimum(x, 1 - x)[open_places], kind="stable")]
        sizes = list(dict.fromkeys(abs(a[order]).tolist()))[:COEFFICIENTS]
        return sorted({size // part for size in sizes for part in PARTS} - {0})


def _rounded(a: IntArray, divisor: int, rest: int) -> IntArray:
    result: IntArray = (divisor - rest) * (a // divisor) + np.maximum(0, a % divisor - rest)
    return result
