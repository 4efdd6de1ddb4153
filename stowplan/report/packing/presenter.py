"""How packings are shown."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from stowplan.models.packing.plan import Plan
from stowplan.models.packing.problem import Problem
from stowplan.report.boxes import assign_colours
from stowplan.report.colours import PALETTE
from stowplan.report.inline import layouts_html
from stowplan.report.packing import drawing
from stowplan.report.packing.drawing import Layout, build_layout
from stowplan.report.page import Details, Overview, Section, table
from stowplan.report.presenter import DrawingPresenter, Labelled
from stowplan.report.scene import Picture, Plot
from stowplan.report.text import name_of, plan_line, text_table
from stowplan.report.units import format_bytes, printable
from stowplan.result import Result

#: Rows of the table of buffers, and of that in text.
TOP, LINES = 40, 40


class PackingPresenter(DrawingPresenter):
    """Layouts of buffers over time."""

    most_plans = 2

    def check_fits(self, problem: Problem, plan: object) -> None:
        """Plans that break rules are shown as well: seeing what is wrong is what pictures are for."""
        drawing.check_fits(problem, plan)

    def references(self, problem: Problem) -> list[Labelled]:
        """None: every buffer at bytes of its own is no picture to compare with."""
        return []

    def summarize(self, problem: Problem, plan: Plan, *, others: Sequence[Labelled] = (), everything: bool = False) -> str:
        """Height beside the bytes that live at once and beside other plans; then the buffers, by offset and start."""
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
        order = sorted(range(len(problem.buffers)), key=lambda number: (plan.offsets[number], problem.buffers[number].lower))
        rows = []
        for number in order if everything else order[:LINES]:
            buffer, offset = problem.buffers[number], plan.offsets[number]
            notes = ", ".join(_notes(problem, number))
            name = name_of(buffer.id) + (f" ({notes})" if notes else "")
            life = f"[{buffer.lower}, {buffer.upper})"
            rows.append((f"{offset:,}", f"{offset + buffer.size:,}", format_bytes(buffer.size), life, name))
        return "\n".join([*lines, *text_table(("offset:r", "end:r", "size:r", "time:r", "buffer"), rows, len(order))])

    def picture(self, problem: Problem, plans: Sequence[Labelled], *, seconds: bool = False) -> Picture:
        """One layout, or two side by side."""
        return drawing.picture(problem, self.distinct(problem, plans))

    def overview(self, problem: Problem, result: Result) -> Overview:
        """What is packed into what."""
        total = sum(buffer.size for buffer in problem.buffers)
        capacity = "least height" if problem.capacity is None else f"{problem.capacity:,} bytes"
        fixed = sum(buffer.offset is not None for buffer in problem.buffers)
        facts = [("Capacity", capacity), ("Buffers", f"{len(problem.buffers):,}, {format_bytes(total)} in all")]
        return Overview(facts=[*facts, *([("At fixed offsets", f"{fixed:,}")] if fixed else [])])

    def report_sections(
        self, problem: Problem, result: Result, others: Sequence[Labelled], details: Details, *, seconds: bool = False
    ) -> list[Section]:
        """The layout, and the largest buffers."""
        if result.plan is None:
            return []
        plans = self.distinct(problem, [(result.provenance.candidate, result.plan), *others])
        layouts = [(label, build_layout(problem, plan)) for label, plan in plans]
        colours = assign_colours(layout.boxes for _, layout in layouts)
        plots = drawing.plots(layouts, colours)
        return [
            layouts_section([layout for _, layout in layouts], plots, details),
            _buffers(problem, result.plan, colours),
        ]


def layouts_section(layouts: Sequence[Layout], plots: Sequence[Plot], details: Details, heading: str = "Layout") -> Section:
    """Layout of each plan, and below it the bytes that live at once."""
    details.time = "time"
    intro = (
        f"{escape(drawing.heading(layouts[0].problem, layouts))}. Time runs across, offsets run up; a box is a buffer while it "
        "takes space, with a dark edge where its offset is fixed. Point at one to see its name, click to keep it. Below: bytes "
        "that live at once."
    )
    captions = [f"{format_bytes(layout.peak, 6)} live at once at most" for layout in layouts]
    return Section(heading, layouts_html(intro, list(zip(plots, captions, strict=True)), details))


def _buffers(problem: Problem, plan: Plan, colours: dict[int, int]) -> Section:
    """The largest buffers."""
    order = sorted(range(len(problem.buffers)), key=lambda number: (-problem.buffers[number].size, number))[:TOP]
    rows, marks = [], []
    for number in order:
        buffer, offset = problem.buffers[number], plan.offsets[number]
        life = f"[{buffer.lower:,}, {buffer.upper:,})"
        notes = ", ".join(_notes(problem, number))
        rows.append((buffer.id, f"{buffer.size:,}", f"{offset:,}", f"{offset + buffer.size:,}", life, notes))
        marks.append((number, PALETTE[colours[number]] if number in colours else "transparent"))
    head = ("Buffer:n", "Bytes:r", "Offset:r", "End:r", "Time:r", "")
    caption = f"The {len(order):,} largest of {len(problem.buffers):,} buffers"
    return Section("Largest buffers", table(caption, head, rows, marks=marks), follows_search=True)


def _notes(problem: Problem, number: int) -> list[str]:
    """What is special about a buffer."""
    buffer = problem.buffers[number]
    return [*([f"{len(buffer.gaps)} gaps"] if buffer.gaps else []), *(["fixed"] if buffer.offset is not None else [])]
