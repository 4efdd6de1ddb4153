"""Shows packings: time across, offsets up, and a box for each span of time in which a buffer occupies space.

Below are the bytes that are live. The horizontal axis is the problem's own time. A buffer may have *gaps*, in which it occupies
no bytes; its *pieces* are the spans without them. Its *parts* are tensors inside it, such as views. An *overlap* is a
permission: a buffer, the *result*, may share bytes with another one that is still live, the *operand*.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

import numpy as np
from numpy.typing import NDArray

from stowplan.errors import InputError
from stowplan.models.packing.overlaps import shared_bytes, shared_spans
from stowplan.models.packing.plan import Plan
from stowplan.models.packing.problem import Problem
from stowplan.report import scene, snapshot
from stowplan.report.boxes import Box, Boxes, assign_colours
from stowplan.report.colours import PALETTE
from stowplan.report.inline import layouts_html
from stowplan.report.page import Details, Overview, Section, table
from stowplan.report.presenter import DrawingPresenter, Labelled
from stowplan.report.text import byte_unit, format_bytes, name_of, plan_line, printable
from stowplan.report.trace import Group, Slice, Trace, memory
from stowplan.result import Result
from stowplan.tables import text_table

#: Number of rows of the table of buffers in the report, and in text.
TOP, LINES = 40, 40

#: Maximum number of parts of a buffer that are listed, in addition to parts that the model returns.
_MAX_PARTS = 3

#: Width and height of a layout in points, and height of the panel below it.
WIDE, HIGH, LOW = 640.0, 310.0, 62.0

#: Points between the lines of a hatched area, in both directions.
_HATCH = 7.0

#: If the capacity is more than this multiple of the height, it is stated in the heading and not drawn.
_FAR = 1.6


class PackingPresenter(DrawingPresenter):
    """Shows layouts of buffers over time."""

    max_plans = 2
    plan_words, problem_words = "a packing", "buffers"

    def check_parts(self, problem: Problem, plan: Plan) -> None:
        """Raises InputError unless every buffer has an offset."""
        if len(plan.offsets) != len(problem.buffers):
            raise InputError(f"found {len(plan.offsets)} offsets, expected one for each of the {len(problem.buffers)} buffers")

    def references(self, problem: Problem) -> list[Labelled]:
        """Returns no plans: one in which no two buffers use the same bytes is not worth a picture."""
        return []

    def summarize(self, problem: Problem, plan: Plan, *, others: Sequence[Labelled] = (), everything: bool = False) -> str:
        """Text that compares the height with the maximum of live bytes and with the heights of other plans, and then lists the
        buffers by offset and start."""
        layout = build_layout(problem, plan)
        above = layout.height / layout.peak - 1 if layout.peak else 0.0
        lines = [
            f"{printable(problem.name or 'buffers')}: {len(problem.buffers):,} buffers, {layout.height:,} bytes high",
            f"  live at once  {layout.peak:,} bytes at most; the height is {above:.1%} above that",
        ]
        if problem.capacity is not None:
            fits = "fits" if layout.height <= problem.capacity else "does NOT fit"
            lines.append(f"  capacity      {problem.capacity:,} bytes ({fits})")
        lines += [plan_line(name, f"{build_layout(problem, other).height:,} bytes high") for name, other in others]
        shared = shared_bytes(problem, plan.offsets)
        if problem.overlaps:
            lines.append(f"  shared        {_shared_text(problem, plan)}")
        contents = _contents_of_buffers(problem)
        if None in contents:
            lines.append(f"  elsewhere     {', '.join(contents[None])}")
        order = sorted(range(len(problem.buffers)), key=lambda number: (plan.offsets[number], problem.buffers[number].lower))
        rows = []
        for number in order if everything else order[:LINES]:
            buffer, offset = problem.buffers[number], plan.offsets[number]
            notes = ", ".join(_buffer_notes(problem, number, shared, contents))
            name = name_of(buffer.id) + (f" ({notes})" if notes else "")
            life = f"[{buffer.lower}, {buffer.upper})"
            rows.append((f"{offset:,}", f"{offset + buffer.size:,}", format_bytes(buffer.size), life, name))
        return "\n".join([*lines, *text_table(("offset:r", "end:r", "size:r", "time:r", "buffer"), rows, len(order))])

    def drawn(self, problem: Problem, plans: Sequence[Labelled], *, seconds: bool) -> scene.Picture:
        """Plans side by side. Buffers at fixed offsets have a dark edge."""
        layouts = [(label, build_layout(problem, plan)) for label, plan in plans]
        drawn = [layout for _, layout in layouts]
        colours = assign_colours(layout.boxes for layout in drawn)
        return scene.Picture(heading(problem, drawn), [plots(layouts, colours)], WIDE * len(plans))

    def trace(self, problem: Problem, plan: Plan) -> Trace:
        """The arena over the problem's own time."""
        return Trace("moment", [arena("arena", build_layout(problem, plan), [buffer.id for buffer in problem.buffers])])

    def overview(self, problem: Problem, result: Result) -> Overview:
        """The buffers and the capacity."""
        total = sum(buffer.size for buffer in problem.buffers)
        capacity = "least height" if problem.capacity is None else f"{problem.capacity:,} bytes"
        fixed = sum(buffer.offset is not None for buffer in problem.buffers)
        facts = [("Capacity", capacity), ("Buffers", f"{len(problem.buffers):,}, {format_bytes(total)} in all")]
        facts += [("At fixed offsets", f"{fixed:,}")] if fixed else []
        facts += [("Elsewhere", ", ".join(stored))] if (stored := _contents_of_buffers(problem).get(None)) else []
        if problem.overlaps and result.plan is not None:
            facts.append(("Shared bytes", _shared_text(problem, result.plan)))
        return Overview(facts=facts)

    def sections(self, problem: Problem, result: Result, plans: Sequence[Labelled], details: Details) -> list[Section]:
        """The layout, and the largest buffers."""
        layouts = [(label, build_layout(problem, plan)) for label, plan in plans]
        colours = assign_colours(layout.boxes for _, layout in layouts)
        of_snapshot = [snapshot.section(result.details["snapshot"])] if "snapshot" in result.details else []
        return [
            *of_snapshot,
            layouts_section([layout for _, layout in layouts], plots(layouts, colours), details),
            _buffers(problem, plans[0][1], colours),
        ]


