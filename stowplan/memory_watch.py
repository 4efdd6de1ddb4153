"""Work in processes that are not to hold more memory than they may.

Resident size is looked at from outside, some twenty times a second. The system's own limit (``RLIMIT_AS``) counts what is
reserved, not what is used: threads of OR-Tools, numba and torch reserve gigabytes, so that a limit which lets them start holds
nobody back. Nor does it tell memory that ran out from any other failure.
"""

from __future__ import annotations

import threading
import time
from typing import Protocol

from stowplan.process_memory import as_mebibytes, resident_of_all

#: Seconds between two looks.
_TICK = 0.05


class Watched(Protocol):
    """Work that is done in a process of its own."""

    is_over: threading.Event
    """The process is no longer at this work."""

    @property
    def pid(self) -> int:
        """Number of the process."""

    def kill(self, why: str) -> None:
        """End the process where it is still at this work; ``why`` is what people are told."""


class MemoryWatch:
    """A thread that ends work which holds more memory than it may; it ends when there is none to watch."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._watched: dict[Watched, int] = {}
        self._thread: threading.Thread | None = None

    def add(self, work: Watched, limit: int) -> None:
        """Watch it until it is over; the limit is in bytes."""
        with self._lock:
            self._watched[work] = limit
            # In a child that was forked there is none.
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._run, daemon=True)
                self._thread.start()

    def _run(self) -> None:
        while True:
            with self._lock:
                self._watched = {work: limit for work, limit in self._watched.items() if not work.is_over.is_set()}
                if not self._watched:
                    self._thread = None
                    return
                watched = dict(self._watched)
            for work, limit in watched.items():
                held = resident_of_all(work.pid)
                if held > limit and not work.is_over.is_set():
                    took = as_mebibytes(held, begun=True)
                    work.kill(f"took {took} of memory, more than its limit of {as_mebibytes(limit)}")
            time.sleep(_TICK)


watch = MemoryWatch()
