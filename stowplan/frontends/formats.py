"""The registry of input formats, and the targets for which files of each format can be planned.

A *target* describes the machine for which a plan is made, or names the question that a plan answers. Targets are grouped in
*families* (:class:`TargetFamily`). To add a format, write a module with an :class:`InputFormat` named ``FORMAT``, and add the
name of the module to ``_PLACES`` here.
"""

from __future__ import annotations

import difflib
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from stowplan import files, kinds
from stowplan.errors import InputError, UsageError
from stowplan.frontends.options import ReadOptions
from stowplan.hardware.targets.toml_files import is_path


class Source(NamedTuple):
    """An input file before it is read, with the facts by which formats recognize it."""

    path: Path
    """Path of the file."""
    data: bytes | None
    """Its decompressed contents if it begins like a JSON object or list; otherwise None."""
    target: str | Path | None
    """Name or path of the target, if the user named one; the same file may be read in different ways for different targets."""


class Finder(Protocol):
    """Describes a result in the terms of the file that was read: the interface of :attr:`Opened.findings`."""

    def plans(self) -> dict[str, Any]:
        """Plans that the file contains, by name, for drawings; empty if it contains none."""

    def details(self, objective: int | None, bound: int | None) -> dict[str, Any]:
        """Entries for ``details`` of a result with this objective and this bound, by name; the values can be written to JSON.

        ``objective`` is None for a result without a plan, and ``bound`` is None for one without a bound.
        """


class Opened(NamedTuple):
    """A problem that was read, with the program from which it was made, if there is one."""

    problem: Any
    """The problem, of any kind."""
    program: Any = None
    """The program from which the problem was made; None if there is none."""
    warnings: tuple[str, ...] = ()
    """A line for each part of the file that is not modelled, or only in part. :mod:`stowplan.frontends.read` collects the lines
    from :func:`stowplan.log.warn_unmodelled`."""
    findings: Finder | None = None
    """Describes results in the terms of the file; None if there is nothing to add to a result."""


class TargetRow(NamedTuple):
    """A target that comes with this package, as a row of a table."""

    name: str
    """Name that the option ``--target`` takes."""
    size: str
    """Its size in a few words, such as ``16 MiB fast memory``."""
    description: str
    """A description in a few words."""


@dataclass(frozen=True)
class TargetFamily:
    """The targets for which files of a format can be planned.

    All targets of a family give problems of one kind. Several formats can have the same family.
    """

    inputs: str
    """The inputs that are planned for these targets, in words, for example ``networks``."""
    kind: str
    """The kind of problem, in words, for example ``tier placement``."""
    example: str
    """Name of one of the targets."""
    answers: str
    """What a plan decides, in words, for example ``a memory tier for each tensor``."""
    load: Callable[[str], Any]
    """Loads a target by its name or path; raises InputError if it is not of this family, or if its file is not valid."""
    names: Callable[[], tuple[str, ...]]
    """Returns the names of the targets that come with this package."""
    size: Callable[[Any], str]
    """Returns the size of a target in a few words."""
    describe: Callable[[str, Any], str] = lambda name, target: str(target.description)
    """Returns a description of a target, from its name and the target."""

    @classmethod
    def of_one(cls, inputs: str, kind: str, name: str, answers: str, description: str) -> TargetFamily:
        """A family with a single target, which has a name but no properties, such as ``order``.

        ``inputs``, ``kind`` and ``answers`` are the fields of the same names. ``name`` is the name of the target, and
        ``description`` is its description.
        """

        def load(target: str) -> str:
            if target != name:
                raise InputError(f"found target {target!r}, expected {name}")
            return name

        return cls(inputs, kind, name, answers, load, lambda: (name,), lambda _: "no chip", lambda *_: description)

    def rows(self) -> list[TargetRow]:
        """The targets that come with this package, as rows of a table."""
        targets = [(name, self.load(name)) for name in self.names()]
        return [TargetRow(name, self.size(target), self.describe(name, target)) for name, target in targets]

    def holds(self, target: str) -> bool:
        """Whether a target, given by its name or path, belongs to this family; False if its file cannot be read."""
        try:
            self.load(target)
        except InputError:
            return False
        return True


