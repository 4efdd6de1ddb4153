"""The part of the HTML report that is about tier placement: tiers over the layers, transitions, slowest layers."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from itertools import groupby

from stowplan.models.tier_placement.plan import Plan
from stowplan.models.tier_placement.problem import Problem
from stowplan.report.page import Section, legend, table
from stowplan.report.tier_placement.maps import contiguity, layer_times, rows_of, tier_colour, transitions, use_of_tiers
from stowplan.report.units import format_bytes
from stowplan.result import format_ps

#: Width of a chart in its own units, and height of a band.
_WIDE, _HIGH = 1000, 26

#: Rows of the table of layers.
_TOP = 20


def bands(problem: Problem, plans: Sequence[tuple[str, Plan]]) -> Section:
    """Bands of every tensor's tier, layers from left to right; plans are no two alike."""
    rows = rows_of(problem, plans)
    scale = _WIDE / len(problem.layers)
    figures = []
    for label, what, places in rows:
        boxes, at = [], 0
        for tier, run in groupby(places):
            count = len(list(run))
            if tier is not None:
                name = f"{problem.tiers[tier].name}: {_layers_from(problem, at, count)}"
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
    colours = [
        (tier_colour(number), f"{tier.name}, {format_bytes(tier.capacity)}") for number, tier in enumerate(problem.tiers)
    ]
    return Section(
        "Memory map",
        "<p>Layers from left to right; the colour is the tier in which a layer's weights or its output stand. Where a band is "
        f"empty, the layer has no weights. Point at a band to see which layers it is.</p>\n{legend(colours)}"
        f"<figure>{''.join(figures)}</figure>",
    )


def _layers_from(problem: Problem, first: int, count: int) -> str:
    """A run of layers in words."""
    begin, end = (problem.layers[number].name for number in (first, first + count - 1))
    return f"layer {first} ({begin})" if count == 1 else f"layers {first} to {first + count - 1} ({begin} to {end})"


def sections(problem: Problem, plan: Plan, before: tuple[str, Plan] | None) -> list[Section]:
    """What stands in each tier, transitions from another map (None where there is none that differs), and the layers."""
    return [_tiers(problem, plan), *([_transitions(problem, plan, *before)] if before else []), *_layers(problem, plan)]


def _tiers(problem: Problem, plan: Plan) -> Section:
    peaks = use_of_tiers(problem, plan).max(axis=1)
    rows: list[tuple[str, ...]] = []
    for number, tier in enumerate(problem.tiers):
        weights = sum(each.weight_bytes for each, at in zip(problem.layers, plan.weight_tiers, strict=True) if at == number)
        outputs = sum(at == number for at in plan.output_tiers)
        rows.append(
            (tier.name, format_bytes(tier.capacity), format_bytes(int(peaks[number])), format_bytes(weights), f"{outputs:,}")
        )
    head = ("Tier:n", "Capacity:r", "Peak:r", "Weights:r", "Outputs of layers:r")
    return Section("Tiers", table("What stands in each tier", head, rows))


def _transitions(problem: Problem, plan: Plan, name: str, before: Plan) -> Section:
    names = [tier.name for tier in problem.tiers]
    counts = transitions(problem, before, plan)
    rows = [
        (tier, *(f"{count:,} ({count / max(1, row.sum()):.0%})" for count in row))
        for tier, row in zip(names, counts, strict=True)
    ]
    caption = f"Tensors by their tier in {name} (rows) and in this plan (columns)"
    return Section("Transitions", table(caption, (f"{name}:n", *(f"{tier}:r" for tier in names)), rows))


def _layers(problem: Problem, plan: Plan) -> list[Section]:
    names = [tier.name for tier in problem.tiers]
    rows: list[tuple[str, ...]] = []
    for what in ("weights", "outputs"):
        each = contiguity(problem, plan, what)
        rows.append((what, f"{each.part:.0%}", f"{each.by_chance:.0%}", f"{each.runs:,}", f"{each.longest:,}"))
    head: tuple[str, ...] = ("Tensors:n", "Neighbours in one tier:r", "By chance:r", "Runs:r", "Longest:r")
    alike = Section("Contiguity", table("How alike the places of neighbouring layers are", head, rows))
    times = layer_times(problem, plan)
    order = sorted(range(len(times)), key=lambda number: (-times[number], number))[:_TOP]
    has_offsets = bool(plan.output_offsets)
    rows = []
    for number in order:
        layer = problem.layers[number]
        weights = names[plan.weight_tiers[number]] if layer.weight_bytes else "–"
        output = names[plan.output_tiers[number]]
        if has_offsets:
            weights += f" at {plan.weight_offsets[number]:#x}" if layer.weight_bytes else ""
            output += f" at {plan.output_offsets[number]:#x}"
        share = f"{times[number] / max(1, times.sum()):.1%}"
        rows.append((layer.name, layer.op, weights, output, format_ps(int(times[number])), share))
    head = ("Layer:n", "Operation", "Weights in", "Output in", "Latency:r", "Share:r")
    caption = f"{len(order):,} of {len(times):,} layers"
    return [alike, Section("Layers that take longest", table(caption, head, rows))]
