"""Shows tier placements: the tier of every tensor, and how tensors change tiers from one plan to another.

It follows figure 6 of the EGRL paper (Khadka et al., ICLR 2021). A *memory map* is this paper's name for a tier placement: a
tier for the weights and for the output of each layer. A *transition* is a pair of tiers, one of a tensor in an earlier map and
one in a later map. *Contiguity* says how often neighbouring tensors are in the same tier. A tier is an *address space* if
tensors have offsets in it.

The presenter's methods override the methods of :class:`~stowplan.report.presenter.Presenter`, which explains their parameters
and errors. The functions expect a plan that :meth:`~stowplan.report.presenter.Presenter.check_fits` has accepted, and raise no
errors of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from stowplan.errors import InputError
from stowplan.hardware.nnp_i.problem import layers_ps
from stowplan.models.tier_placement.plan import Plan
from stowplan.models.tier_placement.problem import Problem
from stowplan.report import scene
from stowplan.report.boxes import Box, Boxes, assign_colours
from stowplan.report.colours import tier_colour
from stowplan.report.inline import legend_html, plot_html
from stowplan.report.page import Details, Section, table
from stowplan.report.presenter import DrawingPresenter, Labelled
from stowplan.report.text import byte_unit, format_bytes, name_of, printable, shorten
from stowplan.report.trace import Group, Slice, Trace, memory
from stowplan.result import Result
from stowplan.tables import text_table
from stowplan.units import format_ps

#: Rows of the table of layers in the report and in text; characters of a layer's name in text.
_TOP, LINES, _NAME = 20, 40, 28

_SORTS: tuple[What, ...] = ("weights", "outputs")

#: Style of a layer without weights.
EMPTY = scene.Style(fill="panel", name="tile")

#: Heights in points of a matrix, a band, the panel with the use of a tier, and that with its addresses.
_MATRIX, _BAND, _USE, _ADDRESSES = 115.0, 24.0, 90.0, 170.0

#: Colours of a transition matrix, from 0 % to 100 % of a row.
_BLUES = ((247, 251, 255), (8, 69, 148))


class TierPlacementPresenter(DrawingPresenter):
    """Shows memory maps next to the map that the chip's compiler makes."""

    max_plans = 2
    plan_words, problem_words = "a memory map (tier placement)", "network, target, precision and capacity"

    def check_parts(self, problem: Problem, plan: Plan) -> None:
        """Raises InputError unless each layer has a tier that exists for its weights and for its output."""
        counts = {len(plan.weight_tiers), len(plan.output_tiers)}
        tiers = (*plan.weight_tiers, *plan.output_tiers)
        if counts != {len(problem.layers)} or not all(0 <= tier < len(problem.tiers) for tier in tiers):
            raise InputError(f"expected a tier, 0 to {len(problem.tiers) - 1}, for each of the {len(problem.layers)} layers")

    def summarize(self, problem: Problem, plan: Plan, *, others: Sequence[Labelled] = (), everything: bool = False) -> str:
        """Bytes in each tier, contiguity, transitions from the first plan in ``others``, and the layers in the order of
        decreasing latency."""
        times = layers_ps(problem, plan.weight_tiers, plan.output_tiers)
        total = format_ps(int(times.sum()))
        lines = [printable(f"{problem.name} on {problem.target} ({problem.cost_model}): {total}")]
        for name, capacity, peak, weights, outputs in _tier_rows(problem, plan):
            layers = "1 layer" if outputs == "1" else f"{outputs} layers"
            lines.append(f"  {name:<6} {peak} of {capacity} at the peak: {weights} of weights, outputs of {layers}")
        for what in _SORTS:
            alike = contiguity(problem, plan, what)
            lines.append(
                f"  {what} of neighbouring layers in one tier: {alike.part:.0%} (by chance {alike.by_chance:.0%}), "
                f"{alike.runs} runs, the longest of {alike.longest}"
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
        """The transitions from another map, as text."""
        if self.are_alike(problem, before, plan):
            return [f"  the map is that of {name}"]
        names = [tier.name for tier in problem.tiers]
        rows = [[tier, *map(str, counts)] for tier, counts in zip(names, transitions(problem, before, plan), strict=True)]
        lines = text_table(["", *(f"{tier}:r" for tier in names)], rows)
        return [f"  from {name} (rows) to this map (columns), tensors:", *lines]

    def drawn(self, problem: Problem, plans: Sequence[Labelled], *, seconds: bool) -> scene.Picture:
        """One map, or two with the transitions from the second to the first.

        For two maps that differ, matrices at the top show for each tier of the second map where the first map puts the tensors
        of that tier. Below, each plan has bands with the tier of every tensor, layers from left to right, followed by the bytes
        in the limited tiers over time. If tiers are address spaces, the boxes in them are drawn for the first plan instead.
        """
        rows: list[Sequence[scene.Plot]] = []
        if len(plans) == 2:
            (after_name, after), (before_name, before) = plans
            whats: tuple[tuple[What, str], ...] = (("weights", "weights"), ("outputs", "outputs"), ("all", "all tensors"))
            names = [tier.name for tier in problem.tiers]
            axes = (f"in {after_name}", f"in {before_name}")
            rows.append([_matrix(transitions(problem, before, after, what), names, title, axes) for what, title in whats])
        rows.append([bands(problem, plans)])
        total = sum(layer.weight_bytes + layer.output_bytes for layer in problem.layers)
        limited = [number for number, tier in enumerate(problem.tiers) if tier.capacity < total]
        if limited:
            rows.append(_addresses(problem, plans[0], limited) if plans[0][1].output_offsets else _use(problem, plans, limited))
        return scene.Picture(f"{problem.name} on {problem.target}, {problem.cost_model}", rows)

    def trace(self, problem: Problem, plan: Plan) -> Trace:
        """The layers with their latencies, and each tier: weights for the whole run, outputs until their last use."""
        times = layers_ps(problem, plan.weight_tiers, plan.output_tiers)
        edges = [0, *np.cumsum(times).tolist()]
        layers = [Slice(layer.name, edges[at], edges[at + 1], {"op": layer.op}) for at, layer in enumerate(problem.layers)]
        groups = [Group("layers", {"layers": layers})]
        for tier, (description, used) in enumerate(zip(problem.tiers, use_of_tiers(problem, plan), strict=True)):
            residencies = []
            for number, is_output in (tensor for tensor in tensors(problem) if tier_of(plan, tensor) == tier):
                layer, offsets = problem.layers[number], plan.output_offsets if is_output else plan.weight_offsets
                facts = {"bytes": layer.output_bytes if is_output else layer.weight_bytes}
                facts |= {"offset": offsets[number]} if offsets else {}
                begin, end = (number, problem.last_use[number] + 1) if is_output else (0, len(layers))
                residencies.append(Slice(tensor_name(problem, 2 * number + is_output), edges[begin], edges[end], facts))
            groups.append(memory(description.name, residencies, edges, used.tolist()))
        return Trace("ps", groups, 1e-6)

    def sections(self, problem: Problem, result: Result, plans: Sequence[Labelled], details: Details) -> list[Section]:
        """Bands of tiers, transitions from another map if it differs, and layers."""
        plan = plans[0][1]
        head = ("Tier:n", "Capacity:r", "Peak:r", "Weights:r", "Outputs of layers:r")
        return [
            _bands(problem, plans),
            Section("Tiers", table("What each tier holds", head, _tier_rows(problem, plan))),
            *(_transitions(problem, plan, *before) for before in plans[1:]),
            _contiguity(problem, plan),
            _layers(problem, plan),
        ]


def _bands(problem: Problem, plans: Sequence[Labelled]) -> Section:
    """The section with the tier of every tensor. No two plans are equal."""
    plot = bands(problem, plans)
    return Section(
        "Memory map",
        "<p>Layers run from left to right; the colour shows the tier that holds a layer's weights or its output. Point at a "
        f"band to see its layers.</p>\n{legend_html(plot.legend)}<figure>{plot_html(plot, 'Memory map')}</figure>",
    )


def _tier_rows(problem: Problem, plan: Plan) -> list[tuple[str, ...]]:
    """Name, capacity, peak, bytes of weights and number of outputs of each tier."""
    peaks = use_of_tiers(problem, plan).max(axis=1)
    rows = []
    for number, tier in enumerate(problem.tiers):
        weights = sum(layer.weight_bytes for layer, at in zip(problem.layers, plan.weight_tiers, strict=True) if at == number)
        sizes = map(format_bytes, (tier.capacity, int(peaks[number]), weights))
        rows.append((tier.name, *sizes, f"{sum(at == number for at in plan.output_tiers):,}"))
    return rows


def _transitions(problem: Problem, plan: Plan, name: str, before: Plan) -> Section:
    """The table of transitions from another plan."""
    names = [tier.name for tier in problem.tiers]
    counts = transitions(problem, before, plan)
    rows = [
        (tier, *(f"{count:,} ({count / max(1, row.sum()):.0%})" for count in row))
        for tier, row in zip(names, counts, strict=True)
    ]
    caption = f"Tensors by their tier in {name} (rows) and in this plan (columns)"
    return Section("Transitions", table(caption, (f"{name}:n", *(f"{tier}:r" for tier in names)), rows))


def _contiguity(problem: Problem, plan: Plan) -> Section:
    """The table of contiguity."""
    rows = []
    for what in _SORTS:
        alike = contiguity(problem, plan, what)
        rows.append((what, f"{alike.part:.0%}", f"{alike.by_chance:.0%}", f"{alike.runs:,}", f"{alike.longest:,}"))
    head = ("Tensors:n", "Neighbours in one tier:r", "By chance:r", "Runs:r", "Longest:r")
    return Section("Contiguity", table("How often neighbouring layers have the same tier", head, rows))


def _layers(problem: Problem, plan: Plan) -> Section:
    """The table of the slowest layers."""
    times = layers_ps(problem, plan.weight_tiers, plan.output_tiers)
    order = sorted(range(len(times)), key=lambda number: (-times[number], number))[:_TOP]
    at = ["Offset:r"] if plan.output_offsets else []
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
    """Tier of a layer's weights and of its output, each with its offset if tiers are address spaces."""
    cells = []
    for tiers, offsets, size in (
        (plan.weight_tiers, plan.weight_offsets, problem.layers[number].weight_bytes),
        (plan.output_tiers, plan.output_offsets, 1),
    ):
        cells.append(problem.tiers[tiers[number]].name if size else nothing)
        if plan.output_offsets:
            cells.append(f"{offsets[number]:#x}" if size else nothing)
    return cells


def _matrix(table: NDArray[np.int64], names: Sequence[str], title: str, axes: tuple[str, str]) -> scene.Plot:
    """A transition matrix, with counts and percentages of each row.

    Parameters
    ----------
    table
        [tiers before, tiers after], as :func:`transitions` counts them.
    names
        Names of the tiers.
    title
        Title of the matrix.
    axes
        Titles of the horizontal and the vertical axis.
    """
    marks: list[scene.Mark] = []
    for row, counts in enumerate(table.tolist()):
        total = sum(counts)
        for column, count in enumerate(counts):
            part = count / total if total else 0.0
            red, green, blue = (round(light + part * (dark - light)) for light, dark in zip(*_BLUES, strict=True))
            style = scene.Style(fill=f"#{red:02x}{green:02x}{blue:02x}", stroke="#ffffff")
            marks.append(scene.Rect(column, column + 1, row + 1, row, style))
            ink = "#ffffff" if part > 0.55 else "#222222"
            written = ((0.32, f"{part:.0%}"), (0.7, f"{count:,}")) if total else ((0.5, "–"),)
            marks += [scene.Text(column + 0.5, row + at, text, colour=ink) for at, text in written]
    up = scene.Axis(len(names), 0, [(at + 0.5, name) for at, name in enumerate(names)], axes[1])
    across = scene.Axis(0, len(names), [(at + 0.5, name) for at, name in enumerate(names)], axes[0])
    spoken = f"Tensors by their tier before (rows) and after (columns): {title}"
    return scene.Plot(across, [scene.Panel(up, marks, _MATRIX, spoken, title, is_framed=False)])


def bands(problem: Problem, plans: Sequence[tuple[str, Plan]]) -> scene.Plot:
    """Bands for the weights and for the outputs of each plan: the tier of every tensor, layers from left to right."""
    panels = []
    for label, what, places in rows_of(problem, plans):
        marks: list[scene.Mark] = []
        at = 0
        for tier, run in groupby(places):
            count = len(list(run))
            style = EMPTY if tier is None else scene.Style(fill=tier_colour(tier))
            tip = "" if tier is None else f"{problem.tiers[tier].name}: {_layers_from(problem, at, count)}"
            marks.append(scene.Rect(at, at + count, 0, 1, style, tip))
            at += count
        name = f"{shorten(label, 24)}: {what}"
        panels.append(scene.Panel(scene.Axis(0, 1, [(0.5, name)]), marks, _BAND, f"{label}: tiers of {what}", is_framed=False))
    legend = scene.patches(
        (tier_colour(number), f"{tier.name}, {format_bytes(tier.capacity)}") for number, tier in enumerate(problem.tiers)
    )
    heading = ", ".join(f"{label} {format_ps(plan.objective)}" for label, plan in plans)
    if any(not layer.weight_bytes for layer in problem.layers):
        legend.append(scene.Key("no weights", EMPTY))
    return scene.Plot(scene.number_axis(0, len(problem.layers), "layer"), panels, heading, legend, gap=4)


def _layers_from(problem: Problem, first: int, count: int) -> str:
    """A range of layers as text."""
    begin, end = (problem.layers[number].name for number in (first, first + count - 1))
    return f"layer {first} ({begin})" if count == 1 else f"layers {first} to {first + count - 1} ({begin} to {end})"


def _addresses(problem: Problem, labelled: tuple[str, Plan], limited: Sequence[int]) -> list[scene.Plot]:
    """Offsets over layers in the limited tiers of one plan."""
    label, plan = labelled
    layouts = [tier_boxes(problem, plan, tier) for tier in limited]
    colours = assign_colours(layouts)

    def describe(owner: int) -> tuple[str, int]:
        layer = problem.layers[owner // 2]
        return tensor_name(problem, owner), layer.output_bytes if owner % 2 else layer.weight_bytes

    plots = []
    for number, boxes in zip(limited, layouts, strict=True):
        tier = problem.tiers[number]
        title = f"{tier.name}, {label}: offsets ({byte_unit(tier.capacity)[0]}), up to the capacity"
        marks = [Boxes(boxes, colours, describe)]
        panel = scene.Panel(scene.byte_axis(tier.capacity), marks, _ADDRESSES, f"Offsets in {tier.name} over the layers", title)
        plots.append(scene.Plot(scene.number_axis(0, len(problem.layers), "layer"), [panel]))
    return plots


def _use(problem: Problem, plans: Sequence[tuple[str, Plan]], limited: Sequence[int]) -> list[scene.Plot]:
    """The part of the limited tiers that is in use at each layer."""
    used = [use_of_tiers(problem, plan) for _, plan in plans]
    across = scene.number_axis(0, len(problem.layers), "layer")
    edges = list(range(len(problem.layers) + 1))
    plots = []
    for number in limited:
        tier = problem.tiers[number]
        styles = [
            scene.Style(stroke=tier_colour(number), width=1.4),
            scene.Style(stroke=tier_colour(number), width=1.4, dash=(1.5, 1.5)),
        ]
        lines: list[scene.Mark] = [
            scene.Line(scene.steps(edges, (table[number] / tier.capacity).tolist()), style)
            for table, style in zip(used, styles, strict=False)
        ]
        up = scene.Axis(0, 1.08, [(part / 4, f"{part / 4:.0%}") for part in range(5)])
        title = f"{tier.name}: part of {format_bytes(tier.capacity)} in use"
        panel = scene.Panel(up, [*lines, scene.level(across, 1, scene.RULE)], _USE, title, title)
        names = [
            scene.Key(label, scene.Style(stroke="soft", dash=style.dash), "line")
            for (label, _), style in zip(plans, styles, strict=False)
        ]
        plots.append(scene.Plot(across, [panel], legend=names if len(plans) > 1 else []))
    return plots


PRESENTER = TierPlacementPresenter


What = Literal["weights", "outputs", "all"]


def tensors(problem: Problem, what: What = "all") -> list[tuple[int, bool]]:
    """(layer, whether it is the output) for each tensor that has bytes."""
    weights = [(number, False) for number, layer in enumerate(problem.layers) if layer.weight_bytes and what != "outputs"]
    return weights + [(number, True) for number, layer in enumerate(problem.layers) if layer.output_bytes and what != "weights"]


def tier_of(plan: Plan, tensor: tuple[int, bool]) -> int:
    """The tier of a tensor."""
    return (plan.output_tiers if tensor[1] else plan.weight_tiers)[tensor[0]]


def transitions(problem: Problem, before: Plan, after: Plan, what: What = "all") -> NDArray[np.int64]:
    """Number of tensors by their tier before and after, ``[tiers before, tiers after]``; those on the diagonal stay."""
    table = np.zeros((len(problem.tiers), len(problem.tiers)), np.int64)
    for tensor in tensors(problem, what):
        table[tier_of(before, tensor), tier_of(after, tensor)] += 1
    return table


@dataclass(frozen=True)
class Contiguity:
    """How often neighbouring tensors of one sort, in the order of their layers, are in the same tier."""

    neighbours: int
    """Pairs of tensors with no tensor of their sort between them."""
    alike: int
    """How many of these pairs are in the same tier."""
    runs: int
    """Runs of consecutive tensors in the same tier."""
    longest: int
    """Number of tensors in the longest run."""
    by_chance: float
    """Part of all pairs, neighbours or not, that are in the same tier: the value that a random order would give."""

    @property
    def part(self) -> float:
        """Part of the neighbours that are in the same tier; 1 if there are no neighbours."""
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
    """Bytes in each tier at each layer, ``[tiers, layers]``."""
    used = np.zeros((len(problem.tiers), len(problem.layers) + 1), np.int64)
    for number, layer in enumerate(problem.layers):
        used[plan.weight_tiers[number], 0] += layer.weight_bytes
        used[plan.output_tiers[number], number] += layer.output_bytes
        used[plan.output_tiers[number], problem.last_use[number] + 1] -= layer.output_bytes
    # The last column is for outputs that are freed after the last layer.
    return np.cumsum(used, axis=1)[:, :-1]


def tier_boxes(problem: Problem, plan: Plan, tier: int) -> list[Box]:
    """The boxes in a tier that is an address space, over layers: weights (owner ``2 n``) and outputs (``2 n + 1``)."""
    last = len(problem.layers)
    boxes = []
    for number, layer in enumerate(problem.layers):
        if layer.weight_bytes and plan.weight_tiers[number] == tier and plan.weight_offsets:
            boxes.append(Box(2 * number, 0, last, plan.weight_offsets[number], layer.weight_bytes))
        if layer.output_bytes and plan.output_tiers[number] == tier and plan.output_offsets:
            boxes.append(
                Box(2 * number + 1, number, problem.last_use[number] + 1, plan.output_offsets[number], layer.output_bytes)
            )
    return boxes


def tensor_name(problem: Problem, owner: int) -> str:
    """Name of the owner of a box of :func:`tier_boxes`."""
    name = problem.layers[owner // 2].name
    return name if owner % 2 else f"{name} (weights)"


def rows_of(problem: Problem, plans: Sequence[tuple[str, Plan]]) -> list[tuple[str, What, list[int | None]]]:
    """Rows of the chart: (plan, weights or outputs, tier of each layer or None), from top to bottom."""
    bands: list[tuple[str, What, list[int | None]]] = []
    for label, plan in plans:
        weights = [at if layer.weight_bytes else None for at, layer in zip(plan.weight_tiers, problem.layers, strict=True)]
        bands.append((label, "weights", weights))
        bands.append((label, "outputs", list(plan.output_tiers)))
    return bands