@dataclass(frozen=True)
class InputFormat:
    """A format of input files."""

    what: str | Callable[[Source], str]
    """Words for such a file in messages, for example ``a network``; or a function that returns them for a file, if the format
    has several sorts of files."""
    suffixes: tuple[str, ...]
    """Extensions of such files, in lower case and without ``.gz``, by which ``batch`` selects files of a folder."""
    accepts: Callable[[Source], frozenset[str]]
    """Returns the names of the options that apply to a file."""
    matches: Callable[[Source], bool]
    """Whether a file has this format. The function must be fast and must not raise errors, because the functions of all formats
    are called in turn."""
    open: Callable[[Source, ReadOptions], Opened]
    """Makes the problem. Raises InputError for a fault of the file, UsageError for a fault of the options, and
    MissingDependencyError if it needs a package that is not installed."""
    targets: TargetFamily | None = None
    """The targets for which such files are planned; None for files that need no target."""
    claims: Callable[[Source], bool | None] = lambda source: None
    """Whether a file for which :attr:`matches` is true has this format: True if this is certain, False if it certainly has
    another format, and None if neither is certain.

    This decides between several targets that the user names at once for many files. A file may match one format for one target
    and another format for the next target.
    """
    is_input: Callable[[Source], bool] = lambda source: True
    """Whether a matching file in a folder is meant to be an input. False, for example, for a JSON file that is no problem."""

    def words(self, source: Source) -> str:
        """Words for a file of this format in messages."""
        return self.what if isinstance(self.what, str) else self.what(source)


#: Formats as ``module`` (for its ``FORMAT``) or ``module:name``, in the order in which they are tried. A name may also be that
#: of a tuple of formats. A module is imported when its formats are tried.
_PLACES = [
    "stowplan.frontends.problem_file:PACKING_CSV",
    "stowplan.frontends.snapshot",
    "stowplan.frontends.dsa",
    "stowplan.frontends.dfg",
    "stowplan.frontends.graph:FORMATS",
    "stowplan.frontends.affine",
    "stowplan.frontends.network",
    "stowplan.frontends.problem_file",
    # This format is last because it accepts any file: HLO text has no marker.
    "stowplan.frontends.hlo",
]


def register(module: str) -> None:
    """Adds the format of a module, given by its dotted name; it is tried before all formats that were registered earlier.

    Nothing happens if the module is registered already. The module is imported later, when the format is tried.
    """
    if module not in _PLACES:
        _PLACES.insert(0, module)


def registered() -> tuple[str, ...]:
    """Places of all formats, as ``module`` or ``module:name``, in the order in which they are tried."""
    return tuple(_PLACES)


def formats() -> list[InputFormat]:
    """All formats, in the order in which they are tried. This imports all of their modules."""
    return [*_in_order()]


def _in_order() -> Iterator[InputFormat]:
    """Yields all formats, in the order in which they are tried. A module is imported when its formats are asked for."""
    for place in _PLACES:
        yield from _formats(place)


@cache
def _formats(place: str) -> tuple[InputFormat, ...]:
    """The formats at a place, which is ``module`` or ``module:name``."""
    found = kinds.load(place if ":" in place else f"{place}:FORMAT")
    return found if isinstance(found, tuple) else (found,)


def look(path: str | Path, target: str | Path | None = None) -> Source:
    """Reads as much of a file as is needed to recognize its format: all of a JSON file, and the beginning of any other file.

    Raises
    ------
    InputError
        The file is missing, is a folder, can only be read once (a pipe), or is a damaged or too large JSON file.
    """
    check_regular(path)
    return Source(Path(path), files.read_bytes(path) if files.is_json(path) else None, target)


