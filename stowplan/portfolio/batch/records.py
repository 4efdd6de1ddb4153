"""The files of ``stowplan batch``, which solves many inputs with the same settings.

A *batch* is the solving of these inputs. Each input gets a *record*, a JSON file with the settings and the result. The *name*
of an input is the path of its files below the output folder, without suffix. The *journal* is one file with a line for each
record.
"""

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

#: Name and version of the format of records.
FORMAT = "stowplan.batch.result"
VERSION = 1

#: Exit code of an input that failed because of an internal error (``EX_SOFTWARE`` of Unix's ``sysexits.h``).
INTERNAL_ERROR = 70
#: Exit code of an input whose run was interrupted (128 plus the number of the signal of Ctrl-C, as shells have it).
CANCELLED = 130


class Settings(SharedOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How to read and solve every input of a batch; see :func:`stowplan.read` and :func:`stowplan.solve`.

    Options for reading (:class:`SharedOptions`) apply to those inputs whose format accepts them.
    """

    target: str | tuple[str, ...] | None = None
    """Names or paths of the targets (descriptions of machines), at most one for each sort of input, such as HLO or ONNX. An
    input is read for the target of its sort. Problem files and CSV files need none. None if there are no targets."""
    op_table: str | None = None
    """Path of the TOML file with the operations of loop bodies (:attr:`ReadOptions.op_table`); None if there is no such
    file."""
    time_limit: float = 30.0
    """Seconds for each input, including the time for reading it."""
    candidates: tuple[str, ...] = FAMILIES
    """Names of the candidates, or of families of candidates, that solve each input."""
    seed: int = 0
    """Seed of all random numbers, from 0 to 2^31 - 1."""
    workers: int = 2
    """Largest number of processes that search at the same time for one input."""
    deterministic: bool = False
    """Whether to limit the amount of work instead of the time."""
    work_limit: float | None = None
    """Work for each input of a deterministic run, in seconds of an idle machine; None for as much as ``time_limit`` says."""
    gap: float = 0.0
    """The search for an input ends when ``(objective - bound) / objective`` is at most this number, from 0 to 1."""
    memory_limit: int | None = None
    """Memory limit in bytes for the process of each candidate; None for no limit."""
    certify: bool = False
    """Whether to make certificates, which are proofs of the bounds that a checker follows without a solver."""
    baseline: str | None = None
    """Name of the baseline that no result may be worse than; None if baselines are only compared with the results."""
    xla_plans: tuple[str, ...] = ()
    """Folders with XLA's own plans of compiled programs. A plan is the HLO module after memory-space assignment, in a file with
    the same name as the input; the first folder with such a file counts. The plan takes part in the run as the baseline
    ``xla``. If it cannot be used, the result has a warning."""

    @property
    def search(self) -> Options:
        """The options for solving each input; raises UsageError if a value has a wrong type or is out of range."""
        return Options(**{name: getattr(self, name) for name in Options.__struct_fields__})

    @property
    def inputs(self) -> ReadOptions:
        """The options for reading each input, without its target; raises UsageError for a value that is not allowed."""
        names = {*ReadOptions.__struct_fields__} & {*Settings.__struct_fields__} - {"target"}
        return ReadOptions(**{name: getattr(self, name) for name in names})

    @property
    def targets(self) -> tuple[str, ...]:
        """All targets, as a tuple, which is empty if there are none."""
        if self.target is None:
            return ()
        return (self.target,) if isinstance(self.target, str) else self.target


class Record(Document, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The result of one input of a batch."""

    input: str
    """Path of the input, as the command found it; bytes that are not UTF-8 are escaped."""
    settings: Settings
    """The settings with which the input was read and solved."""
    exit_code: int
    """The exit code that ``stowplan solve`` would have returned for the input."""
    error: str | None = None
    """One line that says why there is no result; None if there is one."""
    result: dict[str, Any] | None = None
    """The result as ``stowplan solve --json`` prints it. Its entry ``plan`` is the name of the plan's file in the same folder,
    or None if the run found no plan. ``result`` is None if the input failed."""
    xla_plan: str | None = None
    """Digest of XLA's own plan; None if the run did not compare with it."""
    format: str = FORMAT
    """Name of the file format."""
    version: int = VERSION
    """Version of the file format."""


def check_settings(settings: Settings) -> Settings:
    """Returns the settings with their values converted to plain Python types. Checks that depend on an input come later.

    Raises
    ------
    UsageError
        A value has a wrong type or is out of range.
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
    """The exit code of a batch: the highest exit code of its records, and 0 if there are none."""
    return max((record.exit_code for record in records), default=0)


def read_records(folder: str | Path) -> dict[str, Record]:
    """Read the records in a folder and its subfolders. The keys of the result are the names of the inputs, sorted by path.

    Raises
    ------
    InputError
        The folder does not exist, contains no record, or contains a record that cannot be read.
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
    """Exit code and one line of text for an input that failed with this error.

    Errors of the package have exit codes of their own. Any other error is internal: it has :data:`INTERNAL_ERROR`.
    """
    code = error.exit_code if isinstance(error, StowplanError) else INTERNAL_ERROR
    text = str(error) if isinstance(error, StowplanError) else f"internal error: {type(error).__name__}: {error}"
    # Lone surrogates, as from names of files that are not UTF-8, cannot be written; they become backslash escapes.
    return code, " ".join(text.encode("utf-8", errors="backslashreplace").decode().split())


#: Seconds to wait for the lock, because the system may still be releasing that of a process that was just killed.
LOCK_SECONDS = 0.5


class Line(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A line of the journal, and an entry of the list that ``stowplan batch --json`` prints."""

    name: str
    """Name of the input."""
    record: Record
    """The record of the input."""


@contextlib.contextmanager
def only_writer(path: Path) -> Iterator[None]:
    """Context manager that holds the lock on the file ``path`` of the output folder.

    The file is created at the beginning, contains the id of this process, and is removed at the end. If this process dies, the
    system releases the lock.

    Raises
    ------
    InputError
        Another process holds the lock, or the file cannot be locked.
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
    """A text with the id of the process that holds the lock; empty if it is not known."""
    try:
        return f" (process {int(path.read_text())})"
    except (OSError, ValueError):
        return ""


class Journal:
    """A file with one line for each input that has a record. If there are several lines for an input, the last one counts.

    A line that a killed process has left unfinished is cut off when the file is opened. A line whose input was solved again is
    removed when the file is opened or closed. If the path is a device or a pipe, lines are only written to it.

    Parameters
    ----------
    path
        The file; it is created if it does not exist. Its folder must exist.

    Raises
    ------
    InputError
        The file cannot be read or written, or contains a line that is no record.
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
                # A process that was killed while it rewrote the file has left a temporary one.
                remove_temporary(path.parent, re.escape(path.name))
                self._read()
                self._compact()
            self._handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666) if through is None else through
        except OSError as error:
            raise self._unwritable(error) from error

    def has(self, name: str, record: Record) -> bool:
        """Whether the last line of an input has this record."""
        return self._last.get(name) == _make_line(name, record)

    def add(self, name: str, record: Record) -> None:
        """Append the line of an input; raises InputError if it cannot be written, and the file is then as before."""
        line = _make_line(name, record)
        try:
            self._append(line)
        except OSError as error:
            raise self._unwritable(error) from error
        self._remember_line(name, line)

    def close(self) -> None:
        """Close the file and remove outdated lines from it; raises InputError if they cannot be removed."""
        os.close(self._handle)
        if self._is_file:
            self._compact()

    def _remember_line(self, name: str, line: bytes) -> None:
        """Remember the line of an input."""
        self._has_more |= self._last.pop(name, None) is not None
        self._last[name] = line

    def _append(self, line: bytes) -> None:
        """Write a line to the end of the file; raises OSError if that fails, and then removes the part that was written."""
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
        """Read the lines of the file, and cut off an unfinished last line; raises InputError for a line that is no record."""
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
    """Remove the temporary files that killed processes have left in a folder. No process may be writing there.

    ``name`` is a regular expression for the names of the files that were being written. Raises OSError if the folder cannot be
    read or a file cannot be removed.
    """
    left = re.compile(rf"\.{name}\.\w+\.tmp")
    for entry in os.scandir(folder):
        if left.fullmatch(entry.name):
            os.unlink(entry)


def _make_line(name: str, record: Record) -> bytes:
    """The line of an input in the journal."""
    return msgspec.json.encode(Line(name, record)) + b"\n"
