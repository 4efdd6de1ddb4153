"""What a front end says about the files it reads, and about the targets that they are planned for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from stowplan.errors import InputError
from stowplan.frontends.options import ReadOptions


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
