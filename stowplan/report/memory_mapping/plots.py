"""The plot of one plan in the HTML report: layout, bytes in use, copies as they ran and stalls, on one time axis."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from html import escape

import numpy as np

from stowplan.report.memory_mapping.scene import Bar, Scene
from stowplan.report.page import Details
from stowplan.report.plots import HIGH, LETTERS, WIDE, axis_labels, flip, layout_svg, plot, rectangle, svg, time_labels
from stowplan.report.units import byte_unit, format_bytes, format_tick, memory_ticks, nice_ticks, time_unit
from stowplan.result import format_ps

#: Bars nearer than this are drawn as one, where there are many.
NEAR = 10
MANY_BARS = 1_000
MOST_COLUMNS = 1_500


def plan_plot(scene: Scene, colours: Mapping[int, int], details: Details, end: float, letters: int = LETTERS) -> str:
    """Layout, bytes in use and copy channel of one plan, over a shared time axis to ``end``; ``letters`` fit across it."""
    unit, size = byte_unit(scene.top)
    scale = WIDE / end
    peak = int(scene.occupancy.max()) if len(scene.occupancy) else 0
    spoken = f"Memory layout: {len(scene.plan.residencies)} residencies over {scene.problem.horizon} steps"
    spoken_usage = f"Bytes in use: {format_bytes(peak)} of {format_bytes(scene.problem.capacity)} at the peak"
    ticks = memory_ticks(scene.top)
    few = memory_ticks(scene.top, most=2)
    top = scene.top / size
    lines = "".join(f'<path class="grid" d="M0 {flip(tick / top)}h{WIDE}"/>' for tick in ticks)
    capacity = f'<path class="rule" d="M0 0h{WIDE}"/>' if scene.top == scene.problem.capacity else ""
    labels = [
        axis_labels("h-layout", ((tick / top, format_tick(tick)) for tick in ticks), f"offset ({unit})"),
        axis_labels("h-usage", ((tick / top, format_tick(tick)) for tick in few), "in use"),
        *(f'<div class="h-lane"><span class="row">{name}</span></div>' for name in ("copy in", "copy out", "stalls")),
        '<div class="h-ticks"></div>',
    ]
    boxes = _boxes(scene, colours, details, scale, letters)
    panels = [
        f'<div class="h-layout frame">{svg(lines + capacity, spoken)}{boxes}</div>',
        f'<div class="h-usage frame">{svg(_usage(scene, scale) + capacity.replace("rule", "rule dash"), spoken_usage)}</div>',
        *(f'<div class="h-lane">{svg(*_copies(scene, direction, scale))}</div>' for direction in ("in", "out")),
        f'<div class="h-lane">{svg(*_stalls(scene, scale))}</div>',
        _time_ticks(scene, end),
    ]
    return plot(labels, panels, "Layout over time")


def _boxes(scene: Scene, colours: Mapping[int, int], details: Details, scale: float, letters: int) -> str:
    problem, residencies = scene.problem, scene.plan.residencies
    loaded = {(copy.tensor, copy.start) for copy in scene.plan.copies if copy.direction == "in"}

    def source(index: int) -> str:
        each = residencies[index]
        # One letter each: there may be thousands, and the page's script has the words.
        return "p" if each.preloaded else "c" if (each.tensor, each.start) in loaded else "w"

    return layout_svg(
        scene.boxes,
        colours,
        details,
        scale=scale,
        height=scene.top,
        describe=lambda tensor: (problem.tensors[tensor].name, problem.tensors[tensor].size),
        source=source,
        letters=letters,
        times=[(each.start, each.end) for each in residencies],
    )


def _usage(scene: Scene, scale: float) -> str:
    chunk = max(1, math.ceil(len(scene.occupancy) / MOST_COLUMNS))
    starts = np.arange(0, len(scene.occupancy), chunk)
    if not len(starts):
        return ""
    heights = np.maximum.reduceat(scene.occupancy, starts) / scene.top
    lefts = scene.boundaries[starts] * scale
    path = "".join(f"H{round(x)}V{flip(part)}" for x, part in zip(lefts, heights, strict=True))
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
            first, kind = members[0].transfer, ""
            if len(members) == 1:
                copy, tensor = scene.plan.copies[first.copy], problem.tensors[first.tensor]
                took = format_ps(first.end_ps - first.begin_ps)
                tip = (
                    f"{tensor.name}\n{format_bytes(tensor.size)} copied {direction} in {took}\n"
                    f"window [{copy.start}, {copy.end}), begun at {format_ps(first.begin_ps)}"
                )
                if first.begin_ps > first.queued_ps:
                    tip += f", {format_ps(first.begin_ps - first.queued_ps)} after it was queued"
                if members[0].in_stall:
                    kind = ' class="instant"'
                    tip += "\nall of it while the program waits"
            else:
                moved = sum(problem.tensors[bar.transfer.tensor].size for bar in members)
                tip = f"{len(members)} copies {direction}, {format_bytes(moved)}"
            height = 1 / scene.lanes
            path = rectangle(members[0].left * scale, members[-1].right * scale, lane * height, (lane + 1) * height)
            drawn.append(f'<path{kind} d="{path}" data-tip="{escape(tip)}"/>')
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
        path = rectangle(members[0].left * scale, members[-1].right * scale, 0, 1)
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


def _time_ticks(scene: Scene, end: float) -> str:
    unit, size = time_unit(int(end)) if scene.axis == "seconds" else ("step", 1)
    major, minor = ([(tick * size / end, format_tick(tick)) for tick in nice_ticks(0, end / size, most)] for most in (5, 40))
    return time_labels(major, f"{'simulated' if scene.axis == 'seconds' else 'logical'} time ({unit})", minor)
