"""The decisions of a game that cost most, found by bisection.

f(k) is the objective of the best plan that keeps the first k decisions of a game. More decisions never help, so f rises from
the optimum to what the game came to, and the decisions at which it rises are those that cost. Between two numbers of decisions
with equal f nothing has to be looked at.
"""

from __future__ import annotations

from itertools import pairwise

import msgspec

from stowplan.portfolio.validation.adapter import Completion, Decisions, Effort

#: Decisions named in a report.
TOP = 5


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """A decision, or some in a row, and what it costs."""

    first: int
    """Number of the first of them, from 0."""
    last: int
    name: str
    before: int
    """The best objective there was before it ..."""
    after: int
    """... and with it."""
    share: float
    """Part of the difference between the game and the optimum."""
    exact: bool
    """Whether both are proven."""

    @property
    def cost(self) -> int:
        """What it costs, in the unit of objectives."""
        return self.after - self.before


class DecisionReport(msgspec.Struct, frozen=True, kw_only=True):
    """What the decisions of a likeliest game cost."""

    count: int
    """Decisions of the game."""
    costly: tuple[Decision, ...]
    """The dearest, dearest first; at most :data:`TOP`."""
    explained: float | None
    """Part of the difference between game and optimum that those account for; None where there is no difference."""
    rest: float | None
    """Part that is left when all decisions are kept, and is due to what else the game decides."""
    rest_name: str
    solves: int
    exact: bool
    """Whether every cost above is proven, and no interval of decisions was left undivided."""
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
    optimum
        Of the problem: best objective known, and bound.
    objective
        What the game came to.
    effort
        For each completion.
    most_solves
        Completions at most.

    Returns
    -------
    DecisionReport
        Decisions that could not be told apart within the limits stand as one, and the report says that it is not exact.
    """
    count = len(decisions.names)
    completions = {0: Completion(min(optimum.objective, objective), optimum.bound)}
    total, solves = objective - completions[0].objective, 0
    if total <= 0 or not count:
        note = "" if count else "nothing to decide"
        return _report(decisions, completions, objective, solves, note)
    while solves < most_solves and not effort.stop():
        at = count if count not in completions else _widest(_smoothed(completions))
        if at is None:
            break
        solves += 1
        completion = decisions.best(at, effort)
        completions[at] = Completion(min(completion.objective, objective), min(completion.bound, objective))
    note = ""
    if count not in completions:
        completions[count], note = Completion(objective, optimum.bound), "stopped before any decision was looked at"
    elif _widest(_smoothed(completions)) is not None:
        note = f"stopped after {solves} solves" if solves >= most_solves else f"out of time after {solves} solves"
    return _report(decisions, completions, objective, solves, note)


def _smoothed(completions: dict[int, Completion]) -> dict[int, Completion]:
    """The same by ascending number, with what follows from f rising: a plan that keeps more decisions keeps fewer, too."""
    numbers = sorted(completions)
    objectives, bounds = dict[int, int](), dict[int, int]()
    least = completions[numbers[-1]].objective
    for number in reversed(numbers):
        least = objectives[number] = min(least, completions[number].objective)
    most = completions[numbers[0]].bound
    for number in numbers:
        most = bounds[number] = max(most, completions[number].bound)
    return {number: Completion(objectives[number], min(bounds[number], objectives[number])) for number in numbers}


def _widest(known: dict[int, Completion]) -> int | None:
    """In the middle of the interval of several decisions that costs most, the first of equals; None where none costs."""
    open_ones = [(b.objective - a.objective, -i, i, j) for (i, a), (j, b) in pairwise(known.items()) if j - i > 1]
    cost, _, first, last = max(open_ones, default=(0, 0, 0, 0))
    return (first + last) // 2 if cost > 0 else None


def _report(decisions: Decisions, completions: dict[int, Completion], objective: int, solves: int, note: str) -> DecisionReport:
    known = _smoothed(completions)
    begin = known[0].objective
    end = known[max(known)].objective if len(known) > 1 else begin
    total = objective - begin
    steps = []
    for (i, a), (j, b) in pairwise(known.items()):
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
