"""How much solving is left: wall time, or CP-SAT's deterministic time where the same work must be done on every machine."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from ortools.sat.python import cp_model

from stowplan.models import cpsat_runner
from stowplan.models.cpsat_runner import Run


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

    def run(self, model: cp_model.CpModel, share: float, **options: Any) -> Run:
        """Run CP-SAT with a share as its limits, and count what it used; options as :func:`cpsat_runner.run` takes them."""
        found = cpsat_runner.run(
            model,
            time_limit=self.part(share),
            deterministic_limit=self.deterministic_part(share),
            should_stop=self.should_stop,
            **options,
        )
        self._used += found.deterministic
        return found
