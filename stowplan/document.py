"""What all kinds write: problems and plans as JSON files, checked."""

from __future__ import annotations

from pathlib import Path
from typing import Generic, Self, TypeVar

import msgspec

from stowplan import files, kinds


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
