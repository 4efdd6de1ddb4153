"""The page about a tuning of XLA: its default beside the best, and what made the difference."""

from __future__ import annotations

from pathlib import Path

from stowplan import files
from stowplan.backends.xla.tuning import Tuning
from stowplan.report.boxes import assign_colours
from stowplan.report.memory_mapping.scene import TimeAxis
from stowplan.report.memory_mapping.sections import layouts
from stowplan.report.page import Details, warnings_box, whole_page
from stowplan.report.xla import sections
from stowplan.report.xla.changes import compare_trials
from stowplan.report.xla.comparison import read_comparison


def save_tuning_report(path: str | Path, tuning: Tuning, folder: str | Path, *, time: TimeAxis = "steps") -> None:
    """Write the page about a tuning; the same tuning gives the same bytes.

    Parameters
    ----------
    path
        The HTML file.
    tuning
        What it is about.
    folder
        Of results that it was run with: those of XLA's default and of the best must be there.
    time
        Axis of the layouts: logical steps, or simulated time.

    Raises
    ------
    InputError
        If a result is not there, cannot be read or is another than the tuning's, or the page cannot be written.
    """
    text = render_tuning_report(tuning, folder, time=time)
    files.write_atomic(path, text.encode("utf-8", errors="replace"))


def render_tuning_report(tuning: Tuning, folder: str | Path, *, time: TimeAxis = "steps") -> str:
    """Text of the page that :func:`save_tuning_report` writes."""
    comparison = read_comparison(tuning, folder, time)
    colours = assign_colours([scene.boxes for _, scene in comparison.scenes])
    details = Details()
    changes = compare_trials(comparison)
    parts = [
        sections.options(tuning),
        sections.trials(tuning),
        layouts(comparison.scenes, colours, details),
        *sections.instructions(changes, comparison),
        *sections.tensors(changes, comparison, colours),
        sections.notes(comparison),
    ]
    return whole_page(
        f"{tuning.name or 'program'}: XLA tuned for {tuning.target}",
        [sections.summary(tuning, comparison), warnings_box(tuning.notes), *(part.html() for part in parts)],
        details,
    )
