"""Processes that the package starts: what they are started with, how they begin, and their end with their parent."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from typing import BinaryIO

#: Bytes that a process may hold to be kept for other work.
MOST_KEPT_MEMORY = 1 << 30

_PR_SET_PDEATHSIG = 1


def child_environment() -> dict[str, str]:
    """Environment of a child: it finds its modules where this process does, not in the folder it happens to be started from."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)}


def begin(parent: int) -> tuple[BinaryIO, BinaryIO]:
    """Make this process a child that its parent alone ends.

    Parameters
    ----------
    parent
        Number of the process that has started it.

    Returns
    -------
    tuple
        Pipes from and to the parent: what were standard input and output. Whoever reads standard input now finds nothing, and
        what is printed goes to standard error.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for name in ("SIGTERM", "SIGHUP"):
        if hasattr(signal, name):
            # Schedulers signal every process of a job: it is for the parent to say when to end. What a worker starts is not to
            # inherit it, so that the signals are handled, not ignored.
            signal.signal(getattr(signal, name), lambda number, frame: None)
    _end_with_parent(parent)
    incoming, outgoing = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    return incoming, outgoing


def _end_with_parent(parent: int) -> None:
    """Have the kernel end this process when its parent ends, for code that lets no other thread run."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(0)


def describe_end(code: int) -> str:
    """How a process ended that gave no last report, by its exit status; of one that was killed, minus the signal."""
    if code >= 0:
        return f"its process ended without a last word, with exit status {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = str(-code)
    hint = ", as the kernel does where memory runs out" if name == "SIGKILL" else ""
    return f"its process was ended by signal {name}{hint}"
