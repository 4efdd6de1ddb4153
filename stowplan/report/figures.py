"""Pictures as files: SVG by ourselves, which the page takes too, PNG and PDF by matplotlib; the same bytes each time.

Matplotlib is an optional package (extra ``viz``) and is imported when the first PNG or PDF is written.
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

#: Type 3 fonts are what makes PDF files of equal pictures not editable.
_STYLE: Any = {"pdf.fonttype": 42, "font.family": "sans-serif"}
#: What keeps the date and the like out of a file.
_UNDATED: dict[str, dict[str, Any]] = {".png": {"Software": None}, ".pdf": {"CreationDate": None}}

#: Pixels an inch.
_DPI = 130

_ALIGN = {"start": "left", "middle": "center", "end": "right"}

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
            parts.append(f' stroke-dasharray="{" ".join(f"{length:g}" for length in style.dash)}"')
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


def check_format(path: str | Path) -> str:
    """Suffix of a picture that can be written, in small letters.

    Raises
    ------
    UsageError
        For a suffix other than .png, .svg and .pdf.
    MissingDependencyError
        For PNG and PDF without matplotlib.
    """
    suffix = Path(path).suffix.lower()
    if suffix not in FORMATS:
        raise UsageError(f"found picture format {suffix or 'none'!r}, expected .png, .svg or .pdf")
    if suffix != ".svg":
        try:
            # All that drawing takes, so that it is there when a plan is.
            import matplotlib.backends.backend_agg  # noqa: F401
        except ImportError as error:
            raise MissingDependencyError(
                f"PNG and PDF pictures need matplotlib (.svg does not): {to_install('viz')}"
            ) from error
    return suffix


def save_picture(picture: Picture, path: str | Path) -> None:
    """Write a picture; its suffix says the format.

    Raises
    ------
    UsageError, MissingDependencyError
        As :func:`check_format`.
    InputError
        If the file cannot be written.
    """
    suffix = check_format(path)
    paper = lay_out(picture)
    files.write_atomic(path, svg_file(paper).encode() if suffix == ".svg" else _by_matplotlib(paper, suffix))


def _by_matplotlib(paper: Paper, suffix: str) -> bytes:
    import matplotlib as mpl
    from matplotlib.figure import Figure

    stream = io.BytesIO()
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(paper.width / 72, paper.height / 72))
        draw_paper(paper, figure.add_axes((0.0, 0.0, 1.0, 1.0)))
        figure.savefig(stream, format=suffix[1:], dpi=_DPI, metadata=_UNDATED[suffix])
    return stream.getvalue()


def draw_paper(paper: Paper, ax: Axes) -> None:
    """Draw paper into axes of matplotlib, which become nothing but paper."""
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
            # Dashes of matplotlib are counted in widths of their line.
            linestyles=[
                (0, tuple(length / form.style.width for length in form.style.dash)) if form.style.dash else "solid"
                for form in forms
            ],
            zorder=order,
        )
    )


def _write(item: Text, ax: Axes, order: int) -> None:
    from matplotlib.patheffects import withStroke

    written = ax.text(
        item.x,
        item.y,
        # A dollar sign would start a formula.
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
