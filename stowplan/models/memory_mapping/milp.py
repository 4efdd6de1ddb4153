"""Lower bounds and fractional or integral assignments from the linear relaxation of memory mapping.

The bound holds for every valid plan, in the stall mode of the problem. It scales to tens of thousands of uses, where the
complete model (:mod:`~stowplan.models.memory_mapping.cpsat`) does not. What the relaxation says, and what it leaves out, stands
in :mod:`~stowplan.models.memory_mapping.milp_model`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import highspy
import numpy as np
import numpy.typing as npt

from stowplan.models.memory_mapping.accesses import TensorAccesses
from stowplan.models.memory_mapping.milp_model import RelaxationModel
from stowplan.models.memory_mapping.milp_solver import ScaledHighs
from stowplan.models.memory_mapping.milp_windows import WindowSeparator
from stowplan.models.memory_mapping.problem import Problem

FloatArray = npt.NDArray[np.float64]

#: Windows added in one round at most.
MAX_WINDOWS = 200

#: A window counts as violated from this part of the all-slow latency on.
WINDOW_TOLERANCE = 1e-7

#: Rounds end when a round lifts the bound by less than this part of the gap between the least latency and all slow.
LEAST_PROGRESS = 2e-5


@dataclass(frozen=True)
class Relaxation:
    """What the relaxation found. Values are fractions in [0, 1]; 0 or 1 where integers were asked for and found."""

    bound_ps: int
    """Proven lower bound on the objective of every valid plan."""
    fast: FloatArray
    """How much each use is served from fast memory; shape ``[uses]``."""
    keep: tuple[FloatArray, ...]
    """For each tensor and access: how much it was kept since the access before (or preloaded, at the first); ``[accesses]``."""
    copy_in: tuple[FloatArray, ...]
    """For each tensor and access: how much it was copied in before the access and after the one before; ``[accesses]``."""
    copy_out: tuple[FloatArray, ...]
    """For each tensor and gap: how much of its content is copied out by the end of the gap; ``[accesses + 1]``."""
    lp_seconds: float
    rounds: int
    """Linear programs solved."""
    windows: int
    """Rows of the copy channels that were needed."""
    optimal: bool
    """Solved to the end, all windows included: no better bound can come from this relaxation."""


def relaxation_bound(
    problem: Problem,
    *,
    time_limit: float = 30.0,
    seed: int = 0,
    integer: bool = False,
    iteration_limit: int | None = None,
    on_bound: Callable[[int], None] | None = None,
    should_stop: Callable[[], bool] | None = None,
    sequences: Sequence[TensorAccesses] | None = None,
) -> Relaxation:
    """Bound a problem from below by its linear relaxation.

    Parameters
    ----------
    problem
        Any problem, in either stall mode.
    time_limit
        Seconds, building included. The best bound by then is returned, at worst the sum of the steps' least latencies.
    seed
        Random seed of HiGHS.
    integer
        Afterwards solve the MILP too: a better bound, and an integral assignment.
    iteration_limit
        Simplex iterations of each linear program (and nodes of the MILP). With it, and a ``time_limit`` that does not bind,
        equal calls give equal results.
    on_bound
        Called with every better bound, in ps.
    should_stop
        Asked now and then; True ends the search early.
    sequences
        The problem's access sequences, where the caller has them.
    """
    search = _Search(problem, sequences, time_limit, seed, iteration_limit, on_bound, should_stop)
    if search.model.cost:
        search.linear()
    else:
        search.optimal = True
    if integer and search.values is not None:
        search.integral()
    return search.result()


class _Search:
    def __init__(
        self,
        problem: Problem,
        sequences: Sequence[TensorAccesses] | None,
        time_limit: float,
        seed: int,
        iteration_limit: int | None,
        on_bound: Callable[[int], None] | None,
        should_stop: Callable[[], bool] | None,
    ):
        self._end = time.monotonic() + time_limit
        self._on_bound = on_bound
        self._should_stop = should_stop
        self.model = RelaxationModel(problem, sequences)
        self._windows = WindowSeparator(self.model)
        self._solver = ScaledHighs(self.model, seed, should_stop)
        if iteration_limit is not None:
            self._solver.set_option("simplex_iteration_limit", iteration_limit)
            self._solver.set_option("mip_max_nodes", iteration_limit)
        self._gain = max(1, problem.all_slow_ps - self.model.floor_until[-1])
        self._tolerance_ps = WINDOW_TOLERANCE * max(1, problem.all_slow_ps)
        # Without a column nothing can be gained, and the constant is the latency with everything slow.
        self.bound = self.model.floor_until[-1] if self.model.cost else self.model.offset_ps
        self.values: FloatArray | None = None
        self.seconds = 0.0
        self.rounds = 0
        self.window_count = 0
        self.optimal = False

    @property
    def _left(self) -> float:
        return self._end - time.monotonic()

    def _run(self) -> highspy.HighsModelStatus:
        began = time.monotonic()
        status = self._solver.run(self._left)
        self.seconds += time.monotonic() - began
        self.rounds += 1
        return status

    def _offer(self, bound: int | None) -> None:
        if bound is not None and bound > self.bound:
            self.bound = bound
            if self._on_bound is not None:
                self._on_bound(bound)

    def _add_windows(self) -> bool:
        """Add what the last solution violates; whether there was anything."""
        assert self.values is not None
        found = self._windows.find(self.values, tolerance_ps=self._tolerance_ps, limit=MAX_WINDOWS)
        if found:
            self._solver.add_rows(self._windows.rows(found))
            self.window_count += len(found)
        return bool(found)

    def _must_stop(self) -> bool:
        return self._left <= 0 or (self._should_stop is not None and self._should_stop())

    def linear(self) -> None:
        """Solve the linear relaxation, round by round with more windows."""
        while not self._must_stop():
            before = self.bound
            status = self._run()
            self._offer(self._solver.lp_bound())
            if status != highspy.HighsModelStatus.kOptimal:
                self.values = None
                return
            self.values = self._solver.values()
            is_last = self.rounds > 3 and self.bound - before < LEAST_PROGRESS * self._gain
            if not self._add_windows():
                self.optimal = True
                return
            if is_last:
                return

    def integral(self) -> None:
        """Solve the MILP, again with the windows that its solutions violate."""
        self.optimal = False
        self._solver.require_integers()
        self._solver.set_option("mip_rel_gap", 1e-6)
        while not self._must_stop():
            status = self._run()
            self._offer(self._solver.mip_bound())
            values = self._solver.values()
            if values is not None:
                self.values = values
            if status != highspy.HighsModelStatus.kOptimal:
                return
            if not self._add_windows():
                self.optimal = True
                return

    def result(self) -> Relaxation:
        """Everything, in terms of the problem."""
        model = self.model
        values = self.values if self.values is not None else np.zeros(len(model.cost))

        def total(columns: Sequence[int | None]) -> float:
            return float(min(1.0, max(0.0, sum(values[column] for column in columns if column is not None))))

        keep, copy_in, copy_out = [], [], []
        for sequence, columns, out in zip(model.sequences, model.access, model.out, strict=True):
            keep.append(np.array([
                total(c.landed) if sequence.is_glued(j) else total([c.keep, c.preload]) for j, c in enumerate(columns)
            ]))  # fmt: skip
            copy_in.append(np.array([total([c.copy_in, c.in_flight]) for c in columns]))
            brought = np.zeros(len(sequence) + 1)
            for (_, gap), column in out.items():
                brought[gap] = total([column])
            copy_out.append(brought)
        return Relaxation(
            bound_ps=self.bound,
            fast=np.array([total(columns) for columns in model.fast]),
            keep=tuple(keep),
            copy_in=tuple(copy_in),
            copy_out=tuple(copy_out),
            lp_seconds=self.seconds,
            rounds=self.rounds,
            windows=self.window_count,
            optimal=self.optimal,
        )
