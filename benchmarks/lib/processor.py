"""Processor time of the processes that this one has started."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path


def seconds_of(pid: int) -> float:
    """User and system time of a process, its children's that have ended included; 0 of one that is gone. Linux."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def seconds_of_children() -> float:
    """That of the children that have not ended, which the system does not count as this process's yet."""
    return sum(map(seconds_of, _children()))


def _children() -> Iterator[int]:
    for thread in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):
            yield from map(int, (thread / "children").read_text().split())
