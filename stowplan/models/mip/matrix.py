"""A mixed-integer linear program as arrays: ``min cost·x + offset`` over ``row_lower <= matrix x <= row_upper`` and boxes."""

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
