"""Pictures of memory-mapping plans with matplotlib, after figures 1 and 8 of the paper (Wang et al. 2023).

Time runs across, offsets run up, one colour a tensor; below, on the same time axis, the bytes in use and the copy channel.
matplotlib is an optional package (extra ``viz``) and is imported when the first picture is drawn.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from stowplan import files
from stowplan.errors import MissingDependencyError, UsageError
from stowplan.models.memory_mapping.plan import Plan
from stowplan.models.memory_mapping.problem import Problem
from stowplan.report.colours import PALETTE, assign_colours, ink_on
from stowplan.report.scene import Scene, TimeAxis, build_scene
from stowplan.report.units import byte_unit, format_bytes, memory_ticks, shorten, time_unit
from stowplan.result import format_ps

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COPY_IN, COPY_OUT, STALL, INK, FAINT = "#2f6db5", "#d97706", "#c0143c", "#333333", "#e4e4e4"

#: From this many boxes on, outlines would hide what they outline.
DENSE = 800
#: Names are written into boxes of pictures with at most this many.
LABELLED = 60


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
        Palette index of each tensor, from :func:`~stowplan.report.colours.assign_colours`; give the same to two
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
    return _draw(scene, ax, title, assign_colours(problem, [plan]) if colours is None else colours, end_ps)


def save_picture(
    problem: Problem, plans: Sequence[tuple[str, Plan]], path: str | Path, *, time: TimeAxis = "steps", dpi: int = 130
) -> None:
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
    suffix = Path(path).suffix.lower()
    if suffix not in (".png", ".svg", ".pdf"):
        raise UsageError(f"found picture format {suffix or 'none'!r}, expected .png, .svg or .pdf")
    if not 1 <= len(plans) <= 2:
        raise UsageError(f"found {len(plans)} plans, expected one or two")
    matplotlib = _import_matplotlib()
    from matplotlib.figure import Figure

    scenes = [build_scene(problem, plan, time) for _, plan in plans]
    colours = assign_colours(problem, [plan for _, plan in plans])
    end_ps = max(scene.timeline.total_ps for scene in scenes)
    # Type 3 fonts and random identifiers are what makes vector files of equal pictures differ or not be editable.
    with matplotlib.rc_context({"svg.hashsalt": "stowplan", "pdf.fonttype": 42, "font.size": 9}):
        figure = Figure(figsize=(9.5 if len(plans) == 1 else 17, 6.6))
        grid = figure.subplots(1, len(plans), squeeze=False)[0]
        figure.subplots_adjust(left=0.085 if len(plans) == 1 else 0.048, right=0.985, bottom=0.085, top=0.88, wspace=0.12)
        for (label, _), scene, ax in zip(plans, scenes, grid, strict=True):
            _draw(scene, ax, f"{label}: {format_ps(scene.timeline.total_ps)}", colours, end_ps)
        heading = f"{problem.name} on {problem.target}, {format_bytes(problem.capacity)} of fast memory"
        figure.suptitle(_plain(shorten(heading, 110)), fontsize=11, y=0.975)
        stream = io.BytesIO()
        undated: dict[str, Any] = {".png": {"Software": None}, ".svg": {"Date": None}, ".pdf": {"CreationDate": None}}[suffix]
        figure.savefig(stream, format=suffix[1:], dpi=dpi, metadata=undated)
    files.write_atomic(path, stream.getvalue())


def _import_matplotlib() -> Any:
    try:
        import matplotlib
    except ImportError as error:
        raise MissingDependencyError("pictures need matplotlib: pip install 'stowplan[viz]'") from error
    return matplotlib


def _draw(scene: Scene, ax: Axes, title: str | None, colours: Mapping[int, int], end_ps: int | None) -> tuple[Axes, Axes, Axes]:
    _import_matplotlib()
    from matplotlib.ticker import MaxNLocator
    from mpl_toolkits.axes_grid1 import make_axes_locatable  # type: ignore[import-untyped,unused-ignore]

    if scene.axis == "seconds":
        last_ps = max(scene.timeline.total_ps, end_ps or 0)
        unit, scale = time_unit(last_ps)
        end, label = (last_ps or 1) / scale, f"simulated time ({unit})"
    else:
        scale, end, label = 1, scene.end, "logical time (step)"

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
        ax.set_title(_plain(shorten(title, 90)), fontsize=10, loc="left")
    _draw_boxes(scene, ax, colours, scale)
    _draw_usage(scene, usage, scale)
    _draw_channel(scene, channel, scale)
    return ax, usage, channel


def _draw_boxes(scene: Scene, ax: Axes, colours: Mapping[int, int], scale: float) -> None:
    from matplotlib.collections import PolyCollection

    unit, size_of_unit = byte_unit(scene.problem.capacity)
    residencies = scene.plan.residencies
    bottom = np.array([residency.offset for residency in residencies], dtype=np.float64) / size_of_unit
    size = np.array([scene.problem.tensors[residency.tensor].size for residency in residencies], dtype=np.float64)
    dense = len(residencies) > DENSE
    ax.add_collection(
        PolyCollection(
            _rectangles(scene.left / scale, scene.right / scale, bottom, bottom + size / size_of_unit),
            facecolors=[PALETTE[colours[residency.tensor]] for residency in residencies],
            edgecolors="none" if dense else "white",
            linewidths=0 if dense else 0.5,
        )
    )
    top = scene.problem.capacity / size_of_unit
    ax.set_ylim(0, top)
    ax.set_yticks(memory_ticks(scene.problem.capacity))
    ax.axhline(top, color=INK, linewidth=1, clip_on=False)
    ax.grid(axis="y", color=FAINT, linewidth=0.6)
    ax.set_ylabel(f"offset ({unit})")
    if len(residencies) <= LABELLED:
        _label_boxes(scene, ax, colours, scale, bottom, size / size_of_unit)


def _label_boxes(scene: Scene, ax: Axes, colours: Mapping[int, int], scale: float, bottom: Any, height: Any) -> None:
    """Write names into the boxes that are wide and high enough for them."""
    frame = ax.get_figure(root=True)
    if frame is None:
        return
    area = ax.get_window_extent()
    # Letters 7 points high and 0.6 of that wide: rough, and small enough to stay inside.
    point = frame.dpi / 72
    per_x, per_y = area.width / ax.get_xlim()[1], area.height * 0.68 / ax.get_ylim()[1]
    for index, residency in enumerate(scene.plan.residencies):
        left, right = scene.left[index] / scale, scene.right[index] / scale
        letters = int((right - left) * per_x / (7 * 0.6 * point)) - 1
        name = scene.problem.tensors[residency.tensor].name
        if height[index] * per_y < 10 * point or letters < min(len(name), 6):
            continue
        middle = ((left + right) / 2, bottom[index] + height[index] / 2)
        ink = ink_on(PALETTE[colours[residency.tensor]])
        ax.annotate(_plain(shorten(name, letters)), middle, fontsize=7, ha="center", va="center", color=ink)


def _draw_usage(scene: Scene, ax: Axes, scale: float) -> None:
    unit, size_of_unit = byte_unit(scene.problem.capacity)
    capacity = scene.problem.capacity / size_of_unit
    ax.stairs(scene.occupancy / size_of_unit, scene.boundaries / scale, fill=True, color="#9aa7b5", linewidth=0)
    ax.axhline(capacity, color=INK, linewidth=0.9, linestyle=(0, (4, 2)))
    ax.set_ylim(0, capacity * 1.12)
    ax.set_yticks(memory_ticks(scene.problem.capacity, most=2))
    ax.set_ylabel(f"in use\n({unit})", fontsize=8)


def _draw_channel(scene: Scene, ax: Axes, scale: float) -> None:
    from matplotlib.collections import LineCollection, PolyCollection

    # Rows from the top: copies in, copies out, stalls. Copies that run side by side share the height of their row.
    height = 0.8 / scene.lanes
    for direction, row, colour in (("in", 2, COPY_IN), ("out", 1, COPY_OUT)):
        bars = [bar for bar in scene.bars if bar.transfer.direction == direction]
        bottom = np.array([row + 0.1 + bar.lane * height for bar in bars])
        left, right = (np.array([getattr(bar, side) for bar in bars]) / scale for side in ("left", "right"))
        dense = len(bars) > DENSE / 4
        ax.add_collection(
            PolyCollection(
                _rectangles(left, right, bottom, bottom + height),
                facecolors=colour,
                edgecolors=colour if dense else "white",
                linewidths=0.15 if dense else 0.4,
            )
        )
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


def _rectangles(left: Any, right: Any, bottom: Any, top: Any) -> Any:
    """Corners of rectangles, ``[n, 4, 2]``."""
    corners: Iterable[tuple[Any, Any]] = ((left, bottom), (right, bottom), (right, top), (left, top))
    return np.stack([np.stack(corner, axis=-1) for corner in corners], axis=1)


def _plain(text: str) -> str:
    """Text that matplotlib leaves alone: a dollar sign would start a formula."""
    return text.replace("$", r"\$")
