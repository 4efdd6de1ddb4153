"""Pictures of banked packings with matplotlib: a layout for each bank, in its own scale, time across and offsets up."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from stowplan.models.banked_packing.plan import Plan
from stowplan.models.banked_packing.problem import Problem
from stowplan.report.banked_packing.scene import bank_scenes
from stowplan.report.banked_packing.text import bank_rows
from stowplan.report.boxes import assign_colours, draw_boxes
from stowplan.report.figures import FAINT, INK, check_pair, plain, save_figure
from stowplan.report.units import byte_unit, format_tick, shorten

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Inches of one layout.
_WIDE_INCHES, _HIGH_INCHES = 8.6, 2.6


def save_picture(problem: Problem, plans: Sequence[tuple[str, Plan]], path: str | Path) -> None:
    """Write a picture of one or two labelled plans, side by side with the same colours; the cheapest bank is on top.

    Raises
    ------
    MissingDependencyError
        Without matplotlib.
    UsageError
        For another number of plans or another suffix than .png, .svg or .pdf.
    InputError
        If a plan is for another problem, or the file cannot be written.
    """
    check_pair(path, plans)
    size = (_WIDE_INCHES * len(plans), 1.0 + _HIGH_INCHES * len(problem.banks))
    save_figure(path, size, partial(_fill, problem, plans))


def _fill(problem: Problem, plans: Sequence[tuple[str, Plan]], figure: Figure) -> None:
    columns = [bank_scenes(problem, plan) for _, plan in plans]
    colours = assign_colours([scene.boxes for scenes in columns for scene in scenes])
    order = sorted(range(len(problem.banks)), key=lambda bank: (problem.banks[bank].cost, bank))
    grid = figure.subplots(len(order), len(plans), squeeze=False, sharex=True)
    for column, ((label, plan), scenes) in enumerate(zip(plans, columns, strict=True)):
        rows = bank_rows(problem, plan)
        for row, bank in enumerate(order):
            ax, scene, memory = grid[row, column], scenes[bank], problem.banks[bank]
            # A bank that is far larger than what is in it is not drawn whole.
            highest = max(1, *(each[bank].height for each in columns))
            top = max(memory.capacity, 1) if memory.capacity <= 3 * highest else highest
            unit, size = byte_unit(top)
            ax.set_xlim(scene.start, scene.end)
            ax.set_ylim(0, top / size)
            ax.set_axisbelow(True)
            ax.grid(axis="y", color=FAINT, linewidth=0.6)
            ax.spines[["top", "right"]].set_visible(False)
            ax.set_ylabel(f"{plain(shorten(memory.name, 20))} ({unit})")
            title = f"{memory.name}: {rows[bank][5]} of the traffic, {rows[bank][2]} of {rows[bank][3]} bytes"
            ax.set_title(plain(shorten(f"{label}, {title}" if row == 0 else title, 100)), fontsize=9, loc="left")
            draw_boxes(ax, scene.boxes, colours, up=size)
            if memory.capacity <= top:
                ax.axhline(memory.capacity / size, color=INK, linewidth=1, clip_on=False)
        grid[-1, column].xaxis.set_major_formatter(lambda value, _: format_tick(value))
        grid[-1, column].set_xlabel("time")
    figure.suptitle(plain(shorten(f"{problem.name or 'banked packing'}: {len(problem.buffers):,} buffers", 130)), fontsize=11)
    figure.tight_layout()
