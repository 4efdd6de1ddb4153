"""Tier placement as a CP-SAT model: the rows of the MILP in whole numbers, and offsets if tiers are address spaces, that is, if
the problem requires that every tensor has an offset in its tier (``Problem.address_spaces``).

The latency of a layer is a fixed *floor* plus an *excess*, whose rows are those of
:mod:`stowplan.models.tier_placement.structure`.
"""

from __future__ import annotations

from typing import Unpack

from ortools.sat.python import cp_model

from stowplan.models import cpsat_runner
from stowplan.models.cpsat_runner import Search, Value
from stowplan.models.outcome import Best, Outcome
from stowplan.models.placement.cpsat import Places
from stowplan.models.tier_placement.plan import Plan
from stowplan.models.tier_placement.problem import Problem
from stowplan.models.tier_placement.structure import Offsets, Structure, offsets_of, plan_of, tiers_of


class Model:
    """The CP-SAT model of a problem. Its objective is the sum of the excesses of all layers, in ps."""

    def __init__(self, problem: Problem):
        self.structure, self.model = Structure(problem), cp_model.CpModel()
        self.places = Places(self.model, self.structure.placement)
        self.excess: list[cp_model.IntVar] = []
        """Variable in ps of each entry of ``structure.excesses``."""
        for tier in self.structure.limited:
            self.places.add_loads(tier)
        for tier in self.structure.crowded if problem.address_spaces else ():
            self.places.add_offsets(tier)
        self._add_objective()

    def _add_objective(self) -> None:
        """Add the excesses, their rows, and the objective."""
        for excess in self.structure.excesses:
            variable = self.model.new_int_var(0, excess.most, f"excess {excess.layer}")
            self.excess.append(variable)
            for row in self.structure.rows(excess):
                saved = self.places.total({(tensor, tier): saving for tensor, tier, saving in row.savings})
                self.model.add(cp_model.LinearExpr.sum([variable, saved]) >= row.least)
        self.model.minimize(sum(self.excess))

    def add_hint(self, plan: Plan) -> None:
        """Let the solver start from a plan, which needs offsets if tiers are address spaces; every variable gets a value."""
        tier_of = tiers_of(self.structure, plan)
        excesses = zip(self.structure.excesses, self.excess, strict=True)
        values = self.places.hint_values(tier_of, offsets_of(self.structure, plan))
        cpsat_runner.add_hint(self.model, [*values, *((variable, excess.at(tier_of)) for excess, variable in excesses)])

    def extract(self, value: Value) -> Plan:
        """The plan of a solution with its latency in ps, and with offsets if tiers are address spaces.

        Parameters
        ----------
        value
            Returns the value of a variable of the model in the solution.
        """
        structure, tier_of = self.structure, self.places.chosen_memories(value)
        if not structure.problem.address_spaces:
            return plan_of(structure, tier_of)
        offsets = self.places.offsets(value, tier_of)
        for tier in range(len(structure.problem.tiers)):
            if tier not in structure.crowded:
                inside = [number for number, at in enumerate(tier_of) if at == tier]
                offsets |= zip(inside, Offsets(structure).pack(tier, inside) or (), strict=True)
        return plan_of(structure, tier_of, [offsets[number] for number in range(len(tier_of))])


def solve(problem: Problem, *, lower_bound_ps: int | None = None, **search: Unpack[Search[Plan]]) -> Outcome[Plan]:
    """Solve a problem with CP-SAT. Objective and bounds are latencies in ps.

    Parameters
    ----------
    lower_bound_ps
        A lower bound on the latency that is proven already.
    search
        Keyword arguments of :func:`stowplan.models.cpsat_runner.find_plan`: limits, a hint and callbacks.

    Returns
    -------
    Outcome
        The best plan and bound. Running out of time is never reported as ``infeasible``.
    """
    built = Model(problem)
    base = built.structure.base_ps
    if lower_bound_ps is not None and lower_bound_ps > base:
        built.model.add(sum(built.excess) >= lower_bound_ps - base)
    outcome = cpsat_runner.find_plan(
        built,
        objective=lambda excess: base + excess,
        least=max(base, lower_bound_ps or 0),
        parameters={"linearization_level": 2},
        **search,
    )
    if outcome.status == "infeasible":
        return Outcome("infeasible", None, base)
    if outcome.status == "optimal":
        assert outcome.plan is not None
        return Outcome("optimal", outcome.plan, outcome.plan.objective)
    # With little time, CP-SAT may not even have read its hint.
    best = Best[Plan](lambda plan: plan.objective, None, None, outcome.bound)
    best.offer_plan(search.get("hint"))
    best.offer_plan(outcome.plan)
    return best.outcome()
