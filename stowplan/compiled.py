"""``njit`` with a compile cache that is never stale and never breaks an import.

Numba looks only at the file of a function to see whether its cached code is fresh, not at the files of those it calls, and
it cannot import a cached function where the package is read-only and there is no writable home. So the cache lies in a
folder of the user's whose name carries a digest of a room's compiled sources (:func:`sources`). What is cached is code, so a
folder that others own, or can write to, is not used. Nothing that goes wrong with it (a full disk, a damaged file) costs more
than compiling again.

Compiling everything takes about half a minute, once (``python -m stowplan.portfolio.warm_up`` does it ahead of time). Until
it has been done on a machine (:func:`is_warm`), the same functions run interpreted: set
``STOWPLAN_INTERPRET=1`` to get that by hand. On small problems they do in any case (:mod:`stowplan.interpreted`).
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import stat
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from stowplan.log import LOGGER

F = TypeVar("F", bound=Callable[..., Any])
R = TypeVar("R")

INTERPRET = "STOWPLAN_INTERPRET"

#: True in the copy of this module that interpreted copies of others use (:mod:`stowplan.interpreted`).
ALWAYS_INTERPRETED = False
_MARKER = "complete"

#: The room whose heuristics stand in interpreted until they are compiled.
HEURISTICS = "portfolio"


#: An import of ours at the head of a module: from where, and the names.
_IMPORT = re.compile(rb"^from (stowplan[\w.]*) import (\([^)]*\)|.*)", re.MULTILINE)

#: Names of this module that have no part in what is compiled.
_AROUND = {b"INTERPRET", b"cache_folder", b"is_interpreted", b"is_warm", b"mark_warm"}


@cache
def sources(room: str) -> tuple[Path, ...]:
    """Files that decide what a room's compiled code is: those that compile, what they import of the room, and so on.

    Each room (a folder of the package) has a cache of its own, so that a change in one leaves the others warm. Nothing is
    imported: files are read as text.
    """
    own = __name__.encode()
    top = Path(__file__).parent
    texts = {str(path): path.read_bytes() for path in (top / room).rglob("*.py")}
    rest = [
        path
        for path, text in texts.items()
        if own in text and any(at == own and {*re.findall(rb"\w+", names)} - _AROUND for at, names in _IMPORT.findall(text))
    ]
    found: set[str] = set()
    while rest:
        path = rest.pop()
        if path in found or path not in texts:
            continue
        found.add(path)
        for module, names in _IMPORT.findall(texts[path]):
            place = str(top.parent.joinpath(*module.decode().split(".")))
            for each in (place, *(f"{place}{os.sep}{name.decode()}" for name in re.findall(rb"\w+", names))):
                rest += (f"{each}.py", f"{each}{os.sep}__init__.py")
    return tuple(map(Path, sorted(found)))


@cache
def cache_folder(room: str = HEURISTICS) -> Path:
    """Where a room's compiled code is kept; ``STOWPLAN_COMPILE_CACHE`` names another place.

    Raises
    ------
    OSError
        No folder can be made anywhere.
    """
    # Not numba.__version__: the parent of the workers asks too, and importing numba takes a third of a second.
    digest = hashlib.sha256(metadata.version("numba").encode())
    for path in (Path(__file__), *sources(room)):
        # Numba itself looks for a file of this path and age; anything else it compiles again.
        digest.update(f"{path} {path.stat().st_mtime_ns} ".encode() + path.read_bytes())
    name = f"compiled-{digest.hexdigest()[:16]}"
    return next(folder for place in _places() if (folder := _private(place / name)) is not None)


def _places() -> Iterator[Path]:
    """Folders to keep caches in, best first; the last one is new."""
    named = os.environ.get("STOWPLAN_COMPILE_CACHE")
    everyones = Path(tempfile.gettempdir())
    own = everyones / f"stowplan-{os.getuid()}"
    if named:
        # Whoever names a folder knows who else may write to it; the folder within it is private all the same.
        yield Path(named)
    else:
        home = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")) / "stowplan"
        if home.is_absolute() and _private(home, repair=True):
            yield home
    # Where somebody else has taken the second name: what an earlier process made beside it.
    yield from (place for place in (own, *sorted(everyones.glob(f"{own.name}-*"))) if _private(place, repair=True))
    yield Path(tempfile.mkdtemp(prefix=f"{own.name}-"))


def _private(folder: Path, *, repair: bool = False) -> Path | None:
    """The folder, made where it is missing, if it is this user's and nobody else could write to it; None otherwise.

    A symbolic link to it must be this user's too. ``repair`` takes one that others could write to, where its content is looked
    at again before it is used. Afterwards nobody else can read or write it.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = folder.stat()
        if {folder.lstat().st_uid, found.st_uid} != {os.getuid()}:
            return None
        if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not repair:
            return None
        if found.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
            folder.chmod(0o700)
    except OSError:
        return None
    return folder if os.access(folder, os.W_OK | os.X_OK) else None


def is_warm(room: str = HEURISTICS, marker: str = _MARKER) -> bool:
    """Whether everything has been compiled on this machine."""
    try:
        return (cache_folder(room) / marker).exists()
    except OSError:
        return False


def mark_warm(room: str = HEURISTICS, marker: str = _MARKER) -> None:
    """Remember that everything has been compiled; nothing has where functions are interpreted, or code was not kept."""
    if not is_interpreted() and not _trouble:
        with contextlib.suppress(OSError):
            (cache_folder(room) / marker).touch()


def is_interpreted() -> bool:
    """Whether functions stay as they are written."""
    return ALWAYS_INTERPRETED or os.environ.get(INTERPRET) == "1"


