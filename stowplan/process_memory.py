"""Reads from ``/proc`` how much memory processes use, and chooses which process is killed if memory runs out."""

from __future__ import annotations

import contextlib
import math
import os
from pathlib import Path

from stowplan.errors import UsageError

_PROC = Path("/proc")


def resident(pid: int) -> int:
    """Resident size of a process in bytes, including pages that it shares with others; 0 if it cannot be read."""
    try:
        return int((_PROC / str(pid) / "statm").read_bytes().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0


def resident_of_all(pid: int) -> int:
    """Sum of the resident sizes of a process and all its descendants in bytes. Processes whose size cannot be read count 0;
    pages that processes share count once for each of them."""
    total = resident(pid)
    with contextlib.suppress(OSError):
        for thread in (_PROC / str(pid) / "task").iterdir():
            with contextlib.suppress(OSError):
                total += sum(resident_of_all(int(child)) for child in (thread / "children").read_bytes().split())
    return total


def available() -> float:
    """Bytes that a new process can use without swapping (``MemAvailable`` of ``/proc/meminfo``); infinity if this cannot be
    read."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        return 1024.0 * int((_PROC / "meminfo").read_text().partition("MemAvailable:")[2].split()[0])
    return math.inf


def prefer_to_end(score: int) -> None:
    """Makes the operating system kill this process or one of its children, rather than its parent, when memory runs out.

    It does nothing if the score is at least as large already, or if the system does not allow the change.

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
    """Raises UsageError on systems without ``/proc``, on which the memory of other processes cannot be read."""
    if not resident(os.getpid()):
        raise UsageError("a memory limit needs /proc, which this system does not have: leave it out")


def as_mebibytes(count: int, *, begun: bool = False) -> str:
    """Bytes as text in MiB. With ``begun`` the number is rounded up, so that a size over a limit is also printed as larger than
    the limit."""
    return f"{-(-count // 2**20) if begun else count / 2**20:,.0f} MiB"
