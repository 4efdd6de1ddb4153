"""Packing's candidates inside a candidate of another kind: what they are given, and what came of it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import msgspec

from stowplan.models.packing.plan import Plan
from stowplan.portfolio.context import Context


class InnerRun(Context):
    """A context for packing's candidates that tells nobody, and keeps the best.

    Parameters
    ----------
    outer
        The context of the candidate that asks.
    seconds
        How long to look; in deterministic runs, for how much work.
    bound
        What the height is known not to be below; None: any plan will do, where there is a capacity.
    is_over
        Whether to end before that.
    """

    def __init__(
        self, outer: Context, seconds: float, *, bound: int | None = None, is_over: Callable[[], bool] = lambda: False
    ):
        super().__init__(msgspec.structs.replace(outer.options, time_limit=seconds))
        self._outer, self._is_over = outer, is_over
        self._end = time.monotonic() + seconds
        self.best: Plan | None = None
        self.least = bound
        self.why: dict[str, Any] | None = None
        """Why nothing fits, where that is proven."""

    @property
    def is_settled(self) -> bool:
        """Whether nothing is left to find."""
        if self.why is not None:
            return True
        return self.best is not None and (self.least is None or self.best.objective <= self.least)

    def plan(self, plan: Plan, source: str) -> None:
        """Keep the best."""
        if self.best is None or plan.objective < self.best.objective:
            self.best = plan

    def bound(self, bound: int, source: str) -> None:
        """Keep the best, where bounds matter."""
        if self.least is not None:
            self.least = max(bound, self.least)

    def proven_infeasible(self, source: str, why: dict[str, Any] | None = None) -> None:
        """Keep the reason."""
        self.why = why or {}

    def incumbent(self) -> tuple[Plan | None, int | None]:
        """What there is."""
        return self.best, self.least

    def closed(self) -> bool:
        """Whether time is up, or nothing is left to find."""
        late = not self.options.deterministic and time.monotonic() >= self._end
        return late or self.is_settled or self._is_over() or self._outer.closed()

    def remaining(self) -> float:
        """Seconds left."""
        return max(0.0, self._end - time.monotonic())
