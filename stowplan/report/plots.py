"""Plots of the HTML report: inline SVG that stretches with the page, with labels as HTML so that they do not.

Every plot is a column of labels beside a scroller with panels on one time axis. Drawings use a coordinate system of
:data:`WIDE` by :data:`HIGH` whatever their size on the page.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape

import numpy as np

from stowplan.report.colours import PALETTE, ink_on
from stowplan.report.scene import Bar, Scene
from stowplan.report.units import (
    byte_unit,
    format_bytes,
    format_tick,
    format_value,
    memory_ticks,
    nice_ticks,
    shorten,
    time_unit,
)
from stowplan.result import HistoryEntry, format_ps

WIDE, HIGH = 20_000, 2_000

#: Boxes of one plan that can be pointed at; smaller ones beyond that are drawn, but have no details.
MOST_BOXES = 6_000
#: From this many boxes on, outlines would hide what they outline.
DENSE = 800
#: Names are written into boxes of plots with at most this many.
LABELLED = 60
#: Letters that fit across a plot of the usual width.
LETTERS = 74
#: Bars nearer than this are drawn as one, where there are many.
NEAR = 10
MANY_BARS = 1_000
MOST_COLUMNS = 1_500


@dataclass
class Details:
    """What the page's script needs to describe a box: ``tensors[number] = [name, size]`` and rows of boxes for each plan."""

    tensors: dict[int, tuple[str, str]]
    plans: list[list[tuple[int, int, str, str]]]

    def to_json(self) -> str:
        """JSON that can stand in a ``<script>`` element."""
        text = json.dumps({"tensors": self.tensors, "plans": self.plans}, separators=(",", ":"))
        return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def plan_plot(scene: Scene, colours: Mapping[int, int], details: Details, end: float) -> str:
    """Layout, bytes in use and copy channel of one plan; ``end`` is where the shared time axis ends."""
    unit, _ = byte_unit(scene.problem.capacity)
    scale = WIDE / end
    peak = int(scene.occupancy.max()) if len(scene.occupancy) else 0
    spoken = f"Memory layout: {len(scene.plan.residencies)} residencies over {scene.problem.horizon} steps"
    spoken_usage = f"Bytes in use: {format_bytes(peak)} of {format_bytes(scene.problem.capacity)} at the peak"
    ticks = memory_ticks(scene.problem.capacity)
    few = memory_ticks(scene.problem.capacity, most=2)
    top = scene.problem.capacity / byte_unit(scene.problem.capacity)[1]
    lines = "".join(f'<path class="grid" d="M0 {_flip(tick / top)}h{WIDE}"/>' for tick in ticks)
    capacity = f'<path class="rule" d="M0 0h{WIDE}"/>'
    labels = [
        _axis("h-layout", ((tick / top, format_tick(tick)) for tick in ticks), f"offset ({unit})"),
        _axis("h-usage", ((tick / top, format_tick(tick)) for tick in few), "in use"),
        *(f'<div class="h-lane"><span class="row">{name}</span></div>' for name in ("copy in", "copy out", "stalls")),
        '<div class="h-ticks"></div>',
    ]
    boxes = _boxes(scene, colours, details, scale)
    panels = [
        f'<div class="h-layout frame">{_svg(lines + capacity, spoken)}{boxes}</div>',
        f'<div class="h-usage frame">{_svg(_usage(scene, scale) + capacity.replace("rule", "rule dash"), spoken_usage)}</div>',
        *(f'<div class="h-lane">{_svg(*_copies(scene, direction, scale))}</div>' for direction in ("in", "out")),
        f'<div class="h-lane">{_svg(*_stalls(scene, scale))}</div>',
        _time_ticks(scene, end),
    ]
    return _plot(labels, panels, "Layout over time")


