"""What a memory map looks like in numbers: tensors that changed tier, how alike neighbouring layers are, how full tiers get.

After figure 6 of the EGRL paper (Khadka et al., ICLR 2021): its transition matrices, and its remark on contiguity.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from stowplan.models.tier_placement.plan import Plan
from stowplan.models.tier_placement.problem import Problem
from stowplan.report.boxes import Box

What = Literal["weights", "outputs", "all"]

#: Slow to fast: dark red, amber, blue, then more for chips with more tiers. Told apart with colour-blind eyes, and in grey.
TIER_COLOURS = ("#8c2d3c", "#e8b13a", "#4b90c8", "#2d5a3c", "#b48cd2", "#5a5a5a")


def tier_colour(tier: int) -> str:
    """Colour of a tier in all pictures."""
    return TIER_COLOURS[tier % len(TIER_COLOURS)]


def tensors(problem: Problem, what: What = "all") -> list[tuple[int, bool]]:
    """(layer, whether it is the output) of the tensors that take room."""
    found = [(number, False) for number, layer in enumerate(problem.layers) if layer.weight_bytes and what != "outputs"]
    return found + [(number, True) for number, layer in enumerate(problem.layers) if layer.output_bytes and what != "weights"]


def tier_of(plan: Plan, tensor: tuple[int, bool]) -> int:
    """Tier of a tensor."""
    return (plan.output_tiers if tensor[1] else plan.weight_tiers)[tensor[0]]


def transitions(problem: Problem, before: Plan, after: Plan, what: What = "all") -> NDArray[np.int64]:
    """How many tensors went from tier to tier: ``[tiers before, tiers after]``."""
    table = np.zeros((len(problem.tiers), len(problem.tiers)), np.int64)
    for tensor in tensors(problem, what):
        table[tier_of(before, tensor), tier_of(after, tensor)] += 1
    return table


@dataclass(frozen=True)
class Contiguity:
    """How alike the places of neighbouring tensors of one sort are, in the order of their layers."""

    neighbours: int
    """Pairs of tensors with none of their sort between them."""
    alike: int
    """Of these, pairs in one tier."""
    runs: int
    """Runs of tensors in one tier, one after the other."""
    longest: int
    """Tensors in the longest of them."""
    by_chance: float
    """Part of all pairs, neighbours or not, that stand in one tier: what an order without any sense would give."""

    @property
    def part(self) -> float:
        """Part of the neighbours in one tier; 1 where there are none."""
        return self.alike / self.neighbours if self.neighbours else 1.0


def contiguity(problem: Problem, plan: Plan, what: What) -> Contiguity:
    """Contiguity of the weights or of the outputs."""
    places = [tier_of(plan, tensor) for tensor in tensors(problem, what)]
    runs = [len(list(run)) for _, run in groupby(places)]
    pairs = len(places) * (len(places) - 1)
    same = sum(places.count(tier) * (places.count(tier) - 1) for tier in set(places))
    return Contiguity(
        neighbours=max(0, len(places) - 1),
        alike=sum(left == right for left, right in pairwise(places)),
        runs=len(runs),
        longest=max(runs, default=0),
        by_chance=same / pairs if pairs else 1.0,
    )


def use_of_tiers(problem: Problem, plan: Plan) -> NDArray[np.int64]:
    """Bytes in each tier at each step, ``[tiers, layers]``."""
    used = np.zeros((len(problem.tiers), len(problem.layers) + 1), np.int64)
    for number, layer in enumerate(problem.layers):
        used[plan.weight_tiers[number], 0] += layer.weight_bytes
        used[plan.output_tiers[number], number] += layer.output_bytes
        used[plan.output_tiers[number], problem.last_use[number] + 1] -= layer.output_bytes
    # The last column takes what leaves after the last layer.
    return np.cumsum(used, axis=1)[:, :-1]


def tier_boxes(problem: Problem, plan: Plan, tier: int) -> list[Box]:
    """What stands in a tier that is an address space, over layers: weights (owner ``2 n``) and outputs (``2 n + 1``)."""
    last = len(problem.layers)
    found = []
    for number, layer in enumerate(problem.layers):
        if layer.weight_bytes and plan.weight_tiers[number] == tier and plan.weight_offsets:
            found.append(Box(2 * number, 0, last, plan.weight_offsets[number], layer.weight_bytes))
        if layer.output_bytes and plan.output_tiers[number] == tier and plan.output_offsets:
            found.append(
                Box(2 * number + 1, number, problem.last_use[number] + 1, plan.output_offsets[number], layer.output_bytes)
            )
    return found


def tensor_name(problem: Problem, owner: int) -> str:
    """Name of the owner of a box of :func:`tier_boxes`."""
    name = problem.layers[owner // 2].name
    return name if owner % 2 else f"{name} (weights)"


def rows_of(problem: Problem, plans: Sequence[tuple[str, Plan]]) -> list[tuple[str, What, list[int | None]]]:
    """Bands of a chart: (plan, weights or outputs, tier for each layer or None), top to bottom."""
    found: list[tuple[str, What, list[int | None]]] = []
    for label, plan in plans:
        weights = [at if layer.weight_bytes else None for at, layer in zip(plan.weight_tiers, problem.layers, strict=True)]
        found.append((label, "weights", weights))
        found.append((label, "outputs", list(plan.output_tiers)))
    return found
