"""Pictures of memory-mapping plans with matplotlib, after figures 1 and 8 of the paper (Wang et al. 2023).

Time runs across, offsets run up, one colour a tensor; below, on the same time axis, the bytes in use and the copy channel.
matplotlib is an optional package (extra ``viz``) and is imported when the first picture is drawn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from stowplan.models.memory_mapping.plan import Plan
from stowplan.models.memory_mapping.problem import Problem
from stowplan.report.boxes import (
    assign_colours,
    choose_tags,
    draw_boxes,
    drop_list,
    finish_layout,
    list_tags,
    name_boxes,
    rectangles,
    tag_boxes,
)
from stowplan.report.figures import FAINT, INK, check_pair, import_matplotlib, plain, save_figure
from stowplan.report.memory_mapping.scene import Bar, Scene, TimeAxis, build_scene, share_top
from stowplan.report.units import byte_unit, format_bytes, memory_ticks, shorten, time_unit
from stowplan.result import format_ps

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COPY_IN, COPY_OUT, STALL = "#2f6db5", "#d97706", "#c0143c"

#: From this many bars of copies on, outlines would hide what they outline.
DENSE = 200

#: Inches of one layout and of the list of tags beside it.
_LAYOUT_INCHES, _LIST_INCHES, _HIGH_INCHES = 9.0, 2.9, 6.8


def draw_layout(
    problem: Problem,
    plan: Plan,
    ax: Axes,
    *,
    title: str | None = None,
    time: TimeAxis = "steps",
    colours: Mapping[int, int] | None = None,
    end_ps: int | None = None,
) -> tuple[Axes, Axes, Axes]:
    """Draw ``plan`` into ``ax`` and two axes that are cut off its bottom.

    Parameters
    ----------
    title
        Above the picture; nothing where missing.
    time
        Logical steps, or simulated time.
    colours
        Palette index of each tensor, from :func:`~stowplan.report.boxes.assign_colours`; give the same to two
        pictures that are to be compared.
    end_ps
        End of the axis of simulated time, where several pictures share it.

    Returns
    -------
    The axes of the layout, of the bytes in use, and of the copy channel.

    Raises
    ------
    MissingDependencyError
        Without matplotlib.
    InputError
        If the plan is for another problem.
    """
    scene = build_scene(problem, plan, time)
    colours = assign_colours([scene.boxes]) if colours is None else colours
    axes = _draw(scene, ax, title, colours, end_ps)
    figure = ax.get_figure(root=True)
    if figure is not None:
        finish_layout(figure)
        _name(scene, ax, colours, end_ps)
    return axes


def save_picture(problem: Problem, plans: Sequence[tuple[str, Plan]], path: str | Path, *, time: TimeAxis = "steps") -> None:
    """Write a picture of one or two labelled plans, side by side with the same colours and scales.

    The suffix of ``path`` says the format: ``.png``, ``.svg`` or ``.pdf``. The same plans give the same bytes.

    Raises
    ------
    MissingDependencyError
        Without matplotlib.
    UsageError
        For another number of plans or another suffix.
    InputError
        If a plan is for another problem, or the file cannot be written.
    """
    check_pair(path, plans)
    import_matplotlib()
    scenes = [(label, build_scene(problem, plan, time)) for label, plan in plans]
    save_scenes([(f"{label}: {format_ps(scene.timeline.total_ps)}", scene) for label, scene in scenes], path)


def save_scenes(scenes: Sequence[tuple[str, Scene]], path: str | Path, *, name: str = "") -> None:
    """As :func:`save_picture`, of one or two plans of one problem that have been played, each with its title.

    ``name`` is what the program is called in the heading, the problem's own name where empty.
    """
    check_pair(path, scenes)
    import_matplotlib()
    tops = share_top([scene for _, scene in scenes])
    scenes = [(title, scene) for (title, _), scene in zip(scenes, tops, strict=True)]
    size = (_LAYOUT_INCHES * len(scenes) + _LIST_INCHES, _HIGH_INCHES)
    save_figure(path, size, partial(_fill, scenes, name))


def _fill(scenes: Sequence[tuple[str, Scene]], name: str, figure: Figure) -> None:
    """Layouts side by side, and at their right what the numbers in them stand for."""
    problem = scenes[0][1].problem
    colours = assign_colours([scene.boxes for _, scene in scenes])
    end_ps = max(scene.timeline.total_ps for _, scene in scenes)
    grid = figure.subplots(1, len(scenes), squeeze=False)[0]
    wide = figure.get_size_inches()[0]
    right = 1 - _LIST_INCHES / wide
    figure.subplots_adjust(left=0.85 / wide, right=right, bottom=0.085, top=0.88, wspace=0.14)
    for (title, scene), ax in zip(scenes, grid, strict=True):
        _draw(scene, ax, title, colours, end_ps)
    heading = f"{name or problem.name} on {problem.target}, {format_bytes(problem.capacity)} of fast memory"
    if scenes[0][1].top < problem.capacity:
        heading += f", the first {format_bytes(scenes[0][1].top)} shown"
    figure.suptitle(plain(shorten(heading, 110)), fontsize=11, y=0.975)
    finish_layout(figure)
    named = [_name(scene, ax, colours, end_ps) for (_, scene), ax in zip(scenes, grid, strict=True)]
    tags = choose_tags([(scene.boxes, names) for (_, scene), names in zip(scenes, named, strict=True)])
    for (_, scene), ax, names in zip(scenes, grid, named, strict=True):
        wanted = {tensor: number for tensor, number in tags.items() if tensor not in names}
        tag_boxes(ax, scene.boxes, wanted, across=_time_scale(scene, end_ps)[0], up=byte_unit(scene.top)[1])
    if not tags and not any(scene.stalls for _, scene in scenes):
        drop_list(figure, _LIST_INCHES)
        return
    tensors = [(tensor.name, tensor.size) for tensor in problem.tensors]
    list_tags(figure, right + 0.18 / wide, tags, colours, lambda tensor: tensors[tensor])
    _list_marks([scene for _, scene in scenes], figure, right + 0.18 / wide)


def _list_marks(scenes: Sequence[Scene], figure: Figure, left: float) -> None:
    """What the marks in the row of copies mean, where there are any."""
    indent = left + 0.17 / figure.get_size_inches()[0]
    if any(bar.in_stall for scene in scenes for bar in scene.bars):
        figure.text(left, 0.15, "▲", fontsize=7, color=COPY_IN, va="center")
        figure.text(left + (indent - left) * 0.7, 0.15, "▼ ", fontsize=7, color=COPY_OUT, va="center")
        figure.text(2 * indent - left, 0.15, "copied while the program waits", fontsize=7.5, color=INK, va="center")
    if any(scene.stalls for scene in scenes):
        figure.text(left, 0.115, "|", fontsize=9, color=STALL, va="center")
        figure.text(2 * indent - left, 0.115, "the program waits for a copy", fontsize=7.5, color=INK, va="center")


def _name(scene: Scene, ax: Axes, colours: Mapping[int, int], end_ps: int | None) -> set[int]:
    """Write tensors' names into boxes with room for them."""
    tensors, up = scene.problem.tensors, byte_unit(scene.top)[1]
    across = _time_scale(scene, end_ps)[0]
    return name_boxes(ax, scene.boxes, colours, lambda tensor: tensors[tensor].name, across=across, up=up)


