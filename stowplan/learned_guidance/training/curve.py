"""The training curve as a CSV file: one row for each iteration, all that is known of it."""

from __future__ import annotations

import csv
import io
import math
import os
from pathlib import Path

from stowplan import files
from stowplan.errors import InputError
from stowplan.learned_guidance.memory_mapping.muzero.trainer import Progress

COLUMNS = (
    "iteration",
    "seconds",
    "games",
    "moves",
    "training_steps",
    "best_R",
    "mean_R",
    "loss",
    "policy_loss",
    "value_loss",
    "reward_loss",
    "gradient_norm",
    "entropy",
    "value_error",
    "temperature",
    "moves_per_second",
    "steps_per_second",
)


class CurveFile:
    """Appends rows; each call writes whole lines at once, so that a reader never sees half of one.

    Parameters
    ----------
    after_iteration
        Rows of later iterations are dropped from an existing file (a run that was resumed from an earlier checkpoint); at 0 the
        file begins anew.

    Raises
    ------
    InputError
        If the file cannot be written, or is something else than a training curve.
    """

    def __init__(self, path: str | Path, after_iteration: int = 0):
        self._path = Path(path)
        rows = _rows(self._path) if after_iteration and self._path.exists() else []
        kept = [row for row in rows if int(row[0]) <= after_iteration]
        files.write_atomic(self._path, _lines([list(COLUMNS), *kept]))

    def __call__(self, progress: Progress) -> None:
        """Append an iteration."""
        try:
            handle = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
            try:
                os.write(handle, _lines([_row(progress)]))
            finally:
                os.close(handle)
        except OSError as error:
            raise InputError(f"cannot write: {error.strerror or error}", source=self._path) from error


def _row(progress: Progress) -> list[str]:
    losses = (math.nan,) * 7 if progress.losses is None else tuple(progress.losses)
    whole = (progress.iteration, f"{progress.seconds:.3f}", progress.games, progress.moves, progress.training_steps)
    real = (progress.best, progress.mean, *losses, progress.temperature)
    rates = (f"{progress.moves_per_second:.1f}", f"{progress.updates_per_second:.2f}")
    # What is not known is an empty field.
    return [*map(str, whole), *("" if math.isnan(value) else f"{value:.6g}" for value in real), *rates]


def _lines(rows: list[list[str]]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue().encode()


def _rows(path: Path) -> list[list[str]]:
    rows = list(csv.reader(files.read_text(path).splitlines()))
    if not rows or tuple(rows[0]) != COLUMNS:
        raise InputError("not a training curve: the first line does not name its columns", source=path, place="line 1")
    for number, row in enumerate(rows[1:], 2):
        if len(row) != len(COLUMNS) or not row[0].isdigit():
            raise InputError("not a row of a training curve", source=path, place=f"line {number}")
    return rows[1:]
