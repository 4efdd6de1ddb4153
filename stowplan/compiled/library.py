"""Finds the shared objects of compiled functions: one for each folder of the package that has such functions.

The name of a shared object contains its folder, a digest of all sources that determine its code, and the level of processors
that it is for, such as ``x86-64-v3``. It was installed with the package, or has been built on this machine since. If there is
none and numba is installed, it is built now. In the functions below, a *package* is given by its dotted name and stands for the
modules directly in its folder.

A missing shared object raises no error: the functions then run interpreted, and a warning is logged. A shared object that is
damaged raises OSError when it is loaded.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import importlib.util
import os
import platform
import re
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

from stowplan.child_process import child_environment
from stowplan.files import try_lock
from stowplan.log import LOGGER

#: The machine code of a function. It is called with the address of the function's *slots*, the 64-bit words that hold its
#: arguments and then its results (:mod:`.signature`). It returns nothing.
Entry = Callable[[int], Any]

#: The folder of the shared objects that come with the package, and the environment variable that names a folder for those that
#: are built on this machine.
SHIPPED, FOLDER_VARIABLE = Path(__file__).parent / "objects", "STOWPLAN_COMPILE_CACHE"

#: The command that builds all shared objects that are missing.
BUILD_COMMAND = "python -m stowplan.compiled.build"

#: Seconds for which a process waits while another one compiles the same package, before it compiles the package itself. The
#: largest package takes about half a minute on an idle machine.
LOCK_SECONDS = 300.0

#: Seconds between two looks at the lock of another process.
_POLL_SECONDS = 0.05

#: The line before a compiled function that Python calls.
_NJIT_LINE = re.compile(rb"^@njit$", re.MULTILINE)

#: An import statement at the top of a module: the module and the names.
_IMPORT = re.compile(rb"^from ([\w.]+) import (\([^)]*\)|.*)", re.MULTILINE)

#: CPU flags, as Linux calls them, that x86-64-v3 has in addition to x86-64-v2.
_LEVEL_3_FLAGS = {"avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe"}


def entry_of(function: Callable[..., Any]) -> Entry | None:
    """The machine code of a function, to be called with the address of its slots; None if there is none.

    It is built first if it is missing and can be built. Raises OSError if the shared object cannot be loaded.
    """
    package = function.__module__.rpartition(".")[0]
    library = _library(package)
    if library is None:
        return None
    entry = getattr(library, symbol(function))
    entry.argtypes, entry.restype = (ctypes.c_void_p,), None
    return cast(Entry, entry)


def symbol(function: Callable[..., Any]) -> str:
    """The symbol of a function in its shared object."""
    return f"stow_{function.__module__.rpartition('.')[2]}_{function.__name__}"


@cache
def _library(package: str) -> ctypes.CDLL | None:
    """The loaded shared object of a package's folder; None if there is none and it cannot be built."""
    path = _find(package) or _build(package)
    return None if path is None else ctypes.CDLL(str(path))


def _find(package: str) -> Path | None:
    """Path of the shared object of a package's folder for this machine; None if there is none."""
    name = file_name(package, level())
    return next((folder / name for folder in _folders() if (folder / name).exists()), None)


def trouble(*packages: str) -> str:
    """Says why the functions of these packages run interpreted; empty if they run as machine code. By default, all packages
    with compiled functions are checked."""
    for package in packages or compiling_packages(Path(__file__).parents[1]):
        # This is called for each result, so the sources are read only if there is no machine code.
        if _find(package) is None and sources(package):
            return f"there is no machine code of {package} for this processor"
    return ""


def missing_code(*packages: str) -> str:
    """Says, in one line for users, that functions of these packages have no machine code, what follows, and what to run.

    The text is empty if all of them have machine code. By default, all packages with compiled functions are checked.
    """
    why = trouble(*packages)
    if not why:
        return ""
    if find_spec("numba") is None:
        text = f"run interpreted, many times slower; to compile them, install numba and run '{BUILD_COMMAND}'"
    else:
        text = f"are compiled at their first use; '{BUILD_COMMAND}' does so in advance"
    return f"{why}: heuristics may exceed the time limit, because they {text}"


def level() -> str:
    """The level of this machine's processor, such as ``x86-64-v3``, or its architecture if there are no levels for it. The
    level is ``x86-64-v2`` if the processor's flags cannot be read."""
    machine = platform.machine().lower()
    if machine not in ("x86_64", "amd64"):
        return machine
    try:
        with open("/proc/cpuinfo", encoding="ascii", errors="replace") as lines:
            flags = next((line for line in lines if line.startswith("flags")), "").split()
    except OSError:
        flags = []
    return "x86-64-v3" if set(flags) >= _LEVEL_3_FLAGS else "x86-64-v2"


def file_name(package: str, processor: str) -> str:
    """File name of the shared object of a package's folder for the level ``processor``."""
    return f"{package}-{digest(package)}-{processor}.so"


@cache
def digest(package: str) -> str:
    """Hexadecimal digest of all sources that determine the machine code of a package's folder."""
    here = Path(__file__).parent
    hashed = hashlib.sha256()
    for path in (here / "build.py", here / "functions.py", here / "signature.py", *sources(package)):
        hashed.update(path.name.encode() + b"\n" + path.read_bytes())
    return hashed.hexdigest()[:16]


