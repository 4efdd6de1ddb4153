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

from stowplan.errors import InputError
from stowplan.models.tier_placement.plan import Plan
from stowplan.models.tier_placement.problem import Problem
from stowplan.report.units import format_bytes, shorten
from stowplan.result import format_ps

What = Literal["weights", "outputs", "all"]

#: Slow to fast: dark red, amber, blue, then more for chips with more tiers. Told apart with colour-blind eyes, and in grey.
TIER_COLOURS = ("#8c2d3c", "#e8b13a", "#4b90c8", "#2d5a3c", "#b48cd2", "#5a5a5a")


def tier_colour(tier: int) -> str:
    """Colour of a tier in all pictures."""
    return TIER_COLOURS[tier % len(TIER_COLOURS)]


def check_fits(problem: Problem, plan: object) -> Plan:
    """The plan, where it is one for this problem; raises :class:`~stowplan.errors.InputError` where it is not."""
    if not isinstance(plan, Plan):
        raise InputError(f"found a {type(plan).__name__} of another kind, expected a memory map (tier placement)")
    if plan.problem != problem.digest:
        raise InputError("the plan is for another problem: expected the same network, target, precision and capacity")
    counts = {len(plan.weight_tiers), len(plan.output_tiers)}
    tiers = (*plan.weight_tiers, *plan.output_tiers)
    if counts != {len(problem.layers)} or not all(0 <= tier < len(problem.tiers) for tier in tiers):
        raise InputError(f"expected a tier, 0 to {len(problem.tiers) - 1}, for each of the {len(problem.layers)} layers")
    return plan


def tensors(problem: Problem, what: What = "all") -> list[tuple[int, bool]]:
    """(layer, whether it is the output) of the tensors that take room."""
    found = [(number, False) for number, layer in enumerate(problem.layers) if layer.weight_bytes and what != "outputs"]
    return found + [(number, True) for number, layer in enumerate(problem.layers) if layer.output_bytes and what != "weights"]


def tier_of(plan: Plan, tensor: tuple[int, bool]) -> int:
    """Tier of a tensor."""
    return (plan.output_tiers if tensor[1] else plan.weight_tiers)[tensor[0]]


def transitions(problem: Problem, before: Plan, after: Plan, what: What = "all") -> NDArray[np.int64]:
    """How many tensors went from tier to tier, ``[tiers before, tiers after]``."""
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
    """Stretches of tensors in one tier."""
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


def layer_times(problem: Problem, plan: Plan) -> NDArray[np.int64]:
    """Latency of each layer, ps: ``[layers]``."""
    times = []
    for number, layer in enumerate(problem.layers):
        moved = problem.tiers[0].move_ps(layer.external_bytes)
        moved += problem.tiers[plan.weight_tiers[number]].move_ps(layer.weights_read)
        moved += problem.tiers[plan.output_tiers[number]].move_ps(layer.output_bytes)
        for source in layer.inputs:
            moved += problem.tiers[plan.output_tiers[source]].move_ps(problem.layers[source].output_bytes)
        times.append(max(layer.compute_ps, moved) + layer.overhead_ps)
    return np.array(times, np.int64)


def summarize_map(problem: Problem, plan: Plan, before: tuple[str, Plan] | None = None, top: int | None = 40) -> str:
    """A map for people to read: where bytes stand, contiguity, transitions, and the layers, the slowest first.

    Parameters
    ----------
    before
        Name and plan that the transitions are from.
    top
        Layers listed at most; None for all.
    """
    names = [tier.name for tier in problem.tiers]
    times = layer_times(problem, plan)
    lines = [f"{problem.name} on {problem.target} ({problem.cost_model}): {format_ps(int(times.sum()))}"]
    peaks = use_of_tiers(problem, plan).max(axis=1)
    for number, tier in enumerate(problem.tiers):
        weights = sum(layer.weight_bytes for layer, at in zip(problem.layers, plan.weight_tiers, strict=True) if at == number)
        count = sum(at == number for at in plan.output_tiers)
        lines.append(
            f"  {tier.name:<6} {format_bytes(int(peaks[number]))} of {format_bytes(tier.capacity)} at the peak: "
            f"{format_bytes(weights)} of weights, outputs of {count} layers"
        )
    for what in ("weights", "outputs"):
        found = contiguity(problem, plan, what)
        lines.append(
            f"  {what} of neighbouring layers in one tier: {found.part:.0%} (by chance {found.by_chance:.0%}), "
            f"{found.runs} runs, the longest of {found.longest}"
        )
    if before is not None:
        lines.append(f"  from {before[0]} (rows) to this map (columns), tensors:")
        table = transitions(problem, before[1], plan)
        lines.append("         " + "".join(f"{name:>8}" for name in names))
        lines += [f"  {name:<7}" + "".join(f"{count:>8}" for count in row) for name, row in zip(names, table, strict=True)]
    order = np.argsort(-times, kind="stable")
    shown = order if top is None else order[:top]
    wide = max(len(shorten(problem.layers[number].name, 28)) for number in shown)
    lines.append(f"  {'layer':<{wide}}  weights  output       latency")
    for number in shown:
        layer = problem.layers[number]
        weights_in = names[plan.weight_tiers[number]] if layer.weight_bytes else "-"
        lines.append(
            f"  {shorten(layer.name, 28):<{wide}}  {weights_in:<7}  {names[plan.output_tiers[number]]:<7}"
            f"  {format_ps(int(times[number])):>10}"
        )
    if len(shown) < len(times):
        lines.append(f"  ... and {len(times) - len(shown)} more")
    return "\n".join(lines)


def rows_of(problem: Problem, plans: Sequence[tuple[str, Plan]]) -> list[tuple[str, What, list[int | None]]]:
    """Bands of a chart: (plan, weights or outputs, tier for each layer or None), top to bottom."""
    found: list[tuple[str, What, list[int | None]]] = []
    for label, plan in plans:
        weights = [at if layer.weight_bytes else None for at, layer in zip(plan.weight_tiers, problem.layers, strict=True)]
        found.append((label, "weights", weights))
        found.append((label, "outputs", list(plan.output_tiers)))
    return found
