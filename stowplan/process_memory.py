"""Memory that processes hold, as the system tells of it."""

from __future__ import annotations

import contextlib
import math
import os
from pathlib import Path

from stowplan.errors import UsageError

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


def available() -> float:
    """Bytes that a new process can have without swapping; infinity where that cannot be told."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        return 1024.0 * int((_PROC / "meminfo").read_text().partition("MemAvailable:")[2].split()[0])
    return math.inf


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