def sources(package: str) -> tuple[Path, ...]:
    """The modules of a folder with compiled functions, and all modules that they import from the same top-level package or from
    this one.

    Nothing is imported; the files are read as text. The module ``stowplan.version`` is left out because it does not influence
    the code.
    """
    roots = {name: _folder_of(name).parent for name in {package.partition(".")[0], __package__.partition(".")[0]}}
    folder = _folder_of(package)
    waiting = [path for path in sorted(folder.glob("*.py")) if _NJIT_LINE.search(path.read_bytes())]
    visited: set[Path] = set()
    while waiting:
        path = waiting.pop()
        if path in visited or not path.is_file():
            continue
        visited.add(path)
        for module, names in _IMPORT.findall(path.read_bytes()):
            parts = module.decode().split(".")
            if parts[0] not in roots or parts[:2] in (["stowplan", "compiled"], ["stowplan", "version"]):
                continue
            path_without_suffix = roots[parts[0]].joinpath(*parts)
            for candidate in (
                path_without_suffix,
                *(path_without_suffix / name.decode() for name in re.findall(rb"\w+", names)),
            ):
                waiting += (candidate.with_name(f"{candidate.name}.py"), candidate / "__init__.py")
    return tuple(sorted(visited))


def _folder_of(package: str) -> Path:
    """The folder of a package."""
    spec = importlib.util.find_spec(package)
    return Path(next(iter(spec.submodule_search_locations or ()))) if spec is not None else Path(package)


def compiling_packages(top: Path) -> list[str]:
    """Names of the packages in the folder ``top`` of a top-level package that contain compiled functions."""
    folders = {path.parent for path in top.rglob("*.py") if _NJIT_LINE.search(path.read_bytes())}
    return sorted(".".join((top.name, *folder.relative_to(top).parts)) for folder in folders)


# --------------------------------------------------------------------------------------------------- built on this machine


def _folders() -> Iterator[Path]:
    """Yields folders that may contain shared objects: the package's own, then those for objects built on this machine."""
    yield SHIPPED
    yield from (folder for place in _candidate_folders() if (folder := _private_folder(place)) is not None)


def _candidate_folders() -> Iterator[Path]:
    """Yields candidates for the folder of objects that are built on this machine, the preferred one first."""
    named = os.environ.get(FOLDER_VARIABLE)
    home = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")) / "stowplan"
    yield from [Path(named)] if named else [home] if home.is_absolute() else []
    yield Path(tempfile.gettempdir()) / f"stowplan-{os.getuid()}"


def _private_folder(folder: Path) -> Path | None:
    """The folder, created if it is missing, if it belongs to this user and nobody else can write to it; otherwise None.

    A symbolic link to it must belong to this user as well, because the files in the folder are executed.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.stat()
        if {folder.lstat().st_uid, status.st_uid} != {os.getuid()} or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            return None
    except OSError:
        return None
    return folder


def _build(package: str) -> Path | None:
    """Builds the shared object with numba and a C compiler; returns None if that fails, and logs the first failure."""
    name = file_name(package, level())
    folder = next((folder for folder in _folders() if os.access(folder, os.W_OK)), None)
    if find_spec("numba") is None or folder is None:
        reason = "numba is not installed" if folder is not None else "no folder for it can be written to"
        _warn_interpreted(f"{trouble(package)}, and {reason}")
        return None
    with locked_build(folder, package):
        if not (folder / name).exists():
            LOGGER.info("compiling %s, once", package)
            command = [sys.executable, "-m", "stowplan.compiled.build", "--locked", "--to", str(folder), "--level", level()]
            environment, nothing = child_environment(), subprocess.DEVNULL
            completed = subprocess.run([*command, package], env=environment, stdin=nothing, capture_output=True, text=True)
            if completed.returncode:
                _warn_interpreted(f"{package}: {(completed.stderr.strip() or 'not compiled').splitlines()[-1][:300]}")
                return None
    return folder / name


@contextlib.contextmanager
def locked_build(folder: Path, package: str) -> Iterator[None]:
    """Lets one process at a time build the shared object of a package in a folder.

    While another process builds it, this one waits for at most :data:`LOCK_SECONDS`; then it goes on without the lock. The
    system releases the lock of a process that ends, however it ends. If the folder cannot have locks, this one goes on without
    a lock as well. Two builds at the same time do no harm but waste time: each writes a file of its own and renames it.
    """
    lock, path, until = None, folder / f"{package}.lock", time.monotonic() + LOCK_SECONDS
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        lock = try_lock(path)
        if lock is None:
            LOGGER.info("waiting for another process that compiles %s, for at most %.0f s", package, LOCK_SECONDS)
        while lock is None and time.monotonic() < until:
            time.sleep(_POLL_SECONDS)
            lock = try_lock(path)
    try:
        yield
    finally:
        if lock is not None:
            # Whoever waits for the lock makes the file anew.
            path.unlink(missing_ok=True)
            os.close(lock)


def _warn_interpreted(why: str) -> None:
    """Logs once why functions run interpreted."""
    if not _warnings:
        LOGGER.warning("heuristics run interpreted, many times slower: %s", why)
    _warnings.append(why)


#: Reasons why functions run interpreted in this process.
_warnings: list[str] = []
