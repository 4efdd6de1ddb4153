"""The formats of input files that can be read, and the targets that are made for each.

To add a format, write its module with a ``FORMAT`` and add one line here.
"""

from __future__ import annotations

import difflib
import os
import stat
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, Protocol, cast

from stowplan import files, kinds
from stowplan.errors import InputError, UsageError
from stowplan.frontends.options import ReadOptions
from stowplan.hardware.targets.toml_files import is_path


class Source(NamedTuple):
    """A file that is to be opened."""

    path: Path
    data: bytes | None
    """Its content, unpacked, where it begins like a JSON object or list; None elsewhere."""
    target: str | Path | None
    """What it is to be planned for, where that is known: a file may mean one thing for one target and another for others."""


class Finder(Protocol):
    """What a front end says of a result in the terms of its file."""

    def plans(self) -> dict[str, Any]:
        """Plans by name that the file has, to be drawn beside another."""

    def details(self, objective: int | None, bound: int | None) -> dict[str, Any]:
        """Plain values for the result's details, given what was found and proven."""


class Opened(NamedTuple):
    """A problem, and the program it was made of where a front end made one."""

    problem: Any
    program: Any = None
    warnings: tuple[str, ...] = ()
    """What of the file is not modelled, or not all of it: filled in by :mod:`stowplan.frontends.read` from what the front end
    has told :func:`stowplan.log.warn_unmodelled`."""
    findings: Finder | None = None
    """What a result says of the file, where that is more than the result does."""


class TargetRow(NamedTuple):
    """A target that comes with the package, for people."""

    name: str
    size: str
    description: str


@dataclass(frozen=True)
class TargetFamily:
    """The targets that files of a format are planned for."""

    inputs: str
    """What is planned for them: ``networks``."""
    kind: str
    """The kind of problem that comes of it, in words."""
    example: str
    """One of them, by name."""
    answers: str
    """What plans for them say: ``a memory tier for each tensor``."""
    load: Callable[[str], Any]
    """Target by name or path; raises InputError where it is none of these."""
    names: Callable[[], tuple[str, ...]]
    """Of those that come with the package."""
    size: Callable[[Any], str]
    """How large a target is, in a few words."""
    describe: Callable[[str, Any], str] = lambda name, target: str(target.description)
    """What a target is, given its name, too."""

    @classmethod
    def of_one(cls, inputs: str, kind: str, name: str, answers: str, description: str) -> TargetFamily:
        """A family of one target, that is a name and nothing else."""

        def load(target: str) -> str:
            if target != name:
                raise InputError(f"found target {target!r}, expected {name}")
            return name

        return cls(inputs, kind, name, answers, load, lambda: (name,), lambda _: "any", lambda *_: description)

    def rows(self) -> list[TargetRow]:
        """Those that come with the package."""
        targets = [(name, self.load(name)) for name in self.names()]
        return [TargetRow(name, self.size(target), self.describe(name, target)) for name, target in targets]

    def holds(self, target: str) -> bool:
        """Whether a target, by name or path, is one of these."""
        try:
            self.load(target)
        except InputError:
            return False
        return True


@dataclass(frozen=True)
class InputFormat:
    """A format of input files."""

    what: str
    """What such a file is, for messages: ``a network``."""
    suffixes: tuple[str, ...]
    """How names of such files end, in lower case and without ``.gz``: what ``batch`` takes of a folder."""
    accepts: Callable[[Source], frozenset[str]]
    """Names of the options that a file takes."""
    matches: Callable[[Source], bool]
    """Whether a file is of this format. Formats are asked one after the other; cheap, and never fails."""
    open: Callable[[Source, ReadOptions], Opened]
    """Makes the problem. Raises InputError for what is wrong with the file, UsageError for what is wrong with the options."""
    targets: TargetFamily | None = None
    """What it is planned for; None for files that stand without a target."""
    claims: Callable[[Source], bool | None] = lambda source: None
    """Whether a file that matches is surely of this format (True), surely of another (False), or may be (None).

    For suites with several targets, where a file may match one format for one target and another for the next.
    """
    is_input: Callable[[Source], bool] = lambda source: True
    """Whether a file of a folder that matches is meant as an input at all."""


#: Formats by ``module`` (its ``FORMAT``) or ``module:name``, in the order in which they are asked; each is imported then.
_PLACES = [
    "stowplan.frontends.problem_file:PACKING_CSV",
    "stowplan.frontends.snapshot",
    "stowplan.frontends.dfg",
    "stowplan.frontends.graph:ARENA",
    "stowplan.frontends.graph:ORDER",
    "stowplan.frontends.graph:REMATERIALIZATION",
    "stowplan.frontends.graph:BANKS",
    "stowplan.frontends.graph:GRAPH_FILE",
    "stowplan.frontends.affine",
    "stowplan.frontends.network",
    "stowplan.frontends.problem_file",
    # Takes whatever is left: text has no mark of its own.
    "stowplan.frontends.hlo",
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
