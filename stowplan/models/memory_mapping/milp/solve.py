"""Solves one relaxation with HiGHS: linear programs in rounds, each with rows that the last solution violates, then its MILP.

HiGHS gets a scaled copy of the relaxation, in which picoseconds and bytes become numbers near one. The rows that are added are
*windows*, which limit the copies between two boundaries to the time that passes there, and rounding cuts
(:mod:`~stowplan.models.memory_mapping.milp.tightening`). A *boundary* is the moment before a step. The candidate ``relaxation``
of memory mapping uses this search for the segments of a program. Nothing here raises an error for valid arguments.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import highspy
import numpy as np
from scipy import sparse

from stowplan.models.memory_mapping.milp.model import RelaxationModel
from stowplan.models.memory_mapping.milp.tightening import Rounding, RoundingCuts, Window, WindowSeparator
from stowplan.models.mip.matrix import FloatArray, IntArray, MatrixModel, Rows, proven, proven_bound, row_scales, sides
from stowplan.models.mip.with_highs import TIGHT, interrupt_when, one_thread, pass_model, tighten

#: The range of the objective after scaling. HiGHS's tolerances (1e-7, and 1e-9 with integers) are then tiny fractions of it.
OBJECTIVE_RANGE = 1e4

#: The range of columns of time after scaling.
TIME_RANGE = 1e3


class ScaledHighs:
    """A relaxation in HiGHS, to which rows can be added. Values, duals and bounds are in the units of the unscaled model.

    Parameters
    ----------
    model
        Columns and initial rows.
    seed
        Random seed of HiGHS, which runs on one thread so that runs are repeatable.
    should_stop
        Called repeatedly while HiGHS runs; the run ends when it returns True.
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
        self.unit_ps = 1 / self._objective_scale
        """Picoseconds for 1 in the objective of HiGHS."""
        self._scale = np.maximum(1, self._upper - self._lower).astype(np.float64)
        self._scale[np.array(model.stall + model.clock, dtype=np.int64)] = max(1.0, gain / TIME_RANGE)
        self._row_scale = self._scales(self._matrix)
        self._places = np.arange(len(self._row_scale))
        """For each row, its number in HiGHS, which differs if a subclass or a caller has added other rows there."""
        self._highs = self.highs = one_thread(seed)
        interrupt_when(self._highs, should_stop)
        self._pass_model()

    @property
    def matrix(self) -> sparse.csr_matrix:
        """The coefficients of all rows, in whole numbers."""
        return self._matrix

    def set_option(self, name: str, value: Any) -> None:
        """Set an option of HiGHS."""
        self._highs.setOptionValue(name, value)

    def _scales(self, matrix: sparse.csr_matrix) -> FloatArray:
        """[rows] the factors by which rows with unscaled coefficients are multiplied."""
        return row_scales(matrix.astype(np.float64).multiply(self._scale).tocsr())

    def _scaled_rows(
        self, matrix: sparse.csr_matrix, lower: IntArray, upper: IntArray, scale: FloatArray
    ) -> tuple[sparse.csr_matrix, FloatArray, FloatArray]:
        """Scaled coefficients and limits of rows."""
        scaled = sparse.diags(scale) @ matrix.astype(np.float64) @ sparse.diags(self._scale)
        return sparse.csr_matrix(scaled), sides(lower, scale), sides(upper, scale)

    def _pass_model(self) -> None:
        """Pass the scaled columns and rows to HiGHS, as a linear program."""
        matrix, low, high = self._scaled_rows(self._matrix, self._row_lower, self._row_upper, self._row_scale)
        model = MatrixModel(
            name=self._model.problem.name,
            cost=self._cost * self._scale * self._objective_scale,
            lower=self._lower / self._scale,
            upper=self._upper / self._scale,
            is_integer=np.zeros(len(self._cost), bool),
            matrix=matrix,
            row_lower=low,
            row_upper=high,
        )
        pass_model(self._highs, model)

    def add_rows(self, rows: Rows) -> int:
        """Add rows to the model; returns the number of the first one."""
        matrix = rows.matrix(len(self._cost))
        lower, upper = np.array(rows.lower, dtype=np.int64), np.array(rows.upper, dtype=np.int64)
        scale = self._scales(matrix)
        scaled, low, high = self._scaled_rows(matrix, lower, upper, scale)
        count, before = len(low), self._highs.getNumRow()
        self._places = np.concatenate([self._places, np.arange(before, before + count)])
        self._highs.addRows(count, low, high, scaled.nnz, scaled.indptr[:-1], scaled.indices, scaled.data)
        self._matrix = sparse.vstack([self._matrix, matrix], format="csr", dtype=np.int64)
        self._row_lower = np.concatenate([self._row_lower, lower])
        self._row_upper = np.concatenate([self._row_upper, upper])
        self._row_scale = np.concatenate([self._row_scale, scale])
        return len(self._row_lower) - count

    def require_integers(self) -> None:
        """Require whole numbers in the columns that are decisions, so that from now on the MILP is solved."""
        tighten(self._highs)
        columns = np.flatnonzero(np.array(self._model.is_integer)).astype(np.int32)
        kinds = np.full(len(columns), int(highspy.HighsVarType.kInteger), dtype=np.uint8)
        self._highs.changeColsIntegrality(len(columns), columns, kinds)

    def run(self, time_limit: float) -> highspy.HighsModelStatus:
        """Solve for at most ``time_limit`` seconds."""
        # HiGHS compares its time limit with the time of all runs together.
        self.set_option("time_limit", self._highs.getRunTime() + max(0.0, time_limit))
        self._highs.run()
        return self._highs.getModelStatus()

    def values(self) -> FloatArray | None:
        """Values of the columns in unscaled units; None if there is no solution."""
        solution = self._highs.getSolution()
        if not solution.value_valid:
            return None
        values: FloatArray = np.array(solution.col_value[: len(self._scale)], dtype=np.float64) * self._scale
        return values

    def duals(self) -> FloatArray | None:
        """Row duals of the last linear program in unscaled units; None if there are none."""
        solution = self._highs.getSolution()
        if not solution.dual_valid:
            return None
        duals: FloatArray = np.array(solution.row_dual)[self._places] * self._row_scale / self._objective_scale
        return duals

    def cuts(self, finder: RoundingCuts, values: FloatArray, limit: int, should_stop: Callable[[], bool]) -> Rows:
        """Cuts of the current rows that a solution violates; see :meth:`RoundingCuts.find`."""
        return finder.find(self._matrix, self._row_lower, self._row_upper, values, limit, should_stop)

    def lp_bound(self) -> int | None:
        """The bound in ps that the duals of the last linear program prove, computed in exact arithmetic; None if there are no
        duals."""
        duals = self.duals()
        if duals is None:
            return None
        bound = proven_bound(self._matrix, self._row_lower, self._row_upper, self._lower, self._upper, self._cost, duals)
        return bound + self._model.offset_ps

    def mip_bound(self) -> int | None:
        """The bound in ps that the last MILP proves (:func:`stowplan.models.mip.matrix.proven`); None if it has none."""
        bound = self._highs.getInfo().mip_dual_bound
        if not np.isfinite(bound):
            return None
        return self._model.offset_ps + proven(bound, OBJECTIVE_RANGE, unit=1.0 / self._objective_scale, tolerance=TIGHT)


