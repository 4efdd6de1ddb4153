"""Processes that the package starts: what they are started with, how they begin, what they are told, and how they end."""

from __future__ import annotations

import atexit
import ctypes
import gc
import os
import signal
import struct
import sys
from functools import cache
from typing import BinaryIO

#: Bytes that a process may hold to be kept for other work.
MOST_KEPT_MEMORY = 1 << 30

_PR_SET_PDEATHSIG = 1

_LENGTH = struct.Struct("<Q")

#: Longer than any message; a length beyond it means that something else was written.
_MAX_MESSAGE = 1 << 31


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


def write_encoded(stream: BinaryIO, data: bytes) -> None:
    """Send a message, its length in front, and flush the pipe; raises OSError where nobody reads at the other end."""
    stream.write(_LENGTH.pack(len(data)))
    stream.write(data)
    stream.flush()


def read_message(stream: BinaryIO) -> bytes | None:
    """Wait for the next message.

    Parameters
    ----------
    stream
        A pipe.

    Returns
    -------
    bytes or None
        The message; None at the end, also where the end cuts a message short.

    Raises
    ------
    ValueError
        This is not the beginning of a message.
    """
    head = stream.read(_LENGTH.size)
    if head is None or len(head) < _LENGTH.size:
        return None
    (length,) = _LENGTH.unpack(head)
    if length > _MAX_MESSAGE:
        raise ValueError(f"found a message of {length} bytes, expected at most {_MAX_MESSAGE}")
    data = stream.read(length)
    return data if data is not None and len(data) == length else None


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


#: Objects that are made before cycles among the youngest are looked for, and how often those come before the next older ones.
#: Python's own 700 has it look more than a thousand times while solvers are imported.
_THRESHOLDS = 100_000, 10, 10


@cache
def collect_seldom() -> None:
    """Look for cycles of garbage seldom, and not once more at the end.

    That is a fifth of what a small problem takes on the command line: modules are full of cycles, none of which is garbage.
    Not for processes in which others may count on Python's own ways.
    """
    gc.set_threshold(*_THRESHOLDS)
    # In this order at the end, before the interpreter looks for cycles in all that is left.
    atexit.register(gc.freeze)
    atexit.register(gc.disable)
