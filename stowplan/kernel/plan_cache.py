"""The plan cache: results of earlier calls on disk.

The key of a result is the digest of everything that it depends on: the whole problem, the options, given plans and hints,
candidates with their checkpoints, and versions. A plan from the cache is verified like any other plan, and an entry that fails
is deleted.

The store is one SQLite file in WAL mode, so that a writer that is killed leaves either the old or the new state. A process that
computes a result holds a lock on a file that is named after the key; the system releases the lock when the process ends. Other
processes wait for that result within their limits. If anything is wrong with the cache (a full disk, a damaged file, missing
permissions), calls work as if there were none.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec

from stowplan.certificates.certificate import Certificate
from stowplan.deadline import Deadline
from stowplan.errors import StowplanError, UsageError
from stowplan.files import digest, try_lock
from stowplan.kernel.call import Call
from stowplan.kernel.kind import Kind, check
from stowplan.log import LOGGER
from stowplan.result import Progress, Result
from stowplan.version import versions

T = TypeVar("T")

#: Default limit on the bytes of stored results.
MAX_BYTES = 1 << 28

#: Version of the table. It is increased when older entries can no longer be read.
_SCHEMA = 2

_FILE = "plans.sqlite"

#: Errors that SQLite raises. For a damaged file, its error messages may not be valid text.
_DATABASE_ERRORS = (OSError, sqlite3.Error, UnicodeDecodeError)

#: Environment variables that do not influence results.
_IRRELEVANT_VARIABLES = {
    "STOWPLAN_CACHE",
    "STOWPLAN_COMPILE_CACHE",
    "STOWPLAN_DEBUG",
    "STOWPLAN_INTERPRET",
    "STOWPLAN_KEEP_WORKERS",
}

#: Options that the key contains in another form, or on which results do not depend.
_NOT_IN_KEY = {"time_limit", "work_limit", "baseline", "memory_limit"}

#: Minimum number of nanoseconds between two records of the use of an entry: writing one takes longer than reading the entry.
USE_INTERVAL_NS = 10 * 10**9

#: Seconds that SQLite waits for other processes, and seconds between two checks of the lock that another process holds.
_BUSY, _POLL = 2.0, 0.02

#: Seconds beyond its limit that a call waits for a result of another process; the tolerance of time limits includes them.
_MARGIN = 0.2

_TABLE = """
CREATE TABLE IF NOT EXISTS results (
    key TEXT PRIMARY KEY,
    time_limit REAL,
    result BLOB NOT NULL,
    plan BLOB,
    digest BLOB NOT NULL,
    bytes INTEGER NOT NULL,
    used INTEGER NOT NULL
) WITHOUT ROWID
"""


#: Types of the values of an entry: time limit, result, plan, digest and last use. SQLite does not enforce types.
_COLUMNS = (float | None, bytes, bytes | None, bytes, int)


class CacheInfo(NamedTuple):
    """The size of a cache."""

    folder: str
    entries: int
    """Number of stored results."""
    bytes: int
    """Bytes of the stored results."""
    file_bytes: int
    """Bytes of the files of the database."""


@dataclass
class PlanCache:
    """A folder with results of earlier calls.

    Parameters
    ----------
    folder
        The folder, which is created if it is missing. Several processes on one machine may share it.
    most_bytes
        Limit on the bytes of all results. Beyond it, the results that were not used for the longest time are deleted.
    time_limit
        The time limit in seconds with which results are stored and looked up. None means the limit of the call. (The command
        line sets it, because it reduces the limit of the call by the time for reading the input.)
    """

    folder: Path
    most_bytes: int = MAX_BYTES
    time_limit: float | None = None
    notes: list[str] = field(default_factory=list)
    """Warnings about problems with the cache in this call."""

    @classmethod
    def of(cls, argument: Any) -> PlanCache | None:
        """Makes a cache from an argument: a folder, a cache, or None. Raises UsageError for anything else."""
        if argument is None:
            return None
        if isinstance(argument, PlanCache):
            return replace(argument, notes=[])
        if isinstance(argument, str | os.PathLike) and os.fspath(argument):
            return cls(Path(argument))
        raise UsageError(f"found the cache {argument!r}, expected a folder")

    def result_of(
        self,
        call: Call,
        deadline: Deadline,
        compute: Callable[[], Result],
        on_progress: Callable[[Progress], None] | None = None,
    ) -> Result:
        """Returns the stored result of a call, or computes and stores a new one. It raises only the errors of ``compute`` and
        ``on_progress``.

        Parameters
        ----------
        call
            The checked call.
        deadline
            Deadline of the call.
        compute
            Computes the result if none is stored.
        on_progress
            Called once with a result from the cache.
        """
        limit = call.options.time_limit if self.time_limit is None else self.time_limit
        key = key_of(call)
        stored = self.get(call.kind, call.problem, key, limit)
        if stored is None:
            with self.turn(key, deadline) as waited:
                stored = self.get(call.kind, call.problem, key, limit) if waited else None
                if stored is None:
                    result = compute()
                    # A call that has waited for another process did not have its whole time limit.
                    if not (waited and result.depends_on_limit):
                        self.put(key, result, limit)
        if stored is not None:
            LOGGER.info("found in the plan cache: %s, from a run of %.3f s", stored.status, stored.seconds)
            cached = {"cached": {"seconds": stored.seconds}}
            seconds = round(deadline.elapsed, 3)
            result = msgspec.structs.replace(stored, seconds=seconds, details=stored.details | cached)
            if on_progress is not None:
                on_progress(Progress(seconds, result.objective, result.bound, result.provenance.candidate, seconds))
        return msgspec.structs.replace(result, warnings=(*result.warnings, *self.notes))

    # ------------------------------------------------------------------------------------------------------- results

    def get(self, kind: Kind[Any, Any], problem: Any, key: str, time_limit: float) -> Result | None:
        """The stored result for this key, with its plan verified. None if there is none, or if it depends on a time limit that
        is shorter than ``time_limit``."""
        row = self._safely("read", lambda: self._find(key), None)
        if row is None:
            return None
        limit, data, plan_data, digest = row
        if limit is not None and limit < time_limit:
            return None
        result = _decoded(kind, problem, data, plan_data, digest)
        if result is None:
            self.notes.append("an entry of the plan cache was damaged: computed again")
            self._safely("write", lambda: self._delete(key), None)
            return None
        return result

    def put(self, key: str, result: Result, time_limit: float) -> None:
        """Stores a result if it is reproducible (:attr:`Result.is_reproducible`) and not larger than the whole cache may be.
        The time limit is stored with it if the result depends on the limit."""
        if not result.is_reproducible:
            return
        data = msgspec.msgpack.encode(msgspec.structs.replace(result, plan=None))
        plan = None if result.plan is None else msgspec.json.encode(result.plan)
        limit = time_limit if result.depends_on_limit else None
        size = len(data) + len(plan or b"")
        if size <= self.most_bytes:
            self._safely("write", lambda: self._insert(key, limit, data, plan, size), None)

    def clear(self) -> int:
        """Deletes all results and returns their number.

        Raises
        ------
        StowplanError
            The cache cannot be read or written.
        """
        if not self._path.exists():
            return 0
        with self._strictly() as database:
            count = database.execute("DELETE FROM results").rowcount
            database.execute("VACUUM")
        return count

    def info(self) -> CacheInfo:
        """The size of the cache; raises StowplanError if it cannot be read."""
        if not self._path.exists():
            return CacheInfo(str(self.folder), 0, 0, 0)
        with self._strictly() as database:
            entries, size = database.execute("SELECT count(*), coalesce(sum(bytes), 0) FROM results").fetchone()
        sizes = (path.stat().st_size for path in self._files if path.exists())
        return CacheInfo(str(self.folder), entries, size, sum(sizes))

    # --------------------------------------------------------------------------------------------------------- turns

    @contextlib.contextmanager
    def turn(self, key: str, deadline: Deadline) -> Iterator[bool]:
        """Context manager that locks the key of a result, after waiting for another process that computes the same result.

        Parameters
        ----------
        key
            Key of the result.
        deadline
            Deadline of this call. If the other process needs longer, this call does not wait for it and computes the result
            itself.

        Yields
        ------
        bool
            Whether this call has waited for another process, so that the result may be stored by now.
        """
        path = self.folder / f"{key}.lock"
        end = time.monotonic() + deadline.remaining
        handle, waited = None, False
        try:
            while (handle := self._safely("lock", lambda: _try_lock(path), -1)) is None:
                waited = True
                seconds_left = end - time.monotonic()
                # The other process ends its run at its own limit, and stores the result a moment later.
                if deadline.was_cancelled or seconds_left < -_MARGIN or _seconds_left(path) > seconds_left + _MARGIN / 2:
                    break
                time.sleep(_POLL)
            if handle is not None and handle >= 0:
                with contextlib.suppress(OSError):
                    os.ftruncate(handle, 0)
                    os.pwrite(handle, repr(time.time() + deadline.remaining).encode(), 0)
            yield waited
        finally:
            if handle is not None and handle >= 0:
                # The file is removed before the lock is released, so that the next owner of the lock sees that the file is
                # gone.
                path.unlink(missing_ok=True)
                os.close(handle)

    # --------------------------------------------------------------------------------------------------------- SQLite

    @property
    def _path(self) -> Path:
        return self.folder / _FILE

    @property
    def _files(self) -> list[Path]:
        """The database file, and the files that SQLite creates next to it."""
        return [self._path.with_name(_FILE + ending) for ending in ("", "-wal", "-shm")]

    @contextlib.contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        """Opens the database, and creates or replaces the table if its version is not the current one."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        database = sqlite3.connect(self._path, timeout=_BUSY, isolation_level=None)
        try:
            (version,) = database.execute("PRAGMA user_version").fetchone()
            if version != _SCHEMA:
                database.execute("PRAGMA auto_vacuum = INCREMENTAL")
                database.execute("PRAGMA journal_mode = WAL")
                database.execute("BEGIN IMMEDIATE")
                database.execute("DROP TABLE IF EXISTS results")
                database.execute(_TABLE)
                database.execute(f"PRAGMA user_version = {_SCHEMA}")
                database.execute("COMMIT")
            database.execute("PRAGMA synchronous = NORMAL")
            yield database
        finally:
            database.close()

    def _find(self, key: str) -> tuple[float | None, bytes, bytes | None, bytes] | None:
        """Returns an entry of the table, or None, and records that it was used."""
        if not self._path.exists():
            return None
        with self._open() as database:
            row = database.execute(
                "SELECT time_limit, result, plan, digest, used FROM results WHERE key = ?", (key,)
            ).fetchone()
            if row is None:
                return None
            *entry, used = row
            if not all(isinstance(value, kinds) for value, kinds in zip(row, _COLUMNS, strict=True)):
                raise sqlite3.DatabaseError("an entry has values of other types")
            now = time.time_ns()
            if not 0 <= now - used <= USE_INTERVAL_NS:
                # A file that cannot be written can still be read.
                update = "UPDATE results SET used = ? WHERE key = ?"
                self._safely("write", lambda: database.execute(update, (now, key)), None)
        limit, data, plan, digest = entry
        return limit, data, plan, digest

    def _delete(self, key: str) -> None:
        with self._open() as database:
            database.execute("DELETE FROM results WHERE key = ?", (key,))

    def _insert(self, key: str, limit: float | None, data: bytes, plan: bytes | None, size: int) -> None:
        """Writes an entry, and deletes the least recently used ones if the results exceed the limit."""
        values = (key, limit, data, plan, _digest(data, plan), size, time.time_ns())
        with self._open() as database:
            database.execute("BEGIN IMMEDIATE")
            database.execute("INSERT OR REPLACE INTO results VALUES (?, ?, ?, ?, ?, ?, ?)", values)
            (total,) = database.execute("SELECT sum(bytes) FROM results").fetchone()
            is_full = total > self.most_bytes
            while total > self.most_bytes:
                oldest, its_size = database.execute(
                    "SELECT key, CAST(bytes AS INTEGER) FROM results ORDER BY used LIMIT 1"
                ).fetchone()
                database.execute("DELETE FROM results WHERE key = ?", (oldest,))
                total -= its_size
            database.execute("COMMIT")
            if is_full:
                database.execute("PRAGMA incremental_vacuum").fetchall()

    def _safely(self, what: str, work: Callable[[], Any], otherwise: T) -> T:
        """Calls ``work`` and returns its value. If the files cannot be used, notes that and returns ``otherwise``."""
        try:
            value: T = work()
        except _DATABASE_ERRORS as error:
            # One warning suffices, because later steps fail for the same reason.
            if not self.notes:
                self.notes.append(f"the plan cache {self.folder} cannot be used ({what}): {error}")
            if _is_damaged(error):
                self._delete_files()
            return otherwise
        return value

    @contextlib.contextmanager
    def _strictly(self) -> Iterator[sqlite3.Connection]:
        """Opens the database; raises StowplanError if the files cannot be used."""
        try:
            with self._open() as database:
                yield database
        except _DATABASE_ERRORS as error:
            raise StowplanError(f"{self.folder}: the plan cache cannot be used: {error}") from error

    def _delete_files(self) -> None:
        """Deletes a file that is no longer a valid database."""
        for path in self._files:
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)


