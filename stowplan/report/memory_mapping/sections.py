"""The part of the HTML report that is about a compiled program: layouts, tensors by saving, steps by latency."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from stowplan.models.memory_mapping.plan import Plan
from stowplan.models.memory_mapping.problem import Problem
from stowplan.report.colours import PALETTE
from stowplan.report.memory_mapping.analysis import analyse_steps, analyse_tensors
from stowplan.report.memory_mapping.plots import plan_plot
from stowplan.report.memory_mapping.scene import Scene, share_top
from stowplan.report.page import Details, Overview, Section, table, zoom_buttons
from stowplan.report.plots import LETTERS, LETTERS_ALONE
from stowplan.report.units import format_bytes
from stowplan.result import Result, format_ps

#: Rows of the tables of tensors and steps.
TOP = 20


def overview(problem: Problem, result: Result) -> Overview:
    """The normalised return, and what is known of program and machine."""
    cards = []
    if result.objective is not None:
        cards.append(
            (
                "Normalised return R",
                f"{problem.normalised_return(result.objective):.4f}",
                "0 all slow, 1 every step at its least",
            )
        )
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


def layouts(scenes: Sequence[tuple[str, Scene]], colours: dict[int, int], details: Details) -> Section:
    """Layout, bytes in use and copies of every plan."""
    end = max(scene.end for _, scene in scenes)
    shown = share_top([scene for _, scene in scenes])
    figures = []
    for (label, _), scene in zip(scenes, shown, strict=True):
        stalls = f"{format_ps(scene.timeline.stall_ps)} of it waiting" if scene.stalls else "no stalls"
        busy = scene.timeline.channel_busy_ps / (scene.timeline.total_ps * scene.problem.channels or 1)
        caption = (
            f"{format_ps(scene.timeline.total_ps)}, {stalls}; {len(scene.plan.residencies):,} residencies, "
            f"{len(scene.plan.copies):,} copies, channel busy {busy:.0%}; {len(scene.plan.fast_uses):,} of "
            f"{scene.problem.use_count:,} uses from fast memory"
        )
        plot = plan_plot(scene, colours, details, end, LETTERS if len(scenes) > 1 else LETTERS_ALONE)
        figures.append(f"<figure><h3>{escape(label)}</h3><figcaption>{caption}</figcaption>{plot}</figure>")
    top, capacity = shown[0].top, shown[0].problem.capacity
    part = f" Only the first {format_bytes(top)} of {format_bytes(capacity)} are shown." if top < capacity else ""
    instant = any(bar.in_stall for _, scene in scenes for bar in scene.bars)
    return Section(
        "Layout",
        "<p>Time runs across, offsets in fast memory run up. One colour is one tensor"
        f"{', in both plans' if len(scenes) > 1 else ''}; many tensors share colours. Point at a box to see its tensor "
        "wherever it stands, click to keep it. Below: bytes in use, copies as they ran, and where the program "
        f"waited for them.{' A thick stroke is a copy that runs while the program waits for it.' if instant else ''}"
        f"{part}</p>\n"
        f'{zoom_buttons()}<div class="plans">{"".join(figures)}</div>',
    )


def tensors(problem: Problem, plan: Plan, colours: dict[int, int]) -> list[Section]:
    """The tensors that save the most; none where no use is fast."""
    found = analyse_tensors(problem, plan)
    if not found:
        return []
    rows, marks = [], []
    for row in found[:TOP]:
        tensor = problem.tensors[row.tensor]
        marks.append((row.tensor, PALETTE[colours[row.tensor]] if row.tensor in colours else "transparent"))
        rows.append(
            (
                tensor.name,
                format_ps(row.saving_ps),
                format_bytes(tensor.size),
                f"{row.fast_uses:,} of {row.uses:,}",
                f"{row.residencies:,}",
                f"{row.copies:,}",
            )
        )
    head = ("Tensor:n", "Saving:r", "Size:r", "Fast uses:r", "Residencies:r", "Copies:r")
    caption = (
        "What the steps would lose if this tensor alone were served from slow memory, stalls aside. "
        f"{min(TOP, len(found)):,} of {len(found):,} tensors with fast uses."
    )
    return [Section("Tensors that save the most", table(caption, head, rows, marks=marks), follows_search=True)]


def steps(problem: Problem, plan: Plan) -> list[Section]:
    """The steps that take longest."""
    found = analyse_steps(problem, plan)
    if not found:
        return []
    total = sum(row.latency_ps for row in found) or 1
    rows = []
    for row in found[:TOP]:
        step = problem.steps[row.step]
        runs = f"{step.weight:,}"
        rows.append(
            (
                step.name,
                step.opcode,
                f"{row.step:,}",
                runs,
                format_ps(row.latency_ps),
                f"{row.latency_ps / total:.1%}",
                format_ps(row.all_slow_ps),
                format_ps(row.floor_ps),
                row.limit,
            )
        )
    head = ("Step:n", "Operation", "At:r", "Runs:r", "Latency:r", "Share:r", "All slow:r", "Floor:r", "Bound by")
    caption = (
        "Latency over all runs. Bound by slow memory: its operands, served otherwise, could make the step faster; else it is "
        f"at its floor. {min(TOP, len(found)):,} of {len(found):,} steps."
    )
    return [Section("Steps that take longest", table(caption, head, rows), follows_search=True)]
