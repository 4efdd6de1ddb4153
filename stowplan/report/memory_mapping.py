"""Shows plans of memory mapping as text, as pictures and in the HTML report.

Such a plan says which tensors of a program are in fast memory, when, and at which offsets. A *use* is one step (instruction) of
the program that reads or writes one tensor, in fast or in slow memory. The report has key numbers, the layouts of fast memory,
and two tables that say where the time goes: the tensors for which fast memory saves the most time, and the steps that take
longest. A *layout* is a plan with the positions of everything that is drawn
(:class:`stowplan.report.memory_mapping_drawing.Layout`).

The presenter's methods override the methods of :class:`~stowplan.report.presenter.Presenter`, which explains their parameters
and errors.
"""

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
from stowplan.units import counted, format_ps

#: Largest number of rows of a table: ``TOP`` in the report, ``LINES`` in text.
TOP, LINES = 20, 40


class MemoryMappingPresenter(DrawingPresenter):
    """Shows layouts of fast memory over steps or seconds."""

    max_plans = 2
    has_seconds = True

    def check_fits(self, problem: Problem, plan: object) -> None:
        """Raises InputError if the plan is not one of memory mapping, belongs to another problem, or refers to tensors, steps
        or uses that the problem does not have.

        Other invalid plans are accepted, because pictures help to see what is wrong.
        """
        if not isinstance(plan, Plan):
            raise InputError(f"found a {type(plan).__name__} of another kind, expected a memory mapping")
        drawing.check_fits(problem, plan)

    def references(self, problem: Problem) -> list[Labelled]:
        """Returns no plans to compare with. The only plan that costs nothing to make keeps everything in slow memory, and its
        picture would be empty."""
        return []

    def summarize(self, problem: Problem, plan: Plan, *, others: Sequence[Labelled] = (), everything: bool = False) -> str:
        """The plan as text, as :func:`summarize_plan` returns it."""
        return summarize_plan(problem, plan, others=others, top=None if everything else LINES)

    def picture(self, problem: Problem, plans: Sequence[Labelled], *, seconds: bool = False) -> Picture:
        """The layout of one plan, or of two side by side."""
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
        """The normalised return, and facts about the program and the machine.

        The normalised return R is the time that the plan saves, as a fraction of the most that could be saved (see
        :meth:`Problem.normalised_return <stowplan.models.memory_mapping.problem.Problem.normalised_return>`).
        """
        cards = []
        if result.objective is not None:
            gained = f"{problem.normalised_return(result.objective):.4f}"
            cards.append(("Normalised return R", gained, "0: all in slow memory; 1: every step at its lower bound"))
        facts = [
            ("Fast memory", f"{format_bytes(problem.capacity)}, aligned to {format_bytes(problem.alignment)}"),
            ("Copy channels", f"{problem.channels:,}"),
            ("Stalls", problem.stalls),
            ("Program", f"{problem.horizon:,} steps, {len(problem.tensors):,} tensors, {problem.use_count:,} uses"),
            ("All in slow memory", format_ps(problem.all_slow_ps)),
            ("All in fast memory", format_ps(problem.all_fast_ps)),
            ("Every step at its lower bound", format_ps(problem.floor_ps)),
        ]
        return Overview(cards, facts)

    def report_sections(
        self, problem: Problem, result: Result, others: Sequence[Labelled], details: Details, *, seconds: bool = False
    ) -> list[Section]:
        """The layouts of the plans; for the result's plan, the tensors that save the most time and the steps that take
        longest. Raises InputError as :func:`summarize_plan` does."""
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
        "Time runs from left to right, and offsets in fast memory from bottom to top. A tensor has the same colour everywhere"
        f"{', in both plans' if len(layouts) > 1 else ''}, but several tensors may share a colour. Point at a box to highlight "
        "all boxes of its tensor; click to keep them highlighted. Below the layout: bytes in use, copies in the simulation, "
        f"and stalls.{' A dot is a copy that runs while the program waits for it.' if instant else ''}{part}"
    )
    captions = [_caption(layout) for _, layout in layouts]
    return Section("Layout", layouts_html(intro, list(zip(drawing.plots(layouts, colours), captions, strict=True)), details))


def _caption(layout: Layout) -> str:
    """The caption of a layout: the key numbers of its plan."""
    problem, plan, timeline = layout.problem, layout.plan, layout.timeline
    stalls = f"{format_ps(timeline.stall_ps)} of it stalled" if layout.stalls else "no stalls"
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
        "Saving: how much longer all steps together would take if this tensor alone were in slow memory, without stalls. "
        f"{min(TOP, len(tensors)):,} of {len(tensors):,} tensors that are used in fast memory."
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
    head = ("Step:n", "Operation", "Number:r", "Runs:r", "Latency:r", "Share:r", "All slow:r", "Lower bound:r", "Bound by")
    caption = (
        "Latencies are over all runs of a step. A step that is bound by slow memory is above its lower bound, so that it may "
        f"be faster with other tensors in fast memory. {min(TOP, len(steps)):,} of {len(steps):,} steps."
    )
    return [Section("Steps that take longest", table(caption, head, rows), follows_search=True)]


