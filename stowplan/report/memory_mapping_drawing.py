"""Pictures of memory-mapping plans, after figures 1 and 8 of Wang et al. 2023.

Time runs across, offsets run up, and each tensor has one colour. Below, on the same time axis, are the bytes in use, the copies
as they ran, and the stalls. Time is logical (boundaries 0 to T, for a program of T steps) or simulated (picoseconds). A plan is
first laid out as numbers (:class:`Layout`), then drawn.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from stowplan.errors import InputError, UsageError
from stowplan.hardware.simulator import Timeline, Transfer, simulate
from stowplan.models.memory_mapping.plan import Plan
from stowplan.models.memory_mapping.problem import Problem
from stowplan.report import scene
from stowplan.report.boxes import Box, Boxes, assign_colours
from stowplan.report.text import byte_unit, format_bytes, format_tick, memory_ticks, nice_ticks, time_unit
from stowplan.units import format_ps

TimeAxis = Literal["steps", "seconds"]

#: If plans use at most one part in this many of fast memory, the axis is cut: otherwise they would be a line at its bottom.
_LOW_USE_FACTOR = 8


@dataclass(frozen=True)
class Bar:
    """A copy as it ran, in the row for its direction. ``left`` and ``right`` are positions on the time axis.

    The row has several *lanes*, one below the other, if copies of this direction run at the same time; ``lane`` is the number
    of the copy's lane, from 0.
    """

    transfer: Transfer
    left: float
    right: float
    lane: int
    in_stall: bool
    """Whether its window is empty: it begins and ends at the same boundary, while the program waits."""


@dataclass(frozen=True)
class Stall:
    """The program waits ``wait_ps`` before step ``boundary``. ``left`` and ``right`` are its begin and end on the time axis. On
    the axis of steps a stall has no width."""

    boundary: int
    wait_ps: int
    left: float
    right: float


@dataclass(frozen=True)
class Layout:
    """A plan with the figures that are drawn."""

    problem: Problem
    plan: Plan
    timeline: Timeline
    """The simulated program: when each step and each copy runs."""
    axis: TimeAxis
    left: NDArray[np.float64]
    """Position of the begin of each residency on the time axis, in the order of ``plan.residencies``."""
    right: NDArray[np.float64]
    """Position of the end of each residency."""
    boundaries: NDArray[np.float64]
    """Position of each boundary 0 to T on the time axis."""
    occupancy: NDArray[np.int64]
    """Bytes in use during each step, ``[T]``."""
    bars: tuple[Bar, ...]
    """The copies, by the time at which they begin."""
    lanes: int
    """Maximum number of copies in one direction that run at the same time."""
    stalls: tuple[Stall, ...]
    top: int
    """End of the axis of offsets in bytes; see :func:`share_top`."""

    @property
    def boxes(self) -> tuple[Box, ...]:
        """The residencies as boxes, in the order of the plan."""
        return tuple(
            Box(stay.tensor, float(left), float(right), stay.offset, self.problem.tensors[stay.tensor].size)
            for stay, left, right in zip(self.plan.residencies, self.left, self.right, strict=True)
        )

    @property
    def end(self) -> float:
        """End of the program on the time axis; 1 for an empty program, so that it can be used as a scale."""
        last = float(self.timeline.total_ps) if self.axis == "seconds" else float(self.problem.horizon)
        return last or 1.0


def build_layout(problem: Problem, plan: Plan, axis: TimeAxis = "steps", timeline: Timeline | None = None) -> Layout:
    """Lays out ``plan``, and simulates it unless ``timeline`` is given.

    The plan need not be valid, because a picture may show what is wrong with it.

    Raises
    ------
    InputError
        The plan is for another problem, or refers to tensors or steps that do not exist.
    UsageError
        ``axis`` is neither ``steps`` nor ``seconds``.
    """
    if axis not in ("steps", "seconds"):
        raise UsageError(f"found time axis {axis!r}, expected 'steps' or 'seconds'")
    check_fits(problem, plan)
    timeline = simulate(problem, plan) if timeline is None else timeline
    begins = np.asarray(timeline.step_start_ps, dtype=np.float64)
    arrivals = begins - np.asarray(timeline.step_wait_ps, dtype=np.float64)
    # A wait belongs to its boundary, so residencies change when the program arrives there, before it waits.
    boundaries = arrivals if axis == "seconds" else np.arange(problem.horizon + 1, dtype=np.float64)
    starts = np.array([residency.start for residency in plan.residencies], dtype=np.int64)
    ends = np.array([residency.end for residency in plan.residencies], dtype=np.int64)
    bars = _bars(problem, plan, timeline, axis, arrivals, begins)
    return Layout(
        problem=problem,
        plan=plan,
        timeline=timeline,
        axis=axis,
        left=boundaries[starts],
        right=boundaries[ends],
        boundaries=boundaries,
        occupancy=_occupancy(problem, plan, starts, ends),
        bars=bars,
        lanes=max((bar.lane + 1 for bar in bars), default=1),
        stalls=tuple(
            Stall(t, wait, float(boundaries[t]), float(begins[t] if axis == "seconds" else t))
            for t, wait in enumerate(timeline.step_wait_ps)
            if wait > 0
        ),
        top=problem.capacity,
    )


def share_top(layouts: Sequence[Layout]) -> list[Layout]:
    """Gives layouts of one problem the same axis of offsets. The axis ends at the capacity, or lower if all plans use little of
    the capacity."""
    used = max((box.bottom + box.size for layout in layouts for box in layout.boxes), default=0)
    # Boxes of an invalid plan may overlap and together use more bytes than the end of the highest box.
    used = max([used, *(int(layout.occupancy.max(initial=0)) for layout in layouts)])
    return [
        replace(layout, top=1 << (used - 1).bit_length()) if 0 < _LOW_USE_FACTOR * used <= layout.problem.capacity else layout
        for layout in layouts
    ]


def check_fits(problem: Problem, plan: Plan) -> None:
    """Raises :class:`~stowplan.errors.InputError` unless ``plan`` is for ``problem`` and all its indices exist."""
    if plan.problem != problem.digest:
        raise InputError(f"found a plan for problem {plan.problem[:12]}…, expected {problem.digest[:12]}…", place="plan")
    tensors, horizon = len(problem.tensors), problem.horizon
    spans = [(f"residencies[{i}]", part.tensor, part.start, part.end) for i, part in enumerate(plan.residencies)]
    spans += [(f"copies[{i}]", part.tensor, part.start, part.end) for i, part in enumerate(plan.copies)]
    for place, tensor, start, end in spans:
        if not (0 <= tensor < tensors and 0 <= start <= end <= horizon):
            raise InputError(
                f"found tensor {tensor} during [{start}, {end}), expected a tensor below {tensors} "
                f"and steps within 0 to {horizon}",
                place=f"plan.{place}",
            )
    for use in plan.fast_uses:
        if not 0 <= use < problem.use_count:
            raise InputError(f"found use {use}, expected one below {problem.use_count}", place="plan.fast_uses")


def _occupancy(problem: Problem, plan: Plan, starts: NDArray[np.int64], ends: NDArray[np.int64]) -> NDArray[np.int64]:
    """Bytes in use during each step."""
    sizes = np.array([problem.tensors[residency.tensor].size for residency in plan.residencies], dtype=np.int64)
    change = np.zeros(problem.horizon + 1, dtype=np.int64)
    np.add.at(change, starts, sizes)
    np.subtract.at(change, ends, sizes)
    return np.cumsum(change)[:-1]


def _bars(
    problem: Problem,
    plan: Plan,
    timeline: Timeline,
    axis: TimeAxis,
    arrivals: NDArray[np.float64],
    begins: NDArray[np.float64],
) -> tuple[Bar, ...]:
    """The copies as bars, each in the first lane of its direction that is free."""
    durations = np.append(arrivals[1:] - begins[:-1], 1.0)

    def place(moment: int, first: int, last: int, side: Literal["left", "right"]) -> float:
        """Moment on the time axis; a copy never leaves its window ``[first, last]`` of steps."""
        if axis == "seconds":
            return float(moment)
        # Several steps may share a moment if they take no time. A copy that begins then belongs to the last of them, one that
        # ends to the first.
        step = max(0, int(np.searchsorted(begins, moment, side=side)) - 1)
        part = (moment - begins[step]) / durations[step] if durations[step] > 0 else 0.0
        return float(min(max(step + min(max(part, 0.0), 1.0), first), last))

    free: dict[str, list[int]] = {"in": [], "out": []}
    bars: list[Bar] = []
    for transfer in sorted(timeline.transfers, key=lambda item: (item.begin_ps, item.end_ps, item.copy)):
        lanes = free[transfer.direction]
        lane = next((index for index, until in enumerate(lanes) if until <= transfer.begin_ps), len(lanes))
        if lane == len(lanes):
            lanes.append(0)
        lanes[lane] = transfer.end_ps
        copy = plan.copies[transfer.copy]
        left = place(transfer.begin_ps, copy.start, copy.end, "right")
        right = max(left, place(transfer.end_ps, copy.start, copy.end, "left"))
        bars.append(Bar(transfer, left, right, lane, copy.start == copy.end))
    return tuple(bars)


#: Width and height of a layout in points, and heights of the panels below it.
_WIDE, _HIGH, _USAGE, _LANE = 700.0, 340.0, 62.0, 15.0

COPY = {
    "in": scene.Style(fill="accent", stroke="accent", width=0.5, name="in"),
    "out": scene.Style("warm", "warm", 0.5, name="out"),
}
_SHAPE: dict[str, scene.Shape] = {"in": "up", "out": "down"}
STALL = scene.Style(fill="stall", stroke="stall", width=0.9, name="stall")

#: If there are more than _MANY bars, or stalls, neighbours whose distance is less than the part _NEAR of the axis are drawn as
#: one.
_MANY, _NEAR = 1_000, 0.0005
#: Maximum number of steps of the curve of bytes in use.
_MAX_CURVE_STEPS = 1_500


def plot(heading: str, layout: Layout, colours: dict[int, int], end: float) -> scene.Plot:
    """Layout, bytes in use, copies and stalls of one plan, on a time axis up to ``end``."""
    across = _time_axis(layout, end)
    capacity = layout.problem.capacity
    is_whole = layout.top == capacity
    peak = int(layout.occupancy.max()) if len(layout.occupancy) else 0
    usage: list[scene.Mark] = [
        scene.area(_usage(layout), scene.USAGE),
        *([scene.level(across, capacity, scene.DASHED)] if is_whole else []),
    ]
    boxes: list[scene.Mark] = [_boxes(layout, colours), *([scene.level(across, capacity, scene.RULE)] if is_whole else [])]
    spoken = f"Memory layout: {len(layout.plan.residencies)} residencies over {layout.problem.horizon} steps"
    in_use = f"Bytes in use: {format_bytes(peak)} of {format_bytes(capacity)} at the peak"
    panels = [
        scene.Panel(_offsets(layout.top, f"offset ({byte_unit(layout.top)[0]})"), boxes, _HIGH, spoken),
        scene.Panel(_offsets(layout.top, "in use", most=2), usage, _USAGE, in_use),
        *(_copies(layout, direction, end) for direction in ("in", "out")),
        _stalls(layout, end),
    ]
    return scene.Plot(across, panels, heading, _legend(layout), gap=6)


def plots(layouts: Sequence[tuple[str, Layout]], colours: dict[int, int]) -> list[scene.Plot]:
    """Plots of several plans of one problem with headings, with the same scales."""
    end = max(layout.end for _, layout in layouts)
    tops = share_top([layout for _, layout in layouts])
    return [plot(heading, layout, colours, end) for (heading, _), layout in zip(layouts, tops, strict=True)]


def picture(problem: Problem, plans: Sequence[tuple[str, Plan]], time: TimeAxis = "steps") -> scene.Picture:
    """A picture of one or two named plans side by side, with the same colours and scales. Raises the errors of
    :func:`build_layout`."""
    simulated = [(label, build_layout(problem, plan, time)) for label, plan in plans]
    layouts = [(f"{label}: {format_ps(layout.timeline.total_ps)}", layout) for label, layout in simulated]
    top = share_top([layout for _, layout in layouts])[0].top
    title = f"{problem.name} on {problem.target}, {format_bytes(problem.capacity)} of fast memory"
    if top < problem.capacity:
        title += f", the first {format_bytes(top)} shown"
    colours = assign_colours(layout.boxes for _, layout in layouts)
    return scene.Picture(title, [plots(layouts, colours)], _WIDE * len(layouts))


def _offsets(top: int, title: str, most: int = 4) -> scene.Axis:
    size = byte_unit(top)[1]
    return scene.Axis(0, top, [(tick * size, format_tick(tick)) for tick in memory_ticks(top, most)], title)


def _time_axis(layout: Layout, end: float) -> scene.Axis:
    unit, size = time_unit(int(end)) if layout.axis == "seconds" else ("step", 1)
    ticks, minor = ([(tick * size, format_tick(tick)) for tick in nice_ticks(0, end / size, most)] for most in (5, 40))
    return scene.Axis(0, end, ticks, f"{'simulated' if layout.axis == 'seconds' else 'logical'} time ({unit})", minor)


def _boxes(layout: Layout, colours: dict[int, int]) -> Boxes:
    """The mark with the residencies."""
    tensors, residencies = layout.problem.tensors, layout.plan.residencies
    loaded = {(copy.tensor, copy.start) for copy in layout.plan.copies if copy.direction == "in"}

    def note(index: int) -> str:
        stay = residencies[index]
        # Each note is a single letter, because there may be thousands; the page's script replaces it by text.
        return "p" if stay.preloaded else "c" if (stay.tensor, stay.start) in loaded else "w"

    def describe(tensor: int) -> tuple[str, int]:
        return tensors[tensor].name, tensors[tensor].size

    return Boxes(layout.boxes, colours, describe, note, [(residency.start, residency.end) for residency in residencies])


def _usage(layout: Layout) -> list[tuple[float, float]]:
    """Bytes in use over time. If there are many steps, the maximum of every few is used."""
    starts = np.arange(0, len(layout.occupancy), max(1, math.ceil(len(layout.occupancy) / _MAX_CURVE_STEPS)))
    if not len(starts):
        return []
    most = np.maximum.reduceat(layout.occupancy, starts)
    return scene.steps([*layout.boundaries[starts].tolist(), float(layout.boundaries[-1])], most.tolist())


def _copies(layout: Layout, direction: str, end: float) -> scene.Panel:
    """Copies of one direction as they ran. Copies that run at the same time share the height of the row."""
    bars = [bar for bar in layout.bars if bar.transfer.direction == direction]
    height = 1 / layout.lanes
    marks: list[scene.Mark] = []
    for lane in range(layout.lanes):
        lane_bars = [bar for bar in bars if bar.lane == lane]
        for group in _clusters([(bar.left, bar.right) for bar in lane_bars], end, len(bars)):
            members = [lane_bars[at] for at in group]
            ends, tip = (members[0].left, members[-1].right), _copy_tip(layout, direction, members)
            marks.append(scene.Rect(*ends, lane * height + 0.06, (lane + 1) * height - 0.06, COPY[direction], tip))
            if len(members) == 1 and members[0].in_stall:
                # On the axis of steps such a copy has no width.
                middle = sum(ends) / 2, (lane + 0.5) * height
                marks.append(scene.Dot(*middle, COPY[direction], 6 if len(bars) < 200 else 3.5, _SHAPE[direction], tip))
    return scene.Panel(
        scene.Axis(0, 1, [(0.5, f"copy {direction}")]), marks, _LANE, f"{len(bars)} copies {direction}", is_framed=False
    )


def _copy_tip(layout: Layout, direction: str, members: Sequence[Bar]) -> str:
    """Description of a copy, or of several that are drawn as one."""
    tensors = layout.problem.tensors
    if len(members) > 1:
        moved = sum(tensors[bar.transfer.tensor].size for bar in members)
        return f"{len(members)} copies {direction}, {format_bytes(moved)}"
    first = members[0].transfer
    copy, tensor = layout.plan.copies[first.copy], tensors[first.tensor]
    tip = (
        f"{tensor.name}\n{format_bytes(tensor.size)} copied {direction} in {format_ps(first.end_ps - first.begin_ps)}\n"
        f"window [{copy.start}, {copy.end}), begun at {format_ps(first.begin_ps)}"
    )
    if first.begin_ps > first.queued_ps:
        tip += f", {format_ps(first.begin_ps - first.queued_ps)} after it was queued"
    return tip + ("\nall of it while the program waits" if members[0].in_stall else "")


def _stalls(layout: Layout, end: float) -> scene.Panel:
    """The row of stalls."""
    stalls = layout.stalls
    marks: list[scene.Mark] = []
    for group in _clusters([(stall.left, stall.right) for stall in stalls], end, len(stalls)):
        members = [stalls[at] for at in group]
        wait = format_ps(sum(stall.wait_ps for stall in members))
        one = f"waits {wait} before step {members[0].boundary}"
        tip = one if len(members) == 1 else f"{len(members)} stalls, {wait} together"
        marks.append(scene.Rect(members[0].left, members[-1].right, 0.06, 0.94, STALL, tip))
    spoken = f"{len(stalls)} stalls, {format_ps(layout.timeline.stall_ps)} together"
    return scene.Panel(scene.Axis(0, 1, [(0.5, "stalls" if stalls else "no stalls")]), marks, _LANE, spoken, is_framed=False)


def _clusters(spans: Sequence[tuple[float, float]], end: float, count: int) -> list[list[int]]:
    """Groups of spans, which are sorted by their left ends. If there are many spans, spans with hardly any gap between them
    form one group. Otherwise each span is a group."""
    if count <= _MANY:
        return [[index] for index in range(len(spans))]
    runs: list[list[int]] = []
    for index, (left, _) in enumerate(spans):
        if runs and left - spans[runs[-1][-1]][1] < _NEAR * end:
            runs[-1].append(index)
        else:
            runs.append([index])
    return runs


def _legend(layout: Layout) -> list[scene.Key]:
    """Explanations of the marks below the layout, as far as they occur."""
    waits = {bar.transfer.direction for bar in layout.bars if bar.in_stall}
    keys = [scene.Key("copied in while the program waits", COPY["in"], _SHAPE["in"])] if "in" in waits else []
    keys += [scene.Key("copied out while the program waits", COPY["out"], _SHAPE["out"])] if "out" in waits else []
    return keys + ([scene.Key("the program waits for a copy", STALL)] if layout.stalls else [])
