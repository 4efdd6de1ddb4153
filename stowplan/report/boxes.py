"""The boxes in pictures of memory, where the horizontal axis is time and the vertical axis is the offset in bytes.

A box is a tensor or buffer, its *owner*, while it has one offset. Pictures of every kind of problem with offsets consist of
such boxes. This module chooses their colours and finds out which of them have space for the owner's name. Some owners without a
name get a *tag*: a number that the legend explains. Nothing in this module raises an error.
"""

from __future__ import annotations

import bisect
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from stowplan.report.colours import PALETTE
from stowplan.report.text import shorten

#: From this many boxes on, boxes are drawn without outlines, which would cover most of their area.
DENSE = 800
#: Maximum number of boxes of a picture that have names, and maximum number of owners that have tags.
MAX_NAMES, MAX_TAGS = 150, 14

#: Width of a letter and height of a line in points, and the fewest letters to which a name may be shortened.
_WIDE, _LINE, _LEAST = 4.4, 8.5, 5
#: Width and height of a tag in points.
_TAG = 9.0


@dataclass(frozen=True)
class Box:
    """The memory ``[bottom, bottom + size)`` of one owner from ``left`` to ``right``."""

    owner: int
    """Number of the tensor or buffer."""
    left: float
    """Begin on the time axis."""
    right: float
    """End on the time axis, in the same unit as ``left``."""
    bottom: int
    size: int
    """Bytes; ``bottom`` is an offset in bytes."""
    fixed: bool = False
    """Whether the offset is given by the problem."""

    @property
    def area(self) -> float:
        """Area in the picture: bytes times units of the time axis."""
        return (self.right - self.left) * self.size


@dataclass(frozen=True)
class Boxes:
    """All boxes of one layout of memory, as one *mark*, that is, one graphical element of a picture.

    A box with enough space has a name or a tag, and a description appears when the pointer is over it.
    """

    boxes: Sequence[Box]
    colours: Mapping[int, int]
    """Palette index of each owner, from :func:`assign_colours`."""
    describe: Callable[[int], tuple[str, int]]
    """Returns the name of an owner and its size in bytes."""
    note: Callable[[int], str] = lambda index: ""
    """Returns a note for the description of the box with this index in ``boxes``; empty for none."""
    times: Sequence[tuple[float, float]] | None = None
    """Begin and end of each box as its description gives them, if they differ from the coordinates."""

    def colour(self, box: Box) -> str:
        """The colour of a box."""
        return PALETTE[self.colours[box.owner]]


@dataclass(frozen=True)
class Name:
    """A name in a box that has space for it."""

    box: Box
    text: str
    is_vertical: bool
    """Whether the text runs from the bottom to the top."""


def assign_colours(layouts: Iterable[Sequence[Box]]) -> dict[int, int]:
    """Palette index of every owner of a box in the layouts. (Here a layout is a sequence of boxes.)

    Up to ``len(PALETTE)`` owners get different colours. If there are more, each gets the colour that the fewest of its
    neighbours in a layout have. Of several colours with this property, it gets the one that the fewest owners have.
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
    """Pairs of owners whose boxes touch: they are next to each other in memory, or one takes the place of the other.

    This is an approximation, which compares each box only with the nearest ones in memory when it begins.
    """
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
        Number of points on the page for one unit of the time axis, and for one byte.
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
    """Tags, from 1, for the largest owners that have no name in at least one layout. Each layout is a pair: its boxes, and the
    owners that are named in it."""
    area: defaultdict[int, float] = defaultdict(float)
    for boxes, named in layouts:
        for box in boxes:
            if box.owner not in named:
                area[box.owner] += box.area
    largest = sorted((owner for owner in area if area[owner] > 0), key=lambda owner: (-area[owner], owner))[:MAX_TAGS]
    return {owner: number + 1 for number, owner in enumerate(largest)}


def place_tags(boxes: Sequence[Box], tags: Mapping[int, int], wide: float, high: float) -> dict[int, tuple[float, float]]:
    """The position of each tag: in the largest box of its owner and, if possible, not over another tag."""
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
