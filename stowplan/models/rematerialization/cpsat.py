"""Rematerialization by CP-SAT: how many runs of operators the model has, and what its answer proves.

Every operator has some runs at most. A plan with more of one costs at least that many runs of it more, and one with more
fetches has the channel busy for longer, unless nobody could read them all: the bound is no larger than what that takes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Unpack

from stowplan.models import cpsat_runner
from stowplan.models.cpsat_runner import Search
from stowplan.models.outcome import Outcome
from stowplan.models.rematerialization.cpsat_model import Model
from stowplan.models.rematerialization.plan import Plan
from stowplan.models.rematerialization.problem import Problem
from stowplan.models.rematerialization.structure import Structure, build

#: Up to so many operators their order is free.
FREE_OPS = 24

#: Beyond so many operators there is no model: it grows with the square. With a host the model is larger still.
MOST_OPS, MOST_OPS_WITH_HOST = 400, 16

#: Runs of an operator, and fetches of a value, at most, of graphs of up to so many operators and of others.
RUNS = ((60, 3), (MOST_OPS, 2))

#: Runs at most of an operator that costs nothing.
FREE_RUNS = 6

#: Runs of an operator at most where nothing fits with fewer.
ENOUGH_RUNS = 8

#: Times of a model with a host are below this.
LIMIT = 1 << 50


@dataclass
class _Counts:
    """Runs of operators, and fetches of values, at most: nothing runs more often than it is read."""

    structure: Structure
    most: int
    upper: int | None
    """Added cost of a plan at hand."""
    runs: list[int] = field(default_factory=list)
    ceiling: int = 1 << 62
    """A plan with more adds at least this cost."""
    is_capped: bool = False

    def __post_init__(self) -> None:
        structure, once = self.structure, sum(self.structure.cost[: self.structure.computing])
        self.runs = [1] * structure.ops
        # Readers before what they read.
        for op in reversed(structure.order):
            useful, cost = max(1, self._reads(op)), structure.cost[op]
            if op >= structure.computing:
                self.runs[op] = self._cap(useful, self.most, (self.most + 1) * cost - once)
                if self.is_short:
                    # It is sent once: sent again, it could make room on the host in between.
                    self._cap(self.runs[op], 1, 2 * cost - once)
            elif not structure.once[op]:
                if self.upper is not None and cost:
                    useful = min(useful, 1 + self.upper // cost)
                most = self.most if cost else max(FREE_RUNS, self.most)
                self.runs[op] = self._cap(useful, most, most * cost)

    @property
    def is_short(self) -> bool:
        """Whether the host has no room for all that may be sent."""
        structure, channel = self.structure, self.structure.problem.channel
        return channel is not None and channel.limit < sum(structure.size[value] for value in structure.fetched)

    def _reads(self, op: int) -> int:
        """Runs of an operator of which each is of use, at most."""
        structure, values = self.structure, self.structure.writes[op]
        kept = [structure.kept[value] for value in values]
        # Without fetches all that stays is of one run.
        ends = sum(kept) if structure.fetched else any(kept)
        return sum(self.runs[reader] for value in values for reader in structure.readers[value]) + ends

    def _cap(self, useful: int, most: int, cost: int) -> int:
        """A number of runs; a plan with more than ``most`` of them adds a cost."""
        if useful > most and (self.upper is None or cost < self.upper):
            self.ceiling, self.is_capped = min(self.ceiling, max(0, cost)), True
        return min(useful, most)


def solve(
    problem: Problem, *, order: list[int] | None = None, runs: int | None = None, **search: Unpack[Search[Plan]]
) -> Outcome[Plan]:
    """A plan of least added cost.

    Parameters
    ----------
    order
        In which operators first run; by default free on graphs of up to :data:`FREE_OPS` operators, and with a host; else the
        order given.
    runs
        Of each operator at most, and of fetches of a value; by default as :data:`RUNS` says.
    search
        As :func:`stowplan.models.cpsat_runner.find_plan` takes it.

    Returns
    -------
    Outcome
        ``infeasible`` where the order is free and no operator or fetch could be of use more often than it may run; ``optimal``
        where the bound says so.
    """
    structure, channel = build(problem), problem.channel
    most_ops = MOST_OPS if channel is None else MOST_OPS_WITH_HOST
    if structure.ops > most_ops:
        return Outcome("unknown", None, None, f"found {structure.ops} operators, the model takes up to {most_ops}")
    if channel is not None:
        copies = [problem.copy_cost(structure.tensor[value]) for value in structure.movable]
        structure = structure.with_fetches(structure.movable, copies)
    elif order is None and structure.ops > FREE_OPS:
        order = structure.order
    hint = search.get("hint")
    most = runs or next(count for ops, count in RUNS if structure.computing <= ops)
    while True:
        counts = _Counts(structure, most, None if hint is None else hint.objective)
        limit = sum(structure.size) * (2 * max(counts.runs, default=1) + 1) if problem.limit is None else problem.limit
        model = Model(structure, limit, counts.runs, order, counts.ceiling if order is None else 0)
        if model.horizon >= LIMIT:
            return Outcome("unknown", None, None, "found costs too large for the model")
        outcome = cpsat_runner.find_plan(model, objective=model.added_cost, **search)
        if outcome.status != "infeasible":
            return judged(outcome)
        # With a host a hint is a limit, and its plan may do what the model does not know of.
        is_certain = channel is None or hint is None
        if order is None and not counts.is_capped and is_certain:
            return outcome
        if order is not None or runs is not None or most >= ENOUGH_RUNS or not is_certain:
            return Outcome("unknown", None, None)
        # Nothing fits with so few runs: nothing is proven yet.
        most = ENOUGH_RUNS


def judged(outcome: Outcome[Plan]) -> Outcome[Plan]:
    """``optimal`` where the bound says so, whatever the solver says of its model."""
    proven = outcome.plan is not None and outcome.bound is not None and outcome.plan.objective <= outcome.bound
    status = "optimal" if proven else "feasible" if outcome.status == "optimal" else outcome.status
    return Outcome(status, outcome.plan, outcome.bound)
