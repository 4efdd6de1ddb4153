"""What exact models return, the same for all kinds."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

P = TypeVar("P")

Status = Literal["optimal", "feasible", "infeasible", "unknown"]


@dataclass(frozen=True)
class Outcome(Generic[P]):
    """Plan and proof."""

    status: Status
    """``optimal`` and ``infeasible`` only with a proof; running out of time is neither."""
    plan: P | None
    """The best plan found."""
    bound: int | None
    """Proven: no valid plan has a smaller objective (in the kind's unit). None where nothing is proven, or there is no plan."""
    reason: str | None = None
    """Why there is no plan, in one sentence, where that is proven and can be said."""


class Best(Generic[P]):
    """The best plan and bound so far of a search; better ones are kept, and told at once. Called from any thread.

    Parameters
    ----------
    objective
        Of a plan.
    on_plan, on_bound
        Called with every better plan and bound.
    bound
        What is proven already, if anything.
    """

    def __init__(
        self,
        objective: Callable[[P], int],
        on_plan: Callable[[P], None] | None,
        on_bound: Callable[[int], None] | None,
        bound: int | None = None,
    ):
        self.plan: P | None = None
        self.bound = bound
        self._objective, self._on_plan, self._on_bound = objective, on_plan, on_bound
        self._lock = threading.Lock()

    def offer_plan(self, plan: P | None) -> None:
        """Keep the plan where it is the best so far."""
        with self._lock:
            if plan is None or (self.plan is not None and self._objective(plan) >= self._objective(self.plan)):
                return
            self.plan = plan
        if self._on_plan is not None:
            self._on_plan(plan)

    def offer_bound(self, bound: int | None) -> None:
        """Keep the bound where it is the best so far."""
        with self._lock:
            if bound is None or (self.bound is not None and bound <= self.bound):
                return
            self.bound = bound
        if self._on_bound is not None:
            self._on_bound(bound)

    @property
    def is_optimal(self) -> bool:
        """Whether no plan is better than the one there is."""
        return self.plan is not None and self.bound is not None and self._objective(self.plan) <= self.bound

    def outcome(self) -> Outcome[P]:
        """What was found."""
        if self.plan is None:
            return Outcome("unknown", None, self.bound)
        if self.is_optimal:
            return Outcome("optimal", self.plan, self._objective(self.plan))
        return Outcome("feasible", self.plan, self.bound)