def _time_scale(scene: Scene, end_ps: int | None) -> tuple[float, float, str]:
    """What places on the time axis are divided by, where it then ends, and its label."""
    if scene.axis == "steps":
        return 1, scene.end, "logical time (step)"
    last_ps = max(scene.timeline.total_ps, end_ps or 0)
    unit, scale = time_unit(last_ps)
    return scale, (last_ps or 1) / scale, f"simulated time ({unit})"


def _draw(scene: Scene, ax: Axes, title: str | None, colours: Mapping[int, int], end_ps: int | None) -> tuple[Axes, Axes, Axes]:
    import_matplotlib()
    from matplotlib.ticker import MaxNLocator
    from mpl_toolkits.axes_grid1 import make_axes_locatable  # type: ignore[import-untyped,unused-ignore]

    scale, end, label = _time_scale(scene, end_ps)
    divider = make_axes_locatable(ax)
    usage = divider.append_axes("bottom", size="17%", pad=0.12, sharex=ax)
    channel = divider.append_axes("bottom", size="13%", pad=0.12, sharex=ax)
    for axes in (ax, usage, channel):
        axes.set_axisbelow(True)
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(labelbottom=axes is channel, bottom=axes is channel)
    ax.set_xlim(0, end)
    channel.xaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10], integer=scene.axis == "steps"))
    channel.set_xlabel(label)
    if title:
        ax.set_title(plain(shorten(title, 90)), fontsize=10, loc="left")
    _draw_boxes(scene, ax, colours, scale)
    _draw_usage(scene, usage, scale)
    _draw_channel(scene, channel, scale)
    return ax, usage, channel


