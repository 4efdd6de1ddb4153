"""A memory map of a network for people to read."""

from __future__ import annotations

import numpy as np

from stowplan.models.tier_placement.plan import Plan
from stowplan.models.tier_placement.problem import Problem
from stowplan.report.tier_placement.maps import contiguity, decisions, layer_times, transitions, use_of_tiers
from stowplan.report.units import format_bytes, printable, shorten
from stowplan.result import format_ps

#: Letters of a layer's name.
_NAME = 28


def summarize_map(problem: Problem, plan: Plan, before: tuple[str, Plan] | None = None, top: int | None = 40) -> str:
    """Where bytes stand, contiguity, transitions, and the layers, the slowest first; offsets where tiers are address spaces.

    Parameters
    ----------
    before
        Name and plan that the transitions are from.
    top
        Layers listed at most; None for all.
    """
    times = layer_times(problem, plan)
    total = format_ps(int(times.sum()))
    lines = [printable(f"{problem.name} on {problem.target} ({problem.cost_model}): {total}")]
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
        lines += _transitions(problem, plan, *before)
    order = np.argsort(-times, kind="stable")
    shown = order if top is None else order[:top]
    lines += _layers(problem, plan, [int(number) for number in shown], [int(time) for time in times])
    if len(shown) < len(times):
        lines.append(f"  ... and {len(times) - len(shown)} more")
    return "\n".join(lines)


def _transitions(problem: Problem, plan: Plan, name: str, before: Plan) -> list[str]:
    if decisions(problem, before) == decisions(problem, plan):
        return [f"  the map is that of {name}"]
    names = [tier.name for tier in problem.tiers]
    lines = [f"  from {name} (rows) to this map (columns), tensors:"]
    table = transitions(problem, before, plan)
    lines.append("         " + "".join(f"{each:>8}" for each in names))
    return lines + [f"  {each:<7}" + "".join(f"{count:>8}" for count in row) for each, row in zip(names, table, strict=True)]


def _layers(problem: Problem, plan: Plan, shown: list[int], times: list[int]) -> list[str]:
    names = [tier.name for tier in problem.tiers]
    has_offsets = bool(plan.output_offsets)
    head = ["layer", "weights", *(["at"] if has_offsets else []), "output", *(["at"] if has_offsets else []), "latency"]
    rows = [head]
    for number in shown:
        layer = problem.layers[number]
        row = [shorten(printable(layer.name), _NAME), names[plan.weight_tiers[number]] if layer.weight_bytes else "-"]
        if has_offsets:
            row.append(f"{plan.weight_offsets[number]:#x}" if layer.weight_bytes else "-")
        row.append(names[plan.output_tiers[number]])
        if has_offsets:
            row.append(f"{plan.output_offsets[number]:#x}")
        rows.append([*row, format_ps(times[number])])
    widths = [max(len(row[at]) for row in rows) for at in range(len(head))]
    right = {at for at, name in enumerate(head) if name in ("at", "latency")}
    return [
        "  "
        + "  ".join(
            cell.rjust(width) if at in right else cell.ljust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
