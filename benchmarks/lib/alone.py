"""A candidate of the portfolio by itself, in this process and on a clock of one's choice."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from stowplan.kernel.context import Context, Options
from stowplan.kernel.kind import check, kind_of
from stowplan.models.hint import Hint


class Alone(Context):
    """What the candidate sees of a run. ``best`` is the best plan that it reported, each of which is verified."""

    def __init__(
        self,
        problem: Any,
        options: Options,
        *,
        start: Any = None,
        hints: tuple[Hint, ...] = (),
        clock: Callable[[], float] = time.monotonic,
    ):
        super().__init__(options, start)
        self.best = start
        self.notes: list[str] = []
        self._problem, self._kind, self._hints = problem, kind_of(problem), hints
        self._clock, self._end = clock, clock() + options.time_limit

    def objective(self, plan: Any) -> int:
        """Of any kind's plan."""
        return int(plan.objective)

    def plan(self, plan: Any, source: str) -> None:
        found = check(self._kind, self._problem, plan)
        assert found.ok, found.violations[:3]
        if self.best is None or self.objective(plan) < self.objective(self.best):
            self.best = plan

    def note(self, text: str) -> None:
        self.notes.append(text)

    def incumbent(self) -> tuple[Any, None]:
        return self.best, None

    def hints(self) -> tuple[Hint, ...]:
        return self._hints

    def closed(self) -> bool:
        return self.remaining() <= 0

    def remaining(self) -> float:
        return self._end - self._clock()