#: Largest number of windows that are added in one round.
MAX_WINDOWS = 200

#: Smallest violation of a window that counts, as a fraction of the all-slow latency, that is, of the time of the program with
#: all tensors in slow memory.
WINDOW_TOLERANCE = 1e-7

#: A round makes progress if it raises the bound by the fraction ``LEAST_PROGRESS`` of the difference between the all-slow and
#: the least latency. The least latency is the sum, over all steps, of the smallest latency for any choice of memories. The
#: search ends after ``MAX_IDLE`` successive rounds without progress.
LEAST_PROGRESS = 2e-5
MAX_IDLE = 2


#: Largest number of cuts that are added in one round.
MAX_CUTS = 200

#: A round of cuts makes progress if it raises the bound by this fraction of the difference between the all-slow and the least
#: latency.
LEAST_GAIN = 2e-4


@dataclass(frozen=True)
class Effort:
    """The limits of a search."""

    end: float
    """Time of ``time.monotonic()`` at which the search ends."""
    seed: int = 0
    """Random seed of HiGHS."""
    iteration_limit: int | None = None
    """Largest number of simplex iterations of a linear program; None for no limit."""
    node_limit: int | None = None
    """Largest number of nodes of branch and bound; None for no limit."""
    should_stop: Callable[[], bool] | None = None
    """The search ends when this returns True."""

    @property
    def left(self) -> float:
        """Number of seconds until the search ends."""
        return self.end - time.monotonic()

    def is_over(self) -> bool:
        """Whether the search must end now."""
        return self.left <= 0 or (self.should_stop is not None and self.should_stop())


