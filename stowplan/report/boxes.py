"""Boxes over time and offsets: what a layout of memory looks like, whatever stands in it.

A box is a tensor or buffer (its owner) for as long as it stands at one place. Coordinates are those of the time axis and bytes.
"""

from __future__ import annotations

import bisect
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from stowplan.report.colours import PALETTE
from stowplan.report.text import shorten

#: From this many boxes on, outlines would hide what they outline.
DENSE = 800
#: Names are written into so many boxes of a picture at most, and so many more get a number that a legend explains.
MOST_NAMES, MOST_TAGS = 150, 14

#: Points of a letter's width, and of a line; a name of fewer letters than ``_LEAST`` says nothing.
_WIDE, _LINE, _LEAST = 4.4, 8.5, 5
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


@dataclass(frozen=True)
class Boxes:
    """The mark for all boxes of a layout: they have names or numbers where there is room, and are told of when pointed at."""

    boxes: Sequence[Box]
    colours: Mapping[int, int]
    """Palette index of each owner, from :func:`assign_colours`."""
    describe: Callable[[int], tuple[str, int]]
    """Name and bytes of an owner."""
    note: Callable[[int], str] = lambda index: ""
    """What else there is to say of the box of this number."""
    times: Sequence[tuple[float, float]] | None = None
    """Begin and end of each box for people, where the axis across has others."""

    def colour(self, box: Box) -> str:
        """Colour of a box."""
        return PALETTE[self.colours[box.owner]]


@dataclass(frozen=True)
class Name:
    """A name in a box that has room for it."""

    box: Box
    text: str
    stands: bool
    """Whether it runs upwards."""


def assign_colours(layouts: Iterable[Sequence[Box]]) -> dict[int, int]:
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


def name_boxes(mark: Boxes, wide: float, high: float) -> list[Name]:
    """Names for the boxes that have room for them, lying or standing; the largest first.

    ``wide`` and ``high`` are the points of a unit across and of a byte.
    """
    names: list[Name] = []
    for box in sorted(mark.boxes, key=lambda box: (-box.area, box.owner, box.left)):
        width, height = (box.right - box.left) * wide, box.size * high
        if max(width, height) < 2 * _WIDE or min(width, height) < _LINE:
            continue
        text = mark.describe(box.owner)[0]
        stands = width < min(len(text) + 1, 12) * _WIDE and height > width
        letters = int((height if stands else width) / _WIDE) - 1
        if letters < min(len(text), _LEAST):
            continue
        names.append(Name(box, shorten(text, letters), stands))
        if len(names) >= MOST_NAMES:
            break
    return names


def choose_tags(layouts: Iterable[tuple[Sequence[Box], set[int]]]) -> dict[int, int]:
    """Numbers, from 1 on, for the largest owners that some layout (its boxes, and who is named in it) does not name."""
    area: defaultdict[int, float] = defaultdict(float)
    for boxes, named in layouts:
        for box in boxes:
            if box.owner not in named:
                area[box.owner] += box.area
    largest = sorted((owner for owner in area if area[owner] > 0), key=lambda owner: (-area[owner], owner))[:MOST_TAGS]
    return {owner: number + 1 for number, owner in enumerate(largest)}


def place_tags(boxes: Sequence[Box], tags: Mapping[int, int], wide: float, high: float) -> dict[int, tuple[float, float]]:
    """Where the number of each owner in ``tags`` stands: in its largest box, and on no other number if that can be."""
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
