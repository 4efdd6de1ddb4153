"""Output on the two standard streams: lines, JSON, tables, and the progress of a run.

If the process that reads the output closes the pipe (``| head``), the rest of the output is dropped. The run continues, and the
exit code still says how it ended.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TextIO

from stowplan import files, kinds
from stowplan.errors import UsageError
from stowplan.frontends.options import ReadOptions
from stowplan.result_text import format_gap
from stowplan.tables import aligned
from stowplan.units import PS, Unit

if TYPE_CHECKING:
    from stowplan.result import Progress

#: Text that is printed for a missing value.
NONE = "-"


def prepare_streams() -> None:
    """Makes both standard streams usable: a closed stream is replaced by one that drops its output, and characters that the
    encoding of a stream lacks are escaped."""
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, ValueError):
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]


def say(text: str) -> None:
    """Prints text and a line break on standard output. Raises :class:`~stowplan.errors.UsageError` if it cannot be written, for
    example because the disk is full."""
    try:
        sys.stdout.write(text + "\n")
        sys.stdout.flush()
    except BrokenPipeError:
        drop(sys.stdout)
    except OSError as error:
        drop(sys.stdout)
        if error.errno == errno.EIO:
            # A terminal that was closed is treated like a closed pipe.
            return
        raise UsageError(f"standard output: cannot write: {error.strerror or error}") from error


def say_json(value: Any) -> None:
    """Prints a value as JSON on standard output."""
    say(files.encode(value).decode().rstrip("\n"))


def note(text: str) -> None:
    """Prints text and a line break on standard error. It never fails."""
    try:
        sys.stderr.write(text + "\n")
        sys.stderr.flush()
    except OSError:
        drop(sys.stderr)


def note_unless_quiet(quiet: bool) -> Callable[[str], None]:
    """Returns :func:`note`, or a function that prints nothing if ``quiet`` is set."""
    return (lambda text: None) if quiet else note


def note_missing_code(quiet: bool, *names: str) -> None:
    """Prints a line if heuristics of these kinds have no machine code, unless ``quiet`` is set; by default of all kinds.

    It is for commands that solve several problems, and do not print the warnings of their results.
    """
    if quiet:
        return
    from stowplan.compiled.library import missing_code

    if text := missing_code(*(f"stowplan.portfolio.{name}" for name in names or kinds.import_paths())):
        note(f"stowplan: {text}")


def open_with_notes(path: Path, options: ReadOptions, kind: str | None = None) -> Any:
    """Reads the problem of an input, and prints warnings about parts that are not modelled; for commands that print no
    result.

    ``kind`` is the kind of problem, in words, if the command takes only one. An error about a missing target then lists only
    the targets of this kind. Raises errors as :func:`stowplan.frontends.read.open_input` does.
    """
    from stowplan.frontends.read import NoTargetError, open_input

    try:
        opened = open_input(path, options)
    except NoTargetError as error:
        raise (error if kind is None else error.for_kind(kind)) from None
    for text in opened.warnings:
        note(f"warning: {text}")
    return opened.problem


def drop(stream: TextIO) -> None:
    """Drops the text that is still buffered for a stream, and everything that is written to it later."""
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)


def render(head: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> str:
    """A table with columns two spaces apart. The first ``left`` columns are aligned to the left, the others to the right."""
    return "\n".join(aligned((head, *rows), ["" if column < left else "r" for column in range(len(head))]))


def as_quantity(value: int | None, unit: str) -> str:
    """Text of an objective or a bound, :data:`NONE` for None. ``unit`` is the name of its unit."""
    return NONE if value is None else kinds.unit(unit).write(value)


def as_gap(value: float | None) -> str:
    """Text of a gap, as a percentage; :data:`NONE` for None."""
    return NONE if value is None else format_gap(value)


def as_ratio(value: float | None) -> str:
    """Text of a speedup, with three decimals; :data:`NONE` for None."""
    return NONE if value is None else f"{value:.3f}"


class LinePrinter:
    """Context manager that shows progress as a line that later lines replace.

    On a terminal, the line is updated in place. Elsewhere, lines are printed one below the other.

    Parameters
    ----------
    quiet
        Whether nothing is shown.
    every
        Minimum number of seconds between two printed lines. The last line is always printed.
    """

    def __init__(self, quiet: bool = False, every: float = 1.0):
        self._quiet = quiet
        self._every = every
        self._live = not quiet and sys.stderr.isatty()
        self._last = -every
        self._pending: str | None = None
        self._status: object | None = None

    def __enter__(self) -> Self:
        if self._live:
            from rich.console import Console

            status = Console(stderr=True).status("starting")
            status.start()
            self._status = status
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._status is not None:
            # If the terminal was closed, this raises an error; the plan must be written nevertheless.
            with contextlib.suppress(OSError):
                self._status.stop()  # type: ignore[attr-defined]
        elif self._pending is not None:
            note(self._pending)

    def show(self, line: str, *, at_once: bool = False) -> None:
        """Shows a line. With ``at_once``, it is shown even if it follows soon after another one."""
        if self._quiet:
            return
        if self._status is not None:
            with contextlib.suppress(OSError):
                self._status.update(line)  # type: ignore[attr-defined]
            return
        now = time.monotonic()
        if at_once or now - self._last >= self._every:
            note(line)
            self._last, self._pending = now, None
        else:
            self._pending = line


class ProgressPrinter(LinePrinter):
    """Context manager that shows the best objective, the bound and the gap of a search whenever they change.

    Parameters
    ----------
    quiet
        Whether nothing is shown.
    unit
        Unit of objectives and bounds.
    """

    def __init__(self, quiet: bool = False, unit: Unit = PS):
        super().__init__(quiet)
        self._unit = unit
        self._has_plan = False

    def __call__(self, progress: Progress) -> None:
        """Shows an improvement. The first plan is shown at once."""
        is_first = progress.objective is not None and not self._has_plan
        self._has_plan |= is_first
        self.show(self._line(progress), at_once=is_first)

    def _line(self, progress: Progress) -> str:
        """The line about an improvement."""
        objective = "no plan yet" if progress.objective is None else self._unit.write(progress.objective)
        bound = "no bound" if progress.bound is None else f"bound {self._unit.write(progress.bound)}"
        gap = ""
        if progress.objective and progress.bound is not None and self._unit.has_ratios:
            gap = f", gap {format_gap(max(0.0, 1 - progress.bound / progress.objective))}"
        return f"[{progress.seconds:6.1f} s] {objective}, {bound}{gap} ({progress.source})"
