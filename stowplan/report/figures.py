"""Pictures as files: SVG by ourselves, PNG and PDF by matplotlib, the same bytes each time.

Matplotlib is an optional package (extra ``viz``) and is imported when the first PNG or PDF is written.
"""

from __future__ import annotations

import io
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stowplan import files
from stowplan.errors import MissingDependencyError, UsageError
from stowplan.report.colours import on_paper
from stowplan.report.paper import Form, Paper, lay_out
from stowplan.report.scene import Picture, Text
from stowplan.report.svg import svg_file

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
            import matplotlib  # noqa: F401
        except ImportError as error:
            raise MissingDependencyError(
                "PNG and PDF pictures need matplotlib (.svg does not): pip install 'stowplan[viz]'"
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
                (0, tuple(each / form.style.width for each in form.style.dash)) if form.style.dash else "solid"
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
