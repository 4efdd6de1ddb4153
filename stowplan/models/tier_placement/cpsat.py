"""Tier placement as a CP-SAT model: the same rows as the MILP in whole numbers, and offsets where tiers are address spaces."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from math import gcd
from typing import Unpack

from ortools.sat.python import cp_model

from stowplan.models import cpsat_runner
from stowplan.models.cpsat_runner import Search, Value
from stowplan.models.outcome import Best, Outcome
from stowplan.models.tier_placement.plan import Plan
from stowplan.models.tier_placement.problem import Problem
from stowplan.models.tier_placement.structure import Offsets, Structure, offsets_of, plan_of, tiers_of


@dataclass
class Model:
    """A built model. Loads count units of ``unit`` bytes, offsets units of their tier's alignment."""

    structure: Structure
    unit: int
    model: cp_model.CpModel = field(default_factory=cp_model.CpModel)
    place: dict[tuple[int, int], cp_model.IntVar] = field(default_factory=dict)
    """Whether a tensor stands in a tier, by (tensor, tier)."""
    excess: list[cp_model.IntVar] = field(default_factory=list)
    """Of the layers of ``structure.excesses``, ps."""
    load: dict[int, cp_model.IntVar] = field(default_factory=dict)
    """Weights in each limited tier."""
    offset: dict[tuple[int, int], cp_model.IntVar] = field(default_factory=dict)
    """Offset of a tensor in a crowded tier, should it stand there, by (tensor, tier)."""

    def add_hint(self, plan: Plan) -> None:
        """Start the solver from a plan, which needs offsets where tiers are address spaces; every variable gets a value."""
        structure = self.structure
        tier_of, offsets = tiers_of(structure, plan), offsets_of(structure, plan)
        values = [(variable, int(tier_of[tensor] == tier)) for (tensor, tier), variable in self.place.items()]
        values += [(variable, excess.at(tier_of)) for excess, variable in zip(structure.excesses, self.excess, strict=True)]
        for tier, variable in self.load.items():
            inside = [number for number in structure.weights if number is not None and tier_of[number] == tier]
            values.append((variable, sum(structure.tensors[number].size for number in inside) // self.unit))
        for (tensor, tier), variable in self.offset.items():
            assert offsets is not None
            at = offsets[tensor] // structure.problem.tiers[tier].alignment if tier_of[tensor] == tier else 0
            values.append((variable, at))
        cpsat_runner.add_hint(self.model, values)

    def extract(self, value: Value) -> Plan:
        """Plan of a solution.

        Parameters
        ----------
        value
            Gives the value of a variable of the model.

        Returns
        -------
        Plan
            With its latency in ps, and with offsets where tiers are address spaces.
        """
        structure = self.structure
        tier_of = [0] * len(structure.tensors)
        for (tensor, tier), variable in self.place.items():
            if value(variable):
                tier_of[tensor] = tier
        if not structure.problem.address_spaces:
            return plan_of(structure, tier_of)
        offsets = [0] * len(structure.tensors)
        for (tensor, tier), variable in self.offset.items():
            if tier_of[tensor] == tier:
                offsets[tensor] = value(variable) * structure.problem.tiers[tier].alignment
        for tier in range(len(structure.problem.tiers)):
            if tier not in structure.crowded:
                inside = [number for number, at in enumerate(tier_of) if at == tier]
                for number, offset in zip(inside, Offsets(structure).pack(tier, inside) or (), strict=True):
                    offsets[number] = offset
        return plan_of(structure, tier_of, offsets)


def build(problem: Problem) -> Model:
    """Variables, constraints, objective.

    Returns
    -------
    Model
        Not yet hinted; the objective is ps above the floors of the layers.
    """
    structure = Structure(problem)
    built = Model(structure, gcd(*(tensor.size for tensor in structure.tensors)) or 1)
    _add_places(built)
    _add_capacities(built)
    if problem.address_spaces:
        for tier in structure.crowded:
            _add_offsets(built, tier)
    _add_objective(built)
    return built


def _add_places(built: Model) -> None:
    """Every tensor stands in one tier that it fits into."""
    for number, tensor in enumerate(built.structure.tensors):
        choices = []
        for tier in tensor.tiers:
            choices.append(built.model.new_bool_var(f"tensor {number} in {tier}"))
            built.place[number, tier] = choices[-1]
        built.model.add_exactly_one(choices)


def _add_capacities(built: Model) -> None:
    structure, model = built.structure, built.model

    def inside(tier: int, numbers: Iterable[int | None]) -> cp_model.LinearExpr | int:
        chosen = [number for number in numbers if number is not None and (number, tier) in built.place]
        sizes = [structure.tensors[number].size // built.unit for number in chosen]
        return cp_model.LinearExpr.weighted_sum([built.place[number, tier] for number in chosen], sizes)

    for tier in structure.limited:
        capacity = structure.problem.tiers[tier].capacity // built.unit
        load = built.load[tier] = model.new_int_var(0, capacity, f"weights in {tier}")
        model.add(load == inside(tier, structure.weights))
        for live in structure.moments:
            model.add(load + inside(tier, live) <= capacity)


def _add_offsets(built: Model, tier: int) -> None:
    """Tensors of one tier are rectangles, steps times bytes, that do not overlap."""
    structure, model = built.structure, built.model
    memory = structure.problem.tiers[tier]
    times, spaces = [], []
    for number, tensor in enumerate(structure.tensors):
        if (number, tier) not in built.place or not tensor.size:
            continue
        here = built.place[number, tier]
        # The next offset is aligned anyway: nothing is lost by sizes rounded up.
        units = -(-tensor.size // memory.alignment)
        offset = model.new_int_var(0, (memory.capacity - tensor.size) // memory.alignment, f"offset {number} in {tier}")
        built.offset[number, tier] = offset
        span = tensor.last + 1 - tensor.first
        times.append(model.new_optional_fixed_size_interval_var(tensor.first, span, here, f"time {number} in {tier}"))
        spaces.append(model.new_optional_fixed_size_interval_var(offset, units, here, f"space {number} in {tier}"))
    model.add_no_overlap_2d(times, spaces)


def _add_objective(built: Model) -> None:
    structure, model = built.structure, built.model
    for excess in structure.excesses:
        variable = model.new_int_var(0, excess.most, f"excess {excess.layer}")
        built.excess.append(variable)
        for row in structure.rows(excess):
            places = [built.place[tensor, tier] for tensor, tier, _ in row.savings]
            savings = [saving for _, _, saving in row.savings]
            model.add(variable + cp_model.LinearExpr.weighted_sum(places, savings) >= row.least)
    model.minimize(sum(built.excess))


def solve(problem: Problem, *, lower_bound_ps: int | None = None, **search: Unpack[Search[Plan]]) -> Outcome[Plan]:
    """Solve the model of a problem; its latencies and bounds are ps.

    Parameters
    ----------
    lower_bound_ps
        A proven latency that no plan goes below.
    search
        As :func:`stowplan.models.cpsat_runner.find_plan` takes it: limits, a hint, what to call.

    Returns
    -------
    Outcome
        Best plan, and what is proven; running out of time is never ``infeasible``.
    """
    built = build(problem)
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
    # Short of time, CP-SAT may not even have looked at its hint.
    best = Best[Plan](lambda plan: plan.objective, None, None, outcome.bound)
    best.offer_plan(search.get("hint"))
    best.offer_plan(outcome.plan)
    return best.outcome()
