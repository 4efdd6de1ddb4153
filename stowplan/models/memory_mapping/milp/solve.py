"""Solving one relaxation: rounds of linear programs with more windows of the copy channels, then its MILP."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import highspy
import numpy as np
import numpy.typing as npt

from stowplan.models.memory_mapping.milp.cuts import RoundingCuts
from stowplan.models.memory_mapping.milp.highs import ScaledHighs
from stowplan.models.memory_mapping.milp.model import RelaxationModel
from stowplan.models.memory_mapping.milp.windows import WindowSeparator

FloatArray = npt.NDArray[np.float64]

#: Windows added in one round at most.
MAX_WINDOWS = 200

#: A window counts as violated from this part of the all-slow latency on.
WINDOW_TOLERANCE = 1e-7

#: A round makes progress when it lifts the bound by this part of the gap between the least latency and all slow; rounds end
#: when ``MAX_IDLE`` in a row make none.
LEAST_PROGRESS = 2e-5
MAX_IDLE = 2


#: Cuts added in one round at most, and what a round must gain, as a part of that gap.
MAX_CUTS = 200
LEAST_GAIN = 2e-4


@dataclass(frozen=True)
class Effort:
    """When to end."""

    end: float
    """Moment of ``time.monotonic()``."""
    seed: int = 0
    iteration_limit: int | None = None
    """Simplex iterations of a linear program."""
    node_limit: int | None = None
    """Nodes of a branch and bound."""
    should_stop: Callable[[], bool] | None = None

    @property
    def left(self) -> float:
        """Seconds left."""
        return self.end - time.monotonic()

    def is_over(self) -> bool:
        """Whether to end now."""
        return self.left <= 0 or (self.should_stop is not None and self.should_stop())


class RelaxationSearch:
    """A model, its solver, and the best bound so far.

    Attributes
    ----------
    bound : int
        Proven lower bound, in ps.
    values : array of shape ``[columns]``, or None
        The last solution: of the MILP where it found one, else of the linear program.
    solution : array of shape ``[columns]``, or None
        The last optimum of a linear program, kept where a later one is not solved to the end.
    optimal : bool
        Solved to the end, all windows included.
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
        # Without a column nothing can be gained, and the constant is the latency with everything slow.
        self.bound = model.floor_until[-1] if model.cost else model.offset_ps
        self.values: FloatArray | None = None
        self.solution: FloatArray | None = None
        self.rounds = 0
        self.optimal = not model.cost

    def _run(self) -> highspy.HighsModelStatus:
        self.rounds += 1
        return self.solver.run(self.effort.left)

    def offer(self, bound: int | None) -> None:
        """Take over a proven bound, where it is better."""
        if bound is not None and bound > self.bound:
            self.bound = bound
            if self._on_bound is not None:
                self._on_bound(bound)

    def add_windows(self) -> bool:
        """Add what the last solution violates; whether there was anything."""
        assert self.values is not None
        found = self.windows.find(self.values, tolerance_ps=self._tolerance_ps, limit=MAX_WINDOWS)
        if found:
            self.solver.add_rows(self.windows.rows(found))
        return bool(found)

    def linear(self, patience: int = MAX_IDLE) -> None:
        """Solve the linear relaxation, round by round with more windows; ends after so many rounds without progress."""
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
        """Rounds of linear programs with cuts that integers satisfy, after :meth:`linear`; windows where they are violated."""
        model = self.model
        finder = RoundingCuts(
            np.array(model.lower, dtype=np.int64),
            np.array(model.upper, dtype=np.int64),
            np.array(model.is_integer, dtype=bool),
        )
        idle = 0
        while self.values is not None and idle < MAX_IDLE and not self.effort.is_over():
            rows = self.solver.cuts(finder, self.values, MAX_CUTS, self.effort.is_over)
            if not rows.lower:
                return
            self.optimal = False
            self.solver.add_rows(rows)
            self.add_windows()
            before = self.bound
            status = self._run()
            self.offer(self.solver.lp_bound())
            if status != highspy.HighsModelStatus.kOptimal:
                return
            self.values = self.solver.values()
            idle = 0 if self.bound - before >= LEAST_GAIN * self._gain else idle + 1

    def integral(self) -> None:
        """Solve the MILP, again with the windows that its solutions violate; after :meth:`linear`."""
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
