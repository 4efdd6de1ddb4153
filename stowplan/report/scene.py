"""Scenes: descriptions of pictures that do not depend on the renderer.

A scene consists of marks in the coordinates of the data. Marks are in panels; panels with a common horizontal axis make a plot,
and rows of plots make a picture. :mod:`~stowplan.report.inline` writes plots into the HTML page, where they stretch with it.
:mod:`~stowplan.report.paper` lays pictures out in points for files. Only :func:`steps` raises an error.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil
from typing import Literal

from stowplan.report.boxes import Boxes
from stowplan.report.text import byte_unit, format_tick, nice_ticks

Point = tuple[float, float]
Shape = Literal["circle", "up", "down", "diamond"]
Tick = tuple[float, str]
"""A position on an axis, and its label."""


@dataclass(frozen=True)
class Style:
    """The look of a mark. Colours are ``#rrggbb``, a name of :data:`~stowplan.report.colours.THEME`, or ``none``."""

    fill: str = "none"
    """Colour of the area."""
    stroke: str = "none"
    """Colour of the outline or line."""
    width: float = 1.0
    """Width of the stroke in points."""
    dash: tuple[float, ...] = ()
    """Lengths of dashes and gaps in points, alternating."""
    opacity: float = 1.0
    """Opacity of the fill."""
    name: str = ""
    """CSS class of the mark on the page; empty for none."""


GRID = Style(stroke="grid", width=0.7, name="grid")
RULE = Style(stroke="ink", width=0.9, name="rule")
DASHED = Style(stroke="ink", width=0.9, dash=(4, 2.5), name="rule")
USAGE = Style(fill="usage", name="usage")
#: Boxes have the same colours on light and dark backgrounds.
HATCH = Style(stroke="#111111", width=0.7)


@dataclass(frozen=True)
class Rect:
    """A rectangle. The text ``tip``, of this and all other marks, appears when the pointer is on it."""

    left: float
    right: float
    bottom: float
    top: float
    style: Style
    tip: str = ""


@dataclass(frozen=True)
class Line:
    """A polygonal line. If its style has a fill, it is closed and filled."""

    points: Sequence[Point]
    style: Style
    tip: str = ""


@dataclass(frozen=True)
class Arrow:
    """Bézier curves, one after the other, with an arrowhead at the end. Each consists of its begin, one or two control points,
    and its end."""

    curves: Sequence[Sequence[Point]]
    style: Style
    tip: str = ""


@dataclass(frozen=True)
class Dot:
    """A mark whose size does not change when the picture is stretched. The page draws all shapes as circles."""

    x: float
    y: float
    style: Style
    size: float = 5.0
    """Diameter in points."""
    shape: Shape = "circle"
    tip: str = ""


@dataclass(frozen=True)
class Text:
    """Text whose size does not change when the picture is stretched."""

    x: float
    y: float
    text: str
    size: float = 8.0
    """Font size in points."""
    colour: str = "soft"
    align: Literal["start", "middle", "end"] = "middle"
    is_turned: bool = False
    """Whether it is written from the bottom to the top."""
    halo: str = ""
    """Colour around the letters, if they are on other marks."""


Mark = Rect | Line | Arrow | Dot | Text | Boxes


@dataclass(frozen=True)
class Axis:
    """A range of the data, with ticks and a title. ``low`` is at the left or at the bottom and may be greater than ``high``."""

    low: float
    high: float
    ticks: Sequence[Tick] = ()
    title: str = ""
    minor: Sequence[Tick] = ()
    """Ticks that are shown only if the page is zoomed."""

    def part(self, value: float) -> float:
        """The position of a value: 0 at the low end and 1 at the high end."""
        return (value - self.low) / ((self.high - self.low) or 1.0)


@dataclass(frozen=True)
class Panel:
    """Marks with a vertical axis of their own; later marks are above earlier ones."""

    up: Axis
    """The vertical axis."""
    marks: Sequence[Mark]
    height: float
    """Height in points."""
    spoken: str
    """Description for readers who cannot see the picture."""
    title: str = ""
    is_framed: bool = True
    """Whether it has axes, with a faint line at each tick. Otherwise it is a row with a name."""


@dataclass(frozen=True)
class Key:
    """An entry of a legend."""

    text: str
    style: Style
    shape: Literal["patch", "line", "hatch"] | Shape = "patch"


@dataclass(frozen=True)
class Plot:
    """Panels below each other with a common horizontal axis."""

    across: Axis
    """The horizontal axis."""
    panels: Sequence[Panel]
    heading: str = ""
    legend: Sequence[Key] = ()
    gap: float = 9.0
    """Points between panels."""


@dataclass(frozen=True)
class Picture:
    """Rows of plots from top to bottom; legends are at the right of their rows."""

    title: str
    rows: Sequence[Sequence[Plot]]
    width: float = 760.0
    """Points of a row without its legend."""


def steps(edges: Sequence[float], values: Sequence[float]) -> list[Point]:
    """Points of a step function: ``values[i]`` from ``edges[i]`` to ``edges[i + 1]``. Equal neighbours become one step. Raises
    ValueError unless there is one edge more than values."""
    points: list[Point] = []
    for (left, right), value in zip(pairwise(edges), values, strict=True):
        if points and points[-1][1] == value:
            points[-1] = (right, value)
        else:
            points += [(left, value), (right, value)]
    return points


def area(points: Sequence[Point], style: Style, base: float = 0.0) -> Line:
    """The area between a line and the height ``base``; empty if the line has no points."""
    return Line([(points[0][0], base), *points, (points[-1][0], base)] if points else [], style)


def level(across: Axis, value: float, style: Style) -> Line:
    """A horizontal line through the whole panel."""
    return Line([(across.low, value), (across.high, value)], style)


def hatch(left: float, right: float, bottom: float, top: float, step: tuple[float, float]) -> Iterator[Line]:
    """Yields slanted lines in a rectangle, with distances ``step`` in both directions; at least one line."""

    def number(x: float, y: float) -> float:
        # Number of the line through a point. All rectangles show parts of the same lines.
        return x / step[0] - y / step[1]

    first, last = ceil(number(left, top)), ceil(number(right, bottom))
    middle = number((left + right) / 2, (bottom + top) / 2)
    for line in range(first, last) if first < last else [middle]:
        begin, end = max(left, (line + bottom / step[1]) * step[0]), min(right, (line + top / step[1]) * step[0])
        yield Line([(x, (x / step[0] - line) * step[1]) for x in (begin, end)], HATCH)


def patches(entries: Iterable[tuple[str, str]]) -> list[Key]:
    """A legend of pairs (colour, meaning)."""
    return [Key(text, Style(fill=colour)) for colour, text in entries]


def byte_axis(top: int, title: str = "", most: int = 5) -> Axis:
    """An axis from 0 to ``top`` bytes, with ticks in the unit of :func:`~stowplan.report.text.byte_unit`."""
    _, size = byte_unit(top)
    return Axis(0, top, [(tick * size, format_tick(tick)) for tick in nice_ticks(0, top / size, most)], title)


def number_axis(low: float, high: float, title: str = "") -> Axis:
    """An axis of plain numbers, with more ticks if the page is zoomed."""
    ticks, minor = ([(tick, format_tick(tick)) for tick in nice_ticks(low, high, most)] for most in (6, 40))
    return Axis(low, high, ticks, title, minor)
