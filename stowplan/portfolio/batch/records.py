"""The settings of a batch, the record that it writes for each input, and the journal with one line for each record."""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from stowplan import files
from stowplan.arguments import show
from stowplan.document import Document
from stowplan.errors import InputError, StowplanError, UsageError
from stowplan.frontends.options import ReadOptions, SharedOptions
from stowplan.kernel.context import FAMILIES, Options

FORMAT = "stowplan.batch.result"
VERSION = 1

#: Exit code of an input that failed because of an internal error.
INTERNAL_ERROR = 70
#: Exit code of an interrupted run.
CANCELLED = 130


class Settings(SharedOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How to read and solve every input of a batch; see :func:`stowplan.read` and :func:`stowplan.solve`.

    Options for reading apply to those inputs whose format has them.
    """

    target: str | tuple[str, ...] | None = None
    """A target for each kind of input that needs one; problem files and CSV files need none."""
    op_table: str | None = None
    """Path of the file."""
    time_limit: float = 30.0
    """Seconds for each input, including reading."""
    candidates: tuple[str, ...] = FAMILIES
    seed: int = 0
    workers: int = 2
    deterministic: bool = False
    work_limit: float | None = None
    gap: float = 0.0
    memory_limit: int | None = None
    """Memory limit in bytes for the process of each candidate."""
    certify: bool = False
    """Whether to make certificates of the bounds."""
    baseline: str | None = None
    xla_plans: tuple[str, ...] = ()
    """Folders with XLA's own plans of compiled programs: modules after memory-space assignment, under the file names of the
    inputs. They are given plans with the name ``xla``."""

    @property
    def search(self) -> Options:
        """The options for solving each input; raises UsageError for a value of a wrong type, or out of range."""
        return Options(**{name: getattr(self, name) for name in Options.__struct_fields__})

    @property
    def inputs(self) -> ReadOptions:
        """The options for reading each input, without its target; raises UsageError for a value that is not allowed."""
        names = {*ReadOptions.__struct_fields__} & {*Settings.__struct_fields__} - {"target"}
        return ReadOptions(**{name: getattr(self, name) for name in names})

    @property
    def targets(self) -> tuple[str, ...]:
        """All targets."""
        if self.target is None:
            return ()
        return (self.target,) if isinstance(self.target, str) else self.target


class Record(Document, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The result of one input of a batch."""

    input: str
    """Path of the input."""
    settings: Settings
    exit_code: int
    """The exit code that ``stowplan solve`` would have returned for it."""
    error: str | None = None
    """Why there is no result."""
    result: dict[str, Any] | None = None
    """The result as ``stowplan solve --json`` prints it; ``plan`` is the name of the plan's file in the same folder."""
    xla_plan: str | None = None
    """Digest of XLA's own plan, if it was given."""
    format: str = FORMAT
    version: int = VERSION


def check_settings(settings: Settings) -> Settings:
    """Check the settings and convert their values to plain numbers. Checks that depend on an input come later.

    Raises
    ------
    UsageError
        A value of a wrong type, or out of range.
    InputError
        One of ``xla_plans`` is no folder.
    """
    shared = msgspec.structs.asdict(settings.search)
    if isinstance(settings.xla_plans, str) or not all(isinstance(xla_plan, str) for xla_plan in settings.xla_plans):
        raise UsageError(f"found xla_plans {show(settings.xla_plans)}, expected folders")
    for folder in settings.xla_plans:
        if not Path(folder).is_dir():
            raise InputError("found no folder, expected one with modules after XLA's memory-space assignment", source=folder)
    if not isinstance(settings.target, str | tuple | None) or not all(isinstance(target, str) for target in settings.targets):
        raise UsageError(f"found target {show(settings.target)}, expected a name, or names")
    return msgspec.structs.replace(settings, **shared, capacity=settings.inputs.capacity)


def worst_code(records: Sequence[Record]) -> int:
    """The exit code of a batch: the highest of its records, 0 if every input was solved."""
    return max((record.exit_code for record in records), default=0)


def read_records(folder: str | Path) -> dict[str, Record]:
    """Read the records in and below a folder, by name, sorted.

    Raises
    ------
    InputError
        There is no such folder, no record in it, or one that cannot be read.
    """
    root = Path(folder)
    if not root.is_dir():
        raise InputError("found no folder, expected one that 'stowplan batch' wrote", source=folder)
    suffix = ".result.json"
    files_found = {path.relative_to(root).as_posix().removesuffix(suffix): path for path in sorted(root.rglob(f"*{suffix}"))}
    if not files_found:
        raise InputError(f"found no *{suffix}, expected a folder that 'stowplan batch' wrote", source=folder)
    return {files.printable(name): Record.load(path) for name, path in files_found.items()}


def describe_failure(error: Exception) -> tuple[int, str]:
    """Exit code and one line of text for an input that failed."""
    code = error.exit_code if isinstance(error, StowplanError) else INTERNAL_ERROR
    text = str(error) if isinstance(error, StowplanError) else f"internal error: {type(error).__name__}: {error}"
    # One line that every encoding can represent.
    return code, " ".join(text.encode("utf-8", errors="backslashreplace").decode().split())


#: Seconds to wait for the lock of a process that was just killed.
LOCK_SECONDS = 0.5


class Line(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A line of the journal, and an entry of the list that ``stowplan batch --json`` prints."""

    name: str
    """Name of the input, which is that of its files below the output folder."""
    record: Record


@contextlib.contextmanager
def only_writer(path: Path) -> Iterator[None]:
    """Context manager that locks a file, at most as long as this process lives.

    Raises
    ------
    InputError
        Another process has the lock, or the file cannot be locked.
    """
    end = time.monotonic() + LOCK_SECONDS
    try:
        while (handle := files.try_lock(path, 0o644)) is None and time.monotonic() < end:
            time.sleep(0.02)
    except OSError as error:
        raise InputError(f"cannot lock the folder: {error.strerror or error}", source=path.parent) from error
    if handle is None:
        raise InputError(
            f"found another batch{_describe_holder(path)} at work on it, expected one at a time", source=path.parent
        )
    try:
        with contextlib.suppress(OSError):
            os.ftruncate(handle, 0)
            os.write(handle, f"{os.getpid()}\n".encode())
        yield
    finally:
        path.unlink(missing_ok=True)
        os.close(handle)


def _describe_holder(path: Path) -> str:
    """A note on the process that has the lock; empty if it is not known."""
    try:
        return f" (process {int(path.read_text())})"
    except (OSError, ValueError):
        return ""


class Journal:
    """A file with one line for each input that has a record. If there are several lines for an input, the last one counts.

    Each line is appended by a single write. A line that a killed process has left unfinished is cut off when the file is
    opened. A line whose input was solved again is removed when the file is opened or closed. Devices and pipes are only written
    to.

    Parameters
    ----------
    path
        The file; it is created if it does not exist.

    Raises
    ------
    InputError
        The file cannot be read or written, or is no journal.
    """

    def __init__(self, path: Path):
        self._path = path
        self._last: dict[str, bytes] = {}
        """The line of each input, in the order of the file."""
        self._has_more = False
        """Whether the file also has outdated lines."""
        try:
            through = files.open_through(path)
            self._is_file = through is None
            if self._is_file:
                # Left by a process that was killed while it rewrote the file.
                remove_temporary(path.parent, re.escape(path.name))
                self._read()
                self._compact()
            self._handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666) if through is None else through
        except OSError as error:
            raise self._unwritable(error) from error

    def has(self, name: str, record: Record) -> bool:
        """Whether the journal already has this line for an input."""
        return self._last.get(name) == _make_line(name, record)

    def add(self, name: str, record: Record) -> None:
        """Append a line; raises InputError if it cannot be written."""
        line = _make_line(name, record)
        try:
            self._append(line)
        except OSError as error:
            raise self._unwritable(error) from error
        self._remember_line(name, line)

    def close(self) -> None:
        """Close the file, after removing outdated lines."""
        os.close(self._handle)
        if self._is_file:
            self._compact()

    def _remember_line(self, name: str, line: bytes) -> None:
        """Remember the line of an input."""
        self._has_more |= self._last.pop(name, None) is not None
        self._last[name] = line

    def _append(self, line: bytes) -> None:
        """Write a line to the end of the file; after an error, the file is as before."""
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
        """Read the lines of the file, and cut off an unfinished last line."""
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
                self._remember_line(name, line)

    def _compact(self) -> None:
        """Rewrite the file without outdated lines."""
        if self._has_more:
            files.write_atomic(self._path, b"".join(self._last.values()))
            self._has_more = False

    def _unwritable(self, error: OSError) -> InputError:
        return InputError(f"cannot write: {error.strerror or error}", source=self._path)


def remove_temporary(folder: Path, name: str) -> None:
    """Remove temporary files that processes left in a folder when they were killed while writing; no process may be writing.

    ``name`` is a regular expression for the name of the file that was being written.
    """
    left = re.compile(rf"\.{name}\.\w+\.tmp")
    for entry in os.scandir(folder):
        if left.fullmatch(entry.name):
            os.unlink(entry)


def _make_line(name: str, record: Record) -> bytes:
    """The line of an input."""
    return msgspec.json.encode(Line(name, record)) + b"\n"
