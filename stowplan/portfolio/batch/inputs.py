"""The inputs of a suite, and what their files in the output folder are called."""

from __future__ import annotations

import glob
import hashlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from stowplan.errors import InputError, UsageError
from stowplan.frontends.formats import is_input

_OWN_SUFFIXES = (".plan.json", ".result.json")

#: Bytes of an output's name without suffix: file systems take 255 with it.
MOST_BYTES = 240


class Item(msgspec.Struct, frozen=True):
    """An input and what its files in the output folder are called."""

    path: Path
    name: str
    """Path below the output folder without suffix, with ``/`` between folders."""

    def plan_path(self, folder: Path) -> Path:
        """Where its plan goes."""
        return folder / f"{self.name}.plan.json"

    def record_path(self, folder: Path) -> Path:
        """Where its record goes."""
        return folder / f"{self.name}.result.json"


def find_inputs(suites: Sequence[str | Path]) -> list[Item]:
    """Inputs of folders, files and glob patterns, in order, each once.

    Of a folder, everything in it or below it whose name ends like an input's is taken (``.hlo``, ``.hlo.txt``, ``.csv``,
    ``.json``, plain or ``.gz``), JSON files only where they are problems; the output has the same folders below it. A file
    that is named, by itself or by a pattern, is taken whatever it is called.

    Parameters
    ----------
    suites
        Paths and patterns.

    Returns
    -------
    list
        In order, each once, with the names of their files in the output folder.

    Raises
    ------
    InputError
        A path that does not exist, or a pattern or folder with nothing in it.
    UsageError
        Two inputs whose files would have the same name.
    """
    found: dict[Path, Item] = {}
    for suite in suites:
        items = list(_inputs_of(Path(suite)))
        if not items:
            raise InputError("found no input there, expected compiled programs, CSV files or problem files", source=suite)
        for item in items:
            found.setdefault(item.path.resolve(), item)
    names: dict[str, Path] = {}
    for item in found.values():
        # Some file systems do not tell upper from lower case.
        other = names.setdefault(item.name.lower(), item.path)
        if other is not item.path:
            raise UsageError(
                f"{other} and {item.path} would have the same result {item.name}: give them output folders of their own"
            )
    return list(found.values())


def _inputs_of(suite: Path) -> Iterator[Item]:
    if suite.is_dir():
        for path in sorted(suite.rglob("*")):
            if path.is_file() and not path.name.endswith(_OWN_SUFFIXES) and is_input(path):
                yield Item(path, (path.relative_to(suite).parent / _stem(path)).as_posix())
    elif suite.exists():
        yield Item(suite, _stem(suite))
    elif glob.has_magic(str(suite)):
        for name in sorted(glob.glob(str(suite), recursive=True)):
            if Path(name).is_file():
                yield Item(Path(name), _stem(Path(name)))
    else:
        raise InputError("cannot read: there is no such file or folder", source=suite)


def _stem(path: Path) -> str:
    """Name of a file without the suffixes of an input."""
    name = path.name.removesuffix(".gz")
    for suffix in (".txt", ".csv", ".json", ".hlo", ".dot", ".gv"):
        name = name.removesuffix(suffix)
    return _short(name or path.name)


def _short(name: str) -> str:
    """A name that leaves room for the suffixes of what is written; a long one ends in its digest."""
    data = os.fsencode(name)
    if len(data) <= MOST_BYTES:
        return name
    return f"{data[: MOST_BYTES - 17].decode(errors='ignore')}-{hashlib.sha256(data).hexdigest()[:16]}"
