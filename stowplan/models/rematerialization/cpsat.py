"""Solves rematerialization problems with CP-SAT: chooses the size of the model and says what its answers prove.

The *host* is a second memory; a plan can send values to it over a channel and fetch them back. The model allows each operator a
limited number of runs, and each value a limited number of fetches. A plan with more runs of an operator pays for them, and a
plan with more fetches occupies the channel for longer. This gives a lower bound on the added cost of every plan that the model
cannot represent. The bound that is reported is at most this one, so that it holds for all plans. If no operator could use more
runs, it is the bound of the model.

A hint must be a valid plan; then nothing here raises an error.
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

#: In graphs of up to this number of operators, the model also chooses the order of first runs.
FREE_OPS = 24

#: No model is built for larger graphs, since it grows quadratically. With a host the model is larger still.
MOST_OPS, MOST_OPS_WITH_HOST = 400, 16

#: Pairs (operators, runs): the largest number of runs of an operator, and of fetches of a value, in graphs of up to this size.
RUNS = ((60, 3), (MOST_OPS, 2))

#: Largest number of runs of an operator whose cost is 0, unless ``runs`` allows more. Such runs do not add to the objective.
FREE_RUNS = 6

#: Largest number of runs of an operator in a second attempt, if no plan fits with fewer runs.
ENOUGH_RUNS = 8

#: No model is solved if a time in it could reach this number.
LIMIT = 1 << 50


@dataclass
class _RunCounts:
    """Decides how many runs of each operator, and how many fetches of each value, the model has.

    An operator never needs more runs than the number of times that its results are read.
    """

    structure: Structure
    most: int
    """Largest number of runs of an operator that has a cost."""
    upper: int | None
    """Added cost of the plan that is the hint; None if there is none."""
    runs: list[int] = field(default_factory=list)
    """[operators] number of runs in the model."""
    ceiling: int = 1 << 62
    """Lower bound on the added cost of plans with more runs than the model has."""
    is_capped: bool = False
    """Whether a plan with more runs than the model has could be better."""

    def __post_init__(self) -> None:
        structure, once = self.structure, sum(self.structure.cost[: self.structure.computing])
        self.runs = [1] * structure.ops
        # Go backwards, so that the number of runs of the readers is known.
        for op in reversed(structure.order):
            useful, cost = max(1, self._reads(op)), structure.cost[op]
            if op >= structure.computing:
                self.runs[op] = self._cap(useful, self.most, (self.most + 1) * cost - once)
                if self.is_short:
                    # The model sends a value once. If the host is short of memory, sending it again later could be better.
                    self._cap(self.runs[op], 1, 2 * cost - once)
            elif not structure.once[op]:
                if self.upper is not None and cost:
                    useful = min(useful, 1 + self.upper // cost)
                most = self.most if cost else max(FREE_RUNS, self.most)
                self.runs[op] = self._cap(useful, most, most * cost)

    @property
    def is_short(self) -> bool:
        """Whether the host has fewer bytes than all values that may be sent have together."""
        structure, channel = self.structure, self.structure.problem.channel
        return channel is not None and channel.limit < sum(structure.size[value] for value in structure.fetched)

    def _reads(self, op: int) -> int:
        """The largest number of runs of an operator that can all be useful."""
        structure, values = self.structure, self.structure.writes[op]
        stays = [structure.kept[value] for value in values]
        # Without fetches, all results of an operator that stay to the end come from the same run.
        ends = sum(stays) if structure.fetched else any(stays)
        return sum(self.runs[reader] for value in values for reader in structure.readers[value]) + ends

    def _cap(self, useful: int, most: int, cost: int) -> int:
        """The number of runs in the model: ``useful``, but at most ``most``. Plans with more runs add at least ``cost``."""
        if useful > most and (self.upper is None or cost < self.upper):
            self.ceiling, self.is_capped = min(self.ceiling, max(0, cost)), True
        return min(useful, most)


def solve(
    problem: Problem, *, order: list[int] | None = None, runs: int | None = None, **search: Unpack[Search[Plan]]
) -> Outcome[Plan]:
    """Find a plan of least added cost within the problem's limit.

    Parameters
    ----------
    order
        The order in which operators first run, with each operator once and after those that it needs. By default the model
        chooses the order in graphs of up to :data:`FREE_OPS` operators and with a host; otherwise it is the order of the input.
        With a host, no order may be given.
    runs
        Largest number of runs of each operator, and of fetches of each value; by default see :data:`RUNS`.
    search
        Keyword arguments of :func:`stowplan.models.cpsat_runner.find_plan`: limits, a hint and callbacks.

    Returns
    -------
    Outcome
        The status is ``infeasible`` only if the model chooses the order and no plan could use more runs than the model has. It
        is ``optimal`` only if the plan's added cost equals the bound. It is ``unknown``, and no model is solved, if the graph
        has more than :data:`MOST_OPS` operators (with a host :data:`MOST_OPS_WITH_HOST`) or costs that are too large. The
        ``reason`` then says which of the two, although the problem may be feasible.
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
        counts = _RunCounts(structure, most, None if hint is None else hint.objective)
        limit = sum(structure.size) * (2 * max(counts.runs, default=1) + 1) if problem.limit is None else problem.limit
        model = Model(structure, limit, counts.runs, order, counts.ceiling if order is None else 0)
        if model.horizon >= LIMIT:
            return Outcome("unknown", None, None, "found costs too large for the model")
        outcome = cpsat_runner.find_plan(model, objective=model.added_cost, **search)
        if outcome.status != "infeasible":
            return with_proven_status(outcome)
        # With a host, the hint limits the cost of plans, and the hint itself may be a plan that the model cannot represent.
        is_certain = channel is None or hint is None
        if order is None and not counts.is_capped and is_certain:
            return outcome
        if order is not None or runs is not None or most >= ENOUGH_RUNS or not is_certain:
            return Outcome("unknown", None, None)
        # No plan with so few runs fits. That does not prove infeasibility, so try again with more runs.
        most = ENOUGH_RUNS


def with_proven_status(outcome: Outcome[Plan]) -> Outcome[Plan]:
    """Returns the outcome with the status ``optimal`` if the bound proves it, otherwise with another status. The solver's own
    status only refers to its model, which does not represent all plans."""
    proven = outcome.plan is not None and outcome.bound is not None and outcome.plan.objective <= outcome.bound
    status = "optimal" if proven else "feasible" if outcome.status == "optimal" else outcome.status
    return Outcome(status, outcome.plan, outcome.bound)
