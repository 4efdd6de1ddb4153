"""Boxes over time and offsets: what a layout of memory looks like, whatever stands in it.

A box is a tensor or buffer (its owner) for as long as it stands at one place. Coordinates are those of the time axis and bytes.
"""

from __future__ import annotations

import bisect
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from stowplan.report.colours import PALETTE, ink_on
from stowplan.report.figures import INK, plain
from stowplan.report.units import format_bytes, shorten

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: From this many boxes on, outlines would hide what they outline.
DENSE = 800
#: Names are written into so many boxes of a picture at most, and so many more get a number that a legend explains.
MOST_NAMES, MOST_TAGS = 150, 14

#: Points of a letter's height and width, and of a line; a name of fewer letters than ``_LEAST`` says nothing.
_HIGH, _WIDE, _LINE, _LEAST = 7.0, 4.4, 8.5, 5
#: Points of a tag.
_TAG = 9.0


@dataclass(frozen=True)
class Box:
    """Something that stands at ``[bottom, bottom + size)`` from ``left`` to ``right``."""

    owner: int
    """Number of the tensor or buffer."""
    left: float
    right: float
    """On the time axis."""
    bottom: int
    size: int
    """Bytes."""
    fixed: bool = False
    """Whether it must stand there."""

    @property
    def area(self) -> float:
        """What the eye sees of it."""
        return (self.right - self.left) * self.size


def assign_colours(layouts: Sequence[Sequence[Box]]) -> dict[int, int]:
    """Palette index of every owner of a box in one of the layouts.

    Up to ``len(PALETTE)`` owners get colours of their own; beyond that, an owner gets the colour least used by those it
    touches in a layout, then the least used of all.
    """
    touching: defaultdict[int, set[int]] = defaultdict(set)
    area: defaultdict[int, float] = defaultdict(float)
    for boxes in layouts:
        for left, right in _touching_pairs(boxes):
            touching[left].add(right)
            touching[right].add(left)
        for box in boxes:
            area[box.owner] += box.area

    colours: dict[int, int] = {}
    used = [0] * len(PALETTE)
    # The largest first: they are what the eye sees.
    for owner in sorted(area, key=lambda index: (-area[index], index)):
        near = Counter(colours[other] for other in touching[owner] if other in colours)
        colour = min(range(len(PALETTE)), key=lambda index: (near[index], used[index], index))
        colours[owner] = colour
        used[colour] += 1
    return colours


def _touching_pairs(boxes: Sequence[Box]) -> set[tuple[int, int]]:
    """Owners that stand next to each other in memory, or take each other's place; an approximation."""
    events = [(box.left, 0, index) for index, box in enumerate(boxes)]
    events += [(box.right, 1, index) for index, box in enumerate(boxes)]
    kept: list[tuple[int, int]] = []
    pairs: set[tuple[int, int]] = set()
    # Starts before ends at one boundary, so that a newcomer still meets those whose place it takes.
    for _, is_end, index in sorted(events):
        box = boxes[index]
        entry = (box.bottom, index)
        at = bisect.bisect_left(kept, entry)
        if is_end:
            kept.pop(at)
            continue
        for _, other in kept[max(0, at - 2) : at + 2]:
            first, second = sorted((box.owner, boxes[other].owner))
            if first != second:
                pairs.add((first, second))
        kept.insert(at, entry)
    return pairs


def draw_boxes(ax: Axes, boxes: Sequence[Box], colours: Mapping[int, int], *, across: float = 1, up: float = 1) -> None:
    """Fill an axes with boxes; coordinates are divided by ``across`` and ``up``. Those that are fixed have a dark edge."""
    from matplotlib.collections import PolyCollection

    dense = len(boxes) > DENSE
    left, right = (np.array([getattr(box, side) for box in boxes], dtype=np.float64) / across for side in ("left", "right"))
    bottom = np.array([box.bottom for box in boxes], dtype=np.float64) / up
    top = np.array([box.bottom + box.size for box in boxes], dtype=np.float64) / up
    faces = [PALETTE[colours[box.owner]] for box in boxes]
    # A white edge around a box as thin as the edge is all that would be seen of it.
    (begin, end), (low, high) = ax.get_xlim(), ax.get_ylim()
    is_thin = (right - left < (end - begin) * 0.003) | (top - bottom < (high - low) * 0.006)
    edges = [face if thin or dense else "white" for face, thin in zip(faces, is_thin, strict=True)]
    ax.add_collection(
        PolyCollection(
            rectangles(left, right, bottom, top),
            facecolors=faces,
            edgecolors=["#111111" if box.fixed else edge for box, edge in zip(boxes, edges, strict=True)],
            linewidths=[1.2 if box.fixed else 0.15 if dense else 0.5 for box in boxes],
        )
    )


def rectangles(left: Any, right: Any, bottom: Any, top: Any) -> Any:
    """Corners of rectangles, ``[n, 4, 2]``."""
    corners = ((left, bottom), (right, bottom), (right, top), (left, top))
    return np.stack([np.stack(corner, axis=-1) for corner in corners], axis=1)


