"""Results of compiles on disk, found by what they were made from.

``FOLDER/NAME-DIGEST/KEY/`` holds one result: the digest is that of the lowered function, the key that of the compiler's
options, its version and the machine. Results are written beside their place and renamed, so several processes may share a
folder.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path

import msgspec

from stowplan import files
from stowplan.backends.xla.child import Option
from stowplan.backends.xla.dumps import ASSIGNED, COMPILED, OFFSETS, PROGRAM, assignment_digest
from stowplan.errors import InputError

FORMAT = "stowplan.xla.compile"
VERSION = 1

_RECORD = "record.json"


class Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How a result was made."""

    options: dict[str, Option]
    versions: dict[str, str]
    topology: str
    workload: str
    """Digest of the lowered function."""
    processor_seconds: float
    seconds: float
    hbm_bytes: int = 0
    """What the program has in slow memory at most; 0 where it is not known."""
    error: str = ""
    """The compiler's message where it refused; there are no other files then."""
    format: str = FORMAT
    version: int = VERSION

    @property
    def key(self) -> str:
        """What the result is found by, among those of one workload."""
        return result_key(self.options, self.versions, self.topology)


def result_key(options: Mapping[str, Option], versions: Mapping[str, str], topology: str) -> str:
    """Key of a result: equal for equal options, whatever their order."""
    return files.digest({"options": dict(sorted(options.items())), "versions": dict(versions), "topology": topology})[:20]


class Compiled:
    """A result on disk.

    Parameters
    ----------
    folder
        Where its files are.
    record
        How it was made.
    """

    def __init__(self, folder: Path, record: Record):
        self.folder = folder
        self.record = record

    @property
    def error(self) -> str:
        """The compiler's message where it refused, else empty."""
        return self.record.error

    @property
    def module_path(self) -> Path:
        """The compiled module, with the compiler's cycles and memory spaces."""
        return self.folder / COMPILED

    @property
    def assigned_path(self) -> Path:
        """The module as the memory-space assignment left it: the compiler's plan."""
        return self.folder / ASSIGNED

    @property
    def offsets_path(self) -> Path:
        """The allocations in fast memory."""
        return self.folder / OFFSETS

    @cached_property
    def assignment_digest(self) -> str:
        """Of the module as the memory-space assignment left it."""
        return assignment_digest(self.folder)

    @cached_property
    def program_path(self) -> Path:
        """The scheduled program before the compiler's memory-space assignment."""
        own = self.folder / PROGRAM
        return own if own.exists() else self.folder.parent / PROGRAM


def read_result(folder: str | Path) -> Compiled:
    """The result in a folder, such as a trial names; raises :class:`~stowplan.errors.InputError` where there is none."""
    folder = Path(folder)
    path = folder / _RECORD
    return Compiled(folder, files.decode(files.read_bytes(path), Record, format_name=FORMAT, version=VERSION, source=path))


class WorkloadStore:
    """The results of one workload.

    Parameters
    ----------
    folder
        That of all workloads.
    name, digest
        Of this one.
    """

    def __init__(self, folder: Path, name: str, digest: str):
        self.folder = folder / f"{name}-{digest[:16]}"
        self._digest = digest
        files.make_folder(self.folder)

    def find(self, key: str, *, preview: bool = False) -> Compiled | None:
        """The result of a key, of which a preview lacks the compiled module; a record that cannot be read counts as none."""
        folder = self.folder / key
        try:
            record = files.decode((folder / _RECORD).read_bytes(), Record, format_name=FORMAT, version=VERSION)
        except (OSError, InputError):
            return None
        result = Compiled(folder, record)
        files_of = (result.assigned_path, result.offsets_path, result.program_path, result.module_path)
        complete = record.error or all(path.exists() for path in files_of[: 3 if preview else 4])
        return result if record.workload == self._digest and record.key == key and complete else None

    @contextlib.contextmanager
    def scratch(self) -> Iterator[Path]:
        """A folder to write a result into; what is left of it afterwards goes."""
        folder = Path(tempfile.mkdtemp(dir=self.folder, prefix=".making."))
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def keep(self, scratch: Path, record: Record, *, preview: bool = False) -> Compiled:
        """Take what a compile wrote into ``scratch`` as the result of the record's key, in place of a preview's."""
        self._share_program(scratch)
        files.write_atomic(scratch / _RECORD, files.encode(record))
        place = self.folder / record.key
        with self._alone():
            result = self.find(record.key, preview=preview)
            if result is None:
                shutil.rmtree(place, ignore_errors=True)
                scratch.chmod(0o777 & ~files.umask())
                with contextlib.suppress(OSError):
                    os.rename(scratch, place)
                result = self.find(record.key, preview=preview)
        if result is None:
            raise InputError("cannot keep a result there: the disk may be full", source=place)
        return result

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Nobody else puts a result of the workload in its place meanwhile, where the file system knows locks."""
        handle = os.open(self.folder, os.O_RDONLY | os.O_CLOEXEC)
        try:
            with contextlib.suppress(OSError):
                fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            os.close(handle)

    def _share_program(self, scratch: Path) -> None:
        """One program for all results of the workload, unless this one's differs."""
        own, shared = scratch / PROGRAM, self.folder / PROGRAM
        if not own.exists():
            return
        if not shared.exists():
            files.write_atomic(shared, own.read_bytes())
        if shared.read_bytes() == own.read_bytes():
            own.unlink()
