"""What all pictures have in common: formats, the optional matplotlib, and files that are the same twice.

Matplotlib is an optional package (extra ``viz``) and is imported when the first picture is drawn.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stowplan import files
from stowplan.errors import MissingDependencyError, UsageError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Suffixes of pictures, with what keeps the date and the like out of the file.
FORMATS: dict[str, dict[str, Any]] = {".png": {"Software": None}, ".svg": {"Date": None}, ".pdf": {"CreationDate": None}}

#: Type 3 fonts and random identifiers are what makes vector files of equal pictures differ or not be editable.
_STYLE = {"svg.hashsalt": "stowplan", "pdf.fonttype": 42, "font.size": 9}

#: Pixels an inch of what is drawn in pixels.
_DPI = 130

#: Colours of axes and captions, of faint lines, and of the capacity.
INK, FAINT = "#333333", "#e4e4e4"


def check_format(path: str | Path) -> str:
    """Suffix of a picture, in small letters; raises :class:`~stowplan.errors.UsageError` for one that is not drawn."""
    suffix = Path(path).suffix.lower()
    if suffix not in FORMATS:
        raise UsageError(f"found picture format {suffix or 'none'!r}, expected .png, .svg or .pdf")
    return suffix


def check_pair(path: str | Path, plans: Sequence[object]) -> None:
    """Check a picture of one plan, or of two side by side; raises :class:`~stowplan.errors.UsageError`."""
    check_format(path)
    if not 1 <= len(plans) <= 2:
        raise UsageError(f"found {len(plans)} plans, expected one or two")


def import_matplotlib() -> Any:
    """The package; raises :class:`~stowplan.errors.MissingDependencyError` where it is not installed."""
    try:
        import matplotlib
    except ImportError as error:
        raise MissingDependencyError("pictures need matplotlib: pip install 'stowplan[viz]'") from error
    return matplotlib


def save_figure(
    path: str | Path, size: tuple[float, float], draw: Callable[[Figure], None], *, layout: str | None = None
) -> None:
    """Make a figure, let ``draw`` fill it, and write it; the same drawing gives the same bytes.

    Parameters
    ----------
    path
        Its suffix says the format.
    size
        Width and height, inches.
    layout
        Layout engine of matplotlib, ``constrained`` for example.

    Raises
    ------
    UsageError
        For a suffix other than .png, .svg and .pdf.
    MissingDependencyError
        Without matplotlib.
    InputError
        If the file cannot be written.
    """
    suffix = check_format(path)
    matplotlib = import_matplotlib()
    from matplotlib.figure import Figure

    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=size, layout=layout)  # type: ignore[arg-type]
        draw(figure)
        stream = io.BytesIO()
        figure.savefig(stream, format=suffix[1:], dpi=_DPI, metadata=FORMATS[suffix])
    files.write_atomic(path, stream.getvalue())


def plain(text: str) -> str:
    """Text that matplotlib leaves alone: a dollar sign would start a formula."""
    return text.replace("$", r"\$")