def key_of(call: Call) -> str:
    """The key of a call's result: the digest of everything that the result depends on. It contains the limit only if the run is
    deterministic; results of other runs are stored with their time limits."""
    options = call.options
    limit = options.extent if options.deterministic else None
    other_options = {name: value for name, value in msgspec.structs.asdict(options).items() if name not in _NOT_IN_KEY}
    key_fields = {
        "schema": _SCHEMA,
        "kind": call.kind.name,
        "options": other_options | {"limit": limit},
        "candidates": [[candidate.name, candidate.checkpoint] for candidate in call.candidates],
        "baseline": call.baseline,
        "versions": sorted(versions(with_policy=True).items()),
        "environment": _environment(),
        "plans": sorted((name, digest(plan)) for name, plan in call.plans.items()),
        "hint": None if call.hint is None else digest(call.hint),
        "problem": digest(call.problem),
    }
    if call.stability_pass is not None:
        key_fields["keep_close"] = digest(call.stability_pass.request)
    return digest(key_fields)


def _environment() -> list[tuple[str, str]]:
    """Environment variables of the package that may influence a result, with hashes of the files that they name."""
    variables = []
    for name, value in sorted(os.environ.items()):
        if name.startswith("STOWPLAN_") and name not in _IRRELEVANT_VARIABLES:
            with contextlib.suppress(OSError):
                value += hashlib.sha256(Path(value).read_bytes()).hexdigest()
            variables.append((name, value))
    return variables