def convergence_plot(
    history: Sequence[HistoryEntry], seconds: float, unit: str, baselines: Mapping[str, int], baseline: int | None
) -> str:
    """Incumbent and bound over wall-clock time, with the baselines that lie in their range; empty without history."""
    found = _changes((entry.seconds, entry.objective, entry.source) for entry in history)
    proven = _changes((entry.seconds, entry.bound, entry.source) for entry in history)
    if not found and not proven:
        return ""
    # The worst bounds say little and would flatten all else, so the scale ends at the last one.
    values = [value for _, value, _ in found] + [value for _, value, _ in proven[-1:]]
    if found and baseline is not None:
        values.append(baseline)
    margin = max((max(values) - min(values)) * 0.06, max(values) * 0.002, 1.0)
    low, high = min(values) - margin, max(values) + margin
    end = max([seconds, *(moment for moment, _, _ in found + proven), 1e-3])
    first = min((moment for moment, _, _ in found + proven if moment > 0), default=end)
    is_log = end / max(first, 1e-3) > 50
    begin = math.pow(10, math.floor(math.log10(max(first, 1e-3)))) if is_log else 0.0

    def across(moment: float) -> int:
        if is_log:
            return round(WIDE * math.log(max(moment, begin) / begin) / math.log(end / begin))
        return round(WIDE * moment / end)

    def up(value: float) -> int:
        return _flip(min(max((value - low) / (high - low), 0.0), 1.0))

    per_unit, name = (time_unit(int(high))[1], time_unit(int(high))[0]) if unit == "ps" else (1, unit)
    y_ticks = [
        ((tick * per_unit - low) / (high - low), format_tick(tick)) for tick in nice_ticks(low / per_unit, high / per_unit)
    ]
    x_ticks = _log_ticks(begin, end) if is_log else nice_ticks(0, end, 6)
    drawn = [f'<path class="grid" d="M0 {_flip(place)}h{WIDE}"/>' for place, _ in y_ticks]
    named: list[str] = []
    taken: list[float] = []
    for label, value in sorted(baselines.items(), key=lambda item: item[1]):
        place = (value - low) / (high - low)
        if not found or not 0 <= place <= 1:
            continue
        drawn.append(f'<path class="base" d="M0 {_flip(place)}h{WIDE}"/>')
        if all(abs(place - other) > 0.07 for other in taken):
            taken.append(place)
            named.append(f'<span class="line-name" style="bottom:{place * 100:.1f}%">{escape(label)}</span>')
    for series, kind, word in ((proven, "bound", "bound"), (found, "incumbent", "objective")):
        if not series:
            continue
        # Bounds below the scale are left out; the curve then comes up from its edge.
        series = [point for point in series if point[1] >= low]
        path = (
            f"M{across(series[0][0])} {HIGH}V{up(series[0][1])}"
            if kind == "bound"
            else f"M{across(series[0][0])} {up(series[0][1])}"
        )
        path += "".join(f"H{across(s)}V{up(v)}" for s, v, _ in series[1:])
        drawn.append(f'<path class="curve {kind}" d="{path}H{WIDE}"/>')
        for moment, value, source in _apart(series, across):
            tip = escape(f"{word} {format_value(value, unit)}\n{source} after {moment:.2f} s")
            drawn.append(f'<path class="dot {kind}" d="M{across(moment)} {up(value)}h0" data-tip="{tip}"/>')
    labels = [
        _axis("h-chart", y_ticks, f"objective ({name})"),
        '<div class="h-ticks"></div>',
    ]
    ticks = _x_ticks(((across(tick) / WIDE, f"{tick:g}") for tick in x_ticks), "seconds" + (", logarithmic" if is_log else ""))
    spoken = f"Objective and bound over {end:.1f} seconds; the table below has the numbers"
    panels = [f'<div class="h-chart frame">{_svg("".join(drawn), spoken)}{"".join(named)}</div>', ticks]
    return _plot(labels, panels, "Convergence")


def _plot(labels: Iterable[str], panels: Iterable[str], name: str) -> str:
    return (
        f'<div class="plot"><div class="labels">{"".join(labels)}</div>'
        f'<div class="scroller" tabindex="0" role="group" aria-label="{name}">'
        f'<div class="panels">{"".join(panels)}</div></div></div>'
    )


def _svg(content: str, spoken: str, attributes: str = "") -> str:
    return (
        f'<svg viewBox="0 0 {WIDE} {HIGH}" preserveAspectRatio="none" role="img" aria-label="{escape(spoken)}"{attributes}>'
        f"{content}</svg>"
    )


def _flip(part: float) -> int:
    """Height of a part of the range, 0 at the bottom."""
    return round(HIGH * (1 - part))


def _box(left: float, right: float, bottom: float, top: float) -> str:
    """Path of a rectangle, at least one unit wide and high; heights are parts of the range."""
    x, y = round(left), _flip(top)
    width, height = max(1, round(right) - x), max(1, _flip(bottom) - y)
    return f"M{x} {y}h{width}v{height}h{-width}z"


