"""A context that remembers what a candidate reports."""

from __future__ import annotations

from typing import Any

from stowplan.models.modulo_scheduling.plan import Plan
from stowplan.portfolio.context import Options


class Recorder:
    """Takes reports; stops after ``looks`` looks at the clock."""

    def __init__(self, looks: int = 10**9, start_plan: Plan | None = None, **options: Any):
        self.options = Options(**options)
        self.start_plan = start_plan
        self.plans: list[tuple[Plan, str]] = []
        self.bounds: list[int] = []
        self.notes: list[str] = []
        self.why: dict[str, Any] | None = None
        self._looks = looks

    def plan(self, plan: Plan, source: str) -> None:
        self.plans.append((plan, source))

    def bound(self, bound: int, source: str) -> None:
        self.bounds.append(bound)

    def proven_infeasible(self, source: str, why: dict[str, Any] | None = None) -> None:
        self.why = why or {}

    def incumbent(self) -> tuple[Plan | None, int | None]:
        best = min((plan for plan, _ in self.plans), key=lambda plan: plan.objective, default=self.start_plan)
        return best, max(self.bounds, default=None)

    def stop(self) -> bool:
        self._looks -= 1
        return self._looks < 0

    def remaining(self) -> float:
        return 20.0

    def note(self, text: str) -> None:
        self.notes.append(text)
