"""Writing to the two standard streams, whatever has become of them.

A reader that has gone away (``| head``) ends the output, not the run: what is left is dropped, and the exit code still says how
the run ended.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from typing import Any, TextIO

from stowplan import files
from stowplan.errors import UsageError


def prepare_streams() -> None:
    """Make both streams usable: closed ones are dropped output, and what their encoding lacks is escaped."""
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, ValueError):
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]


def say(text: str) -> None:
    """A line on standard output; raises :class:`~stowplan.errors.UsageError` where it cannot be written (a full disk)."""
    try:
        sys.stdout.write(text + "\n")
        sys.stdout.flush()
    except BrokenPipeError:
        drop(sys.stdout)
    except OSError as error:
        drop(sys.stdout)
        if error.errno == errno.EIO:
            # A terminal that was closed is a reader that has gone away.
            return
        raise UsageError(f"standard output: cannot write: {error.strerror or error}") from error


def say_json(value: Any) -> None:
    """A value as JSON on standard output."""
    say(files.encode(value).decode().rstrip("\n"))


def note(text: str) -> None:
    """A line on standard error; never fails."""
    try:
        sys.stderr.write(text + "\n")
        sys.stderr.flush()
    except OSError:
        drop(sys.stderr)


def drop(stream: TextIO) -> None:
    """Send what is still buffered for a stream, and all that follows, nowhere."""
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
