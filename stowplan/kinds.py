"""The kinds of problem, and where their parts are. To add one, add its folders and one line here.

Nothing of a kind is imported before a problem, a plan or a file of it turns up.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Protocol

import msgspec

from stowplan import files
from stowplan.errors import InputError, UsageError


class Problem(Protocol):
    """What every problem has: a frozen :class:`msgspec.Struct`, validated when it is made."""

    @property
    def digest(self) -> str:
        """Hash of its canonical form: equal problems have equal digests."""

    def save(self, path: str | Path) -> None:
        """Write a problem file."""


class Plan(Protocol):
    """What every plan has: a frozen :class:`msgspec.Struct`, plain data."""

    problem: str
    """Digest of the problem that it is for."""

    def save(self, path: str | Path) -> None:
        """Write a plan file."""


class KindModules(msgspec.Struct, frozen=True, kw_only=True):
    """Where the parts of a kind are: in modules of fixed names, in a package of each room. What it has not is left out.

    - ``models``: ``problem`` and ``plan``, each with a class of that name, capitalised, a
      :class:`stowplan.models.document.Document`. ``plan`` may have ``DECISIONS``, what its plans decide
      (:mod:`stowplan.models.decisions`), and ``offset_table(problem, plan)`` (:mod:`stowplan.models.document`).
    - ``models``, of kinds whose hints may have values (:mod:`stowplan.models.hint`): ``hint`` with
      ``counts(problem) -> {name: number of values}`` and ``of_plan(problem, plan) -> Hint``. It may have ``OPTIONAL``, names
      that may be left out, and ``transferred(problem, earlier problem, its hint) -> hint``, where steps are known again.
    - ``portfolio``: ``kind`` with ``KIND``, a :class:`stowplan.portfolio.kind.Kind`; maybe ``keep_close`` with ``Changes``
      (:mod:`stowplan.portfolio.keep_close.earlier_plan`), and ``validation`` with ``ADAPTER``
      (:mod:`stowplan.portfolio.validation.adapter`).
    - ``report``: maybe ``presenter`` with ``PRESENTER`` (:mod:`stowplan.report.presenter`).
    """

    name: str
    """As in the formats of its files: ``stowplan.NAME.problem`` and ``stowplan.NAME.plan``."""
    models: str = ""
    portfolio: str = ""
    report: str = ""
    """Packages of the rooms, by dotted names; by default ``stowplan.ROOM.NAME``."""
    plan_reader: str = ""
    """``module:name`` of ``(path, problem) -> plan``, for plans in files that are not JSON."""
    earlier_plan_reader: str = ""
    """``module:name`` of ``(path) -> plan`` for such files of problems that are not at hand: plans that say what for."""
    amends: tuple[str, ...] = ()
    """Options of :func:`stowplan.read` that still change a finished problem of this kind."""
    amend: str = ""
    """``module:name`` of ``(problem, changes) -> problem`` for those; empty where they are the problem's own fields."""

    FORMATS: ClassVar[tuple[str, str]] = ("stowplan.{}.problem", "stowplan.{}.plan")

    @property
    def title(self) -> str:
        """For people: ``memory mapping``."""
        return self.name.replace("_", " ")

    @property
    def problem_format(self) -> str:
        """Format of its problem files."""
        return self.FORMATS[0].format(self.name)

    @property
    def plan_format(self) -> str:
        """Format of its plan files."""
        return self.FORMATS[1].format(self.name)

    def part(self, place: str) -> Any:
        """What is at ``room.module:name``, as ``models.plan:Plan``; None where the kind has no such module, or no such name."""
        room, _, rest = place.partition(".")
        return _found(self._module(room, ""), *rest.split(":"))

    def _module(self, room: str, name: str) -> str:
        return f"{getattr(self, room) or f'stowplan.{room}.{self.name}'}.{name}"

    @property
    def plan_type(self) -> type[Any]:
        """Class of its plans."""
        found: type[Any] = self.part("models.plan:Plan")
        return found

    def is_problem(self, problem: object) -> bool:
        """Whether an object is a problem of this kind; imports nothing."""
        return self._is(problem, "problem", "Problem")

    def is_plan(self, plan: object) -> bool:
        """Whether an object is a plan of this kind; imports nothing."""
        return self._is(plan, "plan", "Plan")

    def _is(self, value: object, module: str, name: str) -> bool:
        place = self._module("models", module), name
        return any((each.__module__, each.__name__) == place for each in type(value).__mro__)

    def decode_problem(self, data: bytes, source: str | Path | None = None) -> Any:
        """Problem from the bytes of a problem file; raises :class:`~stowplan.errors.InputError` naming the field."""
        return self.part("models.problem:Problem").decode(data, source)

    def decode_plan(self, data: bytes, source: str | Path | None = None) -> Any:
        """Plan from the bytes of a plan file; raises :class:`~stowplan.errors.InputError` naming the field."""
        return self.plan_type.decode(data, source)

    def amended(self, problem: Any, changes: Mapping[str, Any]) -> Any:
        """A problem with other values for some of :attr:`amends`."""
        if not changes:
            return problem
        return load(self.amend)(problem, changes) if self.amend else msgspec.structs.replace(problem, **changes)


@cache
def _found(package: str, module: str, name: str) -> Any:
    try:
        return getattr(importlib.import_module(package + module), name, None)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{package}{module}.".startswith(f"{error.name}."):
            return None
        raise


_KINDS = {
    each.name: each
    for each in (
        KindModules(name="memory_mapping", amends=("capacity", "stalls")),
        KindModules(
            name="packing",
            amends=("capacity",),
            plan_reader="stowplan.models.packing.csv_files:read_plan",
            earlier_plan_reader="stowplan.models.packing.csv_files:read_described_plan",
        ),
        KindModules(name="tier_placement", amends=("capacity",), amend="stowplan.frontends.network.format:amended"),
        KindModules(name="bank_mapping", amends=("capacity",)),
        KindModules(name="operator_order"),
        KindModules(
            name="rematerialization",
            amends=("capacity",),
            amend="stowplan.models.rematerialization.problem:amended",
        ),
        KindModules(name="banked_packing"),
        KindModules(name="modulo_scheduling", amends=("fixed",), amend="stowplan.frontends.dfg.format:amended"),
    )
}


def load(place: str) -> Any:
    """The object at ``module:name``."""
    module, _, name = place.partition(":")
    return getattr(importlib.import_module(module), name)


def register(kind: KindModules) -> None:
    """Add a kind, or replace the one of its name."""
    _KINDS[kind.name] = kind


def registered() -> tuple[KindModules, ...]:
    """All kinds."""
    return tuple(_KINDS.values())


def named(name: str) -> KindModules:
    """The kind of this name; raises UsageError where there is none."""
    if name not in _KINDS:
        raise UsageError(f"found kind {name!r}, expected one of {', '.join(_KINDS)}")
    return _KINDS[name]


def of_problem(problem: object) -> KindModules:
    """The kind of a problem object; raises UsageError for anything else."""
    for each in _KINDS.values():
        if each.is_problem(problem):
            return each
    raise UsageError(f"found a {type(problem).__name__}, expected a problem: see stowplan.read")


def of_plan_file(data: bytes, source: str | Path | None = None) -> KindModules:
    """The kind of a plan file, by its format; raises InputError for anything else."""
    found = files.peek_format(data)
    by_format = {each.plan_format: each for each in _KINDS.values()}
    if found is None or found not in by_format:
        message = f"found {files.describe(data)}, expected a plan: {', '.join(by_format)}"
        raise InputError(message, source=source, place=None if found is None else "format")
    return by_format[found]