def _draw_boxes(scene: Scene, ax: Axes, colours: Mapping[int, int], scale: float) -> None:
    unit, size_of_unit = byte_unit(scene.top)
    top = scene.top / size_of_unit
    ax.set_ylim(0, top)
    ax.set_yticks(memory_ticks(scene.top))
    if scene.top == scene.problem.capacity:
        ax.axhline(top, color=INK, linewidth=1, clip_on=False)
    ax.grid(axis="y", color=FAINT, linewidth=0.6)
    ax.set_ylabel(f"offset ({unit})")
    draw_boxes(ax, scene.boxes, colours, across=scale, up=size_of_unit)


def _draw_usage(scene: Scene, ax: Axes, scale: float) -> None:
    unit, size_of_unit = byte_unit(scene.top)
    top = scene.top / size_of_unit
    ax.stairs(scene.occupancy / size_of_unit, scene.boundaries / scale, fill=True, color="#9aa7b5", linewidth=0)
    if scene.top == scene.problem.capacity:
        ax.axhline(top, color=INK, linewidth=0.9, linestyle=(0, (4, 2)))
    ax.set_ylim(0, top * 1.12)
    ax.set_yticks(memory_ticks(scene.top, most=2))
    ax.set_ylabel(f"in use\n({unit})", fontsize=8)


def _draw_channel(scene: Scene, ax: Axes, scale: float) -> None:
    from matplotlib.collections import LineCollection, PolyCollection

    # Rows from the top: copies in, copies out, stalls. Copies that run side by side share the height of their row.
    height = 0.8 / scene.lanes
    end = ax.get_xlim()[1]
    for direction, row, colour, marker in (("in", 2, COPY_IN, "^"), ("out", 1, COPY_OUT, "v")):
        bars = [bar for bar in scene.bars if bar.transfer.direction == direction]
        bottom = np.array([row + 0.1 + bar.lane * height for bar in bars])
        left, right = (np.array([getattr(bar, side) for bar in bars]) / scale for side in ("left", "right"))
        dense = len(bars) > DENSE
        ax.add_collection(
            PolyCollection(
                rectangles(left, right, bottom, bottom + height),
                facecolors=colour,
                # A white edge would hide a bar as thin as itself.
                edgecolors=["white" if width > 0.004 * end and not dense else colour for width in right - left],
                linewidths=0.15 if dense else 0.4,
            )
        )
        _mark_stalled([bar for bar in bars if bar.in_stall], row, marker, colour, scale, ax)
    for stall in scene.stalls:
        if stall.right > stall.left:
            ax.axvspan(stall.left / scale, stall.right / scale, ymin=0.03, ymax=0.3, color=STALL, linewidth=0)
    at = [stall.left / scale for stall in scene.stalls]
    ax.add_collection(
        LineCollection([[(x, 0.1), (x, 0.9)] for x in at], colors=STALL, linewidths=0.8 if len(at) < 200 else 0.25)
    )
    ax.set_ylim(0, 3)
    ax.set_yticks([2.5, 1.5, 0.5], ["copy in", "copy out", "stalls" if scene.stalls else "no stalls"], fontsize=7)
    ax.tick_params(axis="y", length=0)


def _mark_stalled(bars: Sequence[Bar], row: int, marker: str, colour: str, scale: float, ax: Axes) -> None:
    """Marks of copies whose window is empty: on the axis of steps they have no width at all."""
    if bars:
        middle = [(bar.left + bar.right) / 2 / scale for bar in bars]
        size = 4.5 if len(bars) <= DENSE else 2.5
        ax.plot(middle, [row + 0.5] * len(bars), linestyle="none", marker=marker, markersize=size, color=colour, clip_on=False)
