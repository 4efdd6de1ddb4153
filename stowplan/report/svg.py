"""Paper as SVG, for files and for pages; needs nothing but Python."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape
from itertools import groupby

from stowplan.report.colours import on_page, on_paper
from stowplan.report.paper import Form, Paper
from stowplan.report.scene import Style, Text

#: Points that a command of a path takes.
_TAKES = {"M": 1, "L": 1, "Q": 2, "C": 3, "Z": 0}
_FONT = "system-ui, 'DejaVu Sans', 'Segoe UI', Helvetica, Arial, sans-serif"


def svg_file(paper: Paper) -> str:
    """A file by itself, on white."""
    return (
        '<?xml version="1.0" encoding="utf-8"?>\n'
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{paper.width:.4g}pt" height="{paper.height:.4g}pt" '
        f'viewBox="0 0 {_number(paper.width)} {_number(paper.height)}" font-family="{_FONT}">\n'
        f'<rect width="100%" height="100%" fill="#ffffff"/>\n{_content(paper, on_paper, _title)}</svg>\n'
    )


def svg_inline(paper: Paper, spoken: str) -> str:
    """A drawing of the page, in the page's colours; ``spoken`` says what it is to those who cannot see it."""
    return (
        f'<svg class="drawing" width="{paper.width:.0f}" height="{paper.height:.0f}" viewBox="0 0 {_number(paper.width)} '
        f'{_number(paper.height)}" role="img" aria-label="{escape(spoken)}">{_content(paper, on_page, _data_tip)}</svg>'
    )


def attributes(style: Style, paint: Callable[[str], str]) -> str:
    """A style as attributes of an element."""
    parts = [f' class="{style.name}"'] if style.name else []
    parts.append(f' fill="{paint(style.fill)}"')
    if style.opacity != 1:
        parts.append(f' fill-opacity="{style.opacity:g}"')
    if style.stroke != "none":
        parts.append(f' stroke="{paint(style.stroke)}" stroke-width="{style.width:g}"')
        if style.dash:
            parts.append(f' stroke-dasharray="{" ".join(f"{each:g}" for each in style.dash)}"')
    return "".join(parts)


def _content(paper: Paper, paint: Callable[[str], str], told: Callable[[str], tuple[str, str]]) -> str:
    """Items; shapes of one style that follow each other are one path, but for those with a tip."""
    parts = []
    for key, group in groupby(paper.items, key=lambda item: _key_of(item)):
        if key is None:
            parts += [_text(item, paint) for item in group if isinstance(item, Text)]
            continue
        style, tip = key
        path = "".join(_path(item.ops, item.points) for item in group if isinstance(item, Form))
        attribute, inside = told(tip) if tip else ("", "")
        parts.append(f'<path{attributes(style, paint)}{attribute} d="{path}"{f">{inside}</path>" if inside else "/>"}\n')
    return "".join(parts)


def _key_of(item: Form | Text) -> tuple[Style, str] | None:
    return None if isinstance(item, Text) else (item.style, item.tip)


def _title(tip: str) -> tuple[str, str]:
    return "", f"<title>{escape(tip)}</title>"


def _data_tip(tip: str) -> tuple[str, str]:
    return f' data-tip="{escape(tip)}"', ""


def _path(ops: str, points: Sequence[tuple[float, float]]) -> str:
    if ops == "MLLLZ" and points[0][1] == points[1][1] and points[0][0] == points[3][0]:
        # A rectangle in fewer letters: a large plan has tens of thousands.
        (left, bottom), (right, _), (_, top) = points[:3]
        return f"M{_number(left)} {_number(bottom)}H{_number(right)}V{_number(top)}H{_number(left)}z"
    parts, at = [], 0
    for op in ops:
        count = _TAKES[op]
        parts.append(op + " ".join(f"{_number(x)} {_number(y)}" for x, y in points[at : at + count]))
        at += count
    return "".join(parts)


def _number(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")


def _text(item: Text, paint: Callable[[str], str]) -> str:
    # Letters are set in the middle of their height, which not all viewers do themselves.
    x, y = _number(item.x), _number(item.y)
    shift = _number(0.35 * item.size)
    turned = f' transform="rotate(-90 {x} {y})"' if item.is_turned else ""
    align = f' text-anchor="{item.align}"' if item.align != "start" else ""
    halo = f' paint-order="stroke" stroke="{paint(item.halo)}" stroke-width="2.5"' if item.halo else ""
    text = f'dy="{shift}" font-size="{item.size:g}" fill="{paint(item.colour)}"{align}{halo}{turned}'
    return f'<text x="{x}" y="{y}" {text}>{escape(item.text, quote=False)}</text>\n'
