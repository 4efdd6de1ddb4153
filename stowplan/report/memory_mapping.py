"""Presenter of memory-mapping plans: figures, layouts, and where the time goes (tensors by saving, steps by latency)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from stowplan.errors import InputError
from stowplan.hardware.simulator import Timeline, simulate
from stowplan.models.memory_mapping.plan import Plan
from stowplan.models.memory_mapping.problem import Problem, Step
from stowplan.report import memory_mapping_drawing as drawing
from stowplan.report.boxes import assign_colours
from stowplan.report.colours import PALETTE
from stowplan.report.inline import layouts_html
from stowplan.report.memory_mapping_drawing import Layout, build_layout, share_top
from stowplan.report.page import Details, Overview, Section, table
from stowplan.report.presenter import DrawingPresenter, Labelled
from stowplan.report.scene import Picture
from stowplan.report.text import format_bytes, plan_line, printable
from stowplan.report.trace import Group, Slice, Trace, memory
from stowplan.result import Result
from stowplan.tables import text_table
from stowplan.units import format_ps

#: Number of rows of the tables of tensors and steps in the report, and of tables in text.
TOP, LINES = 20, 40


class MemoryMappingPresenter(DrawingPresenter):
    """Shows layouts of fast memory over steps or seconds."""

    max_plans = 2
    has_seconds = True

    def check_fits(self, problem: Problem, plan: object) -> None:
        """Raises an error for plans of another kind or problem. Invalid plans are accepted, because pictures help to see what
        is wrong."""
        if not isinstance(plan, Plan):
            raise InputError(f"found a {type(plan).__name__} of another kind, expected a memory mapping")
        drawing.check_fits(problem, plan)

    def references(self, problem: Problem) -> list[Labelled]:
        """None: a plan that keeps everything in slow memory is an empty picture."""
        return []

    def summarize(self, problem: Problem, plan: Plan, *, others: Sequence[Labelled] = (), everything: bool = False) -> str:
        """Figures, residencies and copies."""
        return summarize_plan(problem, plan, others=others, top=None if everything else LINES)

    def picture(self, problem: Problem, plans: Sequence[Labelled], *, seconds: bool = False) -> Picture:
        """One layout, or two side by side."""
        return drawing.picture(problem, self.distinct(problem, plans), "seconds" if seconds else "steps")

    def trace(self, problem: Problem, plan: Plan) -> Trace:
        """The simulated program: its steps and waits, fast memory, and the copies in both directions."""
        layout = build_layout(problem, plan, "seconds")
        starts, waits = layout.timeline.step_start_ps, layout.timeline.step_wait_ps
        steps = [
            Slice(
                step.name, starts[at], starts[at + 1] - waits[at + 1], {"opcode": step.opcode, "step": at, "runs": step.weight}
            )
            for at, step in enumerate(problem.steps)
        ]
        stalls = [Slice("wait for a copy", stall.left, stall.right, {"before step": stall.boundary}) for stall in layout.stalls]
        residencies = (
            Slice(problem.tensors[box.owner].name, box.left, box.right, {"offset": box.bottom, "bytes": box.size})
            for box in layout.boxes
        )
        copies: dict[str, list[Slice]] = {}
        for bar in sorted(layout.bars, key=lambda bar: (bar.transfer.direction, bar.lane)):
            tensor = problem.tensors[bar.transfer.tensor]
            facts = {"bytes": tensor.size, "waited in the queue (ps)": bar.transfer.begin_ps - bar.transfer.queued_ps}
            row = copies.setdefault(f"{bar.transfer.direction} {bar.lane}", [])
            row.append(Slice(tensor.name, bar.left, bar.right, facts))
        groups = [
            Group("program", {"steps": steps, "waits": stalls}),
            memory("fast memory", residencies, layout.boundaries.tolist(), layout.occupancy.tolist()),
            Group("copies", copies),
        ]
        return Trace("ps", groups, 1e-6)

    def overview(self, problem: Problem, result: Result) -> Overview:
        """The normalised return, and facts about the program and the machine."""
        cards = []
        if result.objective is not None:
            gained = f"{problem.normalised_return(result.objective):.4f}"
            cards.append(("Normalised return R", gained, "0 all slow, 1 every step at its least"))
        facts = [
            ("Fast memory", f"{format_bytes(problem.capacity)}, aligned to {format_bytes(problem.alignment)}"),
            ("Copy channels", f"{problem.channels:,}"),
            ("Stalls", problem.stalls),
            ("Program", f"{problem.horizon:,} steps, {len(problem.tensors):,} tensors, {problem.use_count:,} uses"),
            ("All in slow memory", format_ps(problem.all_slow_ps)),
            ("All in fast memory", format_ps(problem.all_fast_ps)),
            ("Every step at its least", format_ps(problem.floor_ps)),
        ]
        return Overview(cards, facts)

    def report_sections(
        self, problem: Problem, result: Result, others: Sequence[Labelled], details: Details, *, seconds: bool = False
    ) -> list[Section]:
        """Layouts, tensors by saving, and steps by latency."""
        plans = [*([(result.provenance.candidate, result.plan)] if result.plan is not None else []), *others]
        if not plans:
            return []
        axis: drawing.TimeAxis = "seconds" if seconds else "steps"
        layouts = [(label, build_layout(problem, plan, axis)) for label, plan in self.distinct(problem, plans)]
        colours = assign_colours(layout.boxes for _, layout in layouts)
        sections = [layouts_section(layouts, colours, details)]
        if result.plan is not None:
            sections += [*_tensors(problem, result.plan, colours), *_steps(problem, result.plan)]
        return sections


def layouts_section(layouts: Sequence[tuple[str, Layout]], colours: dict[int, int], details: Details) -> Section:
    """A section with the layout, the bytes in use and the copies of every plan."""
    top, capacity = share_top([layout for _, layout in layouts])[0].top, layouts[0][1].problem.capacity
    part = f" Only the first {format_bytes(top)} of {format_bytes(capacity)} are shown." if top < capacity else ""
    instant = any(bar.in_stall for _, layout in layouts for bar in layout.bars)
    intro = (
        "Time runs across, offsets in fast memory run up. One colour is one tensor"
        f"{', in both plans' if len(layouts) > 1 else ''}; many tensors share colours. Point at a box to see its tensor "
        "wherever it stands, click to keep it. Below: bytes in use, copies as they ran, and where the program "
        f"waited for them.{' A dot is a copy that runs while the program waits for it.' if instant else ''}{part}"
    )
    captions = [_caption(layout) for _, layout in layouts]
    return Section("Layout", layouts_html(intro, list(zip(drawing.plots(layouts, colours), captions, strict=True)), details))


def _caption(layout: Layout) -> str:
    """Figures of one plan."""
    problem, plan, timeline = layout.problem, layout.plan, layout.timeline
    stalls = f"{format_ps(timeline.stall_ps)} of it waiting" if layout.stalls else "no stalls"
    busy = timeline.channel_busy_ps / (timeline.total_ps * problem.channels or 1)
    return (
        f"{format_ps(timeline.total_ps)}, {stalls}; {len(plan.residencies):,} residencies, {len(plan.copies):,} copies, "
        f"channel busy {busy:.0%}; {len(plan.fast_uses):,} of {problem.use_count:,} uses from fast memory"
    )


def _tensors(problem: Problem, plan: Plan, colours: dict[int, int]) -> list[Section]:
    """The table of tensors that save the most time; empty if fast memory is never used."""
    tensors = analyse_tensors(problem, plan)
    if not tensors:
        return []
    rows, marks = [], []
    for row in tensors[:TOP]:
        tensor = problem.tensors[row.tensor]
        marks.append((row.tensor, PALETTE[colours[row.tensor]] if row.tensor in colours else "transparent"))
        uses, counts = f"{row.fast_uses:,} of {row.uses:,}", (f"{row.residencies:,}", f"{row.copies:,}")
        rows.append((tensor.name, format_ps(row.saving_ps), format_bytes(tensor.size), uses, *counts))
    head = ("Tensor:n", "Saving:r", "Size:r", "Fast uses:r", "Residencies:r", "Copies:r")
    caption = (
        "What the steps would lose if this tensor alone were served from slow memory, stalls aside. "
        f"{min(TOP, len(tensors)):,} of {len(tensors):,} tensors with fast uses."
    )
    return [Section("Tensors that save the most", table(caption, head, rows, marks=marks), follows_search=True)]


def _steps(problem: Problem, plan: Plan) -> list[Section]:
    """The table of steps that take longest."""
    steps = analyse_steps(problem, plan)
    if not steps:
        return []
    total = sum(row.latency_ps for row in steps) or 1
    rows = []
    for row in steps[:TOP]:
        step = problem.steps[row.step]
        latency = (format_ps(row.latency_ps), f"{row.latency_ps / total:.1%}", format_ps(row.all_slow_ps))
        rows.append((step.name, step.opcode, f"{row.step:,}", f"{step.weight:,}", *latency, format_ps(row.floor_ps), row.limit))
    head = ("Step:n", "Operation", "At:r", "Runs:r", "Latency:r", "Share:r", "All slow:r", "Floor:r", "Bound by")
    caption = (
        "Latency over all runs. Bound by slow memory: its operands, served otherwise, could make the step faster; else it is "
        f"at its floor. {min(TOP, len(steps)):,} of {len(steps):,} steps."
    )
    return [Section("Steps that take longest", table(caption, head, rows), follows_search=True)]


def summarize_plan(problem: Problem, plan: Plan, *, others: Sequence[Labelled] = (), top: int | None = LINES) -> str:
    """A plan as text: its figures, then the first ``top`` residencies and copies, and the number of others.

    Residencies are sorted by start, and copies are in the order in which they are queued. ``top=None`` lists all. Named plans
    in ``others`` get one line each.

    Raises
    ------
    InputError
        A plan is for another problem.
    """
    drawing.check_fits(problem, plan)
    timeline = simulate(problem, plan)
    lines = [f"{printable(problem.name or 'program')} on {printable(problem.target)}: {format_ps(timeline.total_ps)} simulated"]
    if plan.objective != timeline.total_ps:
        lines.append(f"  claimed       {format_ps(plan.objective)}")
    lines += [
        f"  all slow      {format_ps(problem.all_slow_ps)}, all fast {format_ps(problem.all_fast_ps)}, "
        f"R = {problem.normalised_return(timeline.total_ps):.4f}",
        f"  stalls        {_stalls(timeline)}",
        f"  fast memory   {_peak(problem, plan)} of {format_bytes(problem.capacity)} at the peak",
        f"  fast uses     {len(plan.fast_uses):,} of {problem.use_count:,}",
        *(plan_line(name, _one_line(problem, other)) for name, other in others),
        "",
        *_residency_lines(problem, plan, top),
        "",
        *_copy_lines(problem, plan, timeline, top),
    ]
    return "\n".join(lines)


def _one_line(problem: Problem, plan: Plan) -> str:
    """A line about another plan."""
    drawing.check_fits(problem, plan)
    timeline = simulate(problem, plan)
    return (
        f"{format_ps(timeline.total_ps)}, stalls {_stalls(timeline)}, peak {_peak(problem, plan)}, "
        f"{len(plan.fast_uses):,} fast uses"
    )


def _stalls(timeline: Timeline) -> str:
    boundaries = sum(wait > 0 for wait in timeline.step_wait_ps)
    return f"{format_ps(timeline.stall_ps)} before {_count(boundaries, 'step')}" if boundaries else "none"


def _peak(problem: Problem, plan: Plan) -> str:
    """The peak of the bytes in fast memory, as text."""
    # Ranges are half-open, so ends are sorted before starts at the same boundary.
    changes = [(residency.start, problem.tensors[residency.tensor].size) for residency in plan.residencies]
    changes += [(residency.end, -problem.tensors[residency.tensor].size) for residency in plan.residencies]
    in_use = peak = 0
    for _, change in sorted(changes):
        in_use += change
        peak = max(peak, in_use)
    return format_bytes(peak)


def _residency_lines(problem: Problem, plan: Plan, top: int | None) -> list[str]:
    """The table of residencies."""
    loaded = {(copy.tensor, copy.start) for copy in plan.copies if copy.direction == "in"}
    stored: dict[int, list[int]] = {}
    for copy in plan.copies:
        if copy.direction == "out":
            stored.setdefault(copy.tensor, []).append(copy.start)
    rows = []
    ordered = sorted(plan.residencies, key=lambda residency: (residency.start, residency.offset, residency.tensor))
    for residency in ordered[:top]:
        tensor = problem.tensors[residency.tensor]
        is_loaded = (residency.tensor, residency.start) in loaded
        source = "preloaded" if residency.preloaded else "copied in" if is_loaded else "written"
        if any(residency.start <= start <= residency.end for start in stored.get(residency.tensor, ())):
            source += ", copied out"
        steps = f"[{residency.start}, {residency.end})"
        rows.append((steps, f"{residency.offset:#x}", format_bytes(tensor.size), printable(tensor.name), source))
    title = f"{_count(len(ordered), 'residency', 'residencies')}, by start"
    head = ("steps:r", "offset:r", "size:r", "tensor", "source")
    return [title, *(text_table(head, rows, len(ordered)) if rows else [])]


def _copy_lines(problem: Problem, plan: Plan, timeline: Timeline, top: int | None) -> list[str]:
    """The table of copies."""
    rows = []
    transfers = sorted(timeline.transfers, key=lambda transfer: transfer.copy)
    for transfer in transfers[:top]:
        copy, tensor = plan.copies[transfer.copy], problem.tensors[transfer.tensor]
        queued = transfer.begin_ps - transfer.queued_ps
        times = (transfer.begin_ps, transfer.end_ps - transfer.begin_ps)
        waits = format_ps(queued) if queued else "-"
        moved = (f"[{copy.start}, {copy.end})", format_bytes(copy.moved(tensor.size)), *map(format_ps, times))
        rows.append((copy.direction, *moved, waits, printable(tensor.name)))
    total = sum(copy.moved(problem.tensors[copy.tensor].size) for copy in plan.copies)
    title = f"{_count(len(transfers), 'copy', 'copies')} of {format_bytes(total)} together, as queued"
    head = ("dir", "window:r", "size:r", "begins:r", "takes:r", "waits:r", "tensor")
    return [title, *(text_table(head, rows, len(transfers)) if rows else [])]


def _count(number: int, one: str, many: str | None = None) -> str:
    return f"{number:,} {one if number == 1 else many or one + 's'}"


PRESENTER = MemoryMappingPresenter


Limit = Literal["compute", "fast memory", "slow memory", "its floor"]


@dataclass(frozen=True)
class TensorUse:
    """What fast memory saves for one tensor."""

    tensor: int
    saving_ps: int
    """How much longer the program would take if only this tensor were served from slow memory, without stalls."""
    fast_uses: int
    uses: int
    residencies: int
    copies: int


@dataclass(frozen=True)
class StepTime:
    """Latency of one step over all its runs."""

    step: int
    latency_ps: int
    all_slow_ps: int
    floor_ps: int
    limit: Limit
    """What limits its speed. ``slow memory``: another placement could make it faster. If none could: ``compute`` if the largest
    term has no memory traffic, ``fast memory`` if it has, ``its floor`` if a latency table does not show the terms."""


def analyse_tensors(problem: Problem, plan: Plan) -> list[TensorUse]:
    """Every tensor with a fast use, the largest saving first."""
    saving: Counter[int] = Counter()
    fast_uses: Counter[int] = Counter()
    uses = Counter(problem.tensor_of_use)
    for step, served in zip(problem.steps, _served(problem, plan), strict=True):
        if not any(served):
            continue
        latency = step.latency_ps(served)
        for tensor in dict.fromkeys(use.tensor for use, is_fast in zip(step.uses, served, strict=True) if is_fast):
            without = [is_fast and use.tensor != tensor for use, is_fast in zip(step.uses, served, strict=True)]
            saving[tensor] += step.weight * (step.latency_ps(without) - latency)
            fast_uses[tensor] += sum(served) - sum(without)
    residencies = Counter(residency.tensor for residency in plan.residencies)
    copies = Counter(copy.tensor for copy in plan.copies)
    rows = [
        TensorUse(tensor, saving[tensor], fast_uses[tensor], uses[tensor], residencies[tensor], copies[tensor])
        for tensor in saving
    ]
    return sorted(rows, key=lambda row: (-row.saving_ps, row.tensor))


def analyse_steps(problem: Problem, plan: Plan | None) -> list[StepTime]:
    """Every step, the longest over all its runs first. Without a plan, everything is in slow memory."""
    rows = []
    for index, (step, served) in enumerate(zip(problem.steps, _served(problem, plan), strict=True)):
        latency, floor = step.latency_ps(served), step.floor_ps
        rows.append(
            StepTime(
                step=index,
                latency_ps=step.weight * latency,
                all_slow_ps=step.weight * step.latency_ps([False] * len(served)),
                floor_ps=step.weight * floor,
                limit="slow memory" if latency > floor else _limit_at_floor(step, latency),
            )
        )
    return sorted(rows, key=lambda row: (-row.latency_ps, row.step))


def _served(problem: Problem, plan: Plan | None) -> Iterator[Sequence[bool]]:
    """For each step, which of its uses are served by fast memory."""
    fast = set() if plan is None else set(plan.fast_uses)
    return problem.by_step([use in fast for use in range(problem.use_count)])


def _limit_at_floor(step: Step, latency: int) -> Limit:
    if step.table is not None:
        return "its floor"
    without_traffic = (piece.base_ps for piece in step.pieces if not any(piece.slow_ps) and not any(piece.fast_ps))
    return "compute" if latency in without_traffic else "fast memory"
