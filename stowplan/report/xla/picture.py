"""The picture of a tuning of XLA, after figure 8 of the paper (Wang et al. 2023): both layouts side by side."""

from __future__ import annotations

from pathlib import Path

from stowplan.backends.xla.tuning import Tuning
from stowplan.report.figures import check_format, import_matplotlib
from stowplan.report.memory_mapping.picture import save_scenes
from stowplan.report.memory_mapping.scene import TimeAxis
from stowplan.report.xla.comparison import read_comparison


def save_tuning_picture(path: str | Path, tuning: Tuning, folder: str | Path, *, time: TimeAxis = "steps") -> None:
    """Write a picture of XLA's default at the left and the best at the right, with the same colours and scales.

    Parameters
    ----------
    path
        Its suffix says the format: ``.png``, ``.svg`` or ``.pdf``.
    tuning, folder, time
        As of :func:`~stowplan.report.xla.page.save_tuning_report`. Where XLA's default is the best, it is drawn alone.

    Raises
    ------
    MissingDependencyError
        Without matplotlib.
    UsageError
        For another suffix.
    InputError
        As of :func:`~stowplan.report.xla.page.save_tuning_report`.
    """
    check_format(path)
    import_matplotlib()
    save_scenes(read_comparison(tuning, folder, time).scenes, path, name=tuning.name)
