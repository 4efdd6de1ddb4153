"""The layout of a picture of a modulo schedule: rows of tiles, boxes of instructions, and paths of values between them.

The picture has tiles down and slots across, and a box for each instruction. All lengths and positions are in units of the
height of a tile; the origin is the upper left corner. Nothing in this module raises an error.
:mod:`stowplan.report.modulo_scheduling` draws the layout.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stowplan.models.modulo_scheduling.plan import Plan
from stowplan.models.modulo_scheduling.problem import Edge, Problem

#: Width of a slot; width and height of a box; height of a row that stands for idle tiles.
SLOT, WIDE, HIGH, IDLE = 2.7, 2.0, 0.6, 0.46

#: Space around all rows and slots, for values that go around them.
MARGIN = 0.3

#: Bends of paths from border to border, as a part of their length; and distances by which paths from side to side swing out.
_BENDS = (0.0, 0.1, -0.1, 0.2, -0.2, 0.32, -0.32, 0.45, -0.45, 0.6, -0.6, 0.8, -0.8)
_SWINGS = (0.25, 0.4, 0.6)

Point = tuple[float, float]


@dataclass(frozen=True)
class Row:
    """A row of the picture: a tile, or several consecutive tiles that are idle.

    ``first`` and ``last`` are the numbers of its first and last tile, and ``top`` is the vertical position of its upper
    edge.
    """

    first: int
    last: int
    top: float
    height: float
    is_idle: bool

    @property
    def middle(self) -> float:
        """Vertical position of its middle."""
        return self.top + self.height / 2


@dataclass(frozen=True)
class Way:
    """The path of a value from its producer to its consumer."""

    curves: tuple[tuple[Point, ...], ...]
    """Bézier curves, one after the other: begin, one or two control points, end."""
    stops: tuple[Point, ...]
    """Positions at which it passes through other tiles on its way."""
    distance: int
    """Number of iterations between its producer and its consumer."""
    label: Point
    """Position for the text with the distance."""
    is_sent: bool = False
    """Whether it is sent over the asynchronous fabric, a network that connects all tiles, and not over links between tiles."""


@dataclass(frozen=True)
class Layout:
    """A plan with the positions of everything that is drawn."""

    rows: tuple[Row, ...]
    boxes: tuple[Point, ...]
    """Middle of the box of each instruction."""
    ways: tuple[Way, ...]
    width: float
    height: float


def build_layout(problem: Problem, plan: Plan) -> Layout:
    """Lays out a valid plan. Consecutive idle tiles share a low row."""
    stops = [_stops(problem, plan, number) for number in range(len(problem.edges))]
    busy = {*plan.tiles, *(tile for way in stops for _, tile in way)}
    rows = _rows(problem.machine.tiles, busy)
    middle = {row.first: row.middle for row in rows if not row.is_idle}
    height = rows[-1].top + rows[-1].height + MARGIN
    width = SLOT * plan.ii + 2 * MARGIN
    boxes = tuple((slot_middle(slot), middle[tile]) for slot, tile in zip(plan.slots, plan.tiles, strict=True))
    router = _Router(boxes, width, height)
    ways: dict[int, Way] = {}
    # A value that an instruction passes to itself has only one possible path, so these come first and the others avoid them.
    for number in sorted(range(len(stops)), key=lambda at: problem.edges[at].source != problem.edges[at].target):
        places = [(slot_middle(slot), middle[tile]) for slot, tile in stops[number]]
        ways[number] = router.way(problem.edges[number], places)
    return Layout(rows, boxes, tuple(ways[number] for number in range(len(stops))), width, height)


def slot_middle(slot: int) -> float:
    """Horizontal position of the middle of a slot."""
    return MARGIN + (slot + 0.5) * SLOT


def _stops(problem: Problem, plan: Plan, number: int) -> list[tuple[int, int]]:
    """(slot, tile) pairs that a value passes through."""
    machine, source = problem.machine, problem.edges[number].source
    at, clock = plan.tiles[source], plan.times[source] + problem.latencies[source]
    stops = []
    for link in plan.routes[number][:-1]:
        after = machine.end(at, link)
        assert after is not None
        at, clock = after, clock + machine.links[link].clocks
        stops.append((clock % plan.ii, at))
    return stops


def _rows(tiles: int, busy: set[int]) -> tuple[Row, ...]:
    """The rows of all tiles."""
    rows: list[Row] = []
    top = MARGIN
    for tile in range(tiles):
        if tile in busy:
            rows.append(Row(tile, tile, top, 1.0, is_idle=False))
        elif rows and rows[-1].is_idle:
            rows[-1] = Row(rows[-1].first, tile, rows[-1].top, IDLE, is_idle=True)
            continue
        else:
            rows.append(Row(tile, tile, top, IDLE, is_idle=True))
        top += rows[-1].height
    return tuple(rows)


class _Router:
    """Finds paths between boxes that cross few boxes and do not lie on other paths."""

    def __init__(self, boxes: Sequence[Point], width: float, height: float):
        self._boxes = np.array(boxes, dtype=np.float64).reshape(-1, 2)
        self._size = np.array((width, height))
        self._used_points = np.empty((0, 2))
        self._stops: Counter[Point] = Counter()

    def way(self, edge: Edge, stops: list[Point]) -> Way:
        """The path of the value of an edge, from the box of its producer to that of its consumer, through the ``stops``."""
        begin, end = (self._middle(number) for number in (edge.source, edge.target))
        if edge.source == edge.target and not stops:
            x, y = begin
            right = x + WIDE / 2
            loop = ((right, y - 0.14), (right + 0.42, y - 0.34), (right + 0.42, y + 0.34), (right, y + 0.14))
            self._used_points = np.concatenate((self._used_points, _points_on(loop)))
            return Way((loop,), (), edge.distance, (right + 0.2, y - 0.34), edge.asynchronous)
        halts: list[Point] = []
        for stop in stops:
            halts.append(self._stop_position(stop, halts[-1] if halts else begin))
        places: list[tuple[Point, int | None]] = [(begin, edge.source), *((halt, None) for halt in halts), (end, edge.target)]
        curves = tuple(self._leg(*places[at], *places[at + 1]) for at in range(len(places) - 1))
        points = _points_on(curves[len(curves) // 2])
        x, y = points[len(points) // 2]
        return Way(curves, tuple(halts), edge.distance, (float(x), float(y)), edge.asynchronous)

    def _middle(self, number: int) -> Point:
        x, y = self._boxes[number]
        return float(x), float(y)

    def _stop_position(self, stop: Point, before: Point) -> Point:
        """A position for a stop between the slots, because an instruction may be in the middle of its slot."""
        side = -1 if before[0] < stop[0] - SLOT / 2 else 1
        place = (stop[0] + side * SLOT / 2, stop[1])
        count = self._stops[place]
        self._stops[place] += 1
        return place[0], place[1] + (count % 5) * 0.16 * (-1) ** count

    def _leg(self, begin: Point, source: int | None, end: Point, target: int | None) -> tuple[Point, ...]:
        """The cheapest curve (:meth:`_cost`) between two boxes or stops. ``source`` and ``target`` are the numbers of the
        boxes' instructions; None for a stop."""
        choices = [_bent_curve(begin, source is not None, end, target is not None, bend) for bend in _BENDS]
        choices += _side_curves(begin, source is not None, end, target is not None)
        best = min(choices, key=lambda way: self._cost(way, source, target))
        self._used_points = np.concatenate((self._used_points, _points_on(best)))
        return best

    def _cost(self, curve: tuple[Point, ...], source: int | None, target: int | None) -> float:
        """The cost of a curve: first for boxes that it crosses, then for other paths that it lies on, then for its length."""
        points = _points_on(curve)
        away = np.abs(points[:, None, :] - self._boxes[None, :, :])
        inside = (away[:, :, 0] < WIDE / 2 + 0.04) & (away[:, :, 1] < HIGH / 2 + 0.03)
        ends = [number for number in (source, target) if number is not None]
        # At its ends a path touches the boxes, but must not run through them.
        own = (away[2:-2, ends, 0] < WIDE / 2 - 0.02) & (away[2:-2, ends, 1] < HIGH / 2 - 0.02)
        inside[:, ends] = False
        outside = ((points < 0.02) | (points > self._size - 0.02)).any()
        near = np.abs(points[:, None, :] - self._used_points[None, -_MAX_POINTS:, :]).max(axis=2) < 0.08
        length = float(np.hypot(*np.diff(points, axis=0).T).sum())
        crossed = int(inside.any(axis=0).sum()) + int(own.any())
        return 10.0 * crossed + 40.0 * bool(outside) + 6 * float(near.any(axis=1).mean()) + 0.3 * length


