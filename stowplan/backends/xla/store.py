"""Stores results of compilations and previews on disk; their keys are hashes of everything that they depend on.

The folder ``FOLDER/NAME-DIGEST/KEY/`` has one result. DIGEST is a hash of the lowered function, and KEY is a hash of the
compiler's options, of the versions of the compiler's packages, and of the machine. A result is written to a temporary folder,
which is then renamed, so that several processes may share a folder. A *workload* is a function with the shapes of its
arguments. A *preview* is a compilation that ends right after XLA's memory-space assignment, so that it has no compiled module.
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

#: Values of the fields ``format`` and ``version`` of records.
FORMAT = "stowplan.xla.compile"
VERSION = 1

#: Name of the file with the record in the folder of a result.
_RECORD = "record.json"


class Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A record of how a result was made."""

    options: dict[str, Option]
    """Compiler options."""
    versions: dict[str, str]
    """Versions of the packages that compiled it, and compiler flags from the environment."""
    topology: str
    """Name of the machine."""
    workload: str
    """Digest of the lowered function."""
    processor_seconds: float
    """CPU time of the compilation, in seconds."""
    seconds: float
    """Elapsed time of the compilation, in seconds."""
    hbm_bytes: int = 0
    """The most bytes that the program has in slow memory; 0 if that is not known."""
    error: str = ""
    """The compiler's message if it refused; the result has no other files then."""
    format: str = FORMAT
    version: int = VERSION

    @property
    def key(self) -> str:
        """The key of the result among those of its workload."""
        return result_key(self.options, self.versions, self.topology)


def result_key(options: Mapping[str, Option], versions: Mapping[str, str], topology: str) -> str:
    """Returns the key of a result, which does not depend on the order of the options."""
    return files.digest({"options": dict(sorted(options.items())), "versions": dict(versions), "topology": topology})[:20]


class Compiled:
    """The result of a compilation or a preview on disk.

    Parameters
    ----------
    folder
        The folder with its files.
    record
        How it was made.
    """

    def __init__(self, folder: Path, record: Record):
        self.folder = folder
        self.record = record

    @property
    def error(self) -> str:
        """The compiler's message if it refused; otherwise empty."""
        return self.record.error

    @property
    def module_path(self) -> Path:
        """Path of the compiled module, with the compiler's cycles and memory spaces; a preview has no such file."""
        return self.folder / COMPILED

    @property
    def assigned_path(self) -> Path:
        """Path of the module after memory-space assignment, which is the compiler's plan."""
        return self.folder / ASSIGNED

    @property
    def offsets_path(self) -> Path:
        """Path of the list of allocations in fast memory."""
        return self.folder / OFFSETS

    @cached_property
    def assignment_digest(self) -> str:
        """Hash of the module after memory-space assignment; OSError is raised if the file is missing."""
        return assignment_digest(self.folder)

    @cached_property
    def program_path(self) -> Path:
        """Path of the scheduled program before memory-space assignment."""
        program = self.folder / PROGRAM
        return program if program.exists() else self.folder.parent / PROGRAM


def read_result(folder: str | Path) -> Compiled:
    """Reads the result in a folder; raises InputError if there is none, or if its record is not valid."""
    folder = Path(folder)
    path = folder / _RECORD
    return Compiled(folder, files.decode(files.read_bytes(path), Record, format_name=FORMAT, version=VERSION, source=path))


class WorkloadStore:
    """The results of one workload.

    Parameters
    ----------
    folder
        Folder of all workloads.
    name, digest
        Name of this workload, and digest of its lowered function.

    Raises
    ------
    InputError
        The folder of the workload cannot be made.
    """

    def __init__(self, folder: Path, name: str, digest: str):
        self.folder = folder / f"{name}-{digest[:16]}"
        self._digest = digest
        files.make_folder(self.folder)

    def find(self, key: str, *, preview: bool = False) -> Compiled | None:
        """Returns the result with this key; None if there is none, or if it is incomplete or cannot be read.

        Parameters
        ----------
        preview
            Whether a preview, which has no compiled module, is sufficient.
        """
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
        """A context manager with a temporary folder for a new result; unless :meth:`keep` moves the folder, it is removed."""
        folder = Path(tempfile.mkdtemp(dir=self.folder, prefix=".making."))
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def keep(self, scratch: Path, record: Record, *, preview: bool = False) -> Compiled:
        """Store the files in ``scratch`` as the result with the record's key, unless there is one already; returns the stored
        result.

        Parameters
        ----------
        preview
            Whether the result is a preview. A compilation replaces a stored preview.

        Raises
        ------
        InputError
            The result could not be stored.
        """
        self._share_program(scratch)
        files.write_atomic(scratch / _RECORD, files.encode(record))
        target = self.folder / record.key
        with self._locked():
            result = self.find(record.key, preview=preview)
            if result is None:
                shutil.rmtree(target, ignore_errors=True)
                scratch.chmod(0o777 & ~files.umask())
                with contextlib.suppress(OSError):
                    os.rename(scratch, target)
                result = self.find(record.key, preview=preview)
        if result is None:
            raise InputError("cannot keep a result there: the disk may be full", source=target)
        return result

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """A context manager in which no other process stores a result of the workload.

        On a file system without locks, it has no effect.
        """
        handle = os.open(self.folder, os.O_RDONLY | os.O_CLOEXEC)
        try:
            with contextlib.suppress(OSError):
                fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            os.close(handle)

    def _share_program(self, scratch: Path) -> None:
        """Keep one copy of the program for all results of the workload, unless the program of this one differs."""
        program, shared = scratch / PROGRAM, self.folder / PROGRAM
        if not program.exists():
            return
        if not shared.exists():
            files.write_atomic(shared, program.read_bytes())
        if shared.read_bytes() == program.read_bytes():
            program.unlink()
