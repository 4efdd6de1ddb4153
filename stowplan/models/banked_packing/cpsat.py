"""Banked packing as CP-SAT models: with offsets (exact), or with the loads of the banks alone (a relaxation).

In the relaxation a bank holds whatever fits by its bytes at every moment, wherever it may lie. No plan costs less than it does,
and its choice of banks is that of a best plan wherever the banks can be packed so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import gcd
from typing import Unpack

from ortools.sat.python import cp_model

from stowplan.models import cpsat_runner
from stowplan.models.banked_packing.plan import Plan, plan_of
from stowplan.models.banked_packing.problem import Problem, moments
from stowplan.models.cpsat_runner import Search, Value
from stowplan.models.outcome import Outcome

#: Buffers that cannot all be in a bank: its number, and theirs.
Cut = tuple[int, tuple[int, ...]]


@dataclass
class Model:
    """A built model; costs count units of ``unit``."""

    problem: Problem
    unit: int
    model: cp_model.CpModel = field(default_factory=cp_model.CpModel)
    inside: list[dict[int, cp_model.IntVar]] = field(default_factory=list)
    """Of each buffer, by bank: whether it is there."""
    steps: list[dict[int, cp_model.IntVar]] = field(default_factory=list)
    """Offset by bank, in units of :meth:`Problem.step`; empty in the relaxation."""

    def add_hint(self, plan: Plan) -> None:
        """Start the solver from a plan; every variable gets a value."""
        values: list[tuple[cp_model.IntVar, int]] = []
        for number, banks in enumerate(self.inside):
            values += [(variable, int(plan.banks[number] == bank)) for bank, variable in banks.items()]
            for bank, variable in self.steps[number].items() if self.steps else ():
                at = plan.offsets[number] if plan.banks[number] == bank else self.problem.first(number, bank)
                values.append((variable, at // self.problem.step(number, bank)))
        cpsat_runner.add_hint(self.model, values)

    def choice(self, value: Value) -> tuple[int, ...]:
        """Bank of each buffer in a solution."""
        return tuple(next(bank for bank, variable in banks.items() if value(variable)) for banks in self.inside)

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
        banks = self.choice(value)
        offsets = tuple(
            value(self.steps[number][bank]) * self.problem.step(number, bank) if self.steps else 0
            for number, bank in enumerate(banks)
        )
        return plan_of(self.problem, banks, offsets)


def build(problem: Problem, *, offsets: bool = True, cuts: Sequence[Cut] = ()) -> Model:
    """Variables, constraints, objective.

    Parameters
    ----------
    offsets
        Whether buffers have offsets; False builds the relaxation.
    cuts
        What is known not to fit.

    Returns
    -------
    Model
        Not yet hinted. A buffer that no bank has room for makes it infeasible.
    """
    costs = [[problem.cost(number, bank) for bank in banks] for number, banks in enumerate(problem.allowed)]
    built = Model(problem, gcd(*(cost for row in costs for cost in row)) or 1)
    model = built.model
    for number, banks in enumerate(problem.allowed):
        built.inside.append({bank: model.new_bool_var(f"buffer {number} in {bank}") for bank in banks})
        model.add_exactly_one(built.inside[-1].values())
    for live in moments(problem):
        for bank in range(len(problem.banks)):
            terms = [
                (built.inside[number][bank], problem.taken(number, bank)) for number in live if bank in built.inside[number]
            ]
            if sum(size for _, size in terms) > problem.room(bank):
                unit = gcd(*(size for _, size in terms))
                model.add(sum(size // unit * variable for variable, size in terms) <= problem.room(bank) // unit)
    for bank, numbers in cuts:
        model.add(sum(built.inside[number][bank] for number in numbers) <= len(numbers) - 1)
    if offsets:
        _add_offsets(built)
    model.minimize(
        sum(
            cost // built.unit * variable
            for banks, row in zip(built.inside, costs, strict=True)
            for variable, cost in zip(banks.values(), row, strict=True)
        )
    )
    return built


def _add_offsets(built: Model) -> None:
    problem, model = built.problem, built.model
    rectangles: list[tuple[list[cp_model.IntervalVar], list[cp_model.IntervalVar]]] = [([], []) for _ in problem.banks]
    for number, (buffer, inside) in enumerate(zip(problem.buffers, built.inside, strict=True)):
        built.steps.append({})
        for bank, variable in inside.items():
            step, size = problem.step(number, bank), problem.taken(number, bank)
            last = (problem.banks[bank].capacity - size) // step
            at = model.new_int_var(problem.first(number, bank) // step, last, f"offset {number} in {bank}")
            built.steps[number][bank] = at
            if size == 0:
                continue
            times, spaces = rectangles[bank]
            life = buffer.upper - buffer.lower
            times.append(model.new_optional_fixed_size_interval_var(buffer.lower, life, variable, f"time {number}"))
            spaces.append(model.new_optional_fixed_size_interval_var(step * at, size, variable, f"space {number} in {bank}"))
    for times, spaces in rectangles:
        model.add_no_overlap_2d(times, spaces)


def solve(problem: Problem, *, offsets: bool = True, cuts: Sequence[Cut] = (), **search: Unpack[Search[Plan]]) -> Outcome[Plan]:
    """Solve a model of a problem.

    Parameters
    ----------
    offsets, cuts
        As :func:`build` takes them.
    search
        As :func:`stowplan.models.cpsat_runner.find_plan` takes it: limits, a hint, what to call.

    Returns
    -------
    Outcome
        Best plan (of the relaxation: banks alone), and what is proven; running out of time is never ``infeasible``.
    """
    built = build(problem, offsets=offsets, cuts=cuts)
    return cpsat_runner.find_plan(built, objective=lambda units: units * built.unit, **search)