class RelaxationSearch:
    """Solves a relaxation step by step: :meth:`linear`, then :meth:`cut`, then :meth:`integral`, each of which is optional.

    Attributes
    ----------
    bound : int
        Proven lower bound on the objective, in ps.
    values : array of shape ``[columns]``, or None
        The last solution: that of the MILP if it found one, otherwise that of the linear program.
    solution : array of shape ``[columns]``, or None
        The last optimal solution of a linear program. It stays if a later program is not solved to optimality.
    optimal : bool
        Whether the last program, linear or MILP, is solved to optimality, and its solution violates no window.
    """

    def __init__(self, model: RelaxationModel, effort: Effort, on_bound: Callable[[int], None] | None = None):
        self.model = model
        self.effort = effort
        self._on_bound = on_bound
        self.windows = WindowSeparator(model)
        self.solver = ScaledHighs(model, effort.seed, effort.should_stop)
        if effort.iteration_limit is not None:
            self.solver.set_option("simplex_iteration_limit", effort.iteration_limit)
        if effort.node_limit is not None:
            self.solver.set_option("mip_max_nodes", effort.node_limit)
        problem = model.problem
        self._gain = max(1, problem.all_slow_ps - model.floor_until[-1])
        self._tolerance_ps = WINDOW_TOLERANCE * max(1, problem.all_slow_ps)
        self.bound = model.least_ps
        self.window_rows: dict[int, Window] = {}
        """For each row that was added for a window, the window."""
        self.cut_rows: dict[int, Rounding] = {}
        """For each row that was added for a cut, how the cut was derived."""
        self.part_rows: dict[int, Window] = {}
        """For each row that is a lower bound on the time of a part of the program, the first and the last boundary of that
        part."""
        self.values: FloatArray | None = None
        self.solution: FloatArray | None = None
        self.rounds = 0
        self.optimal = not model.cost

    def _run(self) -> highspy.HighsModelStatus:
        """Solve the current program within the remaining time, and count a round."""
        self.rounds += 1
        return self.solver.run(self.effort.left)

    def offer(self, bound: int | None) -> None:
        """Keep and report a proven bound in ps if it is better than the one so far."""
        if bound is not None and bound > self.bound:
            self.bound = bound
            if self._on_bound is not None:
                self._on_bound(bound)

    def add_windows(self) -> bool:
        """Add the windows that the last solution violates; returns whether there were any."""
        assert self.values is not None
        windows = self.windows.find(self.values, tolerance_ps=self._tolerance_ps, limit=MAX_WINDOWS)
        if windows:
            first = self.solver.add_rows(self.windows.rows(windows))
            self.window_rows |= dict(enumerate(windows, first))
        return bool(windows)

    def linear(self, patience: int = MAX_IDLE) -> None:
        """Solve the linear relaxation in rounds, each with further windows that the last solution violates.

        The rounds end if there are no such windows, after ``patience`` successive rounds without progress, or with the effort.
        """
        idle = 0
        while self.model.cost and not self.effort.is_over():
            before = self.bound
            status = self._run()
            self.offer(self.solver.lp_bound())
            if status != highspy.HighsModelStatus.kOptimal:
                self.values = None
                return
            self.values = self.solution = self.solver.values()
            idle = 0 if self.bound - before >= LEAST_PROGRESS * self._gain else idle + 1
            if not self.add_windows():
                self.optimal = True
                return
            if idle == patience and self.rounds > patience + 1:
                return

    def cut(self) -> None:
        """Solve further rounds of linear programs with rounding cuts and violated windows, after :meth:`linear`. The rounds end
        if no cut is violated, after :data:`MAX_IDLE` successive rounds without progress, or with the effort."""
        model = self.model
        finder = RoundingCuts(
            np.array(model.lower, dtype=np.int64),
            np.array(model.upper, dtype=np.int64),
            np.array(model.is_integer, dtype=bool),
            np.searchsorted(model.first_column, np.arange(len(model.cost)), side="right") - 1,
            model.memory_rows,
        )
        idle = 0
        while self.values is not None and idle < MAX_IDLE and not self.effort.is_over():
            rows = self.solver.cuts(finder, self.values, MAX_CUTS, self.effort.is_over)
            if not rows.lower:
                return
            self.optimal = False
            first = self.solver.add_rows(rows)
            self.cut_rows |= dict(enumerate(finder.origins, first))
            finder.added(first)
            self.add_windows()
            before = self.bound
            status = self._run()
            self.offer(self.solver.lp_bound())
            if status != highspy.HighsModelStatus.kOptimal:
                return
            self.values = self.solver.values()
            idle = 0 if self.bound - before >= LEAST_GAIN * self._gain else idle + 1

    def integral(self) -> None:
        """Solve the MILP, after :meth:`linear`, and repeat it with windows that its solution violates. Does nothing if
        :meth:`linear` has left no solution."""
        if self.values is None or not self.model.cost:
            return
        self.optimal = False
        self.solver.require_integers()
        while not self.effort.is_over():
            status = self._run()
            self.offer(self.solver.mip_bound())
            values = self.solver.values()
            if values is not None:
                self.values = values
            if status != highspy.HighsModelStatus.kOptimal:
                return
            if not self.add_windows():
                self.optimal = True
                return