def name_boxes(
    ax: Axes, boxes: Sequence[Box], colours: Mapping[int, int], name: Callable[[int], str], *, across: float = 1, up: float = 1
) -> set[int]:
    """Write names into the boxes that have room for them, lying or standing; returns the owners that are named.

    The figure must have its final layout: see :func:`finish_layout`.
    """
    wide, high = _points(ax)
    named: set[int] = set()
    written = 0
    for box in sorted(boxes, key=lambda each: (-each.area, each.owner, each.left)):
        width, height = (box.right - box.left) / across * wide, box.size / up * high
        if max(width, height) < 2 * _WIDE or min(width, height) < _LINE:
            continue
        stands = width < min(len(name(box.owner)) + 1, 12) * _WIDE and height > width
        letters = int((height if stands else width) / _WIDE) - 1
        text = name(box.owner)
        if letters < min(len(text), _LEAST):
            continue
        ax.annotate(
            plain(shorten(text, letters)),
            ((box.left + box.right) / 2 / across, (box.bottom + box.size / 2) / up),
            fontsize=_HIGH,
            ha="center",
            va="center",
            rotation=90 if stands else 0,
            color=ink_on(PALETTE[colours[box.owner]]),
            # A name never makes the picture larger than its axes.
            annotation_clip=True,
        )
        named.add(box.owner)
        written += 1
        if written >= MOST_NAMES:
            break
    return named


def tag_boxes(ax: Axes, boxes: Sequence[Box], tags: Mapping[int, int], *, across: float = 1, up: float = 1) -> None:
    """Mark the largest box of each owner in ``tags`` with its number."""
    wide, high = _points(ax)
    largest: dict[int, Box] = {}
    for box in boxes:
        if box.owner in tags and (box.owner not in largest or box.area > largest[box.owner].area):
            largest[box.owner] = box
    taken: list[tuple[float, float]] = []
    for owner, box in sorted(largest.items(), key=lambda item: tags[item[0]]):
        for part in (0.5, 0.25, 0.75, 0.1, 0.9):
            at = ((box.left + part * (box.right - box.left)) / across, (box.bottom + box.size / 2) / up)
            if all(abs(at[0] - x) * wide > _TAG or abs(at[1] - y) * high > _TAG for x, y in taken):
                break
        taken.append(at)
        ax.annotate(
            str(tags[owner]),
            at,
            fontsize=6,
            ha="center",
            va="center",
            color="#111111",
            bbox={"boxstyle": "round,pad=0.15", "facecolor": "white", "edgecolor": "#555555", "linewidth": 0.5, "alpha": 0.92},
            zorder=6,
        )


def choose_tags(layouts: Sequence[tuple[Sequence[Box], set[int]]]) -> dict[int, int]:
    """Numbers, from 1 on, for the largest owners that some layout (its boxes, and who is named in it) does not name."""
    area: defaultdict[int, float] = defaultdict(float)
    for boxes, named in layouts:
        for box in boxes:
            if box.owner not in named:
                area[box.owner] += box.area
    largest = sorted((owner for owner in area if area[owner] > 0), key=lambda owner: (-area[owner], owner))[:MOST_TAGS]
    return {owner: number + 1 for number, owner in enumerate(largest)}


def list_tags(
    figure: Figure, left: float, tags: Mapping[int, int], colours: Mapping[int, int], describe: Callable[[int], tuple[str, int]]
) -> None:
    """Say at the right of a figure, from ``left`` (a part of its width) on, what the numbers of boxes stand for.

    ``describe`` gives name and bytes of an owner.
    """
    if not tags:
        return
    wide, high = figure.get_size_inches()
    top, line = 0.865, 0.225 / high
    figure.text(left, top, "numbered boxes, the largest first", fontsize=7.5, color=INK, va="center")
    for owner, number in tags.items():
        name, size = describe(owner)
        y = top - line * number
        figure.text(left, y, "■", fontsize=9, color=PALETTE[colours[owner]], va="center")
        text = f"{number}  {shorten(name, 28)}, {format_bytes(size)}"
        figure.text(left + 0.17 / wide, y, plain(text), fontsize=7, color=INK, va="center")


def drop_list(figure: Figure, inches: float) -> None:
    """Take the room for a list away that :func:`list_tags` has nothing to write in; what is drawn keeps its size."""
    wide, high = figure.get_size_inches()
    narrow = wide - inches + 0.25
    parts = figure.subplotpars
    figure.set_size_inches(narrow, high)
    figure.subplots_adjust(left=parts.left * wide / narrow, right=parts.right * wide / narrow)


def finish_layout(figure: Figure) -> None:
    """Give a figure its final layout, so that the sizes of axes can be asked for."""
    figure.draw_without_rendering()


def _points(ax: Axes) -> tuple[float, float]:
    """Points of one unit of an axes, across and up."""
    figure = ax.get_figure(root=True)
    assert figure is not None
    area = ax.get_window_extent()
    (left, right), (bottom, top) = ax.get_xlim(), ax.get_ylim()
    point = figure.dpi / 72
    return area.width / abs(right - left) / point, area.height / abs(top - bottom) / point