def _boxes(scene: Scene, colours: Mapping[int, int], details: Details, scale: float) -> str:
    tensors, residencies, capacity = scene.problem.tensors, scene.plan.residencies, scene.problem.capacity
    loaded = {(copy.tensor, copy.start) for copy in scene.plan.copies if copy.direction == "in"}
    by_area = sorted(
        range(len(residencies)),
        key=lambda i: (-(residencies[i].end - residencies[i].start) * tensors[residencies[i].tensor].size, i),
    )
    rows: list[tuple[int, int, str, str]] = []
    groups: defaultdict[int, list[str]] = defaultdict(list)
    names: list[str] = []
    rest: defaultdict[int, list[str]] = defaultdict(list)
    for index in by_area:
        residency = residencies[index]
        tensor = tensors[residency.tensor]
        bottom, top = residency.offset / capacity, (residency.offset + tensor.size) / capacity
        left, right = scene.left[index] * scale, scene.right[index] * scale
        path = _box(left, right, bottom, top)
        if len(rows) >= MOST_BOXES:
            rest[colours[residency.tensor]].append(path)
            continue
        source = "p" if residency.preloaded else "c" if (residency.tensor, residency.start) in loaded else "w"
        details.tensors[residency.tensor] = (tensor.name, format_bytes(tensor.size))
        groups[residency.tensor].append(f'<path d="{path}" data-i="{len(rows)}"/>')
        rows.append((residency.start, residency.end, format_bytes(residency.offset), source))
        if len(residencies) <= LABELLED and right - left > WIDE * 0.05 and top - bottom > 0.05:
            letters = round((right - left) / WIDE * LETTERS)
            colour = ink_on(PALETTE[colours[residency.tensor]])
            names.append(
                f'<span style="left:{left / WIDE * 100:.2f}%;width:{(right - left) / WIDE * 100:.2f}%;'
                f'bottom:{bottom * 100:.2f}%;height:{(top - bottom) * 100:.2f}%;color:{colour}">'
                f"<b>{escape(shorten(tensor.name, letters))}</b></span>"
            )
    details.plans.append(rows)
    drawn = "".join(f'<path fill="{PALETTE[colour]}" d="{"".join(paths)}"/>' for colour, paths in sorted(rest.items()))
    drawn += "".join(
        f'<g data-t="{tensor}" fill="{PALETTE[colours[tensor]]}">{"".join(paths)}</g>'
        for tensor, paths in sorted(groups.items())
    )
    dense = " dense" if len(residencies) > DENSE else ""
    attributes = f' class="boxes{dense}" data-plan="{len(details.plans) - 1}"'
    return _svg(drawn, "Boxes of the layout; pointing at one names its tensor", attributes) + (
        f'<div class="names" aria-hidden="true">{"".join(names)}</div>'
    )


def _usage(scene: Scene, scale: float) -> str:
    chunk = max(1, math.ceil(len(scene.occupancy) / MOST_COLUMNS))
    starts = np.arange(0, len(scene.occupancy), chunk)
    if not len(starts):
        return ""
    heights = np.maximum.reduceat(scene.occupancy, starts) / scene.problem.capacity
    lefts = scene.boundaries[starts] * scale
    path = "".join(f"H{round(x)}V{_flip(part)}" for x, part in zip(lefts, heights, strict=True))
    return f'<path class="usage" d="M0 {HIGH}{path}H{round(scene.boundaries[-1] * scale)}V{HIGH}z"/>'


def _copies(scene: Scene, direction: str, scale: float) -> tuple[str, str]:
    """Bars of one direction, and what they are in words."""
    problem = scene.problem
    lanes: defaultdict[int, list[Bar]] = defaultdict(list)
    count = 0
    for bar in scene.bars:
        if bar.transfer.direction == direction:
            lanes[bar.lane].append(bar)
            count += 1
    near = NEAR / scale if count > MANY_BARS else -1.0
    drawn = []
    for lane, bars in sorted(lanes.items()):
        for group in _clusters([(bar.left, bar.right) for bar in bars], near):
            members = [bars[i] for i in group]
            first = members[0].transfer
            if len(members) == 1:
                copy, tensor = scene.plan.copies[first.copy], problem.tensors[first.tensor]
                took = format_ps(first.end_ps - first.begin_ps)
                tip = (
                    f"{tensor.name}\n{format_bytes(tensor.size)} copied {direction} in {took}\n"
                    f"window [{copy.start}, {copy.end}), begun at {format_ps(first.begin_ps)}"
                )
                if first.begin_ps > first.queued_ps:
                    tip += f", {format_ps(first.begin_ps - first.queued_ps)} after it was queued"
            else:
                moved = sum(problem.tensors[bar.transfer.tensor].size for bar in members)
                tip = f"{len(members)} copies {direction}, {format_bytes(moved)}"
            height = 1 / scene.lanes
            path = _box(members[0].left * scale, members[-1].right * scale, lane * height, (lane + 1) * height)
            drawn.append(f'<path d="{path}" data-tip="{escape(tip)}"/>')
    dense = " dense" if count > MANY_BARS // 4 else ""
    return f'<g class="bar {direction}{dense}">{"".join(drawn)}</g>', f"{count} copies {direction}"


