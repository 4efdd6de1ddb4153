"""The formats of input files that can be read. To add one, write its module with a ``FORMAT`` and add one line here."""

from __future__ import annotations

import importlib
import os
import stat
from functools import cache
from pathlib import Path
from typing import cast

from stowplan import files
from stowplan.errors import InputError
from stowplan.frontends.format import InputFormat, Source, TargetFamily

#: Modules of formats, in the order in which they are asked; each is imported when it is asked.
_MODULES = [
    "stowplan.frontends.packing_csv",
    "stowplan.frontends.dfg.format",
    "stowplan.frontends.arena.format",
    "stowplan.frontends.operator_order.format",
    "stowplan.frontends.operator_order.graph_json",
    "stowplan.frontends.affine.format",
    "stowplan.frontends.network.format",
    "stowplan.frontends.problem_file",
    # Takes whatever is left: text has no mark of its own.
    "stowplan.frontends.hlo.format",
]


def register(module: str) -> None:
    """Add the format of a module, by its dotted name; it is asked before all others."""
    if module not in _MODULES:
        _MODULES.insert(0, module)


def registered() -> tuple[str, ...]:
    """Modules of all formats, in the order in which they are asked."""
    return tuple(_MODULES)


def formats() -> list[InputFormat]:
    """All formats, in the order in which they are asked."""
    return [_format(module) for module in _MODULES]


@cache
def _format(module: str) -> InputFormat:
    return cast(InputFormat, importlib.import_module(module).FORMAT)


def look(path: str | Path, target: str | Path | None = None) -> Source:
    """A file as formats look at it.

    Raises
    ------
    InputError
        A file that is missing, that can only be read once (a pipe), or that is damaged.
    """
    check_regular(path)
    return Source(Path(path), files.read_bytes(path) if files.is_json(path) else None, target)


def format_of(source: Source) -> InputFormat:
    """The format of a file."""
    return next(each for each in map(_format, _MODULES) if each.matches(source))


def target_family(target: str) -> TargetFamily:
    """The family that a target belongs to, by name or path; raises InputError where it is none."""
    families = [each.targets for each in formats() if each.targets is not None]
    for family in families:
        if family.holds(target):
            return family
    # Its message lists the names there are.
    families[-1].load(target)
    raise AssertionError(target)


def is_input(path: Path) -> bool:
    """Whether a file in a folder of inputs is one: by its name, and of JSON by its content."""
    name = path.name.lower().removesuffix(".gz")
    if name.startswith(".") or not name.endswith(tuple(suffix for each in formats() for suffix in each.suffixes)):
        return False
    try:
        source = look(path)
    except InputError:
        # By its name it is one; what is wrong with it is said when its turn comes.
        return not name.endswith(".json")
    return format_of(source).is_input(source)


def check_regular(path: str | Path) -> None:
    """Raise :class:`~stowplan.errors.InputError` for a file that is missing, or can only be read once (a pipe)."""
    try:
        mode = os.stat(path).st_mode
    except OSError as error:
        raise InputError(f"cannot read: {error.strerror or error}", source=path) from error
    except ValueError as error:
        raise InputError(f"cannot read: {error}", source=path) from error
    if not stat.S_ISREG(mode):
        what = "a folder" if stat.S_ISDIR(mode) else "a pipe or device"
        raise InputError(f"found {what}, expected a file", source=path)
