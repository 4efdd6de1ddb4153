"""A modulo schedule as a picture: tiles down, slots across, and the values that go between them.

Matplotlib is an optional package (extra ``viz``) and is imported when the first picture is drawn.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stowplan.errors import InputError
from stowplan.models.modulo_scheduling.plan import Plan
from stowplan.models.modulo_scheduling.problem import Problem
from stowplan.report.colours import PALETTE, ink_on
from stowplan.report.figures import check_format, plain, save_figure
from stowplan.report.modulo_scheduling.scene import HIGH, SLOT, WIDE, Row, Scene, Way, build_scene, slot_middle
from stowplan.report.units import shorten

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Inches of a tile's height; the picture is no larger than the second.
_INCHES, _MOST_INCHES = 0.54, 60.0

#: Values of this iteration, and of earlier iterations.
THIS, EARLIER = "#555555", "#c0392b"

#: Dashes of what goes over the asynchronous fabric.
_SENT = (0, (1, 1.6))


def save_schedule_picture(problem: Problem, plan: Plan, path: str | Path) -> None:
    """Write a picture of a valid plan.

    An arrow leads from the producer to the consumer of a value, by way of the tiles it passes through. Values of this
    iteration are grey, values of earlier iterations red and dashed with their distance, what goes over the asynchronous fabric
    dotted. A box says the instruction, its
    operation (which is its colour too), and the clock at which iteration 0 issues it; starts of flows have a thick edge. Tiles
    that do nothing share a low row.

    Raises
    ------
    MissingDependencyError
        Without matplotlib.
    UsageError
        For another suffix than .png, .svg or .pdf.
    InputError
        If the plan is for another problem, or the file cannot be written.
    """
    check_format(path)
    if plan.problem != problem.digest:
        raise InputError("the plan is for another problem: expected the same graph, machine, rules and fixed instructions")
    scene = build_scene(problem, plan)
    wide = min(_MOST_INCHES, max(6.4, _INCHES * scene.width + 1.4))
    high = min(_MOST_INCHES, max(2.2, _INCHES * scene.height + 1.7))
    save_figure(path, (wide, high), partial(_fill, problem, plan, scene), layout="constrained")


def operation_colours(problem: Problem) -> dict[str, str]:
    """A colour for each operation of the loop body."""
    operations = dict.fromkeys(instruction.op_name for instruction in problem.instructions)
    return {operation: PALETTE[number % len(PALETTE)] for number, operation in enumerate(operations)}


def tile_name(problem: Problem, row: Row) -> str:
    """Number of a tile with its place in the grid; of several, the first and the last."""
    columns = problem.machine.columns
    if row.first != row.last:
        return f"{row.first} – {row.last}"
    return str(row.first) if columns == 1 else f"{row.first} ({row.first // columns}, {row.first % columns})"


def box_text(problem: Problem, number: int) -> str:
    """Instruction and operation in a line."""
    instruction = problem.instructions[number]
    name = shorten(instruction.id, 14)
    op = instruction.op_name
    return name if op.lower() in name.lower() else f"{name}: {shorten(op, 8)}"


def _fill(problem: Problem, plan: Plan, scene: Scene, figure: Figure) -> None:
    ax = figure.subplots()
    _draw_frame(problem, plan, scene, ax)
    colours = operation_colours(problem)
    for number, middle in enumerate(scene.boxes):
        _draw_instruction(problem, plan, number, middle, colours[problem.instructions[number].op_name], ax)
    for way in scene.ways:
        _draw_way(way, ax)
    _draw_legend(plan, scene, figure)
    title = shorten(f"{problem.name or 'loop'} on {problem.target}", 60)
    figure.suptitle(plain(f"{title}: II {plan.ii}, latency {plan.makespan} clocks"), fontsize=11)


def _draw_frame(problem: Problem, plan: Plan, scene: Scene, ax: Axes) -> None:
    ax.set_xlim(0, scene.width)
    ax.set_ylim(scene.height, 0)
    ax.set_xticks([slot_middle(slot) for slot in range(plan.ii)], [str(slot) for slot in range(plan.ii)])
    ax.set_yticks([row.middle for row in scene.rows], [tile_name(problem, row) for row in scene.rows])
    ax.set_xlabel("slot (clock modulo II)")
    ax.set_ylabel("tile" if problem.machine.columns == 1 else "tile (row, column)")
    ax.tick_params(length=0)
    for label, row in zip(ax.get_yticklabels(), scene.rows, strict=True):
        if row.is_idle:
            label.set(color="#999999", fontsize=7)
            ax.axhspan(row.top, row.top + row.height, color="#f4f4f4", zorder=0)
            ax.text(scene.width / 2, row.middle, "nothing here", color="#999999", fontsize=7, ha="center", va="center")
        ax.axhline(row.top, color="#e4e4e4", linewidth=0.7, zorder=0.5)
    bottom = scene.rows[-1].top + scene.rows[-1].height
    ax.axhline(bottom, color="#e4e4e4", linewidth=0.7, zorder=0.5)
    ax.vlines(
        [slot_middle(slot) - SLOT / 2 for slot in range(plan.ii + 1)],
        scene.rows[0].top,
        bottom,
        color="#e4e4e4",
        linewidth=0.7,
        zorder=0.5,
    )
    for spine in ax.spines.values():
        spine.set_visible(False)


def _draw_instruction(problem: Problem, plan: Plan, number: int, middle: tuple[float, float], colour: str, ax: Axes) -> None:
    from matplotlib.patches import FancyBboxPatch
    from matplotlib.patheffects import withStroke

    is_start = number in plan.starts
    ax.add_patch(
        FancyBboxPatch(
            (middle[0] - WIDE / 2, middle[1] - HIGH / 2),
            WIDE,
            HIGH,
            boxstyle="round,pad=0,rounding_size=0.12",
            facecolor=colour,
            edgecolor="#111111" if is_start else "white",
            linewidth=2.0 if is_start else 0.8,
            zorder=2,
        )
    )
    text = plain(f"{box_text(problem, number)}\nt = {plan.times[number]}")
    written = ax.text(*middle, text, ha="center", va="center", fontsize=7, color=ink_on(colour), zorder=5)
    # Where an arrow must cross a box, the words stay readable.
    written.set_path_effects([withStroke(linewidth=2, foreground=colour)])


def _draw_way(way: Way, ax: Axes) -> None:
    """Arrow of one value, with its stops where it passes through tiles."""
    from matplotlib.patches import FancyArrowPatch
    from matplotlib.path import Path as Line

    points = [way.curves[0][0], *(point for curve in way.curves for point in curve[1:])]
    codes = [Line.MOVETO]
    for curve in way.curves:
        codes += [Line.CURVE3 if len(curve) == 3 else Line.CURVE4] * (len(curve) - 1)
    look: dict[str, Any] = {"color": EARLIER if way.distance else THIS, "linewidth": 0.95}
    style: Any = _SENT if way.is_sent else (0, (4, 2)) if way.distance else "solid"
    ax.add_patch(
        FancyArrowPatch(path=Line(points, codes), arrowstyle="-|>", mutation_scale=8, linestyle=style, zorder=3, **look)
    )
    if way.stops:
        x, y = zip(*way.stops, strict=True)
        ax.plot(x, y, marker="o", markersize=3.5, linestyle="none", color=look["color"], zorder=3)
    if way.distance:
        box = {"boxstyle": "round,pad=0.1", "facecolor": "white", "edgecolor": "none", "alpha": 0.85}
        ax.text(*way.label, f"−{way.distance}", fontsize=7, color=EARLIER, ha="center", va="center", bbox=box, zorder=4)


def _draw_legend(plan: Plan, scene: Scene, figure: Figure) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles: list[Any] = [Line2D([], [], color=THIS, label="value of this iteration")]
    if any(way.distance for way in scene.ways):
        handles.append(Line2D([], [], color=EARLIER, linestyle=(0, (4, 2)), label="value of an earlier iteration"))
    if any(way.is_sent for way in scene.ways):
        handles.append(Line2D([], [], color=THIS, linestyle=_SENT, label="over the asynchronous fabric"))
    if any(way.stops for way in scene.ways):
        handles.append(Line2D([], [], color=THIS, marker="o", markersize=4, label="passes through a tile"))
    if plan.starts:
        handles.append(Patch(facecolor="white", edgecolor="#111111", linewidth=2, label="starts a flow"))
    figure.legend(
        handles=handles,
        loc="outside lower center",
        ncols=2,
        frameon=False,
        fontsize=7.5,
        title="t: clock in iteration 0",
        title_fontsize=7.5,
    )