def _stalls(scene: Scene, scale: float) -> tuple[str, str]:
    near = NEAR / scale if len(scene.stalls) > MANY_BARS else -1.0
    drawn = []
    for group in _clusters([(stall.left, stall.right) for stall in scene.stalls], near):
        members = [scene.stalls[i] for i in group]
        wait = format_ps(sum(stall.wait_ps for stall in members))
        tip = (
            f"waits {wait} before step {members[0].boundary}"
            if len(members) == 1
            else f"{len(members)} stalls, {wait} together"
        )
        path = _box(members[0].left * scale, members[-1].right * scale, 0, 1)
        drawn.append(f'<path d="{path}" data-tip="{tip}"/>')
    spoken = f"{len(scene.stalls)} stalls, {format_ps(scene.timeline.stall_ps)} together"
    dense = " dense" if len(scene.stalls) > MANY_BARS // 4 else ""
    return f'<g class="bar stall{dense}">{"".join(drawn)}</g>', spoken


def _clusters(spans: Sequence[tuple[float, float]], near: float) -> list[list[int]]:
    """Runs of spans (sorted by their left ends) with gaps below ``near``; each on its own where that is negative."""
    runs: list[list[int]] = []
    for index, (left, _) in enumerate(spans):
        if runs and left - spans[runs[-1][-1]][1] < near:
            runs[-1].append(index)
        else:
            runs.append([index])
    return runs if near >= 0 else [[index] for index in range(len(spans))]


def _changes(entries: Iterable[tuple[float, int | None, str]]) -> list[tuple[float, int, str]]:
    """Entries with a value other than the one before."""
    kept: list[tuple[float, int, str]] = []
    for seconds, value, source in entries:
        if value is not None and (not kept or kept[-1][1] != value):
            kept.append((seconds, value, source))
    return kept


def _apart(series: Sequence[tuple[float, int, str]], across: Callable[[float], int]) -> list[tuple[float, int, str]]:
    """Points far enough apart to be told from each other; the last of a crowd stays."""
    kept: list[tuple[float, int, str]] = []
    for point in reversed(series):
        if not kept or across(kept[-1][0]) - across(point[0]) > WIDE // 200:
            kept.append(point)
    return kept[::-1]


def _log_ticks(begin: float, end: float) -> list[float]:
    return [10.0**power for power in range(math.floor(math.log10(begin)), math.floor(math.log10(end)) + 1)]


def _axis(panel: str, ticks: Iterable[tuple[float, str]], title: str) -> str:
    """Labels left of a panel; places are parts of its height."""
    labels = "".join(f'<span class="tick" style="bottom:{place * 100:.2f}%">{label}</span>' for place, label in ticks)
    return f'<div class="{panel}">{labels}<span class="unit">{escape(title)}</span></div>'


def _x_ticks(ticks: Iterable[tuple[float, str]], title: str, minor: Iterable[tuple[float, str]] = ()) -> str:
    """Labels below a plot; ``minor`` ones show only where it is zoomed."""
    parts = []
    major = list(ticks)
    for place, label in [*major, *(tick for tick in minor if tick not in major)]:
        kind = " first" if place < 0.01 else " last" if place > 0.97 else ""
        kind += "" if (place, label) in major else " minor"
        parts.append(f'<span class="xtick{kind}" style="left:{place * 100:.2f}%">{label}</span>')
    return f'<div class="h-ticks">{"".join(parts)}<span class="axis">{title}</span></div>'


def _time_ticks(scene: Scene, end: float) -> str:
    unit, size = time_unit(int(end)) if scene.axis == "seconds" else ("step", 1)
    major, minor = ([(tick * size / end, format_tick(tick)) for tick in nice_ticks(0, end / size, most)] for most in (5, 40))
    return _x_ticks(major, f"{'simulated' if scene.axis == 'seconds' else 'logical'} time ({unit})", minor)
