"""The result of an exact model, and a record of the best plan and bound during its search, for all kinds of problems."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

#: The class of a kind's plans.
P = TypeVar("P")

#: ``optimal``: there is a plan, and no plan is better. ``feasible``: there is a plan. ``infeasible``: no valid plan exists.
#: ``unknown``: neither a plan nor a proof that there is none was found.
Status = Literal["optimal", "feasible", "infeasible", "unknown"]


@dataclass(frozen=True)
class Outcome(Generic[P]):
    """The best plan that a model found, and what it proved."""

    status: Status
    """``optimal`` and ``infeasible`` are proven. If time runs out, the status is ``feasible`` or ``unknown``."""
    plan: P | None
    """The best plan found; None if none was found."""
    bound: int | None
    """Proven lower bound in the kind's unit: no valid plan has a smaller objective. None if no bound is proven. If the problem
    is infeasible, the bound means nothing, and most models leave it None."""
    reason: str | None = None
    """One sentence that says why an infeasible problem has no plan or, with the status ``unknown``, why no model was solved.
    None if the problem is feasible or no reason is known."""


class Best(Generic[P]):
    """Keeps the best plan and the best bound of a search and reports every improvement at once. It is thread-safe.

    Parameters
    ----------
    objective
        A function that returns the objective of a plan.
    on_plan, on_bound
        Called with every plan and every bound that is better than all before.
    bound
        A lower bound that is proven already, in the kind's unit; None if there is none.
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
        """Keep and report the plan if its objective is smaller than those of all plans so far; None is ignored."""
        with self._lock:
            if plan is None or (self.plan is not None and self._objective(plan) >= self._objective(self.plan)):
                return
            self.plan = plan
        if self._on_plan is not None:
            self._on_plan(plan)

    def offer_bound(self, bound: int | None) -> None:
        """Keep and report the bound if it is larger than all bounds so far; None is ignored."""
        with self._lock:
            if bound is None or (self.bound is not None and bound <= self.bound):
                return
            self.bound = bound
        if self._on_bound is not None:
            self._on_bound(bound)

    @property
    def is_optimal(self) -> bool:
        """Whether the best plan is proven optimal by the best bound."""
        return self.plan is not None and self.bound is not None and self._objective(self.plan) <= self.bound

    def outcome(self) -> Outcome[P]:
        """The best plan and bound as the result of a model. Without a plan, the status is ``unknown``, never ``infeasible``."""
        if self.plan is None:
            return Outcome("unknown", None, self.bound)
        if self.is_optimal:
            return Outcome("optimal", self.plan, self._objective(self.plan))
        return Outcome("feasible", self.plan, self.bound)
