"""Memory maps drawn, after figure 6 of the EGRL paper (Khadka et al., ICLR 2021): tier transitions, and every tensor's tier."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from stowplan.models.tier_placement.plan import Plan
from stowplan.models.tier_placement.problem import Problem
from stowplan.report.boxes import Boxes, assign_colours
from stowplan.report.scene import (
    RULE,
    Axis,
    Key,
    Line,
    Mark,
    Panel,
    Picture,
    Plot,
    Rect,
    Style,
    Text,
    byte_axis,
    level,
    number_axis,
    patches,
    steps,
)
from stowplan.report.tier_placement.maps import (
    What,
    rows_of,
    tensor_name,
    tier_boxes,
    tier_colour,
    transitions,
    use_of_tiers,
)
from stowplan.report.units import byte_unit, format_bytes, shorten
from stowplan.result import format_ps

#: Where a layer has no weights.
EMPTY = Style(fill="panel", name="tile")

#: Points of the heights of a matrix, a band, the use of a tier and its addresses.
_MATRIX, _BAND, _USE, _ADDRESSES = 115.0, 24.0, 90.0, 170.0

#: From light to dark: no part of a row of a transition matrix, and all of it.
_BLUES = ((247, 251, 255), (8, 69, 148))


def picture(problem: Problem, plans: Sequence[tuple[str, Plan]]) -> Picture:
    """One labelled map, or two and the transitions from the second to the first.

    Above (for two that differ): for each tier of the second plan, where the first has what stood in it. Below: a band for each
    tensor of each plan, layers from left to right; then the bytes in the limited tiers over time. Where tiers are address
    spaces, these are drawn box by box for the first plan.
    """
    rows: list[Sequence[Plot]] = []
    if len(plans) == 2:
        (after_name, after), (before_name, before) = plans
        whats: tuple[tuple[What, str], ...] = (("weights", "weights"), ("outputs", "outputs"), ("all", "all tensors"))
        names = [tier.name for tier in problem.tiers]
        axes = (f"in {after_name}", f"in {before_name}")
        rows.append([_transitions(transitions(problem, before, after, what), names, title, axes) for what, title in whats])
    rows.append([bands(problem, plans)])
    total = sum(layer.weight_bytes + layer.output_bytes for layer in problem.layers)
    limited = [number for number, tier in enumerate(problem.tiers) if tier.capacity < total]
    if limited:
        rows.append(_addresses(problem, plans[0], limited) if plans[0][1].output_offsets else _use(problem, plans, limited))
    return Picture(f"{problem.name} on {problem.target}, {problem.cost_model}", rows)


def _transitions(table: NDArray[np.int64], names: Sequence[str], title: str, axes: tuple[str, str]) -> Plot:
    """A transition matrix: parts of each row, and what they are parts of.

    Parameters
    ----------
    table
        [tiers before, tiers after] As :func:`~stowplan.report.tier_placement.maps.transitions` counts.
    names
        Of the tiers.
    axes
        What is written across and upwards.
    """
    marks: list[Mark] = []
    for row, counts in enumerate(table.tolist()):
        total = sum(counts)
        for column, count in enumerate(counts):
            part = count / total if total else 0.0
            red, green, blue = (round(light + part * (dark - light)) for light, dark in zip(*_BLUES, strict=True))
            style = Style(fill=f"#{red:02x}{green:02x}{blue:02x}", stroke="#ffffff")
            marks.append(Rect(column, column + 1, row + 1, row, style))
            ink = "#ffffff" if part > 0.55 else "#222222"
            written = ((0.32, f"{part:.0%}"), (0.7, f"{count:,}")) if total else ((0.5, "–"),)
            marks += [Text(column + 0.5, row + at, text, colour=ink) for at, text in written]
    up = Axis(len(names), 0, [(at + 0.5, name) for at, name in enumerate(names)], axes[1])
    across = Axis(0, len(names), [(at + 0.5, name) for at, name in enumerate(names)], axes[0])
    spoken = f"Tensors by their tier before (rows) and after (columns): {title}"
    return Plot(across, [Panel(up, marks, _MATRIX, spoken, title, is_framed=False)])


def bands(problem: Problem, plans: Sequence[tuple[str, Plan]]) -> Plot:
    """Bands for the weights and for the outputs of each labelled plan: the tier of every tensor, layers from left to right."""
    panels = []
    for label, what, places in rows_of(problem, plans):
        marks: list[Mark] = []
        at = 0
        for tier, run in groupby(places):
            count = len(list(run))
            style = EMPTY if tier is None else Style(fill=tier_colour(tier))
            tip = "" if tier is None else f"{problem.tiers[tier].name}: {_layers_from(problem, at, count)}"
            marks.append(Rect(at, at + count, 0, 1, style, tip))
            at += count
        name = f"{shorten(label, 24)}: {what}"
        panels.append(Panel(Axis(0, 1, [(0.5, name)]), marks, _BAND, f"{label}: tiers of {what}", is_framed=False))
    legend = patches(
        (tier_colour(number), f"{tier.name}, {format_bytes(tier.capacity)}") for number, tier in enumerate(problem.tiers)
    )
    heading = ", ".join(f"{label} {format_ps(plan.objective_ps)}" for label, plan in plans)
    if any(not layer.weight_bytes for layer in problem.layers):
        legend.append(Key("no weights", EMPTY))
    return Plot(number_axis(0, len(problem.layers), "layer"), panels, heading, legend, gap=4)


def _layers_from(problem: Problem, first: int, count: int) -> str:
    """A run of layers in words."""
    begin, end = (problem.layers[number].name for number in (first, first + count - 1))
    return f"layer {first} ({begin})" if count == 1 else f"layers {first} to {first + count - 1} ({begin} to {end})"


def _addresses(problem: Problem, labelled: tuple[str, Plan], limited: Sequence[int]) -> list[Plot]:
    """Offsets over layers in the limited tiers of one plan."""
    label, plan = labelled
    layouts = [tier_boxes(problem, plan, tier) for tier in limited]
    colours = assign_colours(layouts)

    def describe(owner: int) -> tuple[str, int]:
        layer = problem.layers[owner // 2]
        return tensor_name(problem, owner), layer.output_bytes if owner % 2 else layer.weight_bytes

    found = []
    for number, boxes in zip(limited, layouts, strict=True):
        tier = problem.tiers[number]
        title = f"{tier.name}, {label}: offsets ({byte_unit(tier.capacity)[0]}), up to the capacity"
        marks = [Boxes(boxes, colours, describe)]
        panel = Panel(byte_axis(tier.capacity), marks, _ADDRESSES, f"Offsets in {tier.name} over the layers", title)
        found.append(Plot(number_axis(0, len(problem.layers), "layer"), [panel]))
    return found


def _use(problem: Problem, plans: Sequence[tuple[str, Plan]], limited: Sequence[int]) -> list[Plot]:
    """The part of the limited tiers that is in use at each layer."""
    used = [use_of_tiers(problem, plan) for _, plan in plans]
    across = number_axis(0, len(problem.layers), "layer")
    edges = list(range(len(problem.layers) + 1))
    found = []
    for number in limited:
        tier = problem.tiers[number]
        styles = [Style(stroke=tier_colour(number), width=1.4), Style(stroke=tier_colour(number), width=1.4, dash=(1.5, 1.5))]
        lines: list[Mark] = [
            Line(steps(edges, (table[number] / tier.capacity).tolist()), style)
            for table, style in zip(used, styles, strict=False)
        ]
        up = Axis(0, 1.08, [(part / 4, f"{part / 4:.0%}") for part in range(5)])
        title = f"{tier.name}: part of {format_bytes(tier.capacity)} in use"
        panel = Panel(up, [*lines, level(across, 1, RULE)], _USE, title, title)
        names = [
            Key(label, Style(stroke="soft", dash=style.dash), "line") for (label, _), style in zip(plans, styles, strict=False)
        ]
        found.append(Plot(across, [panel], legend=names if len(plans) > 1 else []))
    return found