def summarize_plan(problem: Problem, plan: Plan, *, others: Sequence[Labelled] = (), top: int | None = LINES) -> str:
    """A plan as text: its key numbers, then a table of its residencies (the stays of tensors in fast memory) and one of its
    copies.

    Each table has the first ``top`` rows, or all if it is None, and says how many there are in total. Residencies are sorted by
    start, and copies are in the order in which they are queued. Named plans in ``others`` get one line each.

    Raises
    ------
    InputError
        A plan is for another problem, or refers to tensors, steps or uses that the problem does not have.
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
    """The key numbers of another plan on one line; raises InputError as :func:`summarize_plan` does."""
    drawing.check_fits(problem, plan)
    timeline = simulate(problem, plan)
    return (
        f"{format_ps(timeline.total_ps)}, stalls {_stalls(timeline)}, peak {_peak(problem, plan)}, "
        f"{len(plan.fast_uses):,} fast uses"
    )


def _stalls(timeline: Timeline) -> str:
    """The time that the program waits for copies, and before how many steps, as text."""
    boundaries = sum(wait > 0 for wait in timeline.step_wait_ps)
    return f"{format_ps(timeline.stall_ps)} before {counted(boundaries, 'step')}" if boundaries else "none"


def _peak(problem: Problem, plan: Plan) -> str:
    """The largest number of bytes that residencies take at the same time, as text."""
    # Ranges are half-open, so ends are sorted before starts at the same boundary.
    changes = [(residency.start, problem.tensors[residency.tensor].size) for residency in plan.residencies]
    changes += [(residency.end, -problem.tensors[residency.tensor].size) for residency in plan.residencies]
    in_use = peak = 0
    for _, change in sorted(changes):
        in_use += change
        peak = max(peak, in_use)
    return format_bytes(peak)


def _residency_lines(problem: Problem, plan: Plan, top: int | None) -> list[str]:
    """The table of residencies as lines of text, below a line with their number."""
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
    title = f"{counted(len(ordered), 'residency', 'residencies')}, by start"
    head = ("steps:r", "offset:r", "size:r", "tensor", "source")
    return [title, *(text_table(head, rows, len(ordered)) if rows else [])]


def _copy_lines(problem: Problem, plan: Plan, timeline: Timeline, top: int | None) -> list[str]:
    """The table of copies as lines of text, below a line with their number and bytes."""
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
    title = f"{counted(len(transfers), 'copy', 'copies')} of {format_bytes(total)} together, as queued"
    head = ("dir", "window:r", "size:r", "begins:r", "takes:r", "waits:r", "tensor")
    return [title, *(text_table(head, rows, len(transfers)) if rows else [])]


PRESENTER = MemoryMappingPresenter


Limit = Literal["compute", "fast memory", "slow memory", "its floor"]


@dataclass(frozen=True)
class TensorUse:
    """How much time a plan saves by keeping one tensor in fast memory."""

    tensor: int
    """Number of the tensor."""
    saving_ps: int
    """How much longer all steps together would take if this tensor alone were moved to slow memory. The time of waiting for
    copies is left out."""
    fast_uses: int
    """Number of its uses that fast memory serves."""
    uses: int
    """Number of all its uses."""
    residencies: int
    """Number of its residencies."""
    copies: int
    """Number of its copies, in both directions."""


@dataclass(frozen=True)
class StepTime:
    """Latency of one step, in total over all its runs. A step in a loop runs once in each iteration."""

    step: int
    """Number of the step."""
    latency_ps: int
    """Latency with the plan."""
    all_slow_ps: int
    """Latency if all its uses were served from slow memory."""
    floor_ps: int
    """Lower bound on the latency, whichever tensors are in fast memory."""
    limit: Limit
    """What limits its speed.

    - ``slow memory``: the latency is above ``floor_ps``, so that the step may be faster with other tensors in fast memory.
    - ``compute`` or ``fast memory``: the latency equals ``floor_ps``. The cost model's latency is the maximum of several terms
      (``Step.pieces``). It is ``compute`` if a term that attains the maximum has no memory traffic; otherwise ``fast memory``.
    - ``its floor``: the latency equals ``floor_ps``, and the cost model is a table of latencies, which has no such terms.
    """


def analyse_tensors(problem: Problem, plan: Plan) -> list[TensorUse]:
    """Every tensor with at least one use that fast memory serves, in the order of decreasing savings."""
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
    """Every step, sorted by its latency over all its runs, the longest first. Without a plan, everything is in slow memory."""
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
    """For each step, which of its uses are served from fast memory."""
    fast = set() if plan is None else set(plan.fast_uses)
    return problem.by_step([use in fast for use in range(problem.use_count)])


def _limit_at_floor(step: Step, latency: int) -> Limit:
    """What limits a step (:attr:`StepTime.limit`) whose latency of one run is the least possible."""
    if step.table is not None:
        return "its floor"
    without_traffic = (piece.base_ps for piece in step.pieces if not any(piece.slow_ps) and not any(piece.fast_ps))
    return "compute" if latency in without_traffic else "fast memory"
