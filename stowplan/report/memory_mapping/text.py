"""A plan as text: what stands where and when, and what is copied."""

from __future__ import annotations

from collections.abc import Sequence

from stowplan.hardware.simulator import Timeline, simulate
from stowplan.models.memory_mapping.plan import Plan
from stowplan.models.memory_mapping.problem import Problem
from stowplan.report.memory_mapping.scene import check_fits
from stowplan.report.units import format_bytes, printable, shorten
from stowplan.result import format_ps


def summarize_plan(
    problem: Problem,
    plan: Plan,
    timeline: Timeline | None = None,
    *,
    others: Sequence[tuple[str, Plan]] = (),
    top: int | None = 40,
) -> str:
    """Readable dump of ``plan``: its figures, then the first ``top`` residencies and copies, the rest counted.

    Residencies are sorted by start, copies stand in the order in which they are queued. ``top=None`` shows all. Of ``others``,
    which have names, there is a line each.

    Raises
    ------
    InputError
        If the plan is for another problem.
    """
    check_fits(problem, plan)
    timeline = simulate(problem, plan) if timeline is None else timeline
    lines = [f"{printable(problem.name or 'program')} on {printable(problem.target)}: {format_ps(timeline.total_ps)} simulated"]
    if plan.objective_ps != timeline.total_ps:
        lines.append(f"  claimed       {format_ps(plan.objective_ps)}")
    lines += [
        f"  all slow      {format_ps(problem.all_slow_ps)}, all fast {format_ps(problem.all_fast_ps)}, "
        f"R = {problem.normalised_return(timeline.total_ps):.4f}",
        f"  stalls        {_stalls(timeline)}",
        f"  fast memory   {_peak(problem, plan)} of {format_bytes(problem.capacity)} at the peak",
        f"  fast uses     {len(plan.fast_uses):,} of {problem.use_count:,}",
        *(_beside(problem, name, other) for name, other in others),
        "",
    ]
    lines += _residencies(problem, plan, top)
    lines.append("")
    lines += _copies(problem, plan, timeline, top)
    return "\n".join(lines)


def _beside(problem: Problem, name: str, plan: Plan) -> str:
    """Another plan in a line."""
    check_fits(problem, plan)
    timeline = simulate(problem, plan)
    return (
        f"  {shorten(printable(name), 12):<12}  {format_ps(timeline.total_ps)}, stalls {_stalls(timeline)}, peak "
        f"{_peak(problem, plan)}, {len(plan.fast_uses):,} fast uses"
    )


def _stalls(timeline: Timeline) -> str:
    boundaries = sum(wait > 0 for wait in timeline.step_wait_ps)
    if not boundaries:
        return "none"
    return f"{format_ps(timeline.stall_ps)} before {_count(boundaries, 'step')}"


def _peak(problem: Problem, plan: Plan) -> str:
    # Ends sort before starts at one boundary: half-open ranges.
    changes = [(residency.start, problem.tensors[residency.tensor].size) for residency in plan.residencies]
    changes += [(residency.end, -problem.tensors[residency.tensor].size) for residency in plan.residencies]
    in_use = peak = 0
    for _, change in sorted(changes):
        in_use += change
        peak = max(peak, in_use)
    return format_bytes(peak)


def _residencies(problem: Problem, plan: Plan, top: int | None) -> list[str]:
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
        rows.append(
            (
                f"[{residency.start}, {residency.end})",
                f"{residency.offset:#x}",
                format_bytes(tensor.size),
                printable(tensor.name),
                source,
            )
        )
    title = f"{_count(len(ordered), 'residency', 'residencies')}, by start"
    return _table(title, ("steps", "offset", "size", "tensor", "source"), rows, len(ordered), right=(0, 1, 2))


def _copies(problem: Problem, plan: Plan, timeline: Timeline, top: int | None) -> list[str]:
    rows = []
    transfers = sorted(timeline.transfers, key=lambda transfer: transfer.copy)
    for transfer in transfers[:top]:
        copy, tensor = plan.copies[transfer.copy], problem.tensors[transfer.tensor]
        queued = transfer.begin_ps - transfer.queued_ps
        rows.append(
            (
                copy.direction,
                f"[{copy.start}, {copy.end})",
                format_bytes(copy.moved(tensor.size)),
                format_ps(transfer.begin_ps),
                format_ps(transfer.end_ps - transfer.begin_ps),
                format_ps(queued) if queued else "-",
                printable(tensor.name),
            )
        )
    moved = sum(copy.moved(problem.tensors[copy.tensor].size) for copy in plan.copies)
    title = f"{_count(len(transfers), 'copy', 'copies')} of {format_bytes(moved)} together, as queued"
    head = ("dir", "window", "size", "begins", "takes", "waits", "tensor")
    return _table(title, head, rows, len(transfers), right=(1, 2, 3, 4, 5))


def _table(title: str, head: tuple[str, ...], rows: Sequence[tuple[str, ...]], total: int, right: tuple[int, ...]) -> list[str]:
    lines = [title]
    if not rows:
        return lines
    widths = [max(len(row[column]) for row in [head, *rows]) for column in range(len(head))]
    for row in [head, *rows]:
        cells = [
            cell.rjust(width) if column in right else cell.ljust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  " + "  ".join(cells).rstrip())
    if total > len(rows):
        lines.append(f"  … and {total - len(rows):,} more")
    return lines


def _count(number: int, one: str, many: str | None = None) -> str:
    return f"{number:,} {one if number == 1 else many or one + 's'}"
