"""Finds the decisions of a game that cost most, by bisection.

Let f(k) be the objective of the best plan that keeps the first k decisions of a game. More fixed decisions never help, so that
f rises from the optimum to the objective of the game, and a decision at which it rises is one that costs. Between two values of
k with equal f, no decision costs anything.
"""

from __future__ import annotations

from itertools import pairwise

import msgspec

from stowplan.portfolio.validation.adapter import Completion, Decisions, Effort

#: Number of decisions that a report names.
TOP = 5


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """A decision, or several consecutive ones, with its cost."""

    first: int
    """Number of the first of them, from 0."""
    last: int
    """Number of the last of them."""
    name: str
    before: int
    """The best objective without the decision fixed."""
    after: int
    """The best objective with the decision fixed."""
    share: float
    """Its cost as a part of the difference between the game and the optimum."""
    exact: bool
    """Whether both objectives are proven."""

    @property
    def cost(self) -> int:
        """The cost of the decision, in the unit of the objective."""
        return self.after - self.before


class DecisionReport(msgspec.Struct, frozen=True, kw_only=True):
    """The costs of the decisions of the game of most likely decisions."""

    count: int
    """Number of decisions of the game."""
    costly: tuple[Decision, ...]
    """The most expensive decisions, in descending order; at most :data:`TOP`."""
    explained: float | None
    """Part of the difference between game and optimum that these account for; None if there is no difference."""
    rest: float | None
    """Part that remains with all decisions fixed, which is due to what else the game decides."""
    rest_name: str
    """A description of what else the game decides."""
    solves: int
    """Number of completions that were solved."""
    exact: bool
    """Whether every cost above is proven, and belongs to a single decision."""
    note: str = ""


def dearest(
    decisions: Decisions,
    optimum: Completion,
    objective: int,
    effort: Effort,
    most_solves: int,
) -> DecisionReport:
    """Find the decisions of a game that cost most.

    Parameters
    ----------
    decisions
        The decisions of the game.
    optimum
        The best known objective of the problem, and its bound.
    objective
        The objective of the game.
    effort
        The limits of each completion.
    most_solves
        Largest number of completions.

    Returns
    -------
    DecisionReport
        Decisions that could not be separated within the limits count as one, and the report is marked as not exact.
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
    """The completions by ascending number, tightened by the fact that f never falls.

    A plan that keeps more decisions also keeps fewer, so that its objective is an upper bound for fewer decisions.
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
    """The middle of the most expensive interval of several decisions; None if no such interval costs anything."""
    open_ones = [(b.objective - a.objective, -i, i, j) for (i, a), (j, b) in pairwise(tightened.items()) if j - i > 1]
    cost, _, first, last = max(open_ones, default=(0, 0, 0, 0))
    return (first + last) // 2 if cost > 0 else None


def _build_report(
    decisions: Decisions, completions: dict[int, Completion], objective: int, solves: int, note: str
) -> DecisionReport:
    """The report on the completions that were solved."""
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
