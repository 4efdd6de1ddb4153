"""What all kinds write: problems and plans as JSON files, checked."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Generic, Self, TypeVar

import msgspec

from stowplan import files, kinds
from stowplan.errors import InputError


class Document(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What can be written to a JSON file and read again.

    A subclass has the fields ``format`` and ``version``, by custom the last ones; a file must say their defaults.
    """

    def save(self, path: str | Path) -> None:
        """Write it as JSON; equal objects give equal bytes."""
        files.write_atomic(path, files.encode(self))

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a file; raises :class:`~stowplan.errors.InputError` naming file and field."""
        return cls.decode(files.read_bytes(path), source=path)

    @classmethod
    def decode(cls, data: bytes, source: str | Path | None = None) -> Self:
        """Read JSON bytes; raises :class:`~stowplan.errors.InputError` naming source and field."""
        default = {field.name: field.default for field in msgspec.structs.fields(cls)}
        return files.decode(data, cls, format_name=default["format"], version=default["version"], source=source)

    def _repr_html_(self) -> str:
        """What notebooks show: a table of the fields, those that are long by how many entries they have."""
        shown: str = kinds.load("stowplan.report.notebook:document_html")(self)
        return shown


class PlanDocument(Document, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What every plan is: plain data, for one problem."""

    problem: str
    """Digest of the problem that it is for."""
    objective: int
    """What the verifier recomputes; the smaller the better."""


PlanT = TypeVar("PlanT", bound=PlanDocument, covariant=True)


class ProblemDocument(Document, Generic[PlanT], frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What every problem is, validated when it is made; ``PlanT`` is the class of its plans."""

    @property
    def digest(self) -> str:
        """Hash of its canonical form: equal problems have equal digests."""
        raise NotImplementedError


def expect(holds: bool, place: str, found: object, expected: str) -> None:
    """Raise :class:`~stowplan.errors.InputError` at a place of a problem where a rule does not hold."""
    if not holds:
        raise InputError(f"found {found}, expected {expected}", place=place)


def expect_range(place: str, field: str, value: int, least: int, below: int) -> None:
    """Raise InputError where a field is not in ``[least, below)``."""
    if not least <= value < below:
        raise InputError(f"found {field} {value}, expected {least} to {below - 1}", place=place)


def expect_unique(names: Iterable[str], where: str, what: str = "id") -> None:
    """Raise InputError where two of a list have one name."""
    seen: set[str] = set()
    for number, name in enumerate(names):
        if name in seen:
            raise InputError(
                f"found the {what} {name!r} twice, expected every {what} once", place=f"{where}[{number}] ({name})"
            )
        seen.add(name)
