"""The formats of input files that can be read, and the targets that are made for each.

To add a format, write its module with a ``FORMAT`` and add one line here.
"""

from __future__ import annotations

import difflib
import os
import stat
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import cast

from stowplan import files, kinds
from stowplan.errors import InputError, UsageError
from stowplan.frontends.format import InputFormat, Source, TargetFamily
from stowplan.hardware.targets.toml_files import is_path

#: Formats by ``module`` (its ``FORMAT``) or ``module:name``, in the order in which they are asked; each is imported then.
_PLACES = [
    "stowplan.frontends.problem_file:PACKING_CSV",
    "stowplan.frontends.snapshot.format",
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
    if module not in _PLACES:
        _PLACES.insert(0, module)


def registered() -> tuple[str, ...]:
    """Places of all formats, in the order in which they are asked."""
    return tuple(_PLACES)


def formats() -> list[InputFormat]:
    """All formats, in the order in which they are asked."""
    return [_format(place) for place in _PLACES]


@cache
def _format(place: str) -> InputFormat:
    return cast(InputFormat, kinds.load(place if ":" in place else f"{place}:FORMAT"))


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
    return next(known for known in map(_format, _PLACES) if known.matches(source))


def target_family(target: str) -> TargetFamily:
    """The family that a target belongs to, by name or path; raises InputError where it is none."""
    check_name(target)
    families = [known.targets for known in formats() if known.targets is not None]
    for family in families:
        if family.holds(target):
            return family
    # What is wrong with the file.
    families[-1].load(target)
    raise AssertionError(target)


def check_name(target: str | Path | None) -> None:
    """Raise InputError where a target is a name that none has, with all names, and the one that may be meant."""
    if target is None or is_path(target):
        return
    families = [known.targets for known in reversed(formats()) if known.targets is not None]
    names = [name for family in families for name in family.names()]
    # Some have other names, too.
    if target not in names and not any(family.holds(str(target)) for family in families):
        meant = "".join(f"; perhaps {name}" for name in difflib.get_close_matches(str(target), names, 1))
        raise InputError(f"found target {target!r}, expected one of {', '.join(names)}, or the path of a .toml file{meant}")


def check_targets(targets: Iterable[str]) -> tuple[str, ...]:
    """Targets, by name or path, at most one of a family.

    Raises
    ------
    InputError
        A name that is unknown, or a file that is no target.
    UsageError
        Two targets for inputs of one sort.
    """
    by_inputs: dict[str, str] = {}
    for target in targets:
        inputs = target_family(target).inputs
        if inputs in by_inputs:
            raise UsageError(
                f"found targets {by_inputs[inputs]} and {target}, expected one for each kind of input: both are for {inputs}"
            )
        by_inputs[inputs] = target
    return tuple(by_inputs.values())


def target_for(path: Path, targets: Iterable[str]) -> str | None:
    """The target of some that is made for an input; None for inputs that stand without one, and where none is made for it.

    Raises
    ------
    InputError
        The file cannot be read.
    UsageError
        Two of the targets take it, and nothing in the file says which is meant.
    """
    given = tuple(targets)
    if not given:
        return None
    fitting = []
    seen = look(path)
    for target in given:
        source = seen._replace(target=target)
        input_format = format_of(source)
        if input_format.targets is None or not input_format.targets.holds(target):
            continue
        # To ask text takes reading all of it, which is for where several targets are left.
        if source.data is None or input_format.claims(source) is not False:
            fitting.append((target, input_format, source))
    if len(fitting) > 1:
        fitting = [way for way in fitting if way[1].claims(way[2])] or fitting
    if len(fitting) > 1:
        names = " and ".join(target for target, _, _ in fitting)
        raise UsageError(f"{path} is {fitting[0][1].what} or {fitting[1][1].what}: both {names} take it, expected only one")
    return fitting[0][0] if fitting else None


def is_input(path: Path) -> bool:
    """Whether a file in a folder of inputs is one: by its name, and of JSON by its content."""
    name = path.name.lower().removesuffix(".gz")
    if name.startswith(".") or not name.endswith(tuple(suffix for known in formats() for suffix in known.suffixes)):
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