#: Maximum number of points on earlier paths that a new one is compared with.
_MAX_POINTS = 4000


def _points_on(curve: tuple[Point, ...]) -> NDArray[np.float64]:
    """The positions ``[n, 2]`` of n points along a Bézier curve with one or two control points."""
    points = np.array(curve, dtype=np.float64)
    parts = np.linspace(0.0, 1.0, 41)[:, None]
    order = len(points) - 1
    factors = [math.comb(order, at) * parts**at * (1 - parts) ** (order - at) for at in range(order + 1)]
    curve_points: NDArray[np.float64] = np.concatenate(factors, axis=1) @ points
    return curve_points


def _bent_curve(begin: Point, from_box: bool, end: Point, to_box: bool, bend: float) -> tuple[Point, ...]:
    """A curve between two positions, each of which is the middle of a box or a stop. At a box, it begins or ends at the border.
    ``bend`` is its greatest distance from a straight line, as a part of its length."""
    across, down = end[0] - begin[0], end[1] - begin[1]
    # The control point is twice as far away as the curve.
    handle = ((begin[0] + end[0]) / 2 - 2 * bend * down, (begin[1] + end[1]) / 2 + 2 * bend * across)
    return (_border(begin, handle) if from_box else begin, handle, _border(end, handle) if to_box else end)


def _side_curves(begin: Point, from_box: bool, end: Point, to_box: bool) -> list[tuple[Point, ...]]:
    """Curves that leave and reach boxes at their sides, so that they run between the slots."""
    sides = ((1, 1), (-1, -1)) if abs(begin[0] - end[0]) < 0.1 else ((1, -1),) if begin[0] < end[0] else ((-1, 1),)
    curves: list[tuple[Point, ...]] = []
    for first, last in sides:
        left = (begin[0] + first * WIDE / 2 * from_box, begin[1])
        right = (end[0] + last * WIDE / 2 * to_box, end[1])
        curves += [(left, (left[0] + first * swing, left[1]), (right[0] + last * swing, right[1]), right) for swing in _SWINGS]
    return curves


def _border(box: Point, towards: Point) -> Point:
    """The point where a line from the middle of a box to another point meets the border."""
    across, down = towards[0] - box[0], towards[1] - box[1]
    scale = max(abs(across) / (WIDE / 2), abs(down) / (HIGH / 2), 1.0)
    return (box[0] + across / scale, box[1] + down / scale)
