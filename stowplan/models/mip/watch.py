"""Ending programs that solvers of PuLP have started: PuLP waits for them, however long they take."""

from __future__ import annotations

import contextlib
import os
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
