"""Banked packing as CP-SAT models: an exact model with offsets, and a relaxation without offsets.

The relaxation only requires that the buffers that are live in a bank at the same time have no more bytes than the bank. No plan
costs less than its optimum. If there are offsets for the buffers in the banks of the optimum, they are an optimal plan.

A hint must be a valid plan; then nothing here raises an error except KeyError, which is documented where it can come up.
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

#: Buffers that cannot all be in a bank together: the number of the bank, and the numbers of the buffers.
Cut = tuple[int, tuple[int, ...]]


class Model:
    """A CP-SAT model of a problem. Its objective is the cost divided by ``unit``.

    Parameters
    ----------
    offsets
        Whether buffers get offsets. False builds the relaxation.
    cuts
        Sets of buffers that do not fit into a bank together; the model excludes them. Each buffer of a cut must be allowed in
        its bank (:attr:`Problem.allowed`); otherwise KeyError is raised.
    """

    def __init__(self, problem: Problem, *, offsets: bool = True, cuts: Sequence[Cut] = ()):
        self.problem, self.model = problem, cp_model.CpModel()
        self.places = Places(self.model, placement_of(problem))
        """Variables that assign buffers to banks (:class:`~stowplan.models.placement.cpsat.Places`). A buffer that fits into no
        bank makes the model infeasible."""
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
        """Let the solver start from a valid plan; every variable gets a value."""
        cpsat_runner.add_hint(self.model, self.places.hint_values(plan.banks, plan.offsets))

    def extract(self, value: Value) -> Plan:
        """The plan of a solution, with its cost as objective. In the relaxation, all offsets are 0, and the plan is not valid.

        Parameters
        ----------
        value
            A function that returns the value of a variable in the solution.
        """
        banks = self.places.chosen_memories(value)
        offsets = self.places.offsets(value, banks)
        return plan_of(self.problem, banks, [offsets.get(number, 0) for number in range(len(banks))])


def solve(problem: Problem, *, offsets: bool = True, cuts: Sequence[Cut] = (), **search: Unpack[Search[Plan]]) -> Outcome[Plan]:
    """Solve a problem, or its relaxation, with CP-SAT.

    Parameters
    ----------
    offsets, cuts
        Passed on to :class:`Model`.
    search
        Keyword arguments of :func:`stowplan.models.cpsat_runner.find_plan`: limits, a hint and callbacks.

    Returns
    -------
    Outcome
        The best plan (in the relaxation, only its banks are meaningful) and a proven lower bound on the cost. Running out of
        time is never reported as ``infeasible``.

    Raises
    ------
    KeyError
        A cut has a buffer that may not be placed in the bank of the cut.
    """
    built = Model(problem, offsets=offsets, cuts=cuts)
    return cpsat_runner.find_plan(built, objective=lambda units: units * built.unit, **search)
