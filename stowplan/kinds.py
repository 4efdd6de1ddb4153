"""The kinds of problem, and where their parts are. To add one, add its folders and one line here.

Nothing of a kind is imported before a problem, a plan or a file of it turns up.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
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
    """Where the parts of a kind are, by dotted names.

    ``problem`` and ``plan`` are modules with a class of that name, capitalised: a :class:`stowplan.models.document.Document`.
    """

    name: str
    """As in the formats of its files: ``stowplan.NAME.problem`` and ``stowplan.NAME.plan``."""
    problem: str
    plan: str
    kind: str
    """``module:name`` of its :class:`stowplan.portfolio.kind.Kind`."""
    warm_up: str = ""
    """``module:name`` of ``() -> None`` that compiles what the kind compiles, on the smallest of problems."""
    plan_reader: str = ""
    """``module:name`` of ``(path, problem) -> plan``, for plans in files that are not JSON."""
    earlier_plan_reader: str = ""
    """``module:name`` of ``(path) -> plan`` for such files of problems that are not at hand: plans that say what for."""
    hint: str = ""
    """Module with ``counts(problem) -> {name: number of values}`` and ``of_plan(problem, plan) -> Hint``, for kinds whose hints
    may have values (:mod:`stowplan.models.hint`), and maybe with ``OPTIONAL``, names that may be left out; empty where only
    plans are hints."""
    transfer: str = ""
    """``module:name`` of ``(problem, earlier problem, its hint) -> hint``, for kinds that know steps of a program again."""
    offsets: str = ""
    """``module:name`` of ``(problem, plan) -> OffsetTable`` (:mod:`stowplan.models.document`); empty for kinds whose plans
    have no offsets."""
    decisions: str = ""
    """Module with ``DECISIONS``, what its plans decide (:mod:`stowplan.models.decisions`); empty where plans are compared field
    by field."""
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

    @property
    def plan_type(self) -> type[Any]:
        """Class of its plans."""
        found: type[Any] = importlib.import_module(self.plan).Plan
        return found

    def is_problem(self, problem: object) -> bool:
        """Whether an object is a problem of this kind; imports nothing."""
        return any((each.__module__, each.__name__) == (self.problem, "Problem") for each in type(problem).__mro__)

    def is_plan(self, plan: object) -> bool:
        """Whether an object is a plan of this kind; imports nothing."""
        return any((each.__module__, each.__name__) == (self.plan, "Plan") for each in type(plan).__mro__)

    def decode_problem(self, data: bytes, source: str | Path | None = None) -> Any:
        """Problem from the bytes of a problem file; raises :class:`~stowplan.errors.InputError` naming the field."""
        return importlib.import_module(self.problem).Problem.decode(data, source)

    def decode_plan(self, data: bytes, source: str | Path | None = None) -> Any:
        """Plan from the bytes of a plan file; raises :class:`~stowplan.errors.InputError` naming the field."""
        return importlib.import_module(self.plan).Plan.decode(data, source)

    def amended(self, problem: Any, changes: Mapping[str, Any]) -> Any:
        """A problem with other values for some of :attr:`amends`."""
        if not changes:
            return problem
        return load(self.amend)(problem, changes) if self.amend else msgspec.structs.replace(problem, **changes)


def _modules(name: str, **others: Any) -> KindModules:
    """A kind whose parts are where those of all kinds of this package are."""
    return KindModules(
        name=name,
        problem=f"stowplan.models.{name}.problem",
        plan=f"stowplan.models.{name}.plan",
        kind=f"stowplan.portfolio.{name}.kind:KIND",
        decisions=f"stowplan.models.{name}.plan",
        **others,
    )


_KINDS = {
    each.name: each
    for each in (
        _modules(
            "memory_mapping",
            hint="stowplan.models.memory_mapping.hint",
            transfer="stowplan.models.memory_mapping.hint:transferred",
            offsets="stowplan.models.memory_mapping.plan:offset_table",
            amends=("capacity", "stalls"),
            warm_up="stowplan.portfolio.memory_mapping.warm_up:warm_up",
        ),
        _modules(
            "packing",
            offsets="stowplan.models.packing.plan:offset_table",
            amends=("capacity",),
            plan_reader="stowplan.models.packing.csv_files:read_plan",
            earlier_plan_reader="stowplan.models.packing.csv_files:read_described_plan",
            warm_up="stowplan.portfolio.packing.canonical:warm_up",
        ),
        _modules(
            "tier_placement",
            hint="stowplan.models.tier_placement.hint",
            transfer="stowplan.models.tier_placement.hint:transferred",
            offsets="stowplan.models.tier_placement.plan:offset_table",
            amends=("capacity",),
            amend="stowplan.frontends.network.format:amended",
            warm_up="stowplan.portfolio.tier_placement.heuristics:warm_up",
        ),
        _modules("bank_mapping", amends=("capacity",)),
        _modules(
            "operator_order",
            offsets="stowplan.models.operator_order.plan:offset_table",
            warm_up="stowplan.portfolio.operator_order.warm_up:warm_up",
        ),
        _modules(
            "banked_packing",
            warm_up="stowplan.portfolio.packing.canonical:warm_up",
            offsets="stowplan.models.banked_packing.plan:offset_table",
        ),
        _modules(
            "modulo_scheduling",
            hint="stowplan.models.modulo_scheduling.hint",
            transfer="stowplan.models.modulo_scheduling.hint:transferred",
            amends=("fixed",),
            amend="stowplan.frontends.dfg.format:amended",
            warm_up="stowplan.portfolio.modulo_scheduling.annealing:warm_up",
        ),
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
