"""Ending programs that solvers of PuLP have started, and the dual bounds that they print."""

from __future__ import annotations

import contextlib
import math
import os
import re
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

#: Seconds that a program may take beyond its own limit, for reading the model and writing its result.
GRACE = 3.0

_LOOK_EVERY = 0.05


class Watch:
    """While it is open, ends the programs that work in a folder once time is up or somebody says stop.

    PuLP keeps the process to itself, so it is found by its command line, which names files of the folder: one that no other
    process knows. Where there is no ``/proc`` nothing is ended.

    Parameters
    ----------
    folder
        Temporary folder of this one solve.
    seconds
        Time from now.
    should_stop
        Asked now and then, from a thread of its own.
    """

    def __init__(self, folder: str, seconds: float, should_stop: Callable[[], bool] | None = None):
        self._folder = os.fsencode(folder)
        self._end = time.monotonic() + seconds
        self._should_stop = should_stop
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._closed.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._closed.wait(_LOOK_EVERY):
            if time.monotonic() > self._end or (self._should_stop is not None and self._should_stop()):
                # Again and again: the program may only be about to start.
                self._end_programs()

    def _end_programs(self) -> None:
        for entry in Path("/proc").glob("[0-9]*/cmdline"):
            number = int(entry.parent.name)
            if number == os.getpid():
                continue
            # Processes come and go while the list is read; those of others may not be looked at.
            with contextlib.suppress(OSError):
                if self._folder in entry.read_bytes():
                    os.kill(number, signal.SIGKILL)


_NUMBER = r"([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)"

#: A bound as these solvers end a MILP with it: "Lower bound:" (CBC, where it stops before the optimum, or within a gap that it
#: was told to leave), "Dual bound" (HiGHS, SCIP), ", best bound" (Gurobi), "Current MIP best bound =" (CPLEX).
_BOUND = re.compile(
    rf"(?:^\s*|, |MIP )(?:lower|dual|best) bound\s*[:=]?\s+{_NUMBER}\s*(?:$|,|\()", re.MULTILINE | re.IGNORECASE
)
_FAMILIES = ("cbc", "highs", "scip", "gurobi", "cplex")

_CBC_RESULT = re.compile(r"^Result - (.*?)\s*$", re.MULTILINE)
_CBC_OBJECTIVE = re.compile(rf"^Objective value:\s+{_NUMBER}\s*$", re.MULTILINE)

#: CBC prunes nodes that are better than the incumbent by less than this.
CBC_INCREMENT = 1e-5


def bound_in_log(family: str, text: str) -> float | None:
    """Last dual bound that a log proves, for a minimisation; None where it says none.

    ``family`` is ``cbc``, ``highs``, ``scip``, ``gurobi`` or ``cplex``; of other solvers nothing is known. A printed number is
    lowered by one unit of its last digit, which the solver may have rounded up.
    """
    bounds = _BOUND.findall(text) if family in _FAMILIES else []
    if bounds:
        return rounded_down(bounds[-1])
    if family != "cbc":
        return None
    results, objectives = _CBC_RESULT.findall(text), _CBC_OBJECTIVE.findall(text)
    if results and results[-1] == "Optimal solution found" and objectives:
        return rounded_down(objectives[-1]) - CBC_INCREMENT
    return None


def rounded_down(text: str) -> float:
    """Value of a printed number, less one unit of its last digit."""
    mantissa, _, exponent = text.lower().partition("e")
    digits = len(mantissa.partition(".")[2])
    value = float(text) - 10.0 ** (int(exponent or 0) - digits)
    return math.nextafter(value, -math.inf)


def says_infeasible(family: str, text: str) -> bool:
    """Whether the log itself speaks of a proof of infeasibility and not of a limit; True where the family is not known."""
    if family == "cbc":
        return "infeasible" in text.lower() and "Stopped on" not in text and "Exiting on maximum" not in text
    return True
