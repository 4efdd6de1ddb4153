"""Writes pictures to files. This module writes SVG, also for the page, and matplotlib writes PNG and PDF. Equal pictures give
equal bytes. A :class:`~stowplan.report.scene.Picture` is first laid out in points, as a :class:`~stowplan.report.paper.Paper`.

Matplotlib is an optional package (extra ``viz``), which is imported when the first PNG or PDF is written.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from html import escape
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stowplan import files
from stowplan.errors import MissingDependencyError, UsageError, to_install
from stowplan.report.colours import on_page, on_paper
from stowplan.report.paper import Form, Paper, lay_out
from stowplan.report.scene import Picture, Style, Text

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FORMATS = (".png", ".svg", ".pdf")

#: With Type 3 fonts, the default, text in PDF files could not be edited.
_STYLE: Any = {"pdf.fonttype": 42, "font.family": "sans-serif"}
#: Metadata that keep dates and versions out of the files.
_NO_METADATA: dict[str, dict[str, Any]] = {".png": {"Software": None}, ".pdf": {"CreationDate": None}}

#: Pixels per inch.
_DPI = 130

_ALIGN = {"start": "left", "middle": "center", "end": "right"}

#: Number of points after each command of a path.
_POINTS_OF_COMMAND = {"M": 1, "L": 1, "Q": 2, "C": 3, "Z": 0}
_FONT = "system-ui, 'DejaVu Sans', 'Segoe UI', Helvetica, Arial, sans-serif"


def svg_file(paper: Paper) -> str:
    """A complete SVG file on a white background."""
    return (
        '<?xml version="1.0" encoding="utf-8"?>\n'
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{paper.width:.4g}pt" height="{paper.height:.4g}pt" '
        f'viewBox="0 0 {_number(paper.width)} {_number(paper.height)}" font-family="{_FONT}">\n'
        f'<rect width="100%" height="100%" fill="#ffffff"/>\n{_content(paper, on_paper, _title)}</svg>\n'
    )


def svg_inline(paper: Paper, spoken: str) -> str:
    """An SVG element in the colours of the page; ``spoken`` describes it for readers who cannot see it."""
    return (
        f'<svg class="drawing" width="{paper.width:.0f}" height="{paper.height:.0f}" viewBox="0 0 {_number(paper.width)} '
        f'{_number(paper.height)}" role="img" aria-label="{escape(spoken)}">{_content(paper, on_page, _data_tip)}</svg>'
    )


def attributes(style: Style, paint: Callable[[str], str]) -> str:
    """A style as attributes of an SVG element; ``paint`` turns a colour of the style into a colour of SVG."""
    parts = [f' class="{style.name}"'] if style.name else []
    parts.append(f' fill="{paint(style.fill)}"')
    if style.opacity != 1:
        parts.append(f' fill-opacity="{style.opacity:g}"')
    if style.stroke != "none":
        parts.append(f' stroke="{paint(style.stroke)}" stroke-width="{style.width:g}"')
        if style.dash:
            parts.append(f' stroke-dasharray="{" ".join(f"{length:g}" for length in style.dash)}"')
    return "".join(parts)


def _content(paper: Paper, paint: Callable[[str], str], tip_markup: Callable[[str], tuple[str, str]]) -> str:
    """The items as SVG. Consecutive shapes of one style become one path, unless they have a tip."""
    parts = []
    for key, group in groupby(paper.items, key=lambda item: _key_of(item)):
        if key is None:
            parts += [_text(item, paint) for item in group if isinstance(item, Text)]
            continue
        style, tip = key
        path = "".join(_path(item.ops, item.points) for item in group if isinstance(item, Form))
        attribute, inside = tip_markup(tip) if tip else ("", "")
        parts.append(f'<path{attributes(style, paint)}{attribute} d="{path}"{f">{inside}</path>" if inside else "/>"}\n')
    return "".join(parts)


def _key_of(item: Form | Text) -> tuple[Style, str] | None:
    """Style and tip of a shape, by which shapes are grouped; None for text."""
    return None if isinstance(item, Text) else (item.style, item.tip)


def _title(tip: str) -> tuple[str, str]:
    """Attributes and content of a path with a tip in an SVG file: viewers show the element ``title``."""
    return "", f"<title>{escape(tip)}</title>"


def _data_tip(tip: str) -> tuple[str, str]:
    """Attributes and content of a path with a tip on the page, whose script shows the attribute."""
    return f' data-tip="{escape(tip)}"', ""


def _path(ops: str, points: Sequence[tuple[float, float]]) -> str:
    """The ``d`` attribute of a path."""
    if ops == "MLLLZ" and points[0][1] == points[1][1] and points[0][0] == points[3][0]:
        # Rectangles have a shorter form, because a large plan has tens of thousands of them.
        (left, bottom), (right, _), (_, top) = points[:3]
        return f"M{_number(left)} {_number(bottom)}H{_number(right)}V{_number(top)}H{_number(left)}z"
    parts, at = [], 0
    for op in ops:
        count = _POINTS_OF_COMMAND[op]
        parts.append(op + " ".join(f"{_number(x)} {_number(y)}" for x, y in points[at : at + count]))
        at += count
    return "".join(parts)


def _number(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")


def _text(item: Text, paint: Callable[[str], str]) -> str:
    """SVG of a text."""
    # Letters are centred vertically here, because not all viewers can do that.
    x, y = _number(item.x), _number(item.y)
    shift = _number(0.35 * item.size)
    turned = f' transform="rotate(-90 {x} {y})"' if item.is_turned else ""
    align = f' text-anchor="{item.align}"' if item.align != "start" else ""
    halo = f' paint-order="stroke" stroke="{paint(item.halo)}" stroke-width="2.5"' if item.halo else ""
    text = f'dy="{shift}" font-size="{item.size:g}" fill="{paint(item.colour)}"{align}{halo}{turned}'
    return f'<text x="{x}" y="{y}" {text}>{escape(item.text, quote=False)}</text>\n'


def check_format(path: str | Path) -> str:
    """Checks that pictures can be written in the format of a file's suffix, and returns the suffix in lower case.

    Raises
    ------
    UsageError
        The suffix is not .png, .svg or .pdf.
    MissingDependencyError
        The format is PNG or PDF, and matplotlib is not installed.
    """
    suffix = Path(path).suffix.lower()
    if suffix not in FORMATS:
        raise UsageError(f"found picture format {suffix or 'none'!r}, expected .png, .svg or .pdf")
    if suffix != ".svg":
        try:
            # This imports everything that drawing needs, so that it cannot fail once a plan has been found.
            import matplotlib.backends.backend_agg  # noqa: F401
        except ImportError as error:
            raise MissingDependencyError(
                f"PNG and PDF pictures need matplotlib (.svg does not): {to_install('viz')}"
            ) from error
    return suffix


def save_picture(picture: Picture, path: str | Path) -> None:
    """Writes a picture in the format of the suffix.

    Raises
    ------
    UsageError, MissingDependencyError
        As :func:`check_format` raises them.
    InputError
        The file cannot be written.
    """
    suffix = check_format(path)
    paper = lay_out(picture)
    files.write_atomic(path, svg_file(paper).encode() if suffix == ".svg" else _by_matplotlib(paper, suffix))


def _by_matplotlib(paper: Paper, suffix: str) -> bytes:
    """The file as matplotlib writes it."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    stream = io.BytesIO()
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(paper.width / 72, paper.height / 72))
        draw_paper(paper, figure.add_axes((0.0, 0.0, 1.0, 1.0)))
        figure.savefig(stream, format=suffix[1:], dpi=_DPI, metadata=_NO_METADATA[suffix])
    return stream.getvalue()


