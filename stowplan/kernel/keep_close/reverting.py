"""Reverts decisions of the best plan to those of an earlier plan, as long as the result is valid and good enough.

A *decision* is one part of a plan, such as the offset of one buffer; to *revert* it is to give it the value that it has in the
earlier plan. The decisions that differ come in *groups*, sets of decisions that are reverted together. The search tries to
revert all groups together and, if that fails, each half of the groups, and so on, as in delta debugging (Zeller and Hildebrandt
2002). If the result may be somewhat worse than the best plan, it begins with the groups that cost least for each of their
decisions. Given enough time, the result is 1-minimal: no single group that still differs can be reverted. Then searches that
are made for the kind of problem continue from there (:meth:`~stowplan.kernel.plan_changes.PlanChanges.improved`).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from stowplan.kernel.kind import Kind, check
from stowplan.kernel.plan_changes import Budget, Counts, PlanChanges
from stowplan.verification import Verification

#: If no group can be reverted alone, pairs of groups are tried, at most this many.
MAX_PAIRS = 3000


@dataclass(frozen=True)
class CostLimit:
    """How good a plan must be. The *tie-break* is a second number, by which the verifier compares plans of equal objective;
    smaller is better."""

    objective: int
    """The largest objective that a plan may have, in the unit of the kind."""
    tie_break: int
    """The largest tie-break that a plan may have."""
    not_above: tuple[int, int] | None = None
    """Objective and tie-break of the earlier plan; no plan may be worse. None if the earlier plan is not valid."""

    def holds(self, verdict: Verification[Any]) -> bool:
        """Whether a plan is valid and good enough."""
        if not verdict.ok or verdict.objective is None:
            return False
        if verdict.objective > self.objective or verdict.tie_break > self.tie_break:
            return False
        return self.not_above is None or (verdict.objective, verdict.tie_break) <= self.not_above


def cost_limit(
    kind: Kind[Any, Any],
    problem: Any,
    best: Verification[Any],
    earlier: Verification[Any] | None,
    within: float,
    baseline: int | None = None,
) -> CostLimit:
    """The limit that follows from the best plan found, from the earlier plan if it is valid, and from a named baseline.

    Parameters
    ----------
    kind, problem
        The problem to solve.
    best, earlier
        Results of the verifier for the best plan and for the earlier one; ``earlier`` is None if that plan is not valid.
    within
        How much worse than the best objective a plan may be, as a fraction of the best objective. If an objective consists of
        two numbers, the fraction applies to the second, and the first may not become worse.
    baseline
        Objective of the named baseline; None if the caller named none or it has no plan.
    """
    assert best.objective is not None
    if kind.asks_for_any(problem):
        return CostLimit(_NO_LIMIT if baseline is None else baseline, _NO_LIMIT)
    objective = best.objective + _part(best.objective, within)
    if (pair := kind.unit.pair) is not None:
        first, second = kind.unit.split(best.objective)
        objective = first * pair.scale + min(pair.scale - 1, second + _part(second, within))
    if baseline is not None:
        objective = min(objective, baseline)
    not_above = None if earlier is None or earlier.objective is None else (earlier.objective, earlier.tie_break)
    return CostLimit(objective, best.tie_break + _part(best.tie_break, within), not_above)


_NO_LIMIT = 1 << 62


def _part(value: int, within: float) -> int:
    """The fraction ``within`` of a value, rounded down. It is computed with integers, so that large values lose no digits."""
    numerator, denominator = within.as_integer_ratio()
    return abs(value) * numerator // denominator


@dataclass(frozen=True)
class AcceptedPlan:
    """A plan that is good enough, with the result of the verifier and the number of its changes."""

    plan: Any
    check: Verification[Any]
    """The verification of the plan."""
    counts: Counts
    """For each sort of decision, how many of them differ from the earlier plan, and how many there are."""

    @property
    def changed(self) -> int:
        """Number of decisions in which it differs from the earlier plan."""
        return sum(changed for changed, _ in self.counts.values())

    @property
    def total(self) -> int:
        """Number of all decisions."""
        return sum(total for _, total in self.counts.values())


class RevertingSearch:
    """Looks for plans that differ less from the earlier plan.

    Parameters
    ----------
    kind, problem
        The problem to solve.
    changes
        Compares plans with the earlier plan and reverts their decisions.
    limit
        How good plans must be.
    budget
        Limits the search.
    best
        A plan that is good enough, from which the search starts.
    """

    def __init__(
        self, kind: Kind[Any, Any], problem: Any, changes: PlanChanges, limit: CostLimit, budget: Budget, best: AcceptedPlan
    ):
        self._kind, self._problem, self._changes = kind, problem, changes
        self._limit, self._budget = limit, budget
        self.best = best

    def run(self) -> AcceptedPlan:
        """Runs the search and returns the closest plan; call it once."""
        self._revert()
        for _ in range(3):
            before = self.best
            ceiling = self._limit.tie_break if self.best.check.tie_break else self._limit.objective
            for plan in self._changes.improved(self.best.plan, self._budget, ceiling):
                self.offer(plan)
            if self.best is before or self._budget.is_over():
                break
            self._revert()
        return self.best

    def offer(self, plan: Any) -> bool:
        """Makes a plan the best if it is good enough, and differs less from the earlier plan than the best one so far.

        If both differ in equally many decisions, the plan with the smaller objective wins. Returns whether the given plan is
        the best now. If ``plan`` is None, there is no plan, and the best one stays.
        """
        judged = self._judge(plan)
        return judged is not None and self._keep(*judged)

    def _judge(self, plan: Any) -> tuple[Any, Verification[Any]] | None:
        """Returns the plan with its objective corrected, and its verification; None if there is no plan or it is not good
        enough."""
        if plan is None:
            return None
        self._budget.count_check()
        verdict = check(self._kind, self._problem, plan)
        if not verdict.ok and verdict.objective is not None and _only_objective_is_wrong(verdict):
            if verdict.objective > self._limit.objective:
                return None
            plan = self._kind.finish(self._problem, plan, verdict.objective)
            verdict = check(self._kind, self._problem, plan)
        return (plan, verdict) if self._limit.holds(verdict) else None

    def _keep(self, plan: Any, verdict: Verification[Any]) -> bool:
        """Makes a plan that is good enough the best under the conditions of :meth:`offer`; returns whether it did."""
        close = AcceptedPlan(plan, verdict, self._changes.counts(plan))
        if (close.changed, *_cost(verdict)) >= (self.best.changed, *_cost(self.best.check)):
            return False
        self.best = close
        return True

    def _revert(self) -> None:
        """Reverts groups until no group can be reverted alone, and no two of them together, or until the budget is used up."""
        pairs_left = MAX_PAIRS
        while not self._budget.is_over():
            groups = self._changes.groups(self.best.plan, self._budget.is_over)
            if not groups:
                return
            groups = self._cheapest_first(groups)
            before = self.best
            self._halve(groups)
            if self.best is before:
                pairs_left = self._pairs(groups, pairs_left)
                if self.best is before:
                    return

    def _cheapest_first(self, groups: list[frozenset[int]]) -> list[frozenset[int]]:
        """Sorts the groups by how much the objective grows for each decision when the group is reverted.

        Groups that cannot be reverted come last. The order is unchanged if no increase is allowed, or if there is too little
        time.
        """
        slack = self._limit.objective - (self.best.check.objective or 0)
        if slack <= 0 or self._limit.objective == _NO_LIMIT:
            return groups
        began = time.monotonic()
        check(self._kind, self._problem, self.best.plan)
        if not self._budget.allows(len(groups), time.monotonic() - began):
            return groups
        costs = []
        for group in groups:
            if self._budget.is_over():
                return groups
            judged = self._judge(self._changes.reverted(self.best.plan, group))
            current_objective = self.best.check.objective or 0
            costs.append(None if judged is None else ((judged[1].objective or 0) - current_objective) / len(group))
        order = sorted(range(len(groups)), key=lambda at: (costs[at] is None, costs[at] or 0.0, at))
        return [groups[at] for at in order]

    def _halve(self, groups: Sequence[frozenset[int]]) -> None:
        """Tries to revert all groups together; if that fails, does the same for each half."""
        if self._budget.is_over() or not groups:
            return
        if self.offer(self._changes.reverted(self.best.plan, frozenset().union(*groups))) or len(groups) == 1:
            return
        middle = len(groups) // 2
        self._halve(groups[:middle])
        self._halve(groups[middle:])

    def _pairs(self, groups: Sequence[frozenset[int]], attempts: int) -> int:
        """Tries to revert pairs of groups until one succeeds; returns how many pairs may still be tried."""
        for at, one in enumerate(groups):
            for other in groups[:at]:
                if attempts <= 0 or self._budget.is_over():
                    return attempts
                attempts -= 1
                if self.offer(self._changes.reverted(self.best.plan, one | other)):
                    return attempts
        return attempts


def _cost(verification: Verification[Any]) -> tuple[int, int]:
    return verification.objective or 0, verification.tie_break


def _only_objective_is_wrong(verdict: Verification[Any]) -> bool:
    return all(line.startswith("wrong_objective") for line in verdict.lines)
