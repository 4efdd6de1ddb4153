"""Base classes of problems and plans: data that is written to JSON files and checked when it is read."""

from __future__ import annotations

from pathlib import Path
from typing import Generic, Self, TypeVar

import msgspec

from stowplan import files, kinds


class Document(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Data that can be written to a JSON file and read again.

    A subclass has the fields ``format`` and ``version``, by custom the last ones. A file is accepted only if both equal the
    defaults of these fields.
    """

    def save(self, path: str | Path) -> None:
        """Writes the object as JSON. Equal objects give equal bytes. Raises InputError if the file cannot be written."""
        files.write_atomic(path, files.encode(self))

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Reads a file; raises :class:`~stowplan.errors.InputError`, which names the file and the field."""
        return cls.decode(files.read_bytes(path), source=path)

    @classmethod
    def decode(cls, data: bytes, source: str | Path | None = None) -> Self:
        """Reads JSON from bytes; raises :class:`~stowplan.errors.InputError`, which names the source and the field."""
        default = {field.name: field.default for field in msgspec.structs.fields(cls)}
        return files.decode(data, cls, format_name=default["format"], version=default["version"], source=source)

    def _repr_html_(self) -> str:
        """HTML for notebooks: a table of the fields, in which long fields are replaced by their number of entries."""
        shown: str = kinds.load("stowplan.report.notebook:document_html")(self)
        return shown


class PlanDocument(Document, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Base class of all plans: plain data that answers one problem."""

    problem: str
    """Digest of the problem that the plan is for."""
    objective: int
    """What the plan costs; smaller is better. The verifier computes it anew."""


PlanT = TypeVar("PlanT", bound=PlanDocument, covariant=True)


class ProblemDocument(Document, Generic[PlanT], frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Base class of all problems, which are validated when they are created; ``PlanT`` is the class of the problem's plans."""

    @property
    def digest(self) -> str:
        """Hash of the canonical form of the problem: equal problems have equal digests."""
        raise NotImplementedError
