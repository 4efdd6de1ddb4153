"""Pictures of modulo schedules with matplotlib: tiles down, slots across, one colour an instruction, arrows for values.

Matplotlib is an optional package (extra ``viz``) and is imported when the first picture is drawn.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stowplan import files
from stowplan.errors import InputError, MissingDependencyError, UsageError
from stowplan.models.modulo_scheduling.plan import Plan
from stowplan.models.modulo_scheduling.problem import Edge, Problem
from stowplan.report.colours import PALETTE, ink_on
from stowplan.report.units import shorten

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: Part of a slot and of a tile that a box fills.
_WIDE, _HIGH = 0.78, 0.62

#: Inches of a slot and of a tile; the picture is no larger than this.
_SLOT_INCHES, _TILE_INCHES, _MOST_INCHES = 1.35, 0.52, 60.0

#: Values of this iteration, values of earlier iterations, and values that pass through tiles.
_THIS, _EARLIER = "#555555", "#c0392b"


def save_schedule_picture(problem: Problem, plan: Plan, path: str | Path, *, dpi: int = 130) -> None:
    """Write a picture of a valid plan.

    An arrow leads from the producer to the consumer of a value, by way of the tiles it passes through. Values of this
    iteration are grey, values of earlier iterations red and dashed with their distance. A box says the instruction, its
    operation, and the clock at which iteration 0 issues it; starts of flows have a thick edge.

    Raises
    ------
    MissingDependencyError
        Without matplotlib.
    UsageError
        For another suffix than .png, .svg or .pdf.
    InputError
        If the plan is for another problem, or the file cannot be written.
    """
    suffix = Path(path).suffix.lower()
    if suffix not in (".png", ".svg", ".pdf"):
        raise UsageError(f"found picture format {suffix or 'none'!r}, expected .png, .svg or .pdf")
    if plan.problem != problem.digest:
        raise InputError("the plan is for another problem: expected the same graph, machine, rules and fixed instructions")
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingDependencyError("pictures need matplotlib: pip install 'stowplan[viz]'") from error
    tiles = problem.machine.tiles
    with matplotlib.rc_context({"svg.hashsalt": "stowplan", "pdf.fonttype": 42, "font.size": 9}):
        wide = min(_MOST_INCHES, max(5.0, _SLOT_INCHES * plan.ii + 1.2))
        high = min(_MOST_INCHES, max(2.5, _TILE_INCHES * tiles + 1.3))
        figure = Figure(figsize=(wide, high), layout="constrained")
        ax = figure.subplots()
        _draw_frame(problem, plan, ax)
        for number, edge in enumerate(problem.edges):
            _draw_value(problem, plan, edge, plan.routes[number], plan.delays[number], ax)
        for number in range(len(plan.tiles)):
            _draw_instruction(problem, plan, number, ax)
        title = shorten(f"{problem.name or 'loop'} on {problem.target}", 60)
        figure.suptitle(f"{title}: II {plan.ii}, latency {plan.makespan}", fontsize=11)
        stream = io.BytesIO()
        undated: dict[str, Any] = {".png": {"Software": None}, ".svg": {"Date": None}, ".pdf": {"CreationDate": None}}[suffix]
        figure.savefig(stream, format=suffix[1:], dpi=dpi, metadata=undated)
    files.write_atomic(path, stream.getvalue())


def _draw_frame(problem: Problem, plan: Plan, ax: Axes) -> None:
    machine = problem.machine
    ax.set_xlim(-0.5, plan.ii - 0.5)
    ax.set_ylim(machine.tiles - 0.5, -0.5)
    ax.set_xticks(range(plan.ii))
    names = [
        str(tile) if machine.columns == 1 else f"{tile} ({tile // machine.columns}, {tile % machine.columns})"
        for tile in range(machine.tiles)
    ]
    ax.set_yticks(range(machine.tiles), names)
    ax.set_xlabel("slot   (t: clock in iteration 0; thick edge: starts a flow; dashed: from an earlier iteration)", fontsize=8)
    ax.set_ylabel("tile" if machine.columns == 1 else "tile (row, column)")
    ax.tick_params(length=0)
    for tile in range(machine.tiles + 1):
        ax.axhline(tile - 0.5, color="#e4e4e4", linewidth=0.7, zorder=0)
    for slot in range(plan.ii + 1):
        ax.axvline(slot - 0.5, color="#e4e4e4", linewidth=0.7, zorder=0)
    for spine in ax.spines.values():
        spine.set_visible(False)


def _draw_instruction(problem: Problem, plan: Plan, number: int, ax: Axes) -> None:
    from matplotlib.patches import FancyBboxPatch

    instruction = problem.instructions[number]
    colour = PALETTE[number % len(PALETTE)]
    x, y = plan.slots[number], plan.tiles[number]
    is_start = number in plan.starts
    ax.add_patch(
        FancyBboxPatch(
            (x - _WIDE / 2, y - _HIGH / 2),
            _WIDE,
            _HIGH,
            boxstyle="round,pad=0,rounding_size=0.08",
            facecolor=colour,
            edgecolor="#111111" if is_start else "white",
            linewidth=2.0 if is_start else 0.8,
            zorder=3,
        )
    )
    name = shorten(instruction.id, 14)
    what = name if instruction.op in name.lower() else f"{name}: {shorten(instruction.op, 8)}"
    ax.text(x, y, f"{what}\nt = {plan.times[number]}", ha="center", va="center", fontsize=7, color=ink_on(colour), zorder=4)


def _draw_value(problem: Problem, plan: Plan, edge: Edge, route: tuple[int, ...], delay: int, ax: Axes) -> None:
    """Arrow of one value, with its stops where it passes through tiles."""
    from matplotlib.patches import FancyArrowPatch
    from matplotlib.path import Path as Line

    machine = problem.machine
    begin = (plan.slots[edge.source], plan.tiles[edge.source])
    end = (plan.slots[edge.target], plan.tiles[edge.target])
    colour, style = (_EARLIER, (0, (4, 2))) if edge.distance else (_THIS, "solid")
    look: dict[str, Any] = {"arrowstyle": "-|>", "mutation_scale": 8, "color": colour, "linewidth": 0.9, "linestyle": style}
    at, clock = plan.tiles[edge.source], plan.times[edge.source] + machine.latency
    stops: list[tuple[float, float]] = []
    for link in route[:-1]:
        after = machine.end(at, link)
        assert after is not None
        at, clock = after, clock + machine.links[link].clocks
        stops.append((clock % plan.ii, at))
    if begin == end:
        # To itself: a loop at the right of the box.
        edges = ((begin[0] + _WIDE / 2, begin[1] - 0.12), (begin[0] + _WIDE / 2, begin[1] + 0.12))
        patch = FancyArrowPatch(*edges, connectionstyle="arc3,rad=-1.6", zorder=2, **look)
    elif stops:
        points = [begin, *stops, _edge_of_box(stops[-1], end)]
        patch = FancyArrowPatch(path=Line(points), zorder=2, **look)
        ax.plot(
            [x for x, _ in stops], [y for _, y in stops], marker="o", markersize=3, linestyle="none", color=colour, zorder=2
        )
    else:
        first, last, bend = _around(begin, end)
        patch = FancyArrowPatch(first, last, connectionstyle=f"arc3,rad={bend}", zorder=2, shrinkA=0, shrinkB=0, **look)
    ax.add_patch(patch)
    if edge.distance:
        middle = ((begin[0] + end[0]) / 2 + (_WIDE / 2 + 0.09 if begin == end else 0.05), (begin[1] + end[1]) / 2)
        ax.text(*middle, f"-{edge.distance}", fontsize=7, color=colour, ha="left", va="center", zorder=5)


def _edge_of_box(begin: tuple[float, float], end: tuple[float, float]) -> tuple[float, float]:
    """Where a line from ``begin`` to the middle of a box at ``end`` meets its edge."""
    across, down = begin[0] - end[0], begin[1] - end[1]
    scale = max(abs(across) / (_WIDE / 2), abs(down) / (_HIGH / 2), 1e-9)
    return (end[0] + across / scale, end[1] + down / scale)


def _around(begin: tuple[float, float], end: tuple[float, float]) -> tuple[tuple[float, float], tuple[float, float], float]:
    """Ends of an arrow and its bend; it goes around boxes that may stand between two of one row or column."""
    across, down = end[0] - begin[0], end[1] - begin[1]
    if across == 0 and abs(down) > 1:
        # Upwards at the left, downwards at the right.
        side = _WIDE / 2 * (-1 if down < 0 else 1)
        return (begin[0] + side, begin[1]), (end[0] + side, end[1]), -0.3
    if down == 0 and abs(across) > 1:
        top = _HIGH / 2
        return (begin[0], begin[1] - top), (end[0], end[1] - top), -0.1 if across > 0 else 0.1
    return begin, _edge_of_box(begin, end), 0.0
