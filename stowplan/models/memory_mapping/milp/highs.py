"""HiGHS on a scaled copy of a relaxation: picoseconds and bytes become numbers near one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import highspy
import numpy as np
import numpy.typing as npt
from scipy import sparse

from stowplan.models.memory_mapping.milp.cuts import RoundingCuts
from stowplan.models.memory_mapping.milp.model import RelaxationModel, Rows
from stowplan.models.mip.matrix import INFINITE, proven_bound
from stowplan.models.mip.outcome import proven
from stowplan.models.mip.with_highs import TIGHT, one_thread, tighten

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

#: The objective's range is scaled to this, so that HiGHS's tolerances (1e-7, and 1e-9 with integers) are tiny parts of it.
OBJECTIVE_RANGE = 1e4

#: Moments of time are scaled to this range.
TIME_RANGE = 1e3


class ScaledHighs:
    """A relaxation in HiGHS. Rows may be added; values, duals and bounds are in the model's own units.

    Parameters
    ----------
    model
        Columns and first rows.
    seed
        Random seed of HiGHS, which runs on one thread and so repeats itself.
    should_stop
        Asked now and then while HiGHS runs.
    """

    def __init__(self, model: RelaxationModel, seed: int, should_stop: Callable[[], bool] | None = None):
        self._model = model
        self._lower = np.array(model.lower, dtype=np.int64)
        self._upper = np.array(model.upper, dtype=np.int64)
        self._cost = np.array(model.cost, dtype=np.int64)
        self._matrix = model.rows.matrix(len(self._cost))
        self._row_lower = np.array(model.rows.lower, dtype=np.int64)
        self._row_upper = np.array(model.rows.upper, dtype=np.int64)
        problem = model.problem
        gain = max(1, problem.all_slow_ps - model.floor_until[-1])
        self._objective_scale = OBJECTIVE_RANGE / gain
        self._scale = np.maximum(1, self._upper - self._lower).astype(np.float64)
        self._scale[np.array(model.stall + model.clock, dtype=np.int64)] = max(1.0, gain / TIME_RANGE)
        self._row_scale = self._scales(self._matrix)
        self._highs = one_thread(seed)
        if should_stop is not None:
            self._interrupt_when(should_stop)
        self._pass_model()

    def set_option(self, name: str, value: Any) -> None:
        """Set an option of HiGHS."""
        self._highs.setOptionValue(name, value)

    def _interrupt_when(self, should_stop: Callable[[], bool]) -> None:
        def ask(event: Any) -> None:
            if should_stop():
                event.interrupt()

        self._highs.cbSimplexInterrupt += ask
        self._highs.cbIpmInterrupt += ask
        self._highs.cbMipInterrupt += ask

    def _scales(self, matrix: sparse.csr_matrix) -> FloatArray:
        """For each row the reciprocal of its largest scaled coefficient, as a power of two."""
        scaled = abs(matrix).astype(np.float64).multiply(self._scale).tocsr()
        largest = scaled.max(axis=1).toarray().ravel() if all(matrix.shape) else np.zeros(matrix.shape[0])
        return np.exp2(-np.rint(np.log2(np.where(largest > 0, largest, 1.0))))

    def _scaled_rows(
        self, matrix: sparse.csr_matrix, lower: IntArray, upper: IntArray, scale: FloatArray
    ) -> tuple[sparse.csr_matrix, FloatArray, FloatArray]:
        scaled = sparse.diags(scale) @ matrix.astype(np.float64) @ sparse.diags(self._scale)
        low = np.where(lower <= -INFINITE, -np.inf, lower * scale)
        high = np.where(upper >= INFINITE, np.inf, upper * scale)
        return sparse.csr_matrix(scaled), low, high

    def _pass_model(self) -> None:
        matrix, low, high = self._scaled_rows(self._matrix, self._row_lower, self._row_upper, self._row_scale)
        lp = highspy.HighsLp()
        lp.num_col_ = len(self._cost)
        lp.num_row_ = len(low)
        lp.col_cost_ = self._cost * self._scale * self._objective_scale
        lp.col_lower_ = self._lower / self._scale
        lp.col_upper_ = self._upper / self._scale
        lp.row_lower_ = low
        lp.row_upper_ = high
        lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
        lp.a_matrix_.start_ = matrix.indptr
        lp.a_matrix_.index_ = matrix.indices
        lp.a_matrix_.value_ = matrix.data
        self._highs.passModel(lp)

    def add_rows(self, rows: Rows) -> None:
        """Add rows to the model that is being solved."""
        matrix = rows.matrix(len(self._cost))
        lower, upper = np.array(rows.lower, dtype=np.int64), np.array(rows.upper, dtype=np.int64)
        scale = self._scales(matrix)
        scaled, low, high = self._scaled_rows(matrix, lower, upper, scale)
        count = len(low)
        self._highs.addRows(count, low, high, scaled.nnz, scaled.indptr[:-1], scaled.indices, scaled.data)
        self._matrix = sparse.vstack([self._matrix, matrix], format="csr", dtype=np.int64)
        self._row_lower = np.concatenate([self._row_lower, lower])
        self._row_upper = np.concatenate([self._row_upper, upper])
        self._row_scale = np.concatenate([self._row_scale, scale])

    def require_integers(self) -> None:
        """From now on solve the MILP."""
        tighten(self._highs)
        columns = np.flatnonzero(np.array(self._model.is_integer)).astype(np.int32)
        kinds = np.full(len(columns), int(highspy.HighsVarType.kInteger), dtype=np.uint8)
        self._highs.changeColsIntegrality(len(columns), columns, kinds)

    def run(self, time_limit: float) -> highspy.HighsModelStatus:
        """Solve for at most ``time_limit`` seconds."""
        # HiGHS counts the time of all runs together.
        self.set_option("time_limit", self._highs.getRunTime() + max(0.0, time_limit))
        self._highs.run()
        return self._highs.getModelStatus()

    def values(self) -> FloatArray | None:
        """Values of the columns, in their own units; None where there is no solution."""
        solution = self._highs.getSolution()
        if not solution.value_valid:
            return None
        values: FloatArray = np.array(solution.col_value, dtype=np.float64) * self._scale
        return values

    def duals(self) -> FloatArray | None:
        """Row duals of the last LP, in the model's own units; None where there are none."""
        solution = self._highs.getSolution()
        if not solution.dual_valid:
            return None
        duals: FloatArray = np.array(solution.row_dual) * self._row_scale / self._objective_scale
        return duals

    def cuts(self, finder: RoundingCuts, values: FloatArray, limit: int, should_stop: Callable[[], bool]) -> Rows:
        """Cuts of the present rows that values violate."""
        return finder.find(self._matrix, self._row_lower, self._row_upper, values, limit, should_stop)

    def lp_bound(self) -> int | None:
        """Bound proven by the duals of the last LP; None where there are none."""
        duals = self.duals()
        if duals is None:
            return None
        bound = proven_bound(self._matrix, self._row_lower, self._row_upper, self._lower, self._upper, self._cost, duals)
        return bound + self._model.offset_ps

    def mip_bound(self) -> int | None:
        """What the dual bound of the last MILP proves (:func:`stowplan.models.mip.outcome.proven`); None where it has none."""
        bound = self._highs.getInfo().mip_dual_bound
        if not np.isfinite(bound):
            return None
        return self._model.offset_ps + proven(bound, OBJECTIVE_RANGE, unit=1.0 / self._objective_scale, tolerance=TIGHT)