def format_of(source: Source) -> InputFormat:
    """The format of a file: the first one that matches. There always is one: the format of problem files matches all JSON, and
    the last format, HLO, matches all other files."""
    return next(each for each in _in_order() if each.matches(source))


def target_family(target: str) -> TargetFamily:
    """The family of a target, given by its name or path; raises InputError if it belongs to none."""
    check_name(target)
    families = [each.targets for each in formats() if each.targets is not None]
    for family in families:
        if family.holds(target):
            return family
    # A name that no family has was refused above, so this is the path of a file. Loading it raises the error that says what is
    # wrong with it.
    families[-1].load(target)
    raise AssertionError(target)


def check_name(target: str | Path | None) -> None:
    """Raises InputError if no target has this name; the message lists all names, and suggests a similar one.

    Paths are accepted without a check, and so is None, which stands for no target.
    """
    if target is None or is_path(target):
        return
    families = [each.targets for each in reversed(formats()) if each.targets is not None]
    names = [name for family in families for name in family.names()]
    # Some targets have alternative names, which only their family knows.
    if target not in names and not any(family.holds(str(target)) for family in families):
        meant = "".join(f"; perhaps {name}" for name in difflib.get_close_matches(str(target), names, 1))
        raise InputError(f"found target {target!r}, expected one of {', '.join(names)}, or the path of a .toml file{meant}")


def check_targets(targets: Iterable[str]) -> tuple[str, ...]:
    """Checks that targets, given by name or path, exist, and that no two of them are for the same sort of inputs
    (:attr:`TargetFamily.inputs`). Returns the targets in the given order.

    Raises
    ------
    InputError
        A name is unknown, or a file is no target.
    UsageError
        Two targets are for the same sort of inputs.
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
    """Selects the target for an input from several; None if the input needs none, or if none is for inputs of this sort.

    Raises
    ------
    InputError
        The file cannot be read.
    UsageError
        Two of the targets fit, and the file does not say which one is meant.
    """
    target_list = tuple(targets)
    if not target_list:
        return None
    fitting = []
    seen = look(path)
    for target in target_list:
        source = seen._replace(target=target)
        input_format = format_of(source)
        if input_format.targets is None or not input_format.targets.holds(target):
            continue
        # To claim a text file, a format must read all of it, so the question is asked only if several targets remain.
        if source.data is None or input_format.claims(source) is not False:
            fitting.append((target, input_format, source))
    if len(fitting) > 1:
        fitting = [one for one in fitting if one[1].claims(one[2])] or fitting
    if len(fitting) > 1:
        names = " and ".join(target for target, _, _ in fitting)
        words = " or ".join(dict.fromkeys(input_format.words(source) for _, input_format, source in fitting))
        raise UsageError(f"{path} is {words}: both {names} take it, expected only one")
    return fitting[0][0] if fitting else None


def is_input(path: Path) -> bool:
    """Whether a file in a folder is an input, judging by its name, and for JSON by its contents.

    False for hidden files and for names without an extension of a format. A file that cannot be read is an input, unless its
    name ends in ``.json``.
    """
    name = path.name.lower().removesuffix(".gz")
    if name.startswith(".") or not name.endswith(tuple(suffix for each in formats() for suffix in each.suffixes)):
        return False
    try:
        source = look(path)
    except InputError:
        # The file cannot be read. Unless it is JSON, its name says that it is an input, and reading it reports the fault.
        return not name.endswith(".json")
    return format_of(source).is_input(source)


def check_regular(path: str | Path) -> None:
    """Raises :class:`~stowplan.errors.InputError` for a file that is missing, is a folder, or can only be read once (a
    pipe)."""
    try:
        mode = os.stat(path).st_mode
    except OSError as error:
        raise InputError(f"cannot read: {error.strerror or error}", source=path) from error
    except ValueError as error:
        raise InputError(f"cannot read: {error}", source=path) from error
    if not stat.S_ISREG(mode):
        what = "a folder" if stat.S_ISDIR(mode) else "a pipe or device"
        raise InputError(f"found {what}, expected a file", source=path)
