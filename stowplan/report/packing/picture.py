"""Pictures of packings with matplotlib: time across, offsets up, a box for each buffer; below, the bytes that live at once.

Matplotlib is an optional package (extra ``viz``) and is imported when the first picture is drawn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from stowplan.models.packing.plan import Plan
from stowplan.models.packing.problem import Problem
from stowplan.report.boxes import (
    assign_colours,
    choose_tags,
    draw_boxes,
    drop_list,
    finish_layout,
    list_tags,
    name_boxes,
    tag_boxes,
)
from stowplan.report.figures import FAINT, INK, check_pair, plain, save_figure
from stowplan.report.packing.scene import Scene, build_scene
from stowplan.report.units import byte_unit, format_bytes, format_tick, shorten

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Inches of one layout, of the list of tags beside it, and of the height of the picture.
_LAYOUT_INCHES, _LIST_INCHES, _HIGH_INCHES = 8.6, 2.7, 6.2

#: Above this multiple of the height, the capacity is said in words instead of drawn.
_FAR = 1.6


def save_packing_picture(problem: Problem, plans: Sequence[tuple[str, Plan]], path: str | Path) -> None:
    """Write a picture of one or two labelled plans, side by side with the same colours and scales.

    A box is a buffer while it takes space: one with gaps has several. What stands at a fixed offset has a dark edge.

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
    scenes = [(label, build_scene(problem, plan)) for label, plan in plans]
    size = (_LAYOUT_INCHES * len(plans) + _LIST_INCHES, _HIGH_INCHES)
    save_figure(path, size, partial(_fill, problem, scenes))


def axis_top(scenes: Sequence[Scene]) -> int:
    """Bytes at the top of the axis: the capacity, unless it is far above all that is drawn."""
    highest = max(1, *(scene.height for scene in scenes))
    capacity = scenes[0].problem.capacity
    return highest if capacity is None or capacity > _FAR * highest else max(highest, capacity)


def heading(problem: Problem, scenes: Sequence[Scene]) -> str:
    """What is drawn, and the capacity where the axis does not show it."""
    name = f"{problem.name or 'packing'}: {len(problem.buffers):,} buffers, {format_bytes(scenes[0].peak)} live at once at most"
    if problem.capacity is None:
        return name
    far = ", far above this axis" if problem.capacity > axis_top(scenes) else ""
    return f"{name}, capacity {format_bytes(problem.capacity)}{far}"


def _fill(problem: Problem, scenes: Sequence[tuple[str, Scene]], figure: Figure) -> None:
    colours = assign_colours([scene.boxes for _, scene in scenes])
    drawn = [scene for _, scene in scenes]
    top = axis_top(drawn)
    unit, size = byte_unit(top)
    wide = figure.get_size_inches()[0]
    right = 1 - _LIST_INCHES / wide
    grid = figure.subplots(2, len(scenes), squeeze=False, sharex=True, height_ratios=(5, 1))
    figure.subplots_adjust(left=0.85 / wide, right=right, bottom=0.085, top=0.88, wspace=0.14, hspace=0.06)
    for column, (label, scene) in enumerate(scenes):
        layout, load = grid[:, column]
        _draw_layout(scene, label, colours, layout, top, unit, size)
        _draw_load(scene, load, top, unit, size)
    figure.suptitle(plain(shorten(heading(problem, drawn), 130)), fontsize=11, y=0.975)
    finish_layout(figure)

    def name(owner: int) -> str:
        return problem.buffers[owner].id

    named = [name_boxes(ax, scene.boxes, colours, name, up=size) for (_, scene), ax in zip(scenes, grid[0], strict=True)]
    tags = choose_tags([(scene.boxes, names) for scene, names in zip(drawn, named, strict=True)])
    for scene, ax, names in zip(drawn, grid[0], named, strict=True):
        tag_boxes(ax, scene.boxes, {owner: number for owner, number in tags.items() if owner not in names}, up=size)
    if not tags:
        drop_list(figure, _LIST_INCHES)
    list_tags(figure, right + 0.18 / wide, tags, colours, lambda owner: (name(owner), problem.buffers[owner].size))


def _draw_layout(scene: Scene, label: str, colours: Mapping[int, int], ax: Axes, top: int, unit: str, size: int) -> None:
    ax.set_xlim(scene.start, scene.end)
    ax.set_ylim(0, top / size)
    ax.set_axisbelow(True)
    ax.grid(axis="y", color=FAINT, linewidth=0.6)
    ax.spines[["top", "right"]].set_visible(False)
    ax.tick_params(labelbottom=False, bottom=False)
    ax.set_ylabel(f"offset ({unit})")
    ax.set_title(plain(shorten(f"{label}: {format_bytes(scene.height, 6)} high", 90)), fontsize=10, loc="left")
    draw_boxes(ax, scene.boxes, colours, up=size)
    capacity = scene.problem.capacity
    if capacity is not None and capacity <= top:
        ax.axhline(capacity / size, color=INK, linewidth=1, clip_on=False)
    ax.axhline(scene.height / size, color=INK, linewidth=0.8, linestyle=(0, (4, 2)), clip_on=False)


def _draw_load(scene: Scene, ax: Axes, top: int, unit: str, size: int) -> None:
    ax.stairs(scene.load / size, scene.times, fill=True, color="#9aa7b5", linewidth=0)
    ax.axhline(scene.height / size, color=INK, linewidth=0.8, linestyle=(0, (4, 2)))
    ax.set_ylim(0, top / size * 1.05)
    ax.spines[["top", "right"]].set_visible(False)
    ax.set_ylabel(f"live\n({unit})", fontsize=8)
    ax.xaxis.set_major_formatter(lambda value, _: format_tick(value))
    ax.set_xlabel("time   (dashed: height of the plan)")
