"""What keeps a result close to an earlier plan, in terms of any kind: the wish, the time for it, and a kind's part of the work.

Changing few decisions is what planning calls plan stability (Fox et al. 2006). A kind says how its decisions are reverted with
a :class:`PlanChanges` (:attr:`stowplan.kernel.kind.Extras.changes`).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, Protocol

import msgspec

from stowplan.deadline import Deadline
from stowplan.kernel.context import Options

#: Name of the earlier plan among the given plans.
EARLIER = "earlier"


class KeepClose(msgspec.Struct, frozen=True, kw_only=True):
    """Change as little as can be from an earlier plan.

    Parameters
    ----------
    plan
        The earlier plan: of this problem, or of an earlier version of it.
    within
        What that may cost: a part of the best objective found, 0.01 for a per cent. Where an objective is of two numbers, the
        first is kept and this is a part of the second.
    problem
        The earlier version that the plan is of; None where it is this problem, or where the plan has the names that it takes.
    """

    plan: Any
    within: float = 0.0
    problem: Any = None


#: Part of a time limit that is kept for this, at most; a deterministic run does work that takes about a third of it.
SHARE = 0.25

#: Seconds that loading a solver may take.
LOADING = 2.0

#: Seconds for each literal of a model while it is built, at most.
BUILDING = 1e-4


class Budget:
    """What is left.

    Parameters
    ----------
    options
        Those of the whole run.
    deadline
        When it must be over.
    decisions
        How many a plan has: what making and checking one takes grows with that.
    """

    def __init__(self, options: Options, deadline: Deadline, decisions: int):
        self.options = options
        self._deadline = deadline
        self._seconds = SHARE * options.extent / 3
        self._checks = max(20, int(self._seconds / (1e-4 + 1e-5 * decisions))) if options.deterministic else None

    def is_over(self) -> bool:
        """Whether to stop now."""
        return self._deadline.expired or self._checks == 0

    def count_check(self) -> None:
        """A plan is checked."""
        if self._checks:
            self._checks -= 1

    def allows(self, checks: int, seconds: float) -> bool:
        """Whether there is room for so many checks of so many seconds each, and as much again after them."""
        return 2 * checks <= self._checks if self._checks is not None else 2 * checks * seconds <= self._deadline.remaining

    def solver_limits(self, parts: int = 1) -> dict[str, Any] | None:
        """Limits and stop of an exact model's solver, one of so many models; None where there is no time for one."""
        common = {"seed": self.options.seed, "should_stop": lambda: self._deadline.expired}
        if self.options.deterministic:
            limit = self._seconds / parts
            return {"time_limit": self._deadline.remaining, "deterministic_limit": limit, "workers": 1, **common}
        # A module that another thread has only begun to load is there, too, without what stands at its end.
        is_loaded = hasattr(sys.modules.get("ortools.sat.python.cp_model"), "CpSolver")
        loading = 0.0 if is_loaded else LOADING
        left = self._deadline.remaining - loading
        if left <= 0.1:
            return None
        return {"time_limit": left / parts, "workers": self.options.workers, **common}

    def has_room(self, literals: int) -> bool:
        """Whether a model of so many literals is built in a part of the time that is left, which nothing can interrupt."""
        return self._checks is not None or literals * BUILDING < 0.5 * self._deadline.remaining


#: By sort of decision: how many of them changed, and of how many.
Counts = dict[str, tuple[int, int]]


class PlanChanges(Protocol):
    """Decisions of plans for a problem beside those of an earlier plan. Decisions are known by their numbers."""

    start: Any
    """The earlier plan as one for this problem, which may be invalid; None where there is none."""
    notes: Sequence[str]
    """What of the earlier plan could not be used."""

    def counts(self, plan: Any) -> Counts:
        """What a valid plan changes."""

    def groups(self, plan: Any, should_stop: Callable[[], bool]) -> list[frozenset[int]]:
        """Sets of decisions of a valid plan that are unlike the earlier plan's and may be reverted together."""

    def reverted(self, plan: Any, decisions: Collection[int]) -> Any:
        """The plan with these decisions as in the earlier one, and what follows from them; None where there is none.

        It need not be valid, nor state the right objective.
        """

    def improved(self, plan: Any, budget: Budget, ceiling: int) -> Iterable[Any]:
        """Other plans that may be closer, by searches of the kind's own.

        ``ceiling`` is the highest ``tie_break`` that a plan's check may have, or where plans have none the highest objective.
        """