def layouts_section(layouts: Sequence[Layout], plots: Sequence[scene.Plot], details: Details, title: str = "Layout") -> Section:
    """A section with the layout of each plan, and below it the live bytes."""
    details.time = "time"
    intro = (
        f"{escape(heading(layouts[0].problem, layouts))}. Time runs from left to right, and offsets from bottom to "
        "top. A box is a buffer while it occupies its bytes, with a dark edge if its offset is fixed. Point at a box to see "
        "the name of the buffer; click to keep it highlighted. Below the layout: live bytes."
    )
    if any(map(_hatched, layouts)):
        intro += " Hatched: bytes that a buffer shares with a newer one."
    captions = [f"at most {format_bytes(layout.peak, 6)} live at once" for layout in layouts]
    return Section(title, layouts_html(intro, list(zip(plots, captions, strict=True)), details))


def _buffers(problem: Problem, plan: Plan, colours: dict[int, int]) -> Section:
    """The table of the largest buffers."""
    order = sorted(range(len(problem.buffers)), key=lambda number: (-problem.buffers[number].size, number))[:TOP]
    rows, marks, shared, contents = [], [], shared_bytes(problem, plan.offsets), _contents_of_buffers(problem)
    for number in order:
        buffer, offset = problem.buffers[number], plan.offsets[number]
        life = f"[{buffer.lower:,}, {buffer.upper:,})"
        notes = ", ".join(_buffer_notes(problem, number, shared, contents))
        rows.append((buffer.id, f"{buffer.size:,}", f"{offset:,}", f"{offset + buffer.size:,}", life, notes))
        marks.append((number, PALETTE[colours[number]] if number in colours else "transparent"))
    head = ("Buffer:n", "Bytes:r", "Offset:r", "End:r", "Time:r", "")
    caption = f"The {len(order):,} largest of {len(problem.buffers):,} buffers"
    return Section("Largest buffers", table(caption, head, rows, marks=marks), follows_search=True)


def _shared_text(problem: Problem, plan: Plan) -> str:
    """Text about the bytes that buffers share."""
    shared = shared_bytes(problem, plan.offsets)
    return f"{sum(shared.values()):,} bytes by {len(shared):,} of {len(problem.overlaps):,} overlaps"


