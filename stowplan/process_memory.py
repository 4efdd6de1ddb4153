"""How much memory processes use, read from ``/proc``."""

from __future__ import annotations

import contextlib
import math
import os
from pathlib import Path

from stowplan.errors import UsageError

_PROC = Path("/proc")


def resident(pid: int) -> int:
    """Resident size of a process in bytes, with shared pages; 0 if it cannot be read."""
    try:
        return int((_PROC / str(pid) / "statm").read_bytes().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0


def resident_of_all(pid: int) -> int:
    """Resident size in bytes of a process and all its descendants."""
    total = resident(pid)
    with contextlib.suppress(OSError):
        for thread in (_PROC / str(pid) / "task").iterdir():
            with contextlib.suppress(OSError):
                total += sum(resident_of_all(int(child)) for child in (thread / "children").read_bytes().split())
    return total


def available() -> float:
    """Bytes that a new process can use without swapping; infinity if this cannot be read."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        return 1024.0 * int((_PROC / "meminfo").read_text().partition("MemAvailable:")[2].split()[0])
    return math.inf


def prefer_to_end(score: int) -> None:
    """When the system runs out of memory, have its kernel kill this process or a child of it, rather than the parent.

    Parameters
    ----------
    score
        0 to 1000, added to the score by which the system chooses; see ``oom_score_adj`` in proc(5).
    """
    path = _PROC / "self" / "oom_score_adj"
    with contextlib.suppress(OSError, ValueError):
        if int(path.read_bytes()) < score:
            path.write_text(str(score))


def check_limits_possible() -> None:
    """Raises UsageError on systems on which the memory of other processes cannot be read."""
    if not resident(os.getpid()):
        raise UsageError("a memory limit needs /proc, which this system does not have: leave it out")


def as_mebibytes(count: int, *, begun: bool = False) -> str:
    """Bytes as text in MiB. With ``begun`` the number is rounded up, so that a size over a limit is also printed as larger than
    the limit."""
    return f"{-(-count // 2**20) if begun else count / 2**20:,.0f} MiB"
