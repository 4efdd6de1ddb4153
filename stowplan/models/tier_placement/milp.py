"""Tier placement as a mixed-integer linear program: capacity rows of bytes, and the excess rows of each layer.

Columns: for every tensor and every tier but the first that it fits into, whether it stands there; for every layer whose
latency depends on the plan its excess. For every tier that does not hold everything the bytes of weights in it. Rows and
sides are whole numbers of bytes and picoseconds; solvers get a copy scaled to numbers near one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from stowplan.models.mip.matrix import FloatArray, MatrixModel, Program, Rows
from stowplan.models.mip.outcome import proven
from stowplan.models.tier_placement.plan import Plan
from stowplan.models.tier_placement.problem import Problem
from stowplan.models.tier_placement.structure import Structure, plan_of, tiers_of


@dataclass
class Model:
    """A built model in whole numbers; ``matrix`` is its scaled copy, whose objective counts ``time_unit`` picoseconds."""

    structure: Structure
    place: dict[tuple[int, int], int]
    """Column of (tensor, tier)."""
    excess: list[int]
    """Column of each excess."""
    load: dict[int, int]
    """Column of the bytes of weights in each limited tier."""
    program: Program
    time_unit: int
    matrix: MatrixModel
    column_scale: FloatArray
    row_scale: FloatArray

    def add_hint(self, plan: Plan) -> FloatArray:
        """The point of a plan, shape ``[columns]``, for solvers that start from one."""
        structure = self.structure
        tier_of = tiers_of(structure, plan)
        values = np.zeros(self.matrix.columns)
        for (tensor, tier), column in self.place.items():
            values[column] = tier_of[tensor] == tier
        for excess, column in zip(structure.excesses, self.excess, strict=True):
            values[column] = excess.at(tier_of)
        for tier, column in self.load.items():
            values[column] = sum(
                t.size for t, at in zip(structure.tensors, tier_of, strict=True) if at == tier and not t.is_output
            )
        return values / self.column_scale

    def tiers(self, values: FloatArray) -> list[int]:
        """Tier of each tensor at a point of the scaled copy; a fraction goes to the tier that has most of it."""
        best = [(0.5, 0 if not t.tiers else t.tiers[0]) for t in self.structure.tensors]
        for (tensor, tier), column in self.place.items():
            if values[column] > best[tensor][0]:
                best[tensor] = (float(values[column]), tier)
        return [tier for _, tier in best]

    def shares(self, values: FloatArray) -> FloatArray:
        """How much of each tensor stands in each tier at a point of the scaled copy, shape ``[tiers, tensors]``."""
        tensors = self.structure.tensors
        found = np.zeros((len(self.structure.problem.tiers), len(tensors)))
        for (tensor, tier), column in self.place.items():
            found[tier, tensor] = min(1.0, max(0.0, float(values[column])))
        found[0] = np.maximum(0.0, 1.0 - found.sum(axis=0))
        return found

    def extract(self, values: FloatArray) -> Plan:
        """Plan of a point of the scaled copy.

        Parameters
        ----------
        values
            Of the columns, shape ``[columns]``; the largest of a tensor says its tier.

        Returns
        -------
        Plan
            With its latency in ps worked out anew, without offsets.
        """
        return plan_of(self.structure, self.tiers(values))

    def bound_ps(self, objective: float, tolerance: float) -> int:
        """Proven latency from a solver's dual bound, in the scaled copy's units, less what its tolerance may amount to."""
        spread = float(sum(each.most for each in self.structure.excesses))
        excess = proven(objective, spread / self.time_unit, unit=self.time_unit, tolerance=tolerance)
        return self.structure.base_ps + max(0, excess)

    def dual_bound_ps(self, duals: FloatArray) -> int:
        """Latency proven by the row duals of the scaled copy's linear relaxation, in exact arithmetic."""
        prices = duals * self.row_scale * self.time_unit
        return self.structure.base_ps + max(0, self.program.dual_bound(prices))


def build(problem: Problem, pins: Mapping[tuple[int, bool], int] | None = None) -> Model:
    """Variables, constraints, objective.

    Parameters
    ----------
    pins
        As of :class:`~stowplan.models.tier_placement.structure.Structure`.

    Returns
    -------
    Model
        Its matrix ``[rows, columns]``, scaled, and what its columns stand for.
    """
    structure = Structure(problem, pins)
    program = Program()
    tensors = enumerate(structure.tensors)
    place = {(number, tier): program.column() for number, tensor in tensors for tier in tensor.tiers if tier}
    excess = [program.column(each.most, cost=1, integer=False) for each in structure.excesses]
    weights = [number for number in structure.weights if number is not None]
    total = sum(structure.tensors[number].size for number in weights)
    load = {tier: program.column(min(total, problem.tiers[tier].capacity), integer=False) for tier in structure.limited}
    _add_places(program.rows, structure, place)
    _add_excesses(program.rows, structure, place, excess)
    _add_capacities(program.rows, structure, place, load)
    time_unit = _unit(max((each.most for each in structure.excesses), default=1), 6)
    byte_unit = _unit(max((tensor.size for tensor in structure.tensors), default=1), 2)
    scale = np.ones(len(program.cost))
    scale[excess] = time_unit
    scale[list(load.values())] = byte_unit
    matrix, row_scale = program.scaled(problem.name or "tier_placement", scale, time_unit)
    return Model(structure, place, excess, load, program, time_unit, matrix, scale, row_scale)


def _add_places(rows: Rows, structure: Structure, place: dict[tuple[int, int], int]) -> None:
    """Every tensor stands in one tier."""
    for number, tensor in enumerate(structure.tensors):
        terms = [(place[number, tier], 1) for tier in tensor.tiers if tier > 0]
        if 0 not in tensor.tiers:
            rows.add(terms, 1, 1)
        elif len(terms) > 1:
            rows.add(terms, upper=1)


def _add_excesses(rows: Rows, structure: Structure, place: dict[tuple[int, int], int], columns: list[int]) -> None:
    for excess, column in zip(structure.excesses, columns, strict=True):
        for row in structure.rows(excess):
            terms = [(column, 1), *((place[tensor, tier], saving) for tensor, tier, saving in row.savings)]
            rows.add(terms, row.least)


def _add_capacities(rows: Rows, structure: Structure, place: dict[tuple[int, int], int], load: dict[int, int]) -> None:
    """Weights and live outputs fit into every tier, at every moment."""
    tensors = structure.tensors
    weights = [number for number in structure.weights if number is not None]

    def inside(tier: int, numbers: Iterable[int]) -> tuple[list[tuple[int, int]], int]:
        """Bytes in a tier as terms and a constant: what is in none of the others is in the first."""
        if tier:
            return [(place[number, tier], tensors[number].size) for number in numbers if tier in tensors[number].tiers], 0
        terms = [
            (place[number, other], -tensors[number].size) for number in numbers for other in tensors[number].tiers if other
        ]
        return terms, sum(tensors[number].size for number in numbers)

    for tier, column in load.items():
        terms, constant = inside(tier, weights)
        rows.add([*terms, (column, -1)], -constant, -constant)
        capacity = structure.problem.tiers[tier].capacity
        for live in structure.moments:
            terms, constant = inside(tier, live)
            rows.add([*terms, (column, 1)], upper=capacity - constant)


def _unit(most: int, bits: int) -> int:
    """Power of two that brings numbers up to ``most`` below ``2 ** bits``."""
    return 1 << max(0, most.bit_length() - bits)
