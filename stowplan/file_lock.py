"""Locks on files: held by one process at a time, and let go by the system when that process ends, however it ends."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path


def try_lock(path: str | Path, mode: int = 0o600) -> int | None:
    """Lock a file, which is made where it is missing; whoever has it may remove the file before closing it.

    Parameters
    ----------
    path
        In a folder that is there.
    mode
        Permissions of a new file.

    Returns
    -------
    int or None
        Its descriptor, which no child inherits: closing it lets go. None where another has it.

    Raises
    ------
    OSError
        The file cannot be made, or its file system knows no locks.
    """
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, mode)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.exists(path) and os.path.samestat(os.fstat(handle), os.stat(path)):
                return handle
        except BlockingIOError:
            os.close(handle)
            return None
        except OSError:
            os.close(handle)
            raise
        # Whoever had it has removed it in the meantime.
        os.close(handle)
