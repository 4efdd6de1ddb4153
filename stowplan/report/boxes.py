"""Layouts of memory as boxes over time and offsets, for all kinds.

A box stands for a tensor or buffer (its owner) while it is at one offset. Its coordinates are those of the time axis, and
bytes.
"""

from __future__ import annotations

import bisect
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from stowplan.report.colours import PALETTE
from stowplan.report.text import shorten

#: From this many boxes on, boxes have no outlines, which would hide them.
DENSE = 800
#: Maximum number of boxes of a picture with names, and of further boxes with a number that a legend explains.
MAX_NAMES, MAX_TAGS = 150, 14

#: Width of a letter and height of a line in points, and the fewest letters to which a name may be shortened.
_WIDE, _LINE, _LEAST = 4.4, 8.5, 5
#: Size of a number in points.
_TAG = 9.0


@dataclass(frozen=True)
class Box:
    """The memory ``[bottom, bottom + size)`` of one owner from ``left`` to ``right``."""

    owner: int
    """Number of the tensor or buffer."""
    left: float
    right: float
    """On the time axis, as ``left``."""
    bottom: int
    size: int
    """Bytes, as ``bottom``."""
    fixed: bool = False
    """Whether the offset is given by the problem."""

    @property
    def area(self) -> float:
        """Area in the picture: bytes times units of the time axis."""
        return (self.right - self.left) * self.size


@dataclass(frozen=True)
class Boxes:
    """A mark with all boxes of a layout. Boxes have names or numbers where there is space, and descriptions when the pointer is
    on them."""

    boxes: Sequence[Box]
    colours: Mapping[int, int]
    """Palette index of each owner, from :func:`assign_colours`."""
    describe: Callable[[int], tuple[str, int]]
    """Name and bytes of an owner."""
    note: Callable[[int], str] = lambda index: ""
    """Note on the box of this index."""
    times: Sequence[tuple[float, float]] | None = None
    """Begin and end of each box for descriptions, if they differ from the coordinates."""

    def colour(self, box: Box) -> str:
        """The colour of a box."""
        return PALETTE[self.colours[box.owner]]


@dataclass(frozen=True)
class Name:
    """A name in a box that has space for it."""

    box: Box
    text: str
    is_vertical: bool
    """Whether it is written upwards."""


def assign_colours(layouts: Iterable[Sequence[Box]]) -> dict[int, int]:
    """Palette index of every owner of a box in the layouts.

    Up to ``len(PALETTE)`` owners get different colours. Beyond that, an owner gets the colour that is least used by the owners
    which it touches in a layout, and of equal ones the colour that is least used altogether.
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
    # The largest come first because they are most visible.
    for owner in sorted(area, key=lambda index: (-area[index], index)):
        near = Counter(colours[other] for other in touching[owner] if other in colours)
        colour = min(range(len(PALETTE)), key=lambda index: (near[index], used[index], index))
        colours[owner] = colour
        used[colour] += 1
    return colours


def _touching_pairs(boxes: Sequence[Box]) -> set[tuple[int, int]]:
    """Pairs of owners that are next to each other in memory or follow each other at the same place; an approximation."""
    events = [(box.left, 0, index) for index, box in enumerate(boxes)]
    events += [(box.right, 1, index) for index, box in enumerate(boxes)]
    open_boxes: list[tuple[int, int]] = []
    pairs: set[tuple[int, int]] = set()
    # At one boundary, starts come before ends, so that a new box still meets the box whose place it takes.
    for _, is_end, index in sorted(events):
        box = boxes[index]
        entry = (box.bottom, index)
        at = bisect.bisect_left(open_boxes, entry)
        if is_end:
            open_boxes.pop(at)
            continue
        for _, other in open_boxes[max(0, at - 2) : at + 2]:
            first, second = sorted((box.owner, boxes[other].owner))
            if first != second:
                pairs.add((first, second))
        open_boxes.insert(at, entry)
    return pairs


def name_boxes(mark: Boxes, wide: float, high: float) -> list[Name]:
    """Names for the boxes that have space for them, horizontal or vertical, the largest boxes first.

    Parameters
    ----------
    mark
        The boxes.
    wide, high
        Points of a unit of the time axis, and of a byte.
    """
    names: list[Name] = []
    for box in sorted(mark.boxes, key=lambda box: (-box.area, box.owner, box.left)):
        width, height = (box.right - box.left) * wide, box.size * high
        if max(width, height) < 2 * _WIDE or min(width, height) < _LINE:
            continue
        text = mark.describe(box.owner)[0]
        is_vertical = width < min(len(text) + 1, 12) * _WIDE and height > width
        letters = int((height if is_vertical else width) / _WIDE) - 1
        if letters < min(len(text), _LEAST):
            continue
        names.append(Name(box, shorten(text, letters), is_vertical))
        if len(names) >= MAX_NAMES:
            break
    return names


def choose_tags(layouts: Iterable[tuple[Sequence[Box], set[int]]]) -> dict[int, int]:
    """Numbers from 1 for the largest owners that at least one layout does not name. A layout is given by its boxes and its
    named owners."""
    area: defaultdict[int, float] = defaultdict(float)
    for boxes, named in layouts:
        for box in boxes:
            if box.owner not in named:
                area[box.owner] += box.area
    largest = sorted((owner for owner in area if area[owner] > 0), key=lambda owner: (-area[owner], owner))[:MAX_TAGS]
    return {owner: number + 1 for number, owner in enumerate(largest)}


def place_tags(boxes: Sequence[Box], tags: Mapping[int, int], wide: float, high: float) -> dict[int, tuple[float, float]]:
    """The position of each number: in the largest box of its owner, and if possible not on another number."""
    largest: dict[int, Box] = {}
    for box in boxes:
        if box.owner in tags and (box.owner not in largest or box.area > largest[box.owner].area):
            largest[box.owner] = box
    places: dict[int, tuple[float, float]] = {}
    for owner, box in sorted(largest.items(), key=lambda item: tags[item[0]]):
        for part in (0.5, 0.25, 0.75, 0.1, 0.9):
            at = (box.left + part * (box.right - box.left), box.bottom + box.size / 2)
            if all(abs(at[0] - x) * wide > _TAG or abs(at[1] - y) * high > _TAG for x, y in places.values()):
                break
        places[owner] = at
    return places
