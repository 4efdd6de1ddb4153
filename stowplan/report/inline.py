"""Plots in the HTML report: inline SVG that stretches with the page, with labels as HTML, which do not stretch.

A plot is a column of labels next to a scrollable area with the panels, which share one horizontal axis. Drawings use a
coordinate system of :data:`WIDE` by :data:`HIGH`, whatever their size on the page.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from html import escape
from itertools import groupby

from stowplan.report.boxes import DENSE, MAX_NAMES, Boxes
from stowplan.report.colours import PALETTE, ink_on, on_page
from stowplan.report.figures import attributes
from stowplan.report.page import Details, zoom_buttons
from stowplan.report.scene import GRID, Arrow, Axis, Dot, Key, Line, Mark, Panel, Plot, Rect, Style, Text
from stowplan.report.text import format_bytes, shorten

WIDE, HIGH = 20_000, 2_000

#: Maximum number of boxes of one plan with descriptions; smaller boxes beyond that are only drawn.
MAX_DESCRIBED_BOXES = 6_000
#: Maximum number of characters of a name in a box.
MAX_NAME_LETTERS = 60
#: ``LETTERS`` is the number of characters that fit across a plot next to another plot, and ``LETTERS_ALONE`` across a plot that
#: is alone. ``LINES`` is the number of lines of text that fit above each other in a layout of boxes, and ``LETTERS_UP`` the
#: number of characters of a vertical text that fit there.
LETTERS, LETTERS_ALONE, LINES, LETTERS_UP = 74, 130, 26, 50


def plot_html(plot: Plot, name: str, details: Details | None = None, letters: int = LETTERS_ALONE) -> str:
    """A plot as HTML; ``name`` describes it for readers who cannot see it.

    Parameters
    ----------
    details
        Collects descriptions of boxes for the page's script.
    letters
        Number of characters that fit across the plot.
    """
    labels = "".join(_labels(panel) for panel in plot.panels)
    panels = "".join(_panel(panel, plot.across, details or Details(), letters) for panel in plot.panels)
    longest = max((len(text) for panel in plot.panels for _, text in panel.up.ticks), default=0)
    width = f"{min(longest, 36) * 0.52 + 1.2 + 1.3 * any(panel.up.title for panel in plot.panels):.1f}em"
    return (
        f'<div class="plot" style="--labels:{width};--gap:{plot.gap:g}px">'
        f'<div class="labels">{labels}<div class="h-ticks"></div></div>'
        f'<div class="scroller" tabindex="0" role="group" aria-label="{escape(name)}">'
        f'<div class="panels">{panels}{_across(plot.across)}</div></div></div>'
    )


def plot_figure(plot: Plot, caption: str = "", details: Details | None = None, letters: int = LETTERS_ALONE) -> str:
    """A plot below its heading and a caption (plain text)."""
    heading = f"<h3>{escape(plot.heading)}</h3>" if plot.heading else ""
    caption_html = f"<figcaption>{escape(caption)}</figcaption>" if caption else ""
    return f"<figure>{heading}{caption_html}{plot_html(plot, plot.heading or caption, details, letters)}</figure>"


def layouts_html(intro: str, plots: Sequence[tuple[Plot, str]], details: Details) -> str:
    """Plots with captions side by side, below an introduction (HTML) and buttons that zoom all of them."""
    letters = LETTERS if len(plots) > 1 else LETTERS_ALONE
    figures = "".join(plot_figure(plot, caption, details, letters) for plot, caption in plots)
    return f'<p>{intro}</p>\n{zoom_buttons()}<div class="plans">{figures}</div>'


def legend_html(keys: Iterable[Key]) -> str:
    """A legend as a list."""
    items = []
    for key in keys:
        if key.shape == "line":
            dash = "dashed" if key.style.dash else "solid"
            mark = f'<i style="border-top:{max(1.0, key.style.width):g}px {dash} {on_page(key.style.stroke)}"></i>'
        else:
            colour = key.style.fill if key.style.fill != "none" else "transparent"
            edge = f";outline:1px {'dashed' if key.style.dash else 'solid'} {on_page(key.style.stroke)}"
            edge = edge if key.style.stroke != "none" else ""
            mark = f'<i class="patch" style="background:{on_page(colour)}{edge}"></i>'
        items.append(f"<li>{mark}{escape(key.text)}</li>")
    return f'<ul class="legend">{"".join(items)}</ul>\n'


def _labels(panel: Panel) -> str:
    """The labels left of a panel."""
    ticks = "".join(
        f'<span class="tick" style="bottom:{panel.up.part(value) * 100:.2f}%">{escape(text)}</span>'
        for value, text in panel.up.ticks
    )
    title = f'<span class="unit">{escape(panel.up.title)}</span>' if panel.up.title else ""
    return f'{_heading(panel)}<div style="height:{panel.height:g}px">{ticks}{title}</div>'


def _heading(panel: Panel, text: str = "") -> str:
    return f'<div class="panel-title">{escape(text)}</div>' if panel.title else ""


def _across(axis: Axis) -> str:
    """The labels below a plot. Minor ones are shown only if the plot is zoomed."""
    parts = []
    for value, label in [*axis.ticks, *(tick for tick in axis.minor if tick not in axis.ticks)]:
        place = axis.part(value)
        kind = " first" if place < 0.01 else " last" if place > 0.97 else ""
        kind += "" if (value, label) in axis.ticks else " minor"
        parts.append(f'<span class="xtick{kind}" style="left:{place * 100:.2f}%">{escape(label)}</span>')
    return f'<div class="h-ticks">{"".join(parts)}<span class="axis">{escape(axis.title)}</span></div>'


def _panel(panel: Panel, across: Axis, details: Details, letters: int) -> str:
    """A panel with its marks."""
    lines: list[Mark] = [Line([(across.low, value), (across.high, value)], GRID) for value, _ in panel.up.ticks]
    marks = [*(lines if panel.is_framed else []), *panel.marks]
    # Marks after the boxes are drawn above them.
    end = max((at + 1 for at, mark in enumerate(marks) if isinstance(mark, Boxes)), default=len(marks))
    below, above = ([mark for mark in part if not isinstance(mark, (Boxes, Text))] for part in (marks[:end], marks[end:]))
    content = _svg(_marks(below, across, panel.up), panel.spoken)
    content += "".join(_boxes(mark, across, panel.up, details, letters) for mark in marks if isinstance(mark, Boxes))
    content += _svg(_marks(above, across, panel.up), "Marks above the boxes", ' class="above"') if above else ""
    content += "".join(_words(mark, across, panel.up) for mark in marks if isinstance(mark, Text))
    frame = ' class="frame"' if panel.is_framed else ""
    return f'{_heading(panel, panel.title)}<div{frame} style="height:{panel.height:g}px">{content}</div>'


def _svg(content: str, spoken: str, more: str = "") -> str:
    return (
        f'<svg viewBox="0 0 {WIDE} {HIGH}" preserveAspectRatio="none" role="img" aria-label="{escape(spoken)}"{more}>'
        f"{content}</svg>"
    )


def _marks(marks: Sequence[Mark], across: Axis, up: Axis) -> str:
    """SVG of marks. Consecutive marks of one style become one group. In a group, each mark that has a tip, a text for when the
    pointer is on it, is a path of its own; all other marks are one path together."""
    parts = []
    for style, group in groupby(marks, key=_style_of):
        paths, rest = [], []
        for mark in group:
            path = _path(mark, across, up)
            tip = getattr(mark, "tip", "")
            if tip:
                paths.append(f'<path data-tip="{escape(tip)}" d="{path}"/>')
            else:
                rest.append(path)
        if rest:
            paths.append(f'<path d="{"".join(rest)}"/>')
        parts.append(f"<g{attributes(style, on_page)}>{''.join(paths)}</g>")
    return "".join(parts)


def _style_of(mark: Mark) -> Style:
    """The style of the path that draws a mark. It differs from the style of the mark if the mark is a dot."""
    if isinstance(mark, Dot):
        # A dot is a stroke of length 0 with round ends, which stays a circle however the drawing is stretched.
        style = mark.style
        colour = style.fill if style.fill != "none" else style.stroke
        return Style(stroke=colour, width=mark.size, name=f"dot {style.name}".strip())
    assert not isinstance(mark, (Boxes, Text, Arrow)), "plots that stretch have no such marks here"
    return mark.style


def _path(mark: Mark, across: Axis, up: Axis) -> str:
    """The ``d`` attribute of a mark."""

    def at(x: float, y: float) -> tuple[int, int]:
        return round(WIDE * across.part(x)), round(HIGH * (1 - up.part(y)))

    if isinstance(mark, Rect):
        (x, bottom), (right, y) = at(mark.left, mark.bottom), at(mark.right, mark.top)
        return _rectangle(min(x, right), max(x, right), min(y, bottom), max(y, bottom))
    if isinstance(mark, Dot):
        x, y = at(mark.x, mark.y)
        return f"M{x} {y}h0"
    assert isinstance(mark, Line)
    parts: list[str] = []
    before = (-1, -1)
    for point in mark.points:
        x, y = at(*point)
        if not parts:
            parts.append(f"M{x} {y}")
        elif x == before[0]:
            parts.append(f"V{y}")
        else:
            parts.append(f"H{x}" if y == before[1] else f"L{x} {y}")
        before = x, y
    return "".join(parts) + ("z" if mark.style.fill != "none" and parts else "")


def _rectangle(left: int, right: int, top: int, bottom: int) -> str:
    """A rectangle, at least one unit wide and high."""
    width, height = max(1, right - left), max(1, bottom - top)
    return f"M{left} {top}h{width}v{height}h{-width}z"


def _words(mark: Text, across: Axis, up: Axis) -> str:
    """HTML of a text."""
    x, y = across.part(mark.x) * 100, up.part(mark.y) * 100
    shift = {"start": "0", "middle": "-50%", "end": "-100%"}[mark.align]
    return (
        f'<span class="words" style="left:{x:.2f}%;bottom:{y:.2f}%;transform:translate({shift},50%);'
        f'color:{on_page(mark.colour)}">{escape(mark.text)}</span>'
    )


def _boxes(mark: Boxes, across: Axis, up: Axis, details: Details, letters: int) -> str:
    """The boxes of a layout, with names in those that have space for one; adds their descriptions to ``details``."""
    boxes = mark.boxes
    rows: list[tuple[float, float, str, str]] = []
    groups: defaultdict[int, list[str]] = defaultdict(list)
    names: list[str] = []
    rest: defaultdict[int, list[str]] = defaultdict(list)
    for index in sorted(range(len(boxes)), key=lambda i: (-boxes[i].area, i)):
        box = boxes[index]
        bottom, top = up.part(box.bottom), up.part(box.bottom + box.size)
        left, right = across.part(box.left), across.part(box.right)
        path = _rectangle(round(WIDE * left), round(WIDE * right), round(HIGH * (1 - top)), round(HIGH * (1 - bottom)))
        if len(rows) >= MAX_DESCRIBED_BOXES:
            rest[mark.colours[box.owner]].append(path)
            continue
        name, size = mark.describe(box.owner)
        details.tensors[box.owner] = (name, format_bytes(size))
        # A thin box has no outline in the background colour, which would cover it.
        is_thin = len(boxes) <= DENSE and (top - bottom < 0.008 or right - left < 0.003)
        kind = ' class="fixed"' if box.fixed else ' class="thin"' if is_thin else ""
        groups[box.owner].append(f'<path{kind} d="{path}" data-i="{len(rows)}"/>')
        begin, end = (box.left, box.right) if mark.times is None else mark.times[index]
        rows.append((begin, end, format_bytes(box.bottom), mark.note(index)))
        if len(names) < MAX_NAMES:
            names += _name(name, left, right, bottom, top, ink_on(mark.colour(box)), letters)
    details.plans.append(rows)
    drawn = "".join(f'<path fill="{PALETTE[colour]}" d="{"".join(paths)}"/>' for colour, paths in sorted(rest.items()))
    drawn += "".join(
        f'<g data-t="{owner}" fill="{PALETTE[mark.colours[owner]]}">{"".join(paths)}</g>'
        for owner, paths in sorted(groups.items())
    )
    dense = " dense" if len(boxes) > DENSE else ""
    more = f' class="boxes{dense}" data-plan="{len(details.plans) - 1}"'
    return _svg(drawn, "Boxes of the layout; point at one to see its name", more) + (
        f'<div class="names" aria-hidden="true">{"".join(names)}</div>'
    )


def _name(name: str, left: float, right: float, bottom: float, top: float, colour: str, across: int) -> list[str]:
    """The name of a box, horizontal or vertical; empty if there is no space. Positions are parts of the panel's size."""
    wide, high = right - left, top - bottom
    least = min(len(name), 6)
    # Some names fit only if the page is zoomed, and are hidden until then.
    for zoom, later in ((1, ""), (4, "later")):
        horizontal, vertical = round(wide * zoom * across), round(high * LETTERS_UP)
        if high * LINES >= 1 and horizontal >= least:
            kinds = later
            break
        if wide * zoom * across >= 2.6 and vertical >= least and vertical > horizontal:
            kinds = f"up {later}".strip()
            break
    else:
        return []
    kind = f' class="{kinds}"' if kinds else ""
    text = shorten(name, MAX_NAME_LETTERS)
    # The page shortens the beginning to the available space. The end is kept, because numbered names differ there.
    begin, end = (text[:-4], text[-4:]) if len(text) > least else (text, "")
    return [
        f'<span{kind} style="left:{left * 100:.2f}%;width:{wide * 100:.2f}%;'
        f'bottom:{bottom * 100:.2f}%;height:{high * 100:.2f}%;color:{colour}">'
        f"<b>{escape(begin)}</b>{f'<i>{escape(end)}</i>' if end else ''}</span>"
    ]