def _digest(data: bytes, plan: bytes | None) -> bytes:
    return hashlib.sha256(data + b"\0" + (plan or b"")).digest()


def _decoded(kind: Kind[Any, Any], problem: Any, data: bytes, plan_data: bytes | None, digest: bytes) -> Result | None:
    """The result of an entry, with its plan verified; None if anything is wrong with it."""
    try:
        if _digest(data, plan_data) != digest:
            return None
        result = msgspec.msgpack.decode(data, type=Result)
        if result.certificate is not None:
            result = msgspec.structs.replace(result, certificate=msgspec.convert(result.certificate, Certificate))
        if plan_data is None:
            return result if result.objective is None else None
        plan = kind.plan.decode(plan_data)
    except (msgspec.MsgspecError, StowplanError, TypeError, ValueError):
        return None
    verified = check(kind, problem, plan)
    if not verified.ok or verified.objective != result.objective:
        return None
    return msgspec.structs.replace(result, plan=plan)


def _is_damaged(error: Exception) -> bool:
    code = getattr(error, "sqlite_errorcode", None)
    if isinstance(error, UnicodeDecodeError):
        return True
    return code is not None and code & 0xFF in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


def _try_lock(path: Path) -> int | None:
    """Descriptor of the locked file; None if another process has the lock."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    return try_lock(path)


def _seconds_left(path: Path) -> float:
    """Seconds that the process with the lock has left, as it wrote into the file; 0 if the file says nothing."""
    try:
        return float(path.read_bytes() or b"0") - time.time()
    except (OSError, ValueError):
        return 0.0