def _contents_of_buffers(problem: Problem) -> dict[str | None, list[str]]:
    """Remarks about buffers by their ids: which results of the model they are, and which tensors they contain.

    Results are here the tensors that the model returns. Tensors outside the arena are listed under None. Of tensors that are
    not results, only a few are listed.
    """
    contents: dict[str | None, list[str]] = {}
    result_names: dict[str, list[str]] = {}
    for at, name in enumerate(problem.results or ()):
        result_names.setdefault(name, []).append(f"result {at}")
    for part in problem.parts or ():
        remarks = contents.setdefault(part.buffer, [])
        if part.id in result_names or len(remarks) < _MAX_PARTS:
            where = [f"from byte {part.offset:,}"] if part.offset else []
            notes = ", ".join([*where, *result_names.get(part.id, ())])
            remarks.append("holds " * (part.buffer is not None) + name_of(part.id) + (f" ({notes})" if notes else ""))
    for name in {buffer.id for buffer in problem.buffers} & {*result_names}:
        contents[name] = [*result_names[name], *contents.get(name, ())]
    return contents


def _buffer_notes(
    problem: Problem, number: int, shared: Mapping[tuple[int, int], int], contents: Mapping[str | None, list[str]]
) -> list[str]:
    """Remarks about a buffer."""
    gaps = problem.buffers[number].gaps
    special = [f"{len(gaps)} gaps"] if gaps else []
    return [*special, *_offset_notes(problem, number, shared), *contents.get(problem.buffers[number].id, ())]


def _offset_notes(problem: Problem, number: int, shared: Mapping[tuple[int, int], int]) -> list[str]:
    """Remarks about the offset of a buffer."""
    shared_operands = [(size, problem.buffers[operand].id) for (result, operand), size in shared.items() if result == number]
    fixed = ["fixed"] if problem.buffers[number].offset is not None else []
    return [*fixed, *(f"shares {size:,} bytes with {name_of(operand)}" for size, operand in shared_operands)]


@dataclass(frozen=True)
class Layout:
    """A plan with the figures that are drawn."""

    problem: Problem
    plan: Plan
    boxes: tuple[Box, ...]
    start: int
    """Begin of the time axis."""
    end: int
    """End of the time axis."""
    times: NDArray[np.int64]
    """Moments at which the number of bytes in use changes, ascending, ``[n + 1]``."""
    load: NDArray[np.int64]
    """Bytes in use from each moment to the next, where shared bytes count once, ``[n]``."""
    peak: int
    """Maximum of the bytes in use; no packing is lower unless buffers may share bytes."""
    height: int
    """Highest end of a buffer, in bytes."""


def _occupied(boxes: Sequence[Box], times: NDArray[np.int64]) -> NDArray[np.int64]:
    """[n] bytes that at least one box covers from each of the moments ``times`` [n + 1] to the next."""
    boxes = sorted(boxes, key=lambda box: box.bottom)
    start, end, bottom, size = (
        np.array([getattr(box, name) for box in boxes], np.int64) for name in ("left", "right", "bottom", "size")
    )
    top = bottom + size
    occupied = np.zeros(len(times) - 1, np.int64)
    for at, moment in enumerate(times[:-1]):
        is_live = (start <= moment) & (moment < end)
        lows, highs = bottom[is_live], np.maximum.accumulate(top[is_live])
        covered = np.maximum(lows, np.concatenate(([0], highs[:-1]))) if len(lows) else lows
        occupied[at] = np.maximum(highs - covered, 0).sum()
    return occupied


def build_layout(problem: Problem, plan: Plan) -> Layout:
    """Lays out a plan, which need not be valid, because a picture may show what is wrong with it. Raises ValueError if it does
    not have one offset for each buffer."""
    boxes = tuple(
        Box(number, start, end, offset, buffer.size, fixed=buffer.offset is not None)
        for number, (buffer, offset) in enumerate(zip(problem.buffers, plan.offsets, strict=True))
        for start, end in buffer.pieces
    )
    changes: dict[int, int] = {}
    for buffer in problem.buffers:
        for start, end in buffer.pieces:
            changes[start] = changes.get(start, 0) + buffer.size
            changes[end] = changes.get(end, 0) - buffer.size
    times = np.array(sorted(changes) or [0, 1], dtype=np.int64)
    load = np.cumsum([changes.get(int(time), 0) for time in times])[:-1].astype(np.int64)
    if problem.overlaps:
        load = _occupied(boxes, times)
    return Layout(
        problem=problem,
        plan=plan,
        boxes=boxes,
        start=int(times[0]),
        end=int(times[-1]),
        times=times,
        load=load,
        peak=int(load.max(initial=0)),
        height=max((box.bottom + box.size for box in boxes), default=0),
    )


