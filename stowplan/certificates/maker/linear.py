"""Proofs of tier placement and banked packing: prices by the duals of a linear relaxation (HiGHS by SciPy)."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import numpy as np
from scipy import optimize, sparse

from stowplan.certificates.checker.tiers import Banks
from stowplan.certificates.maker import Proof, Wish
from stowplan.models.banked_packing.problem import moments
from stowplan.models.tier_placement.structure import Structure

#: Prices are whole multiples of one over this.
DENOMINATOR = 1 << 32


class Rows:
    """A linear program min cost·x over rows ``<=`` and ``==``, with x >= 0, written entry by entry."""

    def __init__(self) -> None:
        self.cost: list[float] = []
        self.entries: list[tuple[int, int, float]] = []
        """(row, column, value) of each."""
        self.sides: list[float] = []
        self.equal: list[bool] = []

    def column(self, cost: float) -> int:
        """Add a column; its number."""
        self.cost.append(cost)
        return len(self.cost) - 1

    def add(self, terms: list[tuple[int, float]], side: float, *, equal: bool = False) -> int:
        """Add a row; its number."""
        self.entries += [(len(self.sides), column, value) for column, value in terms]
        self.sides.append(side)
        self.equal.append(equal)
        return len(self.sides) - 1

    def duals(self, seconds: float) -> Any:
        """[rows] what one more of each side changes of the least cost; None where it was not found in time."""
        rows, columns, values = zip(*self.entries, strict=True)
        matrix = sparse.csr_matrix((values, (rows, columns)), shape=(len(self.sides), len(self.cost)))
        # Rows near one, so that the solver's tolerances are small parts of them.
        scale = 1.0 / np.maximum(1e-300, abs(matrix).max(axis=1).toarray().ravel())
        scaled, sides = (sparse.diags(scale) @ matrix).tocsr(), np.array(self.sides) * scale
        unit = max(1.0, float(np.abs(self.cost).max(initial=0.0)))
        equal = np.array(self.equal, dtype=bool)
        found = optimize.linprog(
            np.array(self.cost) / unit,
            A_ub=scaled[~equal] if (~equal).any() else None,
            b_ub=sides[~equal] if (~equal).any() else None,
            A_eq=scaled[equal],
            b_eq=sides[equal],
            method="highs",
            options={"time_limit": max(0.05, seconds)},
        )
        if found.status != 0:
            return None
        duals = np.zeros(len(sides))
        duals[equal] = found.eqlin.marginals
        if (~equal).any():
            duals[~equal] = found.ineqlin.marginals
        return duals * scale * unit


def _seconds(wish: Wish) -> float:
    return min(1e6, wish.end - time.monotonic())


def _whole(value: float) -> int:
    return round(float(value) * DENOMINATOR)


def banks(wish: Wish) -> Iterator[Proof]:
    """Each buffer in its cheapest bank; then prices of bytes. Or the buffers of one moment that are too many."""
    known = Banks(wish.rules)
    live = moments(wish.problem)
    if wish.infeasible:
        yield from _crowds(known, live)
        return
    yield {"form": "prices", "denominator": 1}
    rows = Rows()
    columns: list[dict[int, int]] = []
    for buffer, allowed in zip(known.buffers, known.allowed, strict=True):
        own = {bank: rows.column(buffer["size"] * buffer["uses"] * known.banks[bank]["cost"]) for bank in allowed}
        columns.append(own)
        rows.add([(column, 1.0) for column in own.values()], 1.0, equal=True)
    limits: list[tuple[int, int, int]] = []
    for numbers in live:
        moment = max(known.buffers[number]["lower"] for number in numbers)
        for bank, room in enumerate(known.room):
            terms = [
                (columns[number][bank], float(known.taken(known.buffers[number], bank)))
                for number in numbers
                if bank in columns[number]
            ]
            if sum(taken for _, taken in terms) > room:
                limits.append((rows.add(terms, room), bank, moment))
    duals = rows.duals(_seconds(wish)) if limits else None
    if duals is not None:
        prices = [[bank, moment, max(0, _whole(-duals[row]))] for row, bank, moment in limits]
        yield {"form": "prices", "denominator": DENOMINATOR, "memory": [each for each in prices if each[2]]}


def _crowds(known: Banks, live: list[list[int]]) -> Iterator[Proof]:
    every = [*range(len(known.banks))]
    for number, allowed in enumerate(known.allowed):
        if not allowed and known.buffers[number]["size"]:
            yield {"form": "load", "banks": [], "moment": known.buffers[number]["lower"]}
    for numbers in live:
        for among in [every, *sorted({(*known.allowed[number],) for number in numbers})]:
            bound = [known.buffers[number] for number in numbers if {*among}.issuperset(known.allowed[number])]
            if sum(each["size"] for each in bound) > sum(known.room[bank] for bank in among):
                moment = max(each["lower"] for each in bound)
                yield {"form": "load", "banks": [*among], "moment": moment}


def tiers(wish: Wish) -> Iterator[Proof]:
    """Every tensor in its fastest tier; then prices of bytes at each step, and what uses earn in each tier."""
    known = Structure(wish.problem)
    layers, kinds = wish.problem.layers, range(len(wish.problem.tiers))
    if wish.infeasible:
        return
    count = sum(len(layer.inputs) + 1 + bool(layer.weight_bytes) for layer in layers)
    free = [[0] * len(layers) for _ in kinds]
    yield {"form": "prices", "denominator": 1, "memory": free, "access": [[0 for _ in kinds] for _ in range(count)]}
    if all(len(each.tiers) == 0 for each in known.tensors):
        return
    rows = Rows()
    columns: list[dict[int, int]] = []
    for each in known.tensors:
        columns.append({tier: rows.column(0.0) for tier in each.tiers})
        rows.add([(column, 1.0) for column in columns[-1].values()], 1.0, equal=True)
    limits = [(rows.add(terms, side), tier, step) for terms, side, tier, step in _memory(known, columns)]
    # For each layer: its latency is at least what it computes, and what it moves. The choices of one use of it, with the
    # fraction of each, are tied to those of the tensor: the duals of these rows are what a use earns in a tier.
    ties: dict[tuple[int, int, int], int] = {}
    for excess in known.excesses:
        time_of = rows.column(1.0)
        for base in _bases(excess.uses, known):
            start = excess.fixed_ps + sum(moves[tier] for (_, moves), tier in zip(excess.uses, base, strict=True))
            if start <= 0:
                continue
            terms = [(time_of, -1.0)]
            for (tensor, moves), first in zip(excess.uses, base, strict=True):
                terms += [
                    (columns[tensor][tier], -float(min(start, moves[first] - moves[tier])))
                    for tier in columns[tensor]
                    if tier > first and moves[first] > moves[tier]
                ]
            ties[excess.layer, len(ties), 0] = rows.add(terms, -float(start))
    duals = rows.duals(_seconds(wish))
    if duals is None:
        return
    memory = [[*each] for each in free]
    for row, tier, step in limits:
        memory[tier][step] = max(0, _whole(-duals[row]))
    yield {
        "form": "prices",
        "denominator": DENOMINATOR,
        "memory": memory,
        "access": _earned(known, columns, rows, duals, {row: layer for (layer, _, _), row in ties.items()}),
    }


def _memory(known: Structure, columns: list[dict[int, int]]) -> Iterator[tuple[list[tuple[int, float]], int, int, int]]:
    """(terms, capacity, tier, step) of every step at which a tier may be full."""
    steps = range(len(known.problem.layers))
    for tier in known.limited:
        before: list[tuple[int, float]] = []
        for step in steps:
            terms = [
                (own[tier], float(tensor.size))
                for tensor, own in zip(known.tensors, columns, strict=True)
                if tensor.first <= step <= tensor.last and tier in own and tensor.size
            ]
            capacity = known.problem.tiers[tier].capacity
            if terms != before and sum(size for _, size in terms) > capacity:
                yield terms, capacity, tier, step
            before = terms


def _bases(uses: tuple[tuple[int, tuple[int, ...]], ...], known: Structure) -> list[tuple[int, ...]]:
    """Choices of a base tier for each tensor of a layer: all in one tier, or each but one in the fastest."""
    kinds = range(len(known.problem.tiers))
    last = len(kinds) - 1
    found = {tuple(tier for _ in uses) for tier in kinds}
    for at in range(len(uses)):
        found |= {tuple(tier if each == at else last for each in range(len(uses))) for tier in kinds}
        found |= {tuple(last if each == at else tier for each in range(len(uses))) for tier in kinds}
    return sorted(found)


def _earned(
    known: Structure, columns: list[dict[int, int]], rows: Rows, duals: Any, layer_of: dict[int, int]
) -> list[list[int]]:
    """What each use of each layer, in the checker's order, earns in each tier: by the rows of the layer's latency."""
    owner = {column: (tensor, tier) for tensor, own in enumerate(columns) for tier, column in own.items()}
    paid: dict[tuple[int, int, int], float] = {}
    for row, column, value in rows.entries:
        if row in layer_of and duals[row] and column in owner:
            key = layer_of[row], *owner[column]
            paid[key] = paid.get(key, 0.0) + duals[row] * value
    used: list[tuple[int, int]] = []
    for number, layer in enumerate(known.problem.layers):
        weights = known.weights[number]
        used += [(number, known.outputs[source]) for source in layer.inputs]
        used += [] if weights is None else [(number, weights)]
        used.append((number, known.outputs[number]))
    kinds = range(len(known.problem.tiers))
    return [[_whole(paid.get((*each, tier), 0.0)) for tier in kinds] for each in used]
