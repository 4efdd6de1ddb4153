"""The part of the HTML report that is about tier placement: bands of tiers over the layers, transitions, slowest layers."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from itertools import groupby

from stowplan.models.tier_placement.plan import Plan
from stowplan.models.tier_placement.problem import Problem
from stowplan.report.tiers import contiguity, layer_times, rows_of, tier_colour, transitions, use_of_tiers
from stowplan.report.units import format_bytes
from stowplan.result import format_ps

#: Width of a chart in its own units, and height of a band.
_WIDE, _HIGH = 1000, 26

#: Rows of the table of layers.
_TOP = 20

Table = tuple[str, tuple[str, ...], list[tuple[str, ...]]]
"""Caption, head and rows, as the report's tables take them."""


def bands(problem: Problem, plans: Sequence[tuple[str, Plan]]) -> str:
    """Bands of every tensor's tier, layers from left to right."""
    rows = rows_of(problem, plans)
    scale = _WIDE / len(problem.layers)
    legend = "".join(
        f'<li><i style="background:{tier_colour(number)};height:0.8em"></i>{escape(tier.name)}, '
        f"{format_bytes(tier.capacity)}</li>"
        for number, tier in enumerate(problem.tiers)
    )
    figures = []
    for label, what, places in rows:
        boxes, at = [], 0
        for tier, run in groupby(places):
            count = len(list(run))
            if tier is not None:
                name = f"{problem.tiers[tier].name}: layers {at} to {at + count - 1}"
                boxes.append(
                    f'<rect x="{at * scale:.2f}" y="0" width="{count * scale:.2f}" height="{_HIGH}" fill="{tier_colour(tier)}">'
                    f"<title>{escape(name)}</title></rect>"
                )
            at += count
        figures.append(
            f"<figcaption>{escape(label)}: {what}</figcaption>"
            f'<svg viewBox="0 0 {_WIDE} {_HIGH}" width="100%" height="{_HIGH}" preserveAspectRatio="none" role="img" '
            f'aria-label="{escape(label)}: tiers of {what}">{"".join(boxes)}</svg>'
        )
    return (
        "<section><h2>Memory map</h2>\n<p>Layers from left to right; the colour is the tier in which a layer's weights or its "
        f'output stand. Where a band is empty, the layer has no weights.</p>\n<ul class="legend">{legend}</ul>\n'
        f"<figure>{''.join(figures)}</figure></section>"
    )


def tables(problem: Problem, plan: Plan, before: tuple[str, Plan] | None) -> list[tuple[str, Table]]:
    """(heading, table) of everything else."""
    names = [tier.name for tier in problem.tiers]
    found: list[tuple[str, Table]] = []
    peaks = use_of_tiers(problem, plan).max(axis=1)
    rows: list[tuple[str, ...]] = []
    for number, tier in enumerate(problem.tiers):
        weights = sum(each.weight_bytes for each, at in zip(problem.layers, plan.weight_tiers, strict=True) if at == number)
        outputs = sum(at == number for at in plan.output_tiers)
        rows.append(
            (tier.name, format_bytes(tier.capacity), format_bytes(int(peaks[number])), format_bytes(weights), f"{outputs:,}")
        )
    head: tuple[str, ...] = ("Tier:n", "Capacity:r", "Peak:r", "Weights:r", "Outputs of layers:r")
    found.append(("Tiers", ("What stands in each tier", head, rows)))
    if before is not None:
        counts = transitions(problem, before[1], plan)
        rows = [
            (name, *(f"{count:,} ({count / max(1, row.sum()):.0%})" for count in row))
            for name, row in zip(names, counts, strict=True)
        ]
        caption = f"Tensors by their tier in {before[0]} (rows) and in this plan (columns)"
        found.append(("Transitions", (caption, (f"{before[0]}:n", *(f"{name}:r" for name in names)), rows)))
    rows = []
    for what in ("weights", "outputs"):
        each = contiguity(problem, plan, what)
        rows.append((what, f"{each.part:.0%}", f"{each.by_chance:.0%}", f"{each.runs:,}", f"{each.longest:,}"))
    head = ("Tensors:n", "Neighbours in one tier:r", "By chance:r", "Runs:r", "Longest:r")
    found.append(("Contiguity", ("How alike the places of neighbouring layers are", head, rows)))
    times = layer_times(problem, plan)
    order = sorted(range(len(times)), key=lambda number: (-times[number], number))[:_TOP]
    rows = [
        (
            problem.layers[number].name,
            problem.layers[number].op,
            names[plan.weight_tiers[number]] if problem.layers[number].weight_bytes else "–",
            names[plan.output_tiers[number]],
            format_ps(int(times[number])),
            f"{times[number] / max(1, times.sum()):.1%}",
        )
        for number in order
    ]
    head = ("Layer:n", "Operation", "Weights in", "Output in", "Latency:r", "Share:r")
    found.append(("Layers that take longest", (f"{len(order):,} of {len(times):,} layers", head, rows)))
    return found
