"""Scenes: what a picture shows, described once, whoever draws it.

A scene is made of marks in the coordinates of the data. Marks stand in panels, panels that share the axis across make a plot,
and rows of plots make a picture. :mod:`~stowplan.report.inline` writes plots into the page, where they stretch with it;
:mod:`~stowplan.report.paper` lays pictures out in points, for files.
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


@dataclass(frozen=True)
class Style:
    """How a mark looks. Colours are ``#rrggbb``, a name of :data:`~stowplan.report.colours.THEME`, or ``none``."""

    fill: str = "none"
    stroke: str = "none"
    width: float = 1.0
    """Of the stroke, in points."""
    dash: tuple[float, ...] = ()
    """Points drawn and left out, by turns."""
    opacity: float = 1.0
    """Of the fill."""
    name: str = ""
    """Class of the mark on the page."""


GRID = Style(stroke="grid", width=0.7, name="grid")
RULE = Style(stroke="ink", width=0.9, name="rule")
DASHED = Style(stroke="ink", width=0.9, dash=(4, 2.5), name="rule")
USAGE = Style(fill="usage", name="usage")
#: Boxes have the same colours on light and dark paper.
HATCH = Style(stroke="#111111", width=0.7)


@dataclass(frozen=True)
class Rect:
    """A rectangle; ``tip`` is said when it is pointed at, as of all marks."""

    left: float
    right: float
    bottom: float
    top: float
    style: Style
    tip: str = ""


@dataclass(frozen=True)
class Line:
    """A line from point to point; closed, and an area, where its style fills it."""

    points: Sequence[Point]
    style: Style
    tip: str = ""


@dataclass(frozen=True)
class Arrow:
    """Bézier curves, one after the other, with a head at the end: begin, one or two handles, end."""

    curves: Sequence[Sequence[Point]]
    style: Style
    tip: str = ""


@dataclass(frozen=True)
class Dot:
    """A mark of the same size however the picture is stretched, filled as its style says. The page draws all as circles."""

    x: float
    y: float
    style: Style
    size: float = 5.0
    """Points."""
    shape: Shape = "circle"
    tip: str = ""


@dataclass(frozen=True)
class Text:
    """Letters of the same size however the picture is stretched."""

    x: float
    y: float
    text: str
    size: float = 8.0
    """Points."""
    colour: str = "soft"
    align: Literal["start", "middle", "end"] = "middle"
    is_turned: bool = False
    """Whether it runs from the bottom to the top."""
    halo: str = ""
    """Colour around the letters, where they stand on other marks."""


Mark = Rect | Line | Arrow | Dot | Text | Boxes


@dataclass(frozen=True)
class Axis:
    """A range of the data, and what is written along it; an axis may run backwards."""

    low: float
    high: float
    ticks: Sequence[Tick] = ()
    title: str = ""
    minor: Sequence[Tick] = ()
    """Ticks that show only where the page is zoomed."""

    def part(self, value: float) -> float:
        """Where a value stands, 0 at the low end and 1 at the high one."""
        return (value - self.low) / ((self.high - self.low) or 1.0)


@dataclass(frozen=True)
class Panel:
    """Marks over an axis of their own upwards; marks that come later lie above."""

    up: Axis
    marks: Sequence[Mark]
    height: float
    """Points."""
    spoken: str
    """What it shows, for those who cannot see it."""
    title: str = ""
    is_framed: bool = True
    """Whether it has axes, with a faint line at each tick; else it is a row with a name."""


@dataclass(frozen=True)
class Key:
    """A line of a legend."""

    text: str
    style: Style
    shape: Literal["patch", "line", "hatch"] | Shape = "patch"


@dataclass(frozen=True)
class Plot:
    """Panels below each other, over one axis across."""

    across: Axis
    panels: Sequence[Panel]
    heading: str = ""
    legend: Sequence[Key] = ()
    gap: float = 9.0
    """Points between panels."""


@dataclass(frozen=True)
class Picture:
    """Rows of plots, from top to bottom; legends stand at the right of their rows."""

    title: str
    rows: Sequence[Sequence[Plot]]
    width: float = 760.0
    """Points of a row without its legend."""


def steps(edges: Sequence[float], values: Sequence[float]) -> list[Point]:
    """Points of a line of steps: ``values[i]`` from ``edges[i]`` to ``edges[i + 1]``; equal neighbours are one step."""
    points: list[Point] = []
    for (left, right), value in zip(pairwise(edges), values, strict=True):
        if points and points[-1][1] == value:
            points[-1] = (right, value)
        else:
            points += [(left, value), (right, value)]
    return points


def area(points: Sequence[Point], style: Style, base: float = 0.0) -> Line:
    """The area between a line and the base."""
    return Line([(points[0][0], base), *points, (points[-1][0], base)] if points else [], style)


def level(across: Axis, value: float, style: Style) -> Line:
    """A line at one height, all across."""
    return Line([(across.low, value), (across.high, value)], style)


def hatch(left: float, right: float, bottom: float, top: float, step: tuple[float, float]) -> Iterator[Line]:
    """Slanting lines in a rectangle, ``step`` apart across and up; one at least."""

    def number(x: float, y: float) -> float:
        # Of the line through a point: all rectangles have parts of the same lines.
        return x / step[0] - y / step[1]

    first, last = ceil(number(left, top)), ceil(number(right, bottom))
    middle = number((left + right) / 2, (bottom + top) / 2)
    for line in range(first, last) if first < last else [middle]:
        begin, end = max(left, (line + bottom / step[1]) * step[0]), min(right, (line + top / step[1]) * step[0])
        yield Line([(x, (x / step[0] - line) * step[1]) for x in (begin, end)], HATCH)


def patches(entries: Iterable[tuple[str, str]]) -> list[Key]:
    """A legend of (colour, what it stands for)."""
    return [Key(text, Style(fill=colour)) for colour, text in entries]


def byte_axis(top: int, title: str = "", most: int = 5) -> Axis:
    """An axis from 0 to ``top`` bytes, with ticks in the unit of :func:`~stowplan.report.text.byte_unit`."""
    _, size = byte_unit(top)
    return Axis(0, top, [(tick * size, format_tick(tick)) for tick in nice_ticks(0, top / size, most)], title)


def number_axis(low: float, high: float, title: str = "") -> Axis:
    """An axis of plain numbers, with more of them where the page is zoomed."""
    ticks, minor = ([(tick, format_tick(tick)) for tick in nice_ticks(low, high, most)] for most in (6, 40))
    return Axis(low, high, ticks, title, minor)
