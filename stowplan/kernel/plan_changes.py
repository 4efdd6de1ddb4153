"""How a result is kept close to an earlier plan: the caller's request, the budget of the search, and the interface for kinds.

A plan consists of *decisions*, such as the offset of each buffer. To *revert* a decision is to give it the value that it has in
the earlier plan. Changing as few decisions as possible is called plan stability in the planning literature (Fox et al. 2006). A
plan that differs less from the earlier plan is called *closer* to it. A kind implements :class:`PlanChanges`
(:attr:`stowplan.kernel.kind.Extras.changes`), which says how decisions are compared and reverted.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, Protocol

import msgspec

from stowplan.deadline import Deadline
from stowplan.kernel.context import Options

#: Name under which the earlier plan takes part.
EARLIER = "earlier"


class KeepClose(msgspec.Struct, frozen=True, kw_only=True):
    """A request to change an earlier plan as little as possible.

    Parameters
    ----------
    plan
        The earlier plan, of this problem or of an earlier version of it.
    within
        How much worse the objective may become than the best one found, as a fraction of at least 0: 0.01 for one per cent. If
        an objective consists of two numbers, the first may not become worse, and the fraction applies to the second.
    problem
        The earlier version of the problem. None if the plan is of this problem, or if it names the objects that its decisions
        concern.
    """

    plan: Any
    within: float = 0.0
    problem: Any = None


#: Part of the time limit that is set aside for the search for a closer plan. A deterministic run does work that takes about a
#: third of this time.
SHARE = 0.25

#: Seconds that importing a solver takes at most.
LOADING = 2.0

#: Seconds that building a model takes at most for each of its literals.
BUILDING = 1e-4


class Budget:
    """The remaining time, or in a deterministic run the remaining work, for finding a closer plan.

    Parameters
    ----------
    options
        Options of the whole run.
    deadline
        When the search must end.
    decisions
        Number of decisions of a plan; the time for making and checking a plan grows with it.
    """

    def __init__(self, options: Options, deadline: Deadline, decisions: int):
        self.options = options
        self._deadline = deadline
        self._seconds = SHARE * options.extent / 3
        # Making and checking a plan takes about 0.1 ms, and 0.01 ms more for each of its decisions. Small limits allow 20
        # plans.
        self._checks = max(20, int(self._seconds / (1e-4 + 1e-5 * decisions))) if options.deterministic else None

    def is_over(self) -> bool:
        """Whether to stop now."""
        return self._deadline.expired or self._checks == 0

    def count_check(self) -> None:
        """Counts the check of one plan."""
        if self._checks:
            self._checks -= 1

    def allows(self, checks: int, seconds: float) -> bool:
        """Whether at least half of the budget is left after this number of checks that take ``seconds`` each. In a
        deterministic run only their number counts."""
        return 2 * checks <= self._checks if self._checks is not None else 2 * checks * seconds <= self._deadline.remaining

    def solver_limits(self, parts: int = 1) -> dict[str, Any] | None:
        """Keyword arguments that limit the solver of an exact model, if ``parts`` models divide the rest of the time among
        themselves; None if there is no time for one."""
        common = {"seed": self.options.seed, "should_stop": lambda: self._deadline.expired}
        if self.options.deterministic:
            limit = self._seconds / parts
            return {"time_limit": self._deadline.remaining, "deterministic_limit": limit, "workers": 1, **common}
        # A module that another thread is still importing is in the table already, but without the names at its end.
        is_loaded = hasattr(sys.modules.get("ortools.sat.python.cp_model"), "CpSolver")
        loading = 0.0 if is_loaded else LOADING
        seconds = self._deadline.remaining - loading
        if seconds <= 0.1:
            return None
        return {"time_limit": seconds / parts, "workers": self.options.workers, **common}

    def has_room(self, literals: int) -> bool:
        """Whether a model with this many literals can be built in half of the remaining time, because building cannot be
        interrupted. Always True in a deterministic run."""
        return self._checks is not None or literals * BUILDING < 0.5 * self._deadline.remaining


#: For each sort of decision: how many of them changed, and how many there are.
Counts = dict[str, tuple[int, int]]


class PlanChanges(Protocol):
    """How the decisions of plans differ from those of an earlier plan. Decisions are identified by their numbers."""

    start: Any
    """The earlier plan as a plan for this problem, which may be invalid. None if its decisions do not make a complete plan."""
    notes: Sequence[str]
    """Remarks about parts of the earlier plan that could not be used."""

    def counts(self, plan: Any) -> Counts:
        """Counts the decisions in which a valid plan differs from the earlier one."""

    def groups(self, plan: Any, should_stop: Callable[[], bool]) -> list[frozenset[int]]:
        """Sets of decisions of a valid plan that differ from the earlier plan and may be reverted together."""

    def reverted(self, plan: Any, decisions: Collection[int]) -> Any:
        """The plan with these decisions as in the earlier one, and with whatever follows from them; None if there is no such
        plan.

        It need not be valid, nor state the right objective.
        """

    def improved(self, plan: Any, budget: Budget, ceiling: int) -> Iterable[Any]:
        """Yields plans that may be closer, which searches of the kind itself find.

        Parameters
        ----------
        plan
            The closest plan so far.
        budget
            Limits the search.
        ceiling
            The highest ``tie_break`` that the verification of a plan may have. (A tie-break is a number that compares plans of
            equal objective; smaller is better.) If plans have no tie-break, it is the highest objective.
        """
