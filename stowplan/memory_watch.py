"""Limits on the memory of child processes, enforced by watching them from outside.

A thread reads the resident size of each watched process and its descendants about twenty times a second. The operating system's
own limit (``RLIMIT_AS``) is of no use here, because it counts reserved memory: threads of OR-Tools, numba and torch reserve
gigabytes that they never touch, so that a limit that lets them start restricts nothing. A process that fails under
``RLIMIT_AS`` also does not say whether memory ran out or something else failed.
"""

from __future__ import annotations

import threading
import time
from typing import Protocol

from stowplan.process_memory import as_mebibytes, resident_of_all

#: Seconds between two checks.
_TICK = 0.05


class Watched(Protocol):
    """Work in a child process that :class:`MemoryWatch` can watch."""

    is_over: threading.Event
    """Set once the process no longer does this work."""

    @property
    def pid(self) -> int:
        """Process ID."""

    def kill(self, why: str) -> None:
        """Kills the process if it still does this work; ``why`` is the reason to report."""


class MemoryWatch:
    """Kills watched processes that exceed their memory limits, from a thread that ends when no process is left to watch."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._watched: dict[Watched, int] = {}
        self._thread: threading.Thread | None = None

    def add(self, work: Watched, limit: int) -> None:
        """Watches a process and its descendants until its work is over. ``limit`` is the largest sum of their resident sizes,
        in bytes. Work that is watched already gets the new limit."""
        with self._lock:
            self._watched[work] = limit
            # A forked child inherits this object without its thread.
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._run, daemon=True)
                self._thread.start()

    def _run(self) -> None:
        """Body of the thread."""
        while True:
            with self._lock:
                self._watched = {work: limit for work, limit in self._watched.items() if not work.is_over.is_set()}
                if not self._watched:
                    self._thread = None
                    return
                watched = dict(self._watched)
            for work, limit in watched.items():
                used = resident_of_all(work.pid)
                if used > limit and not work.is_over.is_set():
                    used_text = as_mebibytes(used, begun=True)
                    work.kill(f"took {used_text} of memory, more than its limit of {as_mebibytes(limit)}")
            time.sleep(_TICK)


#: The watch that all of this process's children share.
watch = MemoryWatch()
