"""Shared objects of compiled functions: one for each folder of the package that has some, found by what it was made from.

A shared object is named after its folder, a digest of all sources that decide what its code is, and the level of processors
that it is for. It came with the package, or was built on this machine since; where there is none, and numba is installed, it
is built.
"""

from __future__ import annotations

import ctypes
import fcntl
import hashlib
import importlib.util
import os
import platform
import re
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

from stowplan.child_process import child_environment
from stowplan.log import LOGGER

Entry = Callable[[int], Any]

#: Where shared objects of this package lie, and the folder that a user names for those that are built on this machine.
SHIPPED, FOLDER = Path(__file__).parent / "objects", "STOWPLAN_COMPILE_CACHE"

_COMPILES = re.compile(rb"^@njit$", re.MULTILINE)

#: An import at the head of a module: from where, and the names.
_IMPORT = re.compile(rb"^from ([\w.]+) import (\([^)]*\)|.*)", re.MULTILINE)

#: What x86-64-v3 has and x86-64-v2 has not, as Linux calls it.
_LEVEL_3 = {"avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe"}


def entry_of(function: Callable[..., Any]) -> Entry | None:
    """Machine code of a function, called with the address of its slots (:mod:`.signature`); None where there is none."""
    package = function.__module__.rpartition(".")[0]
    library = _library(package)
    if library is None:
        return None
    entry = getattr(library, symbol(function))
    entry.argtypes, entry.restype = (ctypes.c_void_p,), None
    return cast(Entry, entry)


def symbol(function: Callable[..., Any]) -> str:
    """Name of a function's machine code."""
    return f"stow_{function.__module__.rpartition('.')[2]}_{function.__name__}"


@cache
def _library(package: str) -> ctypes.CDLL | None:
    path = _existing(package) or _built(package)
    return None if path is None else ctypes.CDLL(str(path))


def _existing(package: str) -> Path | None:
    name = file_name(package, level())
    return next((folder / name for folder in _folders() if (folder / name).exists()), None)


def trouble(*packages: str) -> str:
    """Why functions of packages, all by default, run interpreted; empty where they do not."""
    for package in packages or compiling_packages(Path(__file__).parents[1]):
        # Asked for each result: sources are read again only where there is no code.
        if _existing(package) is None and sources(package):
            return f"there is no machine code of {package} for this processor"
    return ""


def level() -> str:
    """What machine code must be made for to run here: the processor's level, or its architecture alone."""
    machine = platform.machine().lower()
    if machine not in ("x86_64", "amd64"):
        return machine
    try:
        with open("/proc/cpuinfo", encoding="ascii", errors="replace") as lines:
            flags = next((line for line in lines if line.startswith("flags")), "").split()
    except OSError:
        flags = []
    return "x86-64-v3" if set(flags) >= _LEVEL_3 else "x86-64-v2"


def file_name(package: str, processor: str) -> str:
    """Name of the shared object of a package's folder."""
    return f"{package}-{digest(package)}-{processor}.so"


@cache
def digest(package: str) -> str:
    """Of all sources that decide what the machine code of a package's folder is; in hexadecimal digits."""
    here = Path(__file__).parent
    hashed = hashlib.sha256()
    for path in (here / "build.py", here / "functions.py", here / "signature.py", *sources(package)):
        hashed.update(path.name.encode() + b"\n" + path.read_bytes())
    return hashed.hexdigest()[:16]


def sources(package: str) -> tuple[Path, ...]:
    """Modules of a folder with compiled functions, what these import of the same top package or of this one, and so on.

    Nothing is imported: files are read as text. The version of the package decides nothing.
    """
    roots = {name: _folder_of(name).parent for name in {package.partition(".")[0], __package__.partition(".")[0]}}
    folder = _folder_of(package)
    waiting = [path for path in sorted(folder.glob("*.py")) if _COMPILES.search(path.read_bytes())]
    taken: set[Path] = set()
    while waiting:
        path = waiting.pop()
        if path in taken or not path.is_file():
            continue
        taken.add(path)
        for module, names in _IMPORT.findall(path.read_bytes()):
            parts = module.decode().split(".")
            if parts[0] not in roots or parts[:2] in (["stowplan", "compiled"], ["stowplan", "version"]):
                continue
            place = roots[parts[0]].joinpath(*parts)
            for candidate in (place, *(place / name.decode() for name in re.findall(rb"\w+", names))):
                waiting += (candidate.with_name(f"{candidate.name}.py"), candidate / "__init__.py")
    return tuple(sorted(taken))


def _folder_of(package: str) -> Path:
    spec = importlib.util.find_spec(package)
    return Path(next(iter(spec.submodule_search_locations or ()))) if spec is not None else Path(package)


def compiling_packages(top: Path) -> list[str]:
    """Packages below the folder ``top`` of a top package whose own modules have compiled functions."""
    folders = {path.parent for path in top.rglob("*.py") if _COMPILES.search(path.read_bytes())}
    return sorted(".".join((top.name, *folder.relative_to(top).parts)) for folder in folders)


# --------------------------------------------------------------------------------------------------- built on this machine


def _folders() -> Iterator[Path]:
    """Where shared objects may lie: with the package, or where this machine's are kept."""
    yield SHIPPED
    yield from (folder for place in _places() if (folder := _private(place)) is not None)


def _places() -> Iterator[Path]:
    named = os.environ.get(FOLDER)
    home = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")) / "stowplan"
    yield from [Path(named)] if named else [home] if home.is_absolute() else []
    yield Path(tempfile.gettempdir()) / f"stowplan-{os.getuid()}"


def _private(folder: Path) -> Path | None:
    """The folder, made where it is missing, if it is this user's and nobody else can write to it; None otherwise.

    A symbolic link to it must be this user's too: what lies in it is run.
    """
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.stat()
        if {folder.lstat().st_uid, status.st_uid} != {os.getuid()} or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            return None
    except OSError:
        return None
    return folder


def _built(package: str) -> Path | None:
    """The shared object, built here where numba and a C compiler are installed; None where that fails, which is said once."""
    name = file_name(package, level())
    folder = next((folder for folder in _folders() if os.access(folder, os.W_OK)), None)
    if find_spec("numba") is None or folder is None:
        _say_interpreted(f"{trouble(package)}, and numba is not installed")
        return None
    LOGGER.info("compiling %s, once", package)
    with open(folder / f"{package}.lock", "w", encoding="ascii") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / name).exists():
            command = [sys.executable, "-m", "stowplan.compiled.build", "--to", str(folder), "--level", level(), package]
            environment, nothing = child_environment(), subprocess.DEVNULL
            built = subprocess.run(command, env=environment, stdin=nothing, capture_output=True, text=True)
            if built.returncode:
                _say_interpreted(f"{package}: {(built.stderr.strip() or 'not compiled').splitlines()[-1][:300]}")
                return None
    return folder / name


def _say_interpreted(why: str) -> None:
    if not _said:
        LOGGER.warning("heuristics run interpreted, many times slower: %s", why)
    _said.append(why)


#: Why functions run interpreted in this process.
_said: list[str] = []