def njit(function: F) -> F:
    """Compile with numba on first call and keep the result on disk; a function to be interpreted stays as it is."""
    return _compile(function)


def njit_outer(function: F) -> F:
    """Like :func:`njit`, for a function that allocates no arrays, nor do those it calls: nothing counts references.

    Numba counts a reference to each array of a tuple for each call that it does not inline; for small functions of many
    arrays that takes more time than what they do.
    """
    return _compile(function, _nrt=False)


def njit_inner(function: F, **options: Any) -> F:
    """Like :func:`njit_outer`, for a function that only compiled code calls.

    It lacks what Python needs, which takes long to compile. Calling it from Python raises TypeError, except where functions are
    interpreted.
    """
    compiled: Any = _compile(function, _nrt=False, no_cpython_wrapper=True, no_cfunc_wrapper=True, **options)
    if compiled is not function:

        def refuse(*_: object, **__: object) -> None:
            raise TypeError(f"{function.__name__} is for compiled code; call it through a function with njit or njit_outer")

        # Numba would jump to an entry that is not there.
        compiled._insert = lambda *_, **__: None
        compiled._compile_for_args = refuse
        # Numba would compile a function again for each constant that it is called with.
        from numba.core.types import unliteral

        general: Any = unliteral
        compile_for = compiled.compile
        compiled.compile = lambda types: compile_for(tuple(general(each) for each in types))
    return cast(F, compiled)


def njit_small(function: F) -> F:
    """Like :func:`njit_inner`, always part of its callers: a call with many arrays takes longer than what it does."""
    return njit_inner(function, forceinline=True)


def njit_once(function: F) -> F:
    """Like :func:`njit_inner`, for a function called in one place: it is compiled as part of its caller, which is quicker."""
    return _compile(function, inline="always", _nrt=False, no_cpython_wrapper=True, no_cfunc_wrapper=True)


def _compile(function: F, **options: Any) -> F:
    if is_interpreted():
        return function
    import numba

    # A function of no room, as in a benchmark, may call any: its folder is that of the whole package.
    package, _, rest = function.__module__.partition(".")
    room = rest.partition(".")[0] if package == __package__ and "." in rest else ""
    # The place of a function's cache is fixed when it is decorated; other packages keep theirs.
    config: Any = numba.config
    before = config.CACHE_DIR
    try:
        config.CACHE_DIR = str(cache_folder(room))
        compiled: Any = numba.njit(function, cache=True, error_model="numpy", **options)
    except (OSError, RuntimeError) as error:
        # The latter is numba's where it finds no place that it can write to.
        _warn(error)
        compiled = numba.njit(function, error_model="numpy", **options)
    else:
        for name in ("load_overload", "save_overload"):
            setattr(compiled._cache, name, _spared(getattr(compiled._cache, name)))
    finally:
        config.CACHE_DIR = before
    return cast(F, compiled)


def _spared(method: Any) -> Callable[..., Any]:
    """A method of a function's cache that finds nothing, or keeps nothing, where it would fail."""

    def spared(*arguments: Any) -> Any:
        try:
            return method(*arguments)
        except Exception as error:
            _warn(error)
            if not isinstance(error, OSError):
                # A damaged file: what is compiled now takes its place.
                with contextlib.suppress(Exception):
                    method.__self__.flush()
            return None

    return spared


#: What went wrong first with the compile cache of this process, where something did.
_trouble: list[Exception] = []


def _warn(error: Exception) -> None:
    if not _trouble:
        _trouble.append(error)
        LOGGER.warning("compiled code cannot be kept or read, so that it is compiled again: %s", error)


def records(kind: type[R], count: int) -> Sequence[R]:
    """``count`` records of ``kind``, a class of annotated int fields, all zero: a NumPy record array, or plain objects.

    A field of a record takes a third of the time to compile that an element of an array does; and where functions are
    interpreted, plain objects are several times faster than any array.
    """
    names = list(kind.__annotations__)
    # NumPy's own attributes of a record would hide such fields from Python, though not from compiled code.
    assert not {*names} & {*dir(np.record)}, names
    if not is_interpreted():
        table = np.zeros(count, np.dtype([(name, np.int64) for name in names]))
        return cast(Sequence[R], table.view(np.recarray))
    rows = [kind() for _ in range(count)]
    for row in rows:
        for name in names:
            setattr(row, name, 0)
    return rows


#: Values of a field, row by row.
Column = Sequence[int] | NDArray[np.int64] | NDArray[np.bool_]


def filled(kind: type[R], count: int, columns: Mapping[str, Column]) -> Sequence[R]:
    """Records with these values; a column may be shorter than the table."""
    table = records(kind, count)
    for name, column in columns.items():
        if isinstance(table, np.ndarray):
            table[name][: len(column)] = column
        else:
            for row, value in zip(table, np.asarray(column, np.int64).tolist(), strict=False):
                setattr(row, name, value)
    return table


def values(table: Sequence[Any], name: str) -> list[int]:
    """A field of all records: one by one, NumPy takes a microsecond for each."""
    return table[name].tolist() if isinstance(table, np.ndarray) else [getattr(row, name) for row in table]


def plain(kind: type[R], table: Sequence[R], which: NDArray[np.int64]) -> list[R]:
    """Those records as plain objects with Python ints."""
    names = list(kind.__annotations__)
    if isinstance(table, np.ndarray):
        rows = np.asarray(table[which]).tolist()
    else:
        rows = [[int(getattr(table[number], name)) for name in names] for number in which.tolist()]
    found = []
    for row in rows:
        found.append(kind())
        for name, value in zip(names, row, strict=True):
            setattr(found[-1], name, value)
    return found
