"""Memory that processes hold, and candidates that are not to hold more than they may.

Resident size is looked at from outside, some twenty times a second. The system's own limit (``RLIMIT_AS``) counts what is
reserved, not what is used: threads of OR-Tools, numba and torch reserve gigabytes, so that a limit which lets them start holds
nobody back. Nor does it tell memory that ran out from any other failure.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from pathlib import Path
from typing import Protocol

from stowplan.errors import UsageError

#: Seconds between two looks.
_TICK = 0.05

_PROC = Path("/proc")


def resident(pid: int) -> int:
    """Bytes of a process that are in memory, shared ones too; 0 where that cannot be told."""
    try:
        return int((_PROC / str(pid) / "statm").read_bytes().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0


def resident_of_all(pid: int) -> int:
    """The same of a process and all that it has started."""
    total = resident(pid)
    with contextlib.suppress(OSError):
        for thread in (_PROC / str(pid) / "task").iterdir():
            with contextlib.suppress(OSError):
                total += sum(resident_of_all(int(child)) for child in (thread / "children").read_bytes().split())
    return total


def prefer_to_end(score: int) -> None:
    """Where the system's memory runs out, have the kernel end this process, and what it starts, rather than its parent.

    Parameters
    ----------
    score
        0 to 1000, added to what it judges by; see ``oom_score_adj`` in proc(5).
    """
    path = _PROC / "self" / "oom_score_adj"
    with contextlib.suppress(OSError, ValueError):
        if int(path.read_bytes()) < score:
            path.write_text(str(score))


def check_limits_possible() -> None:
    """Raise UsageError where nobody can look at another process's memory."""
    if not resident(os.getpid()):
        raise UsageError("a memory limit needs /proc, which this system does not have: leave it out")


def as_mebibytes(count: int, *, begun: bool = False) -> str:
    """Bytes for people; with ``begun``, those of a MiB that has begun count as one, so that what is over a limit says so."""
    return f"{-(-count // 2**20) if begun else count / 2**20:,.0f} MiB"


class Watched(Protocol):
    """A candidate in a process."""

    is_over: threading.Event

    @property
    def pid(self) -> int:
        """Number of the process."""

    def end_for(self, why: str) -> None:
        """End the candidate, and let its report say why."""


class MemoryWatch:
    """A thread that ends candidates which hold more memory than they may; it ends when there is none to watch."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._watched: dict[Watched, int] = {}
        self._thread: threading.Thread | None = None

    def add(self, candidate: Watched, limit: int) -> None:
        """Watch a candidate until it is over; the limit is in bytes."""
        with self._lock:
            self._watched[candidate] = limit
            # In a child that was forked there is none.
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._run, daemon=True)
                self._thread.start()

    def _run(self) -> None:
        while True:
            with self._lock:
                self._watched = {
                    candidate: limit for candidate, limit in self._watched.items() if not candidate.is_over.is_set()
                }
                if not self._watched:
                    self._thread = None
                    return
                watched = dict(self._watched)
            for candidate, limit in watched.items():
                held = resident_of_all(candidate.pid)
                if held > limit and not candidate.is_over.is_set():
                    took = as_mebibytes(held, begun=True)
                    candidate.end_for(f"took {took} of memory, more than its limit of {as_mebibytes(limit)}")
            time.sleep(_TICK)


watch = MemoryWatch()
