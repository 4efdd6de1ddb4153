"""Finds out by bisection which decisions of a learned policy made its plan worse than the optimum.

A *policy* is a neural network that makes a plan by a sequence of decisions, which is called a *game*. Let f(k) be the objective
of the best plan that has the first k decisions of a game in common with it. Finding that plan, with an exact solver, is a
*completion* of the game. Smaller objectives are better, and the more decisions are fixed, the larger is f. So f increases from
the optimum at k = 0 towards the objective of the game. The *cost* of decision k, counted from 0, is f(k + 1) - f(k). If f is
equal at two values of k, no decision between them has a cost, and bisection need not look there. Objectives and costs are in
the unit of the kind of problem.
"""

from __future__ import annotations

from itertools import pairwise

import msgspec

from stowplan.portfolio.validation.adapter import Completion, Decisions, Effort

#: Maximum number of decisions that a report lists.
TOP = 5


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """The cost of one decision, or of several consecutive ones that were not told apart."""

    first: int
    """Number of the first of these decisions, counted from 0."""
    last: int
    """Number of the last of these decisions; equal to ``first`` if there is only one."""
    name: str
    """Name of the decision; for several decisions, the names of the first and the last one."""
    before: int
    """f before the decision: the best known objective if only the decisions before it are fixed."""
    after: int
    """f after the decision: the best known objective if the decision is fixed as well."""
    share: float
    """The cost as a fraction of the difference between the objective of the game and the optimum."""
    exact: bool
    """Whether both objectives are proven to be optimal."""

    @property
    def cost(self) -> int:
        """The cost of the decision, in the unit of the objective."""
        return self.after - self.before


class DecisionReport(msgspec.Struct, frozen=True, kw_only=True):
    """The costs of the decisions of a game, usually the one in which the policy always makes the most likely decision."""

    count: int
    """Number of decisions of the game."""
    costly: tuple[Decision, ...]
    """The most expensive decisions, in descending order of cost; at most :data:`TOP`. Decisions without a cost are left out."""
    explained: float | None
    """The sum of the costs of these decisions, as a fraction of the difference between the objective of the game and the
    optimum; None if there is no difference."""
    rest: float | None
    """The fraction of the difference that remains if all decisions are fixed, because the game also makes other choices. None
    if there is no difference."""
    rest_name: str
    """A description of the other choices that the game makes."""
    solves: int
    """Number of completions that were solved."""
    exact: bool
    """Whether every cost, also of decisions that are not listed, is proven and belongs to a single decision."""
    note: str = ""
    """Why some decisions were not examined; empty if all were."""


def dearest(
    decisions: Decisions,
    optimum: Completion,
    objective: int,
    effort: Effort,
    most_solves: int,
) -> DecisionReport:
    """Find the decisions of a game that have the largest costs.

    Parameters
    ----------
    decisions
        The decisions of the game, with a method that solves completions.
    optimum
        The best known objective of the problem, and the lower bound on it.
    objective
        The objective of the plan that the game made.
    effort
        The limits of each completion: time or work, and a deadline for all of them.
    most_solves
        Maximum number of completions.

    Returns
    -------
    DecisionReport
        If the limits were too small to tell consecutive decisions apart, these count as one decision, and ``exact`` is False.
        If the game is as good as the best known plan, or has no decisions, no completion is solved. Errors of ``decisions`` are
        passed on.
    """
    count = len(decisions.names)
    completions = {0: Completion(min(optimum.objective, objective), optimum.bound)}
    total, solves = objective - completions[0].objective, 0
    if total <= 0 or not count:
        note = "" if count else "nothing to decide"
        return _build_report(decisions, completions, objective, solves, note)
    while solves < most_solves and not effort.stop():
        at = count if count not in completions else _most_expensive_middle(_tighten(completions))
        if at is None:
            break
        solves += 1
        completion = decisions.best(at, effort)
        completions[at] = Completion(min(completion.objective, objective), min(completion.bound, objective))
    note = ""
    if count not in completions:
        completions[count], note = Completion(objective, optimum.bound), "stopped before any decision was looked at"
    elif _most_expensive_middle(_tighten(completions)) is not None:
        note = f"stopped after {solves} solves" if solves >= most_solves else f"out of time after {solves} solves"
    return _build_report(decisions, completions, objective, solves, note)


def _tighten(completions: dict[int, Completion]) -> dict[int, Completion]:
    """The completions by ascending number of decisions, improved by the fact that f never decreases.

    A plan in which the first k decisions are kept also keeps any smaller number, so its objective is an upper bound on f for
    smaller numbers. In the same way, a lower bound also holds for larger numbers.
    """
    numbers = sorted(completions)
    objectives, bounds = dict[int, int](), dict[int, int]()
    least = completions[numbers[-1]].objective
    for number in reversed(numbers):
        least = objectives[number] = min(least, completions[number].objective)
    most = completions[numbers[0]].bound
    for number in numbers:
        most = bounds[number] = max(most, completions[number].bound)
    return {number: Completion(objectives[number], min(bounds[number], objectives[number])) for number in numbers}


def _most_expensive_middle(tightened: dict[int, Completion]) -> int | None:
    """The middle of the interval between two neighbouring completions in which f increases most.

    Only intervals of several decisions count. The result is None if there are none, or if f is constant within each of them.
    """
    intervals = [(b.objective - a.objective, -i, i, j) for (i, a), (j, b) in pairwise(tightened.items()) if j - i > 1]
    cost, _, first, last = max(intervals, default=(0, 0, 0, 0))
    return (first + last) // 2 if cost > 0 else None


def _build_report(
    decisions: Decisions, completions: dict[int, Completion], objective: int, solves: int, note: str
) -> DecisionReport:
    """The report that follows from the completions that were solved."""
    tightened = _tighten(completions)
    begin = tightened[0].objective
    end = tightened[max(tightened)].objective if len(tightened) > 1 else begin
    total = objective - begin
    steps = []
    for (i, a), (j, b) in pairwise(tightened.items()):
        if b.objective > a.objective:
            name = decisions.names[i] if j == i + 1 else f"{decisions.names[i]} ... {decisions.names[j - 1]}"
            steps.append(
                Decision(
                    first=i,
                    last=j - 1,
                    name=name,
                    before=a.objective,
                    after=b.objective,
                    share=(b.objective - a.objective) / total,
                    exact=a.objective == a.bound and b.objective == b.bound,
                )
            )
    costly = tuple(sorted(steps, key=lambda step: (-step.cost, step.first))[:TOP])
    return DecisionReport(
        count=len(decisions.names),
        costly=costly,
        explained=sum(step.cost for step in costly) / total if total > 0 else None,
        rest=(objective - end) / total if total > 0 else None,
        rest_name=decisions.rest,
        solves=solves,
        exact=not note and all(step.exact and step.first == step.last for step in steps),
        note=note,
    )
