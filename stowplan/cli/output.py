"""What is said on the two standard streams: lines, JSON and tables, and the progress of a run.

A reader that has gone away (``| head``) ends the output, not the run: what is left is dropped, and the exit code still says how
the run ended.
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

#: What stands for a value there is none of.
NONE = "-"


def prepare_streams() -> None:
    """Make both streams usable: closed ones are dropped output, and what their encoding lacks is escaped."""
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, ValueError):
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]


def say(text: str) -> None:
    """A line on standard output; raises :class:`~stowplan.errors.UsageError` where it cannot be written (a full disk)."""
    try:
        sys.stdout.write(text + "\n")
        sys.stdout.flush()
    except BrokenPipeError:
        drop(sys.stdout)
    except OSError as error:
        drop(sys.stdout)
        if error.errno == errno.EIO:
            # A terminal that was closed is a reader that has gone away.
            return
        raise UsageError(f"standard output: cannot write: {error.strerror or error}") from error


def say_json(value: Any) -> None:
    """A value as JSON on standard output."""
    say(files.encode(value).decode().rstrip("\n"))


def note(text: str) -> None:
    """A line on standard error; never fails."""
    try:
        sys.stderr.write(text + "\n")
        sys.stderr.flush()
    except OSError:
        drop(sys.stderr)


def telling(quiet: bool) -> Callable[[str], None]:
    """:func:`note`, or what says nothing."""
    return (lambda text: None) if quiet else note


def open_noting(path: Path, options: ReadOptions) -> Any:
    """Problem of an input; what of it is not modelled is said on standard error. For commands that print no result."""
    from stowplan.frontends.read import open_input

    opened = open_input(path, options)
    for text in opened.warnings:
        note(f"warning: {text}")
    return opened.problem


def drop(stream: TextIO) -> None:
    """Send what is still buffered for a stream, and all that follows, nowhere."""
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)


def render(head: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> str:
    """Columns two spaces apart; the first ``left`` of them flush left, the others flush right."""
    return "\n".join(aligned((head, *rows), ["" if column < left else "r" for column in range(len(head))]))


def as_quantity(value: int | None, unit: str) -> str:
    """An objective or bound, in the unit of a name."""
    return NONE if value is None else kinds.unit(unit).write(value)


def as_gap(value: float | None) -> str:
    """A gap in per cent."""
    return NONE if value is None else format_gap(value)


def as_ratio(value: float | None) -> str:
    """A speedup."""
    return NONE if value is None else f"{value:.3f}"


class LinePrinter:
    """Shows lines that each take the place of the one before; use as a context manager.

    Parameters
    ----------
    quiet
        Show nothing.
    every
        Seconds between two plain lines, at least; the last one is always shown.
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
            # A terminal that was closed takes nothing any more; the plan is still to be written.
            with contextlib.suppress(OSError):
                self._status.stop()  # type: ignore[attr-defined]
        elif self._pending is not None:
            note(self._pending)

    def show(self, line: str, *, at_once: bool = False) -> None:
        """Show a line; ``at_once`` however soon it comes after another."""
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
    """Shows incumbent, bound and gap as they change; use as a context manager.

    Parameters
    ----------
    quiet
        As of :class:`LinePrinter`.
    unit
        Of objectives and bounds.
    """

    def __init__(self, quiet: bool = False, unit: Unit = PS):
        super().__init__(quiet)
        self._unit = unit
        self._has_plan = False

    def __call__(self, progress: Progress) -> None:
        """Show one improvement; the first plan at once."""
        is_first = progress.objective is not None and not self._has_plan
        self._has_plan |= is_first
        self.show(self._line(progress), at_once=is_first)

    def _line(self, progress: Progress) -> str:
        objective = "no plan yet" if progress.objective is None else self._unit.write(progress.objective)
        bound = "no bound" if progress.bound is None else f"bound {self._unit.write(progress.bound)}"
        gap = ""
        if progress.objective and progress.bound is not None and self._unit.has_ratios:
            gap = f", gap {format_gap(max(0.0, 1 - progress.bound / progress.objective))}"
        return f"[{progress.seconds:6.1f} s] {objective}, {bound}{gap} ({progress.source})"
