"""Pictures of bank mappings with matplotlib: bytes moved beside other plans, what is on chip over time, and tensors' layouts.

Matplotlib is an optional package (extra ``viz``) and is imported when the first picture is drawn.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from stowplan.errors import UsageError
from stowplan.models.bank_mapping.plan import Plan
from stowplan.models.bank_mapping.problem import Problem
from stowplan.report.bank_mapping.mapping import bytes_on_chip, check_fits, largest, layout_class, layout_colours, totals
from stowplan.report.figures import FAINT, INK, check_format, plain, save_figure
from stowplan.report.tier_placement.maps import TIER_COLOURS
from stowplan.report.units import byte_unit, format_bytes, shorten

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_OFF_CHIP, _COPIES, _TENSORS = TIER_COLOURS[:3]

#: Tensors with a row of their own.
MOST_ROWS = 24

#: Letters of a tensor's name.
_NAME = 30

#: Where the peak is below this part of the capacity, the axis ends at the peak and the capacity is said in words.
_FAR = 0.25


def save_mapping_picture(problem: Problem, plans: Sequence[tuple[str, Plan]], path: str | Path) -> None:
    """Write a picture of labelled plans.

    From the top: for each plan a bar of bytes moved; then, for the first, bytes on chip at each operator, and for the largest
    tensors from when to when they are needed, the dimension they are spread along, whether they stay on chip, and their copies.

    Raises
    ------
    MissingDependencyError
        Without matplotlib.
    UsageError
        For no plan or another suffix than .png, .svg or .pdf.
    InputError
        If a plan is for another problem, or the file cannot be written.
    """
    check_format(path)
    if not plans:
        raise UsageError("found no plan, expected at least one")
    for _, plan in plans:
        check_fits(problem, plan)
    heights = [0.32 * len(plans) + 0.75, 2.2, 0.2 * min(MOST_ROWS, len(largest(problem))) + 0.9]
    save_figure(path, (11, sum(heights) + 0.7), partial(_fill, problem, plans, heights), layout="constrained")


def _fill(problem: Problem, plans: Sequence[tuple[str, Plan]], heights: list[float], figure: Figure) -> None:
    bars, space, rows = figure.subplots(3, 1, height_ratios=heights)
    _draw_totals(problem, plans, bars)
    _draw_space(problem, plans[0][1], space)
    _draw_tensors(problem, plans[0][1], rows)
    for axes in (bars, space, rows):
        axes.spines[["top", "right"]].set_visible(False)
    figure.suptitle(plain(shorten(f"{problem.name} on {problem.target}, {problem.banks} banks", 110)), fontsize=11)


def _draw_totals(problem: Problem, plans: Sequence[tuple[str, Plan]], axes: Axes) -> None:
    rows = totals(problem, plans)
    copied, outside = (np.array([row[at] for row in rows], dtype=np.float64) for at in (1, 2))
    most = float((copied + outside).max())
    unit, size = byte_unit(int(most))
    places = np.arange(len(plans))
    axes.barh(places, outside / size, color=_OFF_CHIP, label="moved off chip")
    axes.barh(places, copied / size, left=outside / size, color=_COPIES, label="copied between banks")
    for place, row in enumerate(rows):
        axes.text((row[1] + row[2]) / size, place, f" {row[3]}", va="center", fontsize=8, color=INK)
    axes.set_xlim(0, max(1e-9, most / size) * 1.1)
    axes.set_yticks(places, [plain(shorten(label, 24)) for label, _ in plans])
    axes.tick_params(axis="y", length=0)
    axes.invert_yaxis()
    axes.set_xlabel(unit)
    axes.set_title("bytes moved", fontsize=9, loc="left")
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False)


def _draw_space(problem: Problem, plan: Plan, axes: Axes) -> None:
    used = bytes_on_chip(problem, plan)
    peak = int(used.sum(axis=0).max(initial=0))
    is_far = peak < _FAR * problem.capacity
    unit, size = byte_unit(max(peak, 1) if is_far else problem.capacity)
    # Every operator has a width, the last one too.
    steps = np.arange(len(problem.operators) + 1)
    layers = np.append(used, used[:, -1:], axis=1) / size
    axes.stackplot(steps, layers, step="post", colors=(_TENSORS, _COPIES), labels=("tensors on chip", "their copies"))
    text = f"on chip: at most {format_bytes(peak)} of {format_bytes(problem.capacity)}"
    text += f" ({peak / problem.capacity:.2%})" if problem.capacity else ""
    if is_far:
        axes.set_ylim(0, max(peak / size * 1.15, 1e-9))
        text += ", the capacity is far above this axis"
    else:
        axes.axhline(problem.capacity / size, color=INK, linewidth=0.8, linestyle="--", label="capacity")
        axes.set_ylim(0, max(peak, problem.capacity) / size * 1.08)
    axes.set_title(text, fontsize=9, loc="left")
    axes.set_ylabel(unit)
    _time_axis(problem, axes)
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False)


def _draw_tensors(problem: Problem, plan: Plan, axes: Axes) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    shown = largest(problem)[:MOST_ROWS]
    colours = layout_colours(problem, plan)
    names = []
    for row, number in enumerate(shown):
        tensor, life = problem.tensors[number], problem.life(number)
        assert life is not None
        colour = colours[layout_class(problem, number, plan.layouts[number])]
        # What is off chip is not there between its uses: a pale shape.
        look: dict[str, Any] = (
            {"color": colour}
            if plan.on_chip[number]
            else {"facecolor": f"{colour}38", "edgecolor": colour, "linestyle": (0, (3, 2))}
        )
        axes.barh(row, life[1] - life[0], left=life[0], height=0.66, **look)
        # Names of one network begin alike.
        name = tensor.name if len(tensor.name) <= _NAME else f"…{tensor.name[-_NAME + 1 :]}"
        names.append(plain(f"{name}, {format_bytes(tensor.bytes)}"))
        copies = [copy.before + 0.5 for copy in plan.copies if copy.tensor == number]
        axes.plot(
            copies, [row] * len(copies), linestyle="none", marker="D", markersize=5, color="black", markeredgecolor="white"
        )
    axes.set_yticks(range(len(shown)), names, fontsize=7)
    axes.set_ylim(len(shown) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x", color=FAINT, linewidth=0.6)
    axes.set_axisbelow(True)
    touched = len(largest(problem))
    rest = f" (the {len(shown)} largest of {touched})" if touched > len(shown) else ""
    axes.set_title(f"tensors from first to last use, by the dimension they are spread along{rest}", fontsize=9, loc="left")
    axes.set_xlabel("operator")
    _time_axis(problem, axes)
    used = {layout_class(problem, number, plan.layouts[number]) for number in shown}
    handles: list[Any] = [Patch(facecolor=colour, label=name) for name, colour in colours.items() if name in used]
    if not all(plan.on_chip[number] for number in shown):
        handles.append(Patch(facecolor="none", edgecolor=INK, linestyle=(0, (3, 2)), label="off chip"))
    if plan.copies:
        handles.append(
            Line2D([], [], linestyle="none", marker="D", markersize=5, color="black", label="copied before this operator")
        )
    axes.legend(handles=handles, loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False)


def _time_axis(problem: Problem, axes: Axes) -> None:
    """Operators along an axis: by name where there is room for that, else by number."""
    count = len(problem.operators)
    axes.set_xlim(0, max(1, count))
    if count <= 12:
        axes.set_xticks(
            [at + 0.5 for at in range(count)], [plain(shorten(each.name, 12)) for each in problem.operators], fontsize=7
        )
        axes.tick_params(axis="x", length=0)
