"""A context that remembers what a candidate reports."""

from __future__ import annotations

from typing import Any

from stowplan.kernel.context import Context, Options
from stowplan.models.hint import Hint


class Recorder(Context):
    """Takes reports; stops after ``looks`` looks at the clock."""

    def __init__(self, looks: int = 10**9, start_plan: Any = None, **options: Any):
        super().__init__(Options(**options), start_plan)
        self.plans: list[tuple[Any, str]] = []
        self.without: list[str] = []
        """Baselines without a plan."""
        self.bounds: list[int] = []
        self.notes: list[str] = []
        self.known: tuple[Hint, ...] = ()
        """Hints of others."""
        self.given: list[Hint] = []
        """Hints of the candidate."""
        self.followed: list[str] = []
        self.why: dict[str, Any] | None = None
        self._looks = looks

    def plan(self, plan: Any, source: str) -> None:
        self.plans.append((plan, source))

    def no_plan(self, source: str) -> None:
        self.without.append(source)

    def bound(self, bound: int, source: str) -> None:
        self.bounds.append(bound)

    def proven_infeasible(self, source: str, why: dict[str, Any] | None = None) -> None:
        self.why = why or {}

    @property
    def infeasible(self) -> bool:
        return self.why is not None

    def incumbent(self) -> tuple[Any, int | None]:
        best = min((plan for plan, _ in self.plans), key=_objective, default=self.start_plan)
        return best, max(self.bounds, default=None)

    def hint(self, hint: Hint) -> None:
        self.given.append(hint)

    def hints(self) -> tuple[Hint, ...]:
        return self.known

    def follows(self, guide: str) -> None:
        self.followed.append(guide)

    def closed(self) -> bool:
        self._looks -= 1
        plan, bound = self.incumbent()
        is_proven = plan is not None and bound is not None and _objective(plan) <= bound
        return self._looks < 0 or (is_proven and not self.options.deterministic)

    def remaining(self) -> float:
        return 20.0

    def note(self, text: str) -> None:
        self.notes.append(text)


def _objective(plan: Any) -> int:
    return int(plan.objective)
