"""A training curve as a CSV file with one row for each report. A *report* has the results of one iteration of training, such as
the mean loss. The agent names the columns."""

from __future__ import annotations

import csv
import io
import math
import os
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, Generic, TypeVar, get_type_hints

from stowplan import files
from stowplan.errors import InputError


class CurveFile:
    """Appends rows to a training curve. Each call writes complete lines at once, so that a reader never sees part of a line.

    Parameters
    ----------
    columns
        Names of the columns. The first column is an integer that increases from row to row.
    after
        Rows with larger integers are removed from an existing file, in case a run is resumed from an earlier checkpoint; 0
        begins a new file. A file that is not regular, such as a pipe, stays open and is only appended to.

    Raises
    ------
    InputError
        If the file cannot be written, or is not such a curve.
    """

    def __init__(self, path: str | Path, columns: Sequence[str], after: int = 0):
        self._path, self._columns = Path(path), list(columns)
        try:
            self._open = files.open_through(path)
        except OSError as error:
            raise self._failed(error) from error
        if self._open is not None:
            weakref.finalize(self, os.close, self._open)
            self.append(self._columns)
            return
        rows = self._rows() if after and self._path.exists() else []
        files.write_atomic(self._path, _lines([self._columns, *(row for row in rows if int(row[0]) <= after)]))

    def append(self, row: Sequence[str]) -> None:
        """Append a row with a string for each column, empty for unknown values; raise InputError if the file cannot be
        written."""
        try:
            if self._open is not None:
                os.write(self._open, _lines([row]))
                return
            handle = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
            try:
                os.write(handle, _lines([row]))
            finally:
                os.close(handle)
        except OSError as error:
            raise self._failed(error) from error

    def _failed(self, error: OSError) -> InputError:
        return InputError(f"cannot write: {error.strerror or error}", source=self._path)

    def _rows(self) -> list[list[str]]:
        rows = list(csv.reader(files.read_text(self._path).splitlines()))
        if not rows or rows[0] != self._columns:
            raise InputError("not a training curve: the first line names no such columns", source=self._path, place="line 1")
        for number, row in enumerate(rows[1:], 2):
            if len(row) != len(self._columns) or not row[0].isdigit():
                raise InputError("not a row of a training curve", source=self._path, place=f"line {number}")
        return rows[1:]


@dataclass(frozen=True)
class Column:
    """Annotates a field of a :class:`Report` with the format of its numbers, and with column names.

    If a field has several column names, its value is a tuple with a number for each of them, or None.
    """

    names: tuple[str, ...] = ()
    """Names of its columns; if empty, it is one column with the name of the field."""
    form: str = ".6g"
    """Format of numbers, as for :func:`format`."""


class Report:
    """The report of a trainer, a dataclass. Each field is a column of the training curve, in the same order."""

    @classmethod
    @cache
    def _columns(cls) -> list[tuple[str, Column]]:
        columns = []
        for name, kind in get_type_hints(cls, include_extras=True).items():
            column = next((mark for mark in getattr(kind, "__metadata__", ()) if isinstance(mark, Column)), Column())
            columns.append((name, column if column.names else replace(column, names=(name,))))
        return columns

    @classmethod
    def columns(cls) -> tuple[str, ...]:
        """Return the names of the columns."""
        return tuple(name for _, column in cls._columns() for name in column.names)

    @property
    def row(self) -> list[str]:
        """A string for each of the columns, empty for unknown values."""
        cells: list[str] = []
        for name, column in self._columns():
            value = getattr(self, name)
            values = value if isinstance(value, tuple) else [math.nan if value is None else value] * len(column.names)
            cells += [cell(number, column.form) for number in values]
        return cells


L = TypeVar("L")


@dataclass
class Tally(Generic[L]):
    """Data collected between two reports."""

    results: list[float] = field(default_factory=list)
    """Result of each episode, for example its return; each agent defines what the number is."""
    losses: list[L] = field(default_factory=list)
    """Losses of each training step."""
    moves: int = 0
    """Number of decisions."""
    acting_seconds: float = 0.0
    """Seconds that decisions took."""
    learning_seconds: float = 0.0
    """Seconds that training steps took."""

    @property
    def mean_losses(self) -> L | None:
        """The mean losses; None without training steps."""
        losses: list[Any] = self.losses
        return type(self.losses[0])(*map(mean, zip(*losses, strict=True))) if losses else None

    @property
    def steps_per_second(self) -> float:
        """Training steps per second of the time spent in training steps."""
        return len(self.losses) / max(self.learning_seconds, 1e-9)


def mean(values: Sequence[float]) -> float:
    """Return the mean; NaN for an empty sequence."""
    return math.fsum(values) / len(values) if values else math.nan


def cell(value: float, form: str = ".6g") -> str:
    """Format a number for a row: integers exactly, other numbers with ``form`` (as for :func:`format`), NaN as an empty
    string."""
    return "" if math.isnan(value) else str(value) if isinstance(value, int) else format(value, form)


def _lines(rows: Sequence[Sequence[str]]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue().encode()
