"""Pictures on paper: lays out a :class:`~stowplan.report.scene.Picture` in points, as shapes and text for any renderer.

The origin is the upper left corner. Widths of texts are estimates for common sans-serif fonts, because fonts are not available
here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from stowplan.report import scene
from stowplan.report.boxes import DENSE, Box, Boxes, choose_tags, name_boxes, place_tags
from stowplan.report.colours import PALETTE, ink_on
from stowplan.report.text import format_bytes, shorten

#: Font sizes in points: heading of the picture, of a plot and of a panel, and all other text.
_TITLE, _HEADING, _PANEL, _SMALL = 12.0, 10.0, 9.0, 8.0
#: Points around everything, and between plots of a row and between rows.
_MARGIN, _BETWEEN = 12.0, 20.0
#: Height of an entry of a legend, and size of a dot in it, in points.
_KEY, _DOT = 15.0, 6.0
#: Average width of a character as a part of its height.
_LETTER = 0.55

#: Look of a tag, a number in a box, which the legend explains.
_TAG = scene.Style(fill="#ffffff", stroke="#555555", width=0.5, opacity=0.92)


@dataclass(frozen=True)
class Form:
    """A path. The commands ``M`` (move) and ``L`` (line) take one point each, ``Q`` (quadratic curve) two and ``C`` (cubic
    curve) three; ``Z`` closes the path."""

    ops: str
    """The commands, one letter each, as in SVG."""
    points: Sequence[scene.Point]
    """The points of all commands, one after the other."""
    style: scene.Style
    tip: str = ""


@dataclass
class Paper:
    """A picture in points: its size, and its items in the order in which they are drawn, so that later ones cover earlier
    ones."""

    width: float
    height: float
    """Points, as ``width``."""
    items: list[Form | scene.Text] = field(default_factory=list)


@dataclass(frozen=True)
class Place:
    """A panel and its rectangle on the paper, in points."""

    across: scene.Axis
    panel: scene.Panel
    left: float
    right: float
    top: float
    bottom: float

    def at(self, x: float, y: float) -> scene.Point:
        """The position of a data point on the paper."""
        part = self.across.part(x), self.panel.up.part(y)
        return self.left + part[0] * (self.right - self.left), self.bottom - part[1] * (self.bottom - self.top)

    @property
    def scale(self) -> tuple[float, float]:
        """Points of a unit of the horizontal axis, and of the vertical axis."""
        across = abs(self.across.high - self.across.low) or 1.0
        up = abs(self.panel.up.high - self.panel.up.low) or 1.0
        return (self.right - self.left) / across, (self.bottom - self.top) / up


def lay_out(picture: scene.Picture) -> Paper:
    """Lays out a picture."""
    layout = _Layout(picture)
    return layout.paper


def text_width(text: str, size: float) -> float:
    """Estimated width of a text in points."""
    return len(text) * size * _LETTER


class _Layout:
    """The layout of one picture."""

    def __init__(self, picture: scene.Picture):
        self.paper = Paper(picture.width + 2 * _MARGIN, 0.0)
        self._rows: list[tuple[float, list[Place], list[scene.Key]]] = []
        """(upper edge, places of panels, legend) for each row of plots."""
        top = _MARGIN + (_TITLE + 12 if picture.title else 0)
        for row in picture.rows:
            # Rows with equally many plots have the same margin, so that their plots are aligned.
            aligned = [plot for plots in picture.rows if len(plots) == len(row) for plot in plots]
            top = self._place_row(row, top, picture.width, _margin(aligned)) + _BETWEEN
        self.paper.height = top - _BETWEEN + _MARGIN / 2
        drawn = [self._marks(place) for _, places, _ in self._rows for place in places]
        self._name(drawn)
        self._list_legends()
        if picture.title:
            middle = (self.paper.width if picture.width > 500 else picture.width) / 2
            self._write(middle, _MARGIN + _TITLE / 2, shorten(picture.title, 130), _TITLE, "ink", "middle")

    def _write(self, x: float, y: float, text: str, size: float = _SMALL, colour: str = "soft", align: str = "start") -> None:
        """Adds a text."""
        self.paper.items.append(scene.Text(x, y, text, size, colour, align))  # type: ignore[arg-type]

    def _place_row(self, row: Sequence[scene.Plot], top: float, width: float, margin: float) -> float:
        """Places the plots of a row side by side with their labels, for which ``margin`` points are left of each plot. Returns
        the lower edge."""
        plot_width = (width - _BETWEEN * (len(row) - 1)) / len(row)
        ends, places, keys = [], [], dict[scene.Key, None]()
        for number, plot in enumerate(row):
            left = _MARGIN + number * (plot_width + _BETWEEN)
            inner, at = left + margin, top
            if plot.heading:
                room = int((left + plot_width - inner) / _HEADING / _LETTER)
                self._write(inner, at + _HEADING / 2, shorten(plot.heading, room), _HEADING, "ink")
                at += _HEADING + 8
            for panel in plot.panels:
                if panel.title:
                    room = int((left + plot_width - inner) / _PANEL / _LETTER)
                    self._write(inner, at + _PANEL / 2, shorten(panel.title, room), _PANEL, "ink")
                    at += _PANEL + 6
                places.append(Place(plot.across, panel, inner, left + plot_width, at, at + panel.height))
                if panel.up.title:
                    middle = scene.Text(left + _SMALL / 2, at + panel.height / 2, panel.up.title, _SMALL, is_turned=True)
                    self.paper.items.append(middle)
                at += panel.height + plot.gap
            at = self._write_across(plot, places[-1], at - plot.gap)
            ends.append(at)
            keys.update(dict.fromkeys(plot.legend))
        self._rows.append((top, places, list(keys)))
        return max(ends)

    def _write_across(self, plot: scene.Plot, last: Place, at: float) -> float:
        """Adds the labels of the horizontal axis; returns their lower edge."""
        if plot.across.ticks:
            for value, text in plot.across.ticks:
                self._write(last.at(value, 0)[0], at + 9, text, _SMALL, "soft", "middle")
            at += 15
        if plot.across.title:
            self._write((last.left + last.right) / 2, at + 8, plot.across.title, _SMALL, "soft", "middle")
            at += 14
        return at

    def _marks(self, place: Place) -> list[tuple[Place, Boxes]]:
        """Adds the marks of a panel; returns its marks of boxes, which get names after everything has been drawn."""
        panel = place.panel
        for value, text in panel.up.ticks:
            y = place.at(place.across.low, value)[1]
            if panel.is_framed:
                self._form("ML", [(place.left, y), (place.right, y)], scene.GRID)
            self._write(place.left - 5, y, text, _SMALL, "soft", "end")
        with_names = []
        for mark in panel.marks:
            self.paper.items += _drawn(mark, place)
            if isinstance(mark, Boxes):
                with_names.append((place, mark))
        if panel.is_framed:
            corners = [(place.left, place.top), (place.left, place.bottom), (place.right, place.bottom)]
            self._form("MLL", corners, scene.Style(stroke="soft", width=0.8))
        return with_names

    def _form(self, ops: str, points: Sequence[scene.Point], style: scene.Style) -> None:
        """Adds a path."""
        self.paper.items.append(Form(ops, points, style))

    def _name(self, drawn: Sequence[list[tuple[Place, Boxes]]]) -> None:
        """Adds names to boxes, and numbers to the largest boxes without a name, which the legend of the first row explains."""
        layouts = [layout for of_panel in drawn for layout in of_panel]
        named = []
        for place, mark in layouts:
            names = name_boxes(mark, *place.scale)
            for name in names:
                box = name.box
                x, y = place.at((box.left + box.right) / 2, box.bottom + box.size / 2)
                colour = ink_on(mark.colour(box))
                self.paper.items.append(scene.Text(x, y, name.text, 7.0, colour, is_turned=name.is_vertical))
            named.append({name.box.owner for name in names})
        tags = choose_tags((mark.boxes, owners) for (_, mark), owners in zip(layouts, named, strict=True))
        for (place, mark), owners in zip(layouts, named, strict=True):
            wanted = {owner: number for owner, number in tags.items() if owner not in owners}
            for owner, (x, y) in place_tags(mark.boxes, wanted, *place.scale).items():
                at = place.at(x, y)
                half = 3.2 + text_width(str(tags[owner]), 6) / 2
                self._form("MLLLZ", _corners(at[0] - half, at[0] + half, at[1] - 4.5, at[1] + 4.5), _TAG)
                self._write(*at, str(tags[owner]), 6.0, "#111111", "middle")
        if tags:
            mark = layouts[0][1]
            keys = [scene.Key("numbered boxes, the largest first", scene.Style())]
            for owner, number in tags.items():
                called, size = mark.describe(owner)
                text = f"{number}  {shorten(called, 28)}, {format_bytes(size)}"
                keys.append(scene.Key(text, scene.Style(fill=PALETTE[mark.colours[owner]])))
            self._rows[0][2][:0] = keys

    def _list_legends(self) -> None:
        """Adds legends at the right of their rows, and widens the paper for them."""
        wide = max((text_width(key.text, _SMALL) for _, _, keys in self._rows for key in keys), default=None)
        if wide is None:
            return
        left = self.paper.width + 4
        self.paper.width = left + 20 + wide + _MARGIN
        for top, _, keys in self._rows:
            for number, key in enumerate(keys):
                y = top + _KEY * (number + 0.5)
                self.paper.items += _key(key, left, y)
                self._write(left + (20 if key.style != scene.Style() else 0), y, key.text, _SMALL, "ink")
            self.paper.height = max(self.paper.height, top + _KEY * len(keys) + _MARGIN)


def _margin(plots: Sequence[scene.Plot]) -> float:
    """Points for the labels left of these plots, which are below each other."""
    axes = [panel.up for plot in plots for panel in plot.panels]
    labels = max((text_width(text, _SMALL) for axis in axes for _, text in axis.ticks), default=0.0)
    return labels + 6 + (14 if any(axis.title for axis in axes) else 0)


def _key(key: scene.Key, left: float, y: float) -> list[Form]:
    """The symbol of an entry of a legend."""
    if key.style == scene.Style():
        return []
    # The symbol does not get the class of the drawing's marks.
    style = replace(key.style, name="")
    if key.shape == "patch":
        return [Form("MLLLZ", _corners(left + 2, left + 12, y - 5, y + 5), style)]
    if key.shape == "hatch":
        lines = list(scene.hatch(left + 1, left + 13, y - 5, y + 5, (4, -4)))
        return [Form("MLLLZ", _corners(left + 1, left + 13, y - 5, y + 5), style)] + [
            Form("ML", line.points, line.style) for line in lines
        ]
    if key.shape == "line":
        return [Form("ML", [(left, y), (left + 15, y)], style)]
    return [_dot(scene.Dot(0, 0, style, _DOT, key.shape), (left + 7, y))]


def _corners(left: float, right: float, top: float, bottom: float) -> list[scene.Point]:
    return [(left, bottom), (right, bottom), (right, top), (left, top)]


def _drawn(mark: scene.Mark, place: Place) -> Iterator[Form | scene.Text]:
    """Yields the shapes and texts of a mark."""
    if isinstance(mark, Boxes):
        yield from _boxes(mark, place)
    elif isinstance(mark, scene.Rect):
        (left, bottom), (right, top) = place.at(mark.left, mark.bottom), place.at(mark.right, mark.top)
        yield Form("MLLLZ", _corners(left, right, top, bottom), mark.style, mark.tip)
    elif isinstance(mark, scene.Line):
        if mark.points:
            ops = "M" + "L" * (len(mark.points) - 1) + ("Z" if mark.style.fill != "none" else "")
            yield Form(ops, [place.at(*point) for point in mark.points], mark.style, mark.tip)
    elif isinstance(mark, scene.Arrow):
        yield from _arrow(mark, place.at)
    elif isinstance(mark, scene.Dot):
        yield _dot(mark, place.at(mark.x, mark.y))
    else:
        x, y = place.at(mark.x, mark.y)
        yield replace(mark, x=x, y=y)


def _boxes(mark: Boxes, place: Place) -> Iterator[Form]:
    """Yields the shapes of boxes."""
    is_dense = len(mark.boxes) > DENSE
    wide, high = place.scale
    styles: dict[tuple[str, str], scene.Style] = {}

    def style(box: Box) -> tuple[str, scene.Style]:
        """Edge and style of a box."""
        # A white edge would cover a box that is as thin as the edge.
        is_thin = (box.right - box.left) * wide < 2 or box.size * high < 2
        edge = "fixed" if box.fixed else "own" if is_dense or is_thin else "white"
        colour = mark.colour(box)
        if (colour, edge) not in styles:
            stroke = {"fixed": "#111111", "own": colour, "white": "#ffffff"}[edge]
            styles[colour, edge] = scene.Style(
                fill=colour, stroke=stroke, width=1.2 if box.fixed else 0.15 if is_dense else 0.5
            )
        return edge, styles[colour, edge]

    # Consecutive boxes of one style become one path of an SVG.
    order = {edge: at for at, edge in enumerate(("own", "white", "fixed"))}
    styled = sorted(
        ((box, *style(box)) for box in mark.boxes), key=lambda boxed: (order[boxed[1]], mark.colours[boxed[0].owner])
    )
    for box, _, look in styled:
        (left, bottom), (right, top) = place.at(box.left, box.bottom), place.at(box.right, box.bottom + box.size)
        yield Form("MLLLZ", _corners(left, right, top, bottom), look)


def _arrow(mark: scene.Arrow, at: Callable[[float, float], scene.Point]) -> Iterator[Form]:
    """Yields the curves and the head of an arrow."""
    curves = [[at(*point) for point in curve] for curve in mark.curves]
    ops = "M" + "".join("Q" if len(curve) == 3 else "C" for curve in curves)
    yield Form(ops, [curves[0][0], *(point for curve in curves for point in curve[1:])], mark.style, mark.tip)
    (x, y), end = curves[-1][-2], curves[-1][-1]
    across, down = end[0] - x, end[1] - y
    length = (across**2 + down**2) ** 0.5 or 1.0
    across, down = across / length, down / length
    back = (end[0] - 7 * across, end[1] - 7 * down)
    head = [end, (back[0] - 2.8 * down, back[1] + 2.8 * across), (back[0] + 2.8 * down, back[1] - 2.8 * across)]
    yield Form("MLLZ", head, scene.Style(fill=mark.style.stroke, name=f"tip {mark.style.name}".strip()))


def _dot(mark: scene.Dot, at: scene.Point) -> Form:
    """The shape of a dot."""
    x, y, half = *at, mark.size / 2
    if mark.shape == "circle":
        # Four cubic curves approximate a circle to within 0.03 %.
        off = 0.5523 * half
        points = [(x + half, y)]
        for (cos, sin), (to_cos, to_sin) in (((1, 0), (0, 1)), ((0, 1), (-1, 0)), ((-1, 0), (0, -1)), ((0, -1), (1, 0))):
            points.append((x + cos * half + to_cos * off, y + sin * half + to_sin * off))
            points.append((x + to_cos * half + cos * off, y + to_sin * half + sin * off))
            points.append((x + to_cos * half, y + to_sin * half))
        return Form("MCCCCZ", points, mark.style, mark.tip)
    if mark.shape == "diamond":
        points = [(x, y - half), (x + half, y), (x, y + half), (x - half, y)]
    else:
        tip = y - half if mark.shape == "up" else y + half
        points = [(x, tip), (x + half, 2 * y - tip), (x - half, 2 * y - tip)]
    return Form("M" + "L" * (len(points) - 1) + "Z", points, mark.style, mark.tip)