def arena(name: str, layout: Layout, names: Sequence[str]) -> Group:
    """A layout as a group of a trace, that is, rows and counters under one heading. ``names`` are the names of the owners of
    its boxes, by their numbers."""
    residencies = (
        Slice(names[box.owner], box.left, box.right, {"offset": box.bottom, "bytes": box.size}) for box in layout.boxes
    )
    return memory(name, residencies, layout.times.tolist(), layout.load.tolist())


def axis_top(layouts: Sequence[Layout]) -> int:
    """Bytes at the top of the axis: the capacity, unless it is far above everything that is drawn."""
    highest = max(1, *(layout.height for layout in layouts))
    capacity = layouts[0].problem.capacity
    return highest if capacity is None or capacity > _FAR * highest else max(highest, capacity)


def heading(problem: Problem, layouts: Sequence[Layout]) -> str:
    """Heading of the picture, with the capacity if there is one."""
    name = (
        f"{problem.name or 'packing'}: {len(problem.buffers):,} buffers, {format_bytes(layouts[0].peak)} live at once at most"
    )
    if problem.capacity is None:
        return name
    far = ", far above this axis" if problem.capacity > axis_top(layouts) else ""
    return f"{name}, capacity {format_bytes(problem.capacity)}{far}"


def boxes_of(layout: Layout, colours: dict[int, int]) -> Boxes:
    """The mark with the boxes of a layout whose owners are the problem's buffers."""
    buffers, shared = layout.problem.buffers, shared_bytes(layout.problem, layout.plan.offsets)
    return Boxes(
        layout.boxes,
        colours,
        lambda owner: (buffers[owner].id, buffers[owner].size),
        lambda index: ", ".join(_offset_notes(layout.problem, layout.boxes[index].owner, shared)),
    )


def _hatched(layout: Layout) -> list[scene.Line]:
    """Lines over bytes that two buffers share while both are live."""
    problem, lines = layout.problem, list[scene.Line]()
    step = (layout.end - layout.start) / WIDE * _HATCH, max(1, layout.height) / HIGH * _HATCH
    for (result, operand), (low, high) in shared_spans(problem, layout.plan.offsets).items():
        lines += scene.hatch(problem.buffers[result].lower, problem.buffers[operand].upper, low, high, step)
    return lines


def layout_panel(layout: Layout, top: int, boxes: Boxes, *, title: str = "", height: float = HIGH) -> scene.Panel:
    """Boxes up to ``top`` bytes, with lines at the capacity and at the plan's height."""
    across = scene.Axis(layout.start, layout.end)
    marks: list[scene.Mark] = [boxes]
    capacity = layout.problem.capacity
    if capacity is not None and capacity <= top:
        marks.append(scene.level(across, capacity, scene.RULE))
    marks.append(scene.level(across, layout.height, scene.DASHED))
    marks += _hatched(layout)
    spoken = f"Memory layout: {len(layout.problem.buffers)} buffers"
    return scene.Panel(scene.byte_axis(top, f"offset ({byte_unit(top)[0]})"), marks, height, spoken, title)


def plot(label: str, layout: Layout, top: int, boxes: Boxes) -> scene.Plot:
    """The layout up to ``top`` bytes, and the live bytes."""
    across = scene.number_axis(layout.start, layout.end, "time   (dashed: height of the plan)")
    load: list[scene.Mark] = [
        scene.area(scene.steps(layout.times.tolist(), layout.load.tolist()), scene.USAGE),
        scene.level(across, layout.height, scene.DASHED),
    ]
    panels = [
        layout_panel(layout, top, boxes),
        scene.Panel(scene.byte_axis(top, "live", most=3), load, LOW, "Bytes that live at once"),
    ]
    legend = [scene.Key("shared bytes", scene.Style(fill="usage"), "hatch")] if _hatched(layout) else []
    return scene.Plot(across, panels, f"{label}: {format_bytes(layout.height, 6)} high", legend)


def plots(layouts: Sequence[tuple[str, Layout]], colours: dict[int, int]) -> list[scene.Plot]:
    """Plots of several plans of one problem, with the same scales."""
    top = axis_top([layout for _, layout in layouts])
    return [plot(label, layout, top, boxes_of(layout, colours)) for label, layout in layouts]


PRESENTER = PackingPresenter
