"""How tier placements are shown."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from stowplan.models.tier_placement.plan import Plan
from stowplan.models.tier_placement.problem import Problem
from stowplan.report.inline import legend_html, plot_html
from stowplan.report.page import Details, Section, table
from stowplan.report.presenter import DrawingPresenter, Labelled
from stowplan.report.scene import Picture
from stowplan.report.text import name_of, text_table
from stowplan.report.tier_placement import drawing
from stowplan.report.tier_placement.maps import What, check_fits, contiguity, layer_times, transitions, use_of_tiers
from stowplan.report.units import format_bytes, printable
from stowplan.result import Result, format_ps

#: Rows of the table of layers, and of that in text; letters of a layer's name there.
_TOP, LINES, _NAME = 20, 40, 28

_SORTS: tuple[What, ...] = ("weights", "outputs")


class TierPlacementPresenter(DrawingPresenter):
    """Memory maps beside the compiler's own."""

    most_plans = 2

    def check_fits(self, problem: Problem, plan: object) -> None:
        """Any tier for each layer will do."""
        check_fits(problem, plan)

    def summarize(self, problem: Problem, plan: Plan, *, others: Sequence[Labelled] = (), everything: bool = False) -> str:
        """Where bytes stand, contiguity, transitions from the first of the others, and the layers, the slowest first."""
        times = layer_times(problem, plan)
        total = format_ps(int(times.sum()))
        lines = [printable(f"{problem.name} on {problem.target} ({problem.cost_model}): {total}")]
        for name, capacity, peak, weights, outputs in _tier_rows(problem, plan):
            lines.append(f"  {name:<6} {peak} of {capacity} at the peak: {weights} of weights, outputs of {outputs} layers")
        for what in _SORTS:
            found = contiguity(problem, plan, what)
            lines.append(
                f"  {what} of neighbouring layers in one tier: {found.part:.0%} (by chance {found.by_chance:.0%}), "
                f"{found.runs} runs, the longest of {found.longest}"
            )
        if others:
            lines += self._transition_lines(problem, plan, *others[0])
        order = np.argsort(-times, kind="stable").tolist()
        at = ["at:r"] if plan.output_offsets else []
        head = ["layer", "weights", *at, "output", *at, "latency:r"]
        rows = []
        for number in order if everything else order[:LINES]:
            layer, places = problem.layers[number], _places(problem, plan, number, "-")
            rows.append([name_of(layer.name, _NAME), *places, format_ps(int(times[number]))])
        return "\n".join([*lines, *text_table(head, rows, len(order))])

    def _transition_lines(self, problem: Problem, plan: Plan, name: str, before: Plan) -> list[str]:
        if self.are_alike(problem, before, plan):
            return [f"  the map is that of {name}"]
        names = [tier.name for tier in problem.tiers]
        rows = [[tier, *map(str, counts)] for tier, counts in zip(names, transitions(problem, before, plan), strict=True)]
        lines = text_table(["", *(f"{tier}:r" for tier in names)], rows)
        return [f"  from {name} (rows) to this map (columns), tensors:", *lines]

    def picture(self, problem: Problem, plans: Sequence[Labelled], *, seconds: bool = False) -> Picture:
        """One map, or two with the transitions between them."""
        return drawing.picture(problem, self.distinct(problem, plans))

    def report_sections(
        self, problem: Problem, result: Result, others: Sequence[Labelled], details: Details, *, seconds: bool = False
    ) -> list[Section]:
        """Bands of tiers, transitions from another map where it differs, layers."""
        if result.plan is None:
            return []
        drawn = self.distinct(problem, [(result.provenance.candidate, result.plan), *others])
        head = ("Tier:n", "Capacity:r", "Peak:r", "Weights:r", "Outputs of layers:r")
        return [
            _bands(problem, drawn),
            Section("Tiers", table("What stands in each tier", head, _tier_rows(problem, result.plan))),
            *(_transitions(problem, result.plan, *before) for before in drawn[1:]),
            _contiguity(problem, result.plan),
            _layers(problem, result.plan),
        ]


def _bands(problem: Problem, plans: Sequence[Labelled]) -> Section:
    """Bands of every tensor's tier; plans are no two alike."""
    plot = drawing.bands(problem, plans)
    return Section(
        "Memory map",
        "<p>Layers from left to right; the colour is the tier in which a layer's weights or its output stand. Point at a band "
        f"to see which layers it is.</p>\n{legend_html(plot.legend)}<figure>{plot_html(plot, 'Memory map')}</figure>",
    )


def _tier_rows(problem: Problem, plan: Plan) -> list[tuple[str, ...]]:
    """Name, capacity, peak, bytes of weights and number of outputs of each tier."""
    peaks = use_of_tiers(problem, plan).max(axis=1)
    rows = []
    for number, tier in enumerate(problem.tiers):
        weights = sum(each.weight_bytes for each, at in zip(problem.layers, plan.weight_tiers, strict=True) if at == number)
        sizes = map(format_bytes, (tier.capacity, int(peaks[number]), weights))
        rows.append((tier.name, *sizes, f"{sum(at == number for at in plan.output_tiers):,}"))
    return rows


def _transitions(problem: Problem, plan: Plan, name: str, before: Plan) -> Section:
    names = [tier.name for tier in problem.tiers]
    counts = transitions(problem, before, plan)
    rows = [
        (tier, *(f"{count:,} ({count / max(1, row.sum()):.0%})" for count in row))
        for tier, row in zip(names, counts, strict=True)
    ]
    caption = f"Tensors by their tier in {name} (rows) and in this plan (columns)"
    return Section("Transitions", table(caption, (f"{name}:n", *(f"{tier}:r" for tier in names)), rows))


def _contiguity(problem: Problem, plan: Plan) -> Section:
    rows = []
    for what in _SORTS:
        each = contiguity(problem, plan, what)
        rows.append((what, f"{each.part:.0%}", f"{each.by_chance:.0%}", f"{each.runs:,}", f"{each.longest:,}"))
    head = ("Tensors:n", "Neighbours in one tier:r", "By chance:r", "Runs:r", "Longest:r")
    return Section("Contiguity", table("How alike the places of neighbouring layers are", head, rows))


def _layers(problem: Problem, plan: Plan) -> Section:
    times = layer_times(problem, plan)
    order = sorted(range(len(times)), key=lambda number: (-times[number], number))[:_TOP]
    at = ["At:r"] if plan.output_offsets else []
    rows = [
        (
            problem.layers[number].name,
            problem.layers[number].op,
            *_places(problem, plan, number, "–"),
            format_ps(int(times[number])),
            f"{times[number] / max(1, times.sum()):.1%}",
        )
        for number in order
    ]
    head = ("Layer:n", "Operation", "Weights in", *at, "Output in", *at, "Latency:r", "Share:r")
    return Section("Layers that take longest", table(f"{len(order):,} of {len(times):,} layers", head, rows))


def _places(problem: Problem, plan: Plan, number: int, nothing: str) -> list[str]:
    """Tier of a layer's weights and of its output, each with the offset where tiers are address spaces."""
    cells = []
    for tiers, offsets, size in (
        (plan.weight_tiers, plan.weight_offsets, problem.layers[number].weight_bytes),
        (plan.output_tiers, plan.output_offsets, 1),
    ):
        cells.append(problem.tiers[tiers[number]].name if size else nothing)
        if plan.output_offsets:
            cells.append(f"{offsets[number]:#x}" if size else nothing)
    return cells
