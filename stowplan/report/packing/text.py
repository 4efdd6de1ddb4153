"""A packing for people to read."""

from __future__ import annotations

from collections.abc import Sequence

from stowplan.models.packing.plan import Plan
from stowplan.models.packing.problem import Problem
from stowplan.report.packing.scene import build_scene
from stowplan.report.units import format_bytes, printable, shorten

#: Letters of a buffer's name.
_NAME = 32


def summarize_packing(problem: Problem, plan: Plan, others: Sequence[tuple[str, Plan]] = (), top: int | None = 40) -> str:
    """Height beside the bytes that live at once and beside other plans; then the buffers, by offset and start.

    Parameters
    ----------
    top
        Buffers listed at most; None for all.
    """
    scene = build_scene(problem, plan)
    above = scene.height / scene.peak - 1 if scene.peak else 0.0
    lines = [
        f"{printable(problem.name or 'buffers')}: {len(problem.buffers):,} buffers, {scene.height:,} bytes high",
        f"  live at once  {scene.peak:,} bytes at most; the height is {above:.1%} above that",
    ]
    if problem.capacity is not None:
        fits = "fits" if scene.height <= problem.capacity else "does NOT fit"
        lines.append(f"  capacity      {problem.capacity:,} bytes ({fits})")
    for name, other in others:
        lines.append(f"  {shorten(printable(name), 12):<12}  {build_scene(problem, other).height:,} bytes high")
    order = sorted(range(len(problem.buffers)), key=lambda number: (plan.offsets[number], problem.buffers[number].lower))[:top]
    rows = [("offset", "end", "size", "time", "buffer")]
    for number in order:
        buffer, offset = problem.buffers[number], plan.offsets[number]
        notes = [f"{len(buffer.gaps)} gaps"] if buffer.gaps else []
        notes += ["fixed"] if buffer.offset is not None else []
        name = shorten(printable(buffer.id), _NAME) + (f" ({', '.join(notes)})" if notes else "")
        end = f"{offset + buffer.size:,}"
        rows.append((f"{offset:,}", end, format_bytes(buffer.size), f"[{buffer.lower}, {buffer.upper})", name))
    widths = [max(len(row[at]) for row in rows) for at in range(4)]
    lines += ["  " + "  ".join([*(row[at].rjust(widths[at]) for at in range(4)), row[4]]) for row in rows]
    rest = len(problem.buffers) - len(order)
    return "\n".join([*lines, f"  … and {rest:,} more"] if rest else lines)
