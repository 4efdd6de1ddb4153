"""The part of the HTML report that is about packing: the layout, and the largest buffers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from html import escape

from stowplan.models.packing.plan import Plan
from stowplan.models.packing.problem import Problem
from stowplan.report.colours import PALETTE
from stowplan.report.packing.picture import axis_top, heading
from stowplan.report.packing.scene import Scene
from stowplan.report.page import Details, Overview, Section, table, zoom_buttons
from stowplan.report.plots import HIGH, LETTERS, LETTERS_ALONE, WIDE, axis_labels, flip, layout_svg, plot, svg, time_labels
from stowplan.report.units import byte_unit, format_bytes, format_tick, nice_ticks

#: Rows of the table of buffers.
TOP = 40


def overview(problem: Problem) -> Overview:
    """What is packed into what."""
    total = sum(buffer.size for buffer in problem.buffers)
    capacity = "least height" if problem.capacity is None else f"{problem.capacity:,} bytes"
    fixed = sum(buffer.offset is not None for buffer in problem.buffers)
    facts = [("Capacity", capacity), ("Buffers", f"{len(problem.buffers):,}, {format_bytes(total)} in all")]
    return Overview(facts=[*facts, *([("At fixed offsets", f"{fixed:,}")] if fixed else [])])


def layouts(
    scenes: Sequence[tuple[str, Scene]],
    colours: Mapping[int, int],
    details: Details,
    describe: Callable[[int], tuple[str, int]] | None = None,
) -> Section:
    """Layout of each plan, and below it the bytes that live at once.

    ``describe`` gives name and bytes of the owner of a box, where owners are not the buffers of the scene's own problem.
    """
    details.time = "time"
    figures = []
    drawn = [scene for _, scene in scenes]
    top = axis_top(drawn)
    letters = LETTERS if len(scenes) > 1 else LETTERS_ALONE
    for label, scene in scenes:
        caption = f"{format_bytes(scene.height, 6)} high, {format_bytes(scene.peak, 6)} live at once at most"
        drawing = _plot(scene, colours, details, top, letters, describe)
        figures.append(f"<figure><h3>{escape(label)}</h3><figcaption>{caption}</figcaption>{drawing}</figure>")
    return Section(
        "Layout",
        f"<p>{escape(heading(drawn[0].problem, drawn))}. Time runs across, offsets run up; a box is a buffer while it takes "
        "space, with a dark edge where its offset is fixed. Point at one to see its name, click to keep it. Below: bytes that "
        f'live at once.</p>\n{zoom_buttons()}<div class="plans">{"".join(figures)}</div>',
    )


def _plot(
    scene: Scene,
    colours: Mapping[int, int],
    details: Details,
    top: int,
    letters: int,
    describe: Callable[[int], tuple[str, int]] | None,
) -> str:
    unit, size = byte_unit(top)
    scale = WIDE / max(1, scene.end - scene.start)
    ticks = nice_ticks(0, top / size)
    lines = "".join(f'<path class="grid" d="M0 {flip(tick * size / top)}h{WIDE}"/>' for tick in ticks)
    capacity = scene.problem.capacity
    if capacity is not None and capacity <= top:
        lines += f'<path class="rule" d="M0 {flip(capacity / top)}h{WIDE}"/>'
    height = f'<path class="rule dash" d="M0 {flip(scene.height / top)}h{WIDE}"/>'
    spoken = f"Memory layout: {len(scene.problem.buffers)} buffers"
    usage = "".join(
        f"H{round((int(time) - scene.start) * scale)}V{flip(int(load) / top)}"
        for time, load in zip(scene.times[:-1], scene.load, strict=True)
    )
    boxes = layout_svg(
        scene.boxes,
        colours,
        details,
        scale=scale,
        start=scene.start,
        height=top,
        describe=describe or (lambda owner: (scene.problem.buffers[owner].id, scene.problem.buffers[owner].size)),
        letters=letters,
        source=lambda index: "fixed" if scene.boxes[index].fixed else "",
    )
    labels = [
        axis_labels("h-layout", ((tick * size / top, format_tick(tick)) for tick in ticks), f"offset ({unit})"),
        axis_labels("h-usage", ((tick * size / top, format_tick(tick)) for tick in nice_ticks(0, top / size, 3)), "live"),
        '<div class="h-ticks"></div>',
    ]
    span = max(1, scene.end - scene.start)
    major, minor = (
        [((tick - scene.start) / span, format_tick(tick)) for tick in nice_ticks(scene.start, scene.end, most)]
        for most in (6, 40)
    )
    panels = [
        f'<div class="h-layout frame">{svg(lines + height, spoken)}{boxes}</div>',
        '<div class="h-usage frame">'
        + svg(f'<path class="usage" d="M0 {HIGH}{usage}H{WIDE}V{HIGH}z"/>{height}', "Bytes that live at once")
        + "</div>",
        time_labels(major, "time", minor),
    ]
    return plot(labels, panels, "Layout over time")


def buffers(problem: Problem, plan: Plan, colours: Mapping[int, int]) -> Section:
    """The largest buffers."""
    order = sorted(range(len(problem.buffers)), key=lambda number: (-problem.buffers[number].size, number))[:TOP]
    rows, marks = [], []
    for number in order:
        buffer, offset = problem.buffers[number], plan.offsets[number]
        notes = [f"{len(buffer.gaps)} gaps"] if buffer.gaps else []
        notes += ["fixed"] if buffer.offset is not None else []
        life = f"[{buffer.lower:,}, {buffer.upper:,})"
        rows.append((buffer.id, f"{buffer.size:,}", f"{offset:,}", f"{offset + buffer.size:,}", life, ", ".join(notes)))
        marks.append((number, PALETTE[colours[number]] if number in colours else "transparent"))
    head = ("Buffer:n", "Bytes:r", "Offset:r", "End:r", "Time:r", "")
    caption = f"The {len(order):,} largest of {len(problem.buffers):,} buffers"
    return Section("Largest buffers", table(caption, head, rows, marks=marks), follows_search=True)
