"""Banked packing as CP-SAT models: with offsets (exact), or with the loads of the banks alone (a relaxation).

In the relaxation a bank holds whatever fits by its bytes at every moment, wherever it may lie. No plan costs less than it does,
and its choice of banks is that of a best plan wherever the banks can be packed so.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd
from typing import Unpack

from ortools.sat.python import cp_model

from stowplan.models import cpsat_runner
from stowplan.models.banked_packing.plan import Plan, plan_of
from stowplan.models.banked_packing.problem import Problem, placement_of
from stowplan.models.cpsat_runner import Search, Value
from stowplan.models.outcome import Outcome
from stowplan.models.placement.cpsat import Places

#: Buffers that cannot all be in a bank: its number, and theirs.
Cut = tuple[int, tuple[int, ...]]


class Model:
    """A built model; costs count units of ``unit``.

    Parameters
    ----------
    offsets
        Whether buffers have offsets; False builds the relaxation.
    cuts
        What is known not to fit.
    """

    def __init__(self, problem: Problem, *, offsets: bool = True, cuts: Sequence[Cut] = ()):
        self.problem, self.model = problem, cp_model.CpModel()
        self.places = Places(self.model, placement_of(problem))
        """A buffer that no bank has room for makes it infeasible."""
        costs = {(number, bank): problem.cost(number, bank) for number, bank in self.places.inside}
        self.unit = gcd(*costs.values()) or 1
        for bank in range(len(problem.banks)):
            self.places.add_loads(bank)
        for bank, numbers in cuts:
            self.places.exclude(bank, numbers)
        for bank in range(len(problem.banks)) if offsets else ():
            self.places.add_offsets(bank)
        self.model.minimize(self.places.total({place: cost // self.unit for place, cost in costs.items()}))

    def add_hint(self, plan: Plan) -> None:
        """Start the solver from a plan; every variable gets a value."""
        cpsat_runner.add_hint(self.model, self.places.hint(plan.banks, plan.offsets))

    def extract(self, value: Value) -> Plan:
        """Plan of a solution; in the relaxation all offsets are 0, and it is none.

        Parameters
        ----------
        value
            Gives the value of a variable of the model.

        Returns
        -------
        Plan
            With its cost as objective.
        """
        banks = self.places.chosen(value)
        offsets = self.places.offsets(value, banks)
        return plan_of(self.problem, banks, [offsets.get(number, 0) for number in range(len(banks))])


def solve(problem: Problem, *, offsets: bool = True, cuts: Sequence[Cut] = (), **search: Unpack[Search[Plan]]) -> Outcome[Plan]:
    """Solve a model of a problem.

    Parameters
    ----------
    offsets, cuts
        As :class:`Model` takes them.
    search
        As :func:`stowplan.models.cpsat_runner.find_plan` takes it: limits, a hint, what to call.

    Returns
    -------
    Outcome
        Best plan (of the relaxation: banks alone), and what is proven; running out of time is never ``infeasible``.
    """
    built = Model(problem, offsets=offsets, cuts=cuts)
    return cpsat_runner.find_plan(built, objective=lambda units: units * built.unit, **search)
