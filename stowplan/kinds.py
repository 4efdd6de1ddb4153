"""The registry of the kinds of problem, by name. Other packages can add kinds by an entry point.

A kind is one object, a :class:`stowplan.kernel.kind.Kind`. It is imported only when a problem, a plan or a file of that kind is
used.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

import msgspec

from stowplan import files
from stowplan.errors import InputError, UsageError
from stowplan.file_uses import use_of
from stowplan.units import PS, Unit

#: Group of the entry points by which other packages add kinds. Each entry has the name of the kind and ``module:name`` of its
#: object.
ENTRY_POINT_GROUP = "stowplan.kinds"

#: A function that takes a :class:`stowplan.certificates.maker.Wish`, the request for a certificate, and yields proofs of its
#: bound as JSON objects. The proofs that take the least time to make come first.
Prover = Callable[[Any], Iterable[dict[str, Any]]]

_FORMAT = re.compile(r"stowplan\.(\w+)\.(problem|plan)")


@dataclass(frozen=True, kw_only=True)
class BaseKind:
    """The part of a kind that modules below the kernel need: its file formats, and how its bounds are certified. A kind is an
    object of the subclass :class:`stowplan.kernel.kind.Kind`, which adds its candidates."""

    name: str
    """The name in the formats of its files: ``stowplan.NAME.problem`` and ``stowplan.NAME.plan``."""
    problem: type[Any]
    """Class of the problems, a :class:`stowplan.document.ProblemDocument`."""
    plan: type[Any]
    """Class of the plans, a :class:`stowplan.document.PlanDocument`."""
    unit: Unit = PS
    """Unit of objectives and bounds."""
    read_plan: Callable[[str | Path, Any], Any] | None = None
    """``(path, problem) -> plan``: reads plan files that are not JSON."""
    read_described_plan: Callable[[str | Path], Any] | None = None
    """``(path) -> plan``: reads plan files that are not JSON but name the problem that they are for. It is used when the
    problem is not available."""
    amends: tuple[str, ...] = ()
    """Options of :func:`stowplan.read` that can still change a finished problem of this kind."""
    amend: Callable[[Any, Mapping[str, Any]], Any] | None = None
    """``(problem, changes) -> problem``: applies such options. None if each option is a field of the problem with the same
    name."""
    certificate: Callable[[], Prover] | None = None
    """Imports and returns the function that proves bounds of this kind; None if its bounds rest on trusting a solver."""

    @property
    def title(self) -> str:
        """The name as text: ``memory mapping``."""
        return self.name.replace("_", " ")

    @property
    def plan_format(self) -> str:
        """The ``format`` field of its plan files."""
        return _format(self.name, "plan")

    def amended(self, problem: Any, changes: Mapping[str, Any]) -> Any:
        """Returns the problem with new values for some of the options in :attr:`amends`."""
        if not changes:
            return problem
        return self.amend(problem, changes) if self.amend else msgspec.structs.replace(problem, **changes)


_PLACES = {
    name: f"stowplan.portfolio.{name}.kind:KIND"
    for name in (
        "memory_mapping",
        "packing",
        "tier_placement",
        "bank_mapping",
        "operator_order",
        "rematerialization",
        "banked_packing",
        "modulo_scheduling",
        "llm_placement",
    )
}


def load(place: str) -> Any:
    """Imports and returns the object at ``module:name``.

    Raises
    ------
    ImportError
        The module cannot be imported.
    AttributeError
        The module has no such name.
    """
    module, _, name = place.partition(":")
    return getattr(importlib.import_module(module), name)


def register(name: str, place: str) -> None:
    """Adds the kind at ``module:name``, in place of a kind of the same name if there is one. The kind is imported later, when
    it is used."""
    _PLACES[name] = place


def import_path(name: str) -> str | None:
    """``module:name`` of the kind of this name, or None if there is no such kind. Entry points are read only for names that are
    not this package's own."""
    return _PLACES.get(name) or _from_entry_points().get(name)


def import_paths() -> dict[str, str]:
    """``module:name`` of every kind, by the kind's name. Nothing is imported. If another package adds a name that this package
    uses, this package's own kind counts."""
    return _from_entry_points() | _PLACES


def formats(what: Literal["problem", "plan"]) -> list[str]:
    """The ``format`` fields of the problem files, or of the plan files, of all kinds."""
    return [_format(name, what) for name in import_paths()]


def registered() -> tuple[BaseKind, ...]:
    """All kinds. This imports every one of them, and raises the errors of :func:`load`."""
    return tuple(map(by_name, import_paths()))


def by_words(name: str) -> BaseKind:
    """The kind of a name as a person writes it, with blanks or hyphens for underscores; raises UsageError if there is none."""
    return by_name(name.replace(" ", "_").replace("-", "_"))


def by_name(name: str) -> BaseKind:
    """The kind of this name. Raises UsageError if there is none, and the errors of :func:`load` if it cannot be imported."""
    place = import_path(name)
    if place is None:
        raise UsageError(f"found kind {name!r}, expected one of {', '.join(import_paths())}")
    return _imported(place)


@cache
def unit(name: str) -> Unit:
    """The unit of this name, as files state it. If no kind has such a unit, a new unit that has only the name is returned."""
    every = map(by_name, (*_PLACES, *_from_entry_points()))
    return next((kind.unit for kind in every if kind.unit.name == name), Unit(name))


def of_format(text: object, what: Literal["problem", "plan"]) -> BaseKind | None:
    """The kind whose problem files, or plan files, have this ``format`` field; None if there is none."""
    match = _FORMAT.fullmatch(text) if isinstance(text, str) else None
    if match is None or match[2] != what or import_path(match[1]) is None:
        return None
    return by_name(match[1])


def of_problem(problem: object) -> BaseKind:
    """The kind of a problem object; raises UsageError for any other object."""
    kind = of_format(getattr(problem, "format", None), "problem")
    if kind is None or not isinstance(problem, kind.problem):
        raise UsageError(f"found a {type(problem).__name__}, expected a problem: see stowplan.read")
    return kind


def of_plan_file(data: bytes, source: str | Path | None = None) -> BaseKind:
    """The kind of a plan file, by its ``format`` field; raises InputError if ``data`` is no plan of a registered kind.

    ``source`` is the file for the message, if any.
    """
    text = files.peek_format(data)
    kind = of_format(text, "plan")
    if kind is None:
        message = f"found {files.describe(data)}, expected a plan: {', '.join(formats('plan'))}"
        if use := use_of(text, source or "FILE"):
            message += f"; this is {use}"
        raise InputError(message, source=source, place=None if text is None else "format")
    return kind


def _format(name: str, what: str) -> str:
    return f"stowplan.{name}.{what}"


@cache
def _from_entry_points() -> dict[str, str]:
    # Imported here because this import takes longer than all the rest of this module.
    from importlib.metadata import entry_points

    return {entry.name: entry.value for entry in entry_points(group=ENTRY_POINT_GROUP)}


@cache
def _imported(place: str) -> BaseKind:
    kind: BaseKind = load(place)
    return kind
