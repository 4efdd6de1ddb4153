"""How much solving is left: wall time, or CP-SAT's deterministic time where the same work must be done on every machine."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from ortools.sat.python import cp_model


class Budget:
    """Time for several models together; shares are parts of the whole.

    With a deterministic limit, shares are measured in that, so that no choice depends on the clock; the time limit still ends
    everything.
    """

    def __init__(self, seconds: float, deterministic: float | None, should_stop: Callable[[], bool] | None):
        self._end = time.monotonic() + seconds
        self._seconds = max(seconds, 1e-9)
        self._whole = deterministic
        self._used = 0.0
        self.should_stop = should_stop

    @property
    def left_share(self) -> float:
        """Part of the whole that is left, 1 to 0."""
        if self._whole is not None:
            return max(0.0, 1.0 - self._used / self._whole) if self._whole > 0 else 0.0
        return max(0.0, (self._end - time.monotonic()) / self._seconds)

    @property
    def is_spent(self) -> bool:
        """Nothing left, or told to stop."""
        told = self.should_stop is not None and self.should_stop()
        return told or self.left_share <= 0.0 or time.monotonic() >= self._end

    def part(self, share: float) -> float:
        """Seconds of a share, no more than are left."""
        left = max(0.0, self._end - time.monotonic())
        return left if self._whole is not None else min(left, share * self._seconds)

    def deterministic_part(self, share: float) -> float | None:
        """Deterministic seconds of a share, no more than are left; None where time alone counts."""
        return None if self._whole is None else max(0.0, min(share * self._whole, self._whole - self._used))

    def spend_part(self, share: float) -> None:
        """Count a share as used, whatever of it was."""
        self._used += share * (self._whole or 0.0)

    def limit(self, parameters: Any, share: float) -> None:
        """Set a solver's limits to a share."""
        parameters.max_time_in_seconds = max(0.01, self.part(share))
        deterministic = self.deterministic_part(share)
        if deterministic is not None:
            parameters.max_deterministic_time = deterministic

    def spend(self, solver: cp_model.CpSolver) -> None:
        """Count what a solver used."""
        self._used += solver.response_proto.deterministic_time
