"""Progress of a run on standard error: one live line on a terminal, plain lines elsewhere."""

from __future__ import annotations

import contextlib
import sys
import time
from types import TracebackType
from typing import Self

from stowplan.cli.output import note
from stowplan.portfolio.run.state import Progress
from stowplan.result import format_gap, format_quantity, two_numbers


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
    quiet, every
        As of :class:`LinePrinter`.
    unit
        Of objectives and bounds.
    """

    def __init__(self, quiet: bool = False, unit: str = "ps", every: float = 1.0):
        super().__init__(quiet, every)
        self._unit = unit
        self._has_plan = False

    def __call__(self, progress: Progress) -> None:
        """Show one improvement; the first plan at once."""
        is_first = progress.objective is not None and not self._has_plan
        self._has_plan |= is_first
        self.show(self._line(progress), at_once=is_first)

    def _line(self, progress: Progress) -> str:
        objective = "no plan yet" if progress.objective is None else format_quantity(progress.objective, self._unit)
        bound = "no bound" if progress.bound is None else f"bound {format_quantity(progress.bound, self._unit)}"
        gap = ""
        if progress.objective and progress.bound is not None and two_numbers(self._unit) is None:
            gap = f", gap {format_gap(max(0.0, 1 - progress.bound / progress.objective))}"
        return f"[{progress.seconds:6.1f} s] {objective}, {bound}{gap} ({progress.source})"
