"""The journal of a batch: one JSON line a result, appended as results come."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from stowplan import files
from stowplan.errors import InputError
from stowplan.file_lock import try_lock
from stowplan.portfolio.batch.records import Record

#: Seconds that a process which was killed has to let go of the lock.
LOCK_SECONDS = 0.5


class Line(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A line: what ``stowplan batch --json`` has in its list."""

    name: str
    """Of the input, as its files are called below the output folder."""
    record: Record


@contextlib.contextmanager
def only_writer(path: Path) -> Iterator[None]:
    """Hold a lock file; it is held no longer than this process lives.

    Raises
    ------
    InputError
        Another process holds it, or there can be none.
    """
    end = time.monotonic() + LOCK_SECONDS
    try:
        while (handle := try_lock(path, 0o644)) is None and time.monotonic() < end:
            time.sleep(0.02)
    except OSError as error:
        raise InputError(f"cannot lock the folder: {error.strerror or error}", source=path.parent) from error
    if handle is None:
        raise InputError(f"found another batch{_holder(path)} at work on it, expected one at a time", source=path.parent)
    try:
        with contextlib.suppress(OSError):
            os.ftruncate(handle, 0)
            os.write(handle, f"{os.getpid()}\n".encode())
        yield
    finally:
        path.unlink(missing_ok=True)
        os.close(handle)


def _holder(path: Path) -> str:
    try:
        return f" (process {int(path.read_text())})"
    except (OSError, ValueError):
        return ""


class Journal:
    """One line for each input that has a record: of two for the same, the last counts.

    Each line is one write to the end of the file. One that a killed process has left unfinished is cut off when the file is
    opened; one whose input was solved again goes when it is opened or closed. A device or pipe is only written to.

    Parameters
    ----------
    path
        The file; made where it is missing.

    Raises
    ------
    InputError
        It cannot be read or written, or holds something else.
    """

    def __init__(self, path: Path):
        self._path = path
        self._last: dict[str, bytes] = {}
        self._lines = 0
        try:
            through = files.open_through(path)
            self._is_file = through is None
            if self._is_file:
                # What was killed while it wrote the whole file anew.
                remove_temporary(path.parent, re.escape(path.name))
                self._read()
                self._compact()
            self._handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666) if through is None else through
        except OSError as error:
            raise self._unwritable(error) from error

    def has(self, name: str, record: Record) -> bool:
        """Whether the line of an input says this already."""
        return self._last.get(name) == _digest(_line(name, record))

    def add(self, name: str, record: Record) -> None:
        """Append a line; raises InputError where that cannot be done."""
        line = _line(name, record)
        try:
            self._append(line)
        except OSError as error:
            raise self._unwritable(error) from error
        self._last[name] = _digest(line)
        self._lines += 1

    def close(self) -> None:
        """Leave one line for each input."""
        os.close(self._handle)
        if self._is_file:
            self._compact()

    def _append(self, line: bytes) -> None:
        size = os.fstat(self._handle).st_size
        rest = memoryview(line)
        try:
            while rest:
                rest = rest[os.write(self._handle, rest) :]
        except OSError:
            if self._is_file:
                with contextlib.suppress(OSError):
                    os.ftruncate(self._handle, size)
            raise

    def _read(self) -> None:
        """Cut off a last line without an end, and take in the others."""
        if not self._path.exists():
            return
        size = 0
        with open(self._path, "r+b") as stream:
            for number, line in enumerate(stream, 1):
                if not line.endswith(b"\n"):
                    os.ftruncate(stream.fileno(), size)
                    break
                try:
                    name = msgspec.json.decode(line, type=Line).name
                except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                    raise InputError(
                        f"{error}, expected a result of 'stowplan batch'", source=self._path, place=f"line {number}"
                    ) from error
                size += len(line)
                self._last[name] = _digest(line)
                self._lines += 1

    def _compact(self) -> None:
        """Write the file anew without the lines that later ones have replaced."""
        if self._lines == len(self._last):
            return
        kept: dict[str, bytes] = {}
        for line in self._path.read_bytes().splitlines(keepends=True):
            name = msgspec.json.decode(line, type=Line).name
            kept.pop(name, None)
            kept[name] = line
        files.write_atomic(self._path, b"".join(kept.values()))
        self._lines = len(kept)

    def _unwritable(self, error: OSError) -> InputError:
        return InputError(f"cannot write: {error.strerror or error}", source=self._path)


def remove_temporary(folder: Path, name: str) -> None:
    """Remove what processes that were killed while they wrote a file have left beside it; nobody may be writing it.

    ``name`` is a regular expression for the file's.
    """
    left = re.compile(rf"\.{name}\.\w+\.tmp")
    for entry in os.scandir(folder):
        if left.fullmatch(entry.name):
            os.unlink(entry)


def _line(name: str, record: Record) -> bytes:
    return msgspec.json.encode(Line(name, record)) + b"\n"


def _digest(line: bytes) -> bytes:
    return hashlib.sha256(line).digest()
