"""The kinds of problem there are, and where each is declared. Those of other packages are found by an entry point.

A kind is one object, a :class:`stowplan.kernel.kind.Kind`, imported when a problem, a plan or a file of it turns up.
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
from stowplan.units import PS, Unit

#: Entry points by which other packages add kinds: the name of the kind, and ``module:name`` of its object.
GROUP = "stowplan.kinds"

#: ``(wish) -> proofs`` of bounds, the cheapest first, for wishes of :class:`stowplan.certificates.maker.Wish`.
Prover = Callable[[Any], Iterable[dict[str, Any]]]

_FORMAT = re.compile(r"stowplan\.(\w+)\.(problem|plan)")


@dataclass(frozen=True, kw_only=True)
class BaseKind:
    """What the lower packages ask of a kind: its files, and what makes certificates of its bounds."""

    name: str
    """As in the formats of its files: ``stowplan.NAME.problem`` and ``stowplan.NAME.plan``."""
    problem: type[Any]
    """Class of its problems, a :class:`stowplan.document.ProblemDocument`."""
    plan: type[Any]
    """Class of its plans, a :class:`stowplan.document.PlanDocument`."""
    unit: Unit = PS
    """Of objectives and bounds."""
    read_plan: Callable[[str | Path, Any], Any] | None = None
    """``(path, problem)`` to a plan, for plans in files that are not JSON."""
    read_described_plan: Callable[[str | Path], Any] | None = None
    """``(path)`` to a plan, for such files of problems that are not at hand: plans that say what for."""
    amends: tuple[str, ...] = ()
    """Options of :func:`stowplan.read` that still change a finished problem of this kind."""
    amend: Callable[[Any, Mapping[str, Any]], Any] | None = None
    """``(problem, changes)`` to a problem with those; None where they are the problem's own fields."""
    certificate: Callable[[], Prover] | None = None
    """Imports what proves its bounds; None where a solver must be trusted."""

    @property
    def title(self) -> str:
        """For people: ``memory mapping``."""
        return self.name.replace("_", " ")

    @property
    def plan_format(self) -> str:
        """Format of its plan files."""
        return _format(self.name, "plan")

    def amended(self, problem: Any, changes: Mapping[str, Any]) -> Any:
        """A problem with other values for some of :attr:`amends`."""
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
    """The object at ``module:name``."""
    module, _, name = place.partition(":")
    return getattr(importlib.import_module(module), name)


def register(name: str, place: str) -> None:
    """Add the kind at ``module:name``, or replace the one of its name."""
    _PLACES[name] = place


def place_of(name: str) -> str | None:
    """``module:name`` of the kind of this name; None where there is none. Installed packages are only looked at for others'."""
    return _PLACES.get(name) or _installed().get(name)


def places() -> dict[str, str]:
    """``module:name`` of all kinds by their names; nothing of them is imported."""
    return _installed() | _PLACES


def formats(what: Literal["problem", "plan"]) -> list[str]:
    """Formats of the problem files, or of the plan files, of all kinds."""
    return [_format(name, what) for name in places()]


def registered() -> tuple[BaseKind, ...]:
    """All kinds, imported."""
    return tuple(map(named, places()))


def named(name: str) -> BaseKind:
    """The kind of this name; raises UsageError where there is none."""
    place = place_of(name)
    if place is None:
        raise UsageError(f"found kind {name!r}, expected one of {', '.join(places())}")
    return _loaded(place)


@cache
def unit(name: str) -> Unit:
    """The unit that files have by this name; one that is a mere name where no kind has it."""
    every = map(named, (*_PLACES, *_installed()))
    return next((kind.unit for kind in every if kind.unit.name == name), Unit(name))


def of_format(text: object, what: Literal["problem", "plan"]) -> BaseKind | None:
    """The kind whose problems, or plans, have a format; None where there is none."""
    match = _FORMAT.fullmatch(text) if isinstance(text, str) else None
    if match is None or match[2] != what or place_of(match[1]) is None:
        return None
    return named(match[1])


def of_problem(problem: object) -> BaseKind:
    """The kind of a problem object; raises UsageError for anything else."""
    kind = of_format(getattr(problem, "format", None), "problem")
    if kind is None or not isinstance(problem, kind.problem):
        raise UsageError(f"found a {type(problem).__name__}, expected a problem: see stowplan.read")
    return kind


def of_plan_file(data: bytes, source: str | Path | None = None) -> BaseKind:
    """The kind of a plan file, by its format; raises InputError for anything else."""
    text = files.peek_format(data)
    kind = of_format(text, "plan")
    if kind is None:
        message = f"found {files.describe(data)}, expected a plan: {', '.join(formats('plan'))}"
        raise InputError(message, source=source, place=None if text is None else "format")
    return kind


def _format(name: str, what: str) -> str:
    return f"stowplan.{name}.{what}"


@cache
def _installed() -> dict[str, str]:
    # Imported here: it takes longer than all of this module.
    from importlib.metadata import entry_points

    return {entry.name: entry.value for entry in entry_points(group=GROUP)}


@cache
def _loaded(place: str) -> BaseKind:
    kind: BaseKind = load(place)
    return kind