def draw_paper(paper: Paper, ax: Axes) -> None:
    """Draws a laid-out picture into axes of matplotlib, which show nothing else afterwards."""
    ax.set_xlim(0, paper.width)
    ax.set_ylim(paper.height, 0)
    ax.set_axis_off()
    for order, (is_text, items) in enumerate(groupby(paper.items, key=lambda item: isinstance(item, Text))):
        if is_text:
            for item in items:
                if isinstance(item, Text):
                    _write(item, ax, order)
        else:
            _draw([item for item in items if isinstance(item, Form)], ax, order)


def _draw(forms: list[Form], ax: Axes, order: int) -> None:
    """Draws shapes."""
    from matplotlib.collections import PathCollection
    from matplotlib.colors import to_rgba
    from matplotlib.path import Path as Line

    codes = {"M": [1], "L": [2], "Q": [3, 3], "C": [4, 4, 4], "Z": [79]}
    paths = []
    for form in forms:
        points = [*form.points, form.points[0]] if form.ops.endswith("Z") else form.points
        paths.append(Line(points, [code for op in form.ops for code in codes[op]]))
    strokes = [form.style.stroke for form in forms]
    ax.add_collection(
        PathCollection(
            paths,
            facecolors=[
                to_rgba(on_paper(form.style.fill), form.style.opacity) if form.style.fill != "none" else "none"
                for form in forms
            ],
            edgecolors=[on_paper(stroke) for stroke in strokes],
            linewidths=[form.style.width if stroke != "none" else 0 for form, stroke in zip(forms, strokes, strict=True)],
            # Matplotlib measures dashes in widths of their line.
            linestyles=[
                (0, tuple(length / form.style.width for length in form.style.dash)) if form.style.dash else "solid"
                for form in forms
            ],
            zorder=order,
        )
    )


def _write(item: Text, ax: Axes, order: int) -> None:
    """Draws a text."""
    from matplotlib.patheffects import withStroke

    written = ax.text(
        item.x,
        item.y,
        # In matplotlib a dollar sign would begin a formula.
        item.text.replace("$", r"\$"),
        fontsize=item.size,
        color=on_paper(item.colour),
        ha=_ALIGN[item.align],
        va="center",
        rotation=90 if item.is_turned else 0,
        zorder=order,
    )
    if item.halo:
        written.set_path_effects([withStroke(linewidth=2, foreground=on_paper(item.halo))])
