"""What a batch is told, and what it writes: settings, a record of each input, and the journal with a line for each."""

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

#: Exit code of an input that failed for a reason of our own.
INTERNAL_ERROR = 70
#: Exit code of an interrupted run.
CANCELLED = 130


class Settings(SharedOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How to read and solve every input of a batch; see :func:`stowplan.read` and :func:`stowplan.solve`.

    Options of inputs are given to those that take them.
    """

    target: str | tuple[str, ...] | None = None
    """One for each kind of input that needs one; problem files and CSV files stand without."""
    op_table: str | None = None
    """Path of a file."""
    time_limit: float = 30.0
    """Seconds for each input, reading included."""
    candidates: tuple[str, ...] = FAMILIES
    seed: int = 0
    workers: int = 2
    deterministic: bool = False
    work_limit: float | None = None
    gap: float = 0.0
    memory_limit: int | None = None
    """Bytes for the process of each candidate."""
    certify: bool = False
    """Whether bounds are certified."""
    baseline: str | None = None
    xla_plans: tuple[str, ...] = ()
    """Folders with XLA's own plans of compiled programs: modules after memory-space assignment, under the inputs' file names.
    They are plans at hand, named ``xla``."""

    @property
    def search(self) -> Options:
        """How each input is solved; raises UsageError for a value of a wrong type, or out of range."""
        return Options(**{name: getattr(self, name) for name in Options.__struct_fields__})

    @property
    def inputs(self) -> ReadOptions:
        """How each input is read, but for its target; raises UsageError for a value that an option does not take."""
        names = {*ReadOptions.__struct_fields__} & {*Settings.__struct_fields__} - {"target"}
        return ReadOptions(**{name: getattr(self, name) for name in names})

    @property
    def targets(self) -> tuple[str, ...]:
        """All targets."""
        if self.target is None:
            return ()
        return (self.target,) if isinstance(self.target, str) else self.target


class Record(Document, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What became of one input."""

    input: str
    settings: Settings
    exit_code: int
    """What ``stowplan solve`` would have returned for it."""
    error: str | None = None
    """Why there is no result."""
    result: dict[str, Any] | None = None
    """The result as ``stowplan solve --json`` prints it; the plan by its file's name beside this one."""
    xla_plan: str | None = None
    """Digest of XLA's own plan, where there was one at hand."""
    format: str = FORMAT
    version: int = VERSION


def check_settings(settings: Settings) -> Settings:
    """The settings, with plain numbers in them; what depends on an input is left to its turn.

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
    """Exit code of a batch: 0 where every input was solved, else the highest."""
    return max((record.exit_code for record in records), default=0)


def read_records(folder: str | Path) -> dict[str, Record]:
    """Records in and below a folder, by name, sorted.

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
    """Exit code and one line, of an input that failed."""
    code = error.exit_code if isinstance(error, StowplanError) else INTERNAL_ERROR
    text = str(error) if isinstance(error, StowplanError) else f"internal error: {type(error).__name__}: {error}"
    # One line that any encoder takes.
    return code, " ".join(text.encode("utf-8", errors="backslashreplace").decode().split())


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
        while (handle := files.try_lock(path, 0o644)) is None and time.monotonic() < end:
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
        """The line of each input, in the order of the file."""
        self._has_more = False
        """Whether the file has others, which these have replaced."""
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
        return self._last.get(name) == _line(name, record)

    def add(self, name: str, record: Record) -> None:
        """Append a line; raises InputError where that cannot be done."""
        line = _line(name, record)
        try:
            self._append(line)
        except OSError as error:
            raise self._unwritable(error) from error
        self._take(name, line)

    def close(self) -> None:
        """Leave one line for each input."""
        os.close(self._handle)
        if self._is_file:
            self._compact()

    def _take(self, name: str, line: bytes) -> None:
        self._has_more |= self._last.pop(name, None) is not None
        self._last[name] = line

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
                self._take(name, line)

    def _compact(self) -> None:
        """Write the file anew without the lines that later ones have replaced."""
        if self._has_more:
            files.write_atomic(self._path, b"".join(self._last.values()))
            self._has_more = False

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
