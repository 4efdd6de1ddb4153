"""The offset table of a plan: which bytes of which arena each buffer occupies, and when.

The table has everything that a compiler back end needs of a plan. Each kind of problem builds the table of its plans
(``Kind.offset_table``), and :mod:`stowplan.backends.emit` writes it in several formats. An *arena* is a contiguous range of
memory in which buffers have offsets.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping

import msgspec

from stowplan import files
from stowplan.document import Document, PlanDocument, ProblemDocument
from stowplan.errors import InputError

#: Arena number of tensors that are in no arena, for example a result of the model that is a constant from the model file.
NOWHERE = -1


class Arena(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A contiguous range of memory. Offsets count bytes from its start."""

    name: str
    """Name of the memory, for people."""
    bytes: int
    """Number of bytes of the arena that the plan uses: the largest ``offset + size`` of its rows."""
    alignment: int = 1
    """The address of the arena must be a multiple of this number of bytes, so that aligned offsets are aligned addresses."""
    capacity: int | None = None
    """Size of the arena in bytes; None if the problem sets no limit."""


class OffsetRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A buffer that occupies bytes ``[offset, offset + size)`` of an arena during ``[start, end)``."""

    name: str
    """Name of the buffer or tensor."""
    offset: int
    """Offset in bytes from the start of the arena."""
    size: int
    """Size in bytes."""
    alignment: int = 1
    """The offset is a multiple of this number of bytes."""
    start: int
    """First moment at which the buffer occupies its bytes, in the unit of the problem: a moment of live ranges, or a step of
    the schedule."""
    end: int
    """First moment after that time, in the same unit."""
    arena: int = 0
    """Number of the arena; :data:`NOWHERE` if the tensor is in none."""
    buffer: str | msgspec.UnsetType = msgspec.UNSET
    """Name of the row whose bytes contain the bytes of this one. Rows with bytes of their own omit the field."""


def part_of(parent: OffsetRow | None, name: str, offset: int, size: int) -> OffsetRow:
    """The row of a tensor that begins ``offset`` bytes after the start of the row ``parent`` and lies inside it.

    If ``parent`` is None, the tensor is in no arena. ``size`` is in bytes.
    """
    if parent is None:
        return OffsetRow(name=name, offset=0, size=size, start=0, end=0, arena=NOWHERE)
    at, alignment = parent.offset + offset, math.gcd(parent.alignment, offset)
    return msgspec.structs.replace(parent, name=name, buffer=parent.name, offset=at, size=size, alignment=alignment)


class OffsetTable(Document, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The offset table of a plan, with its rows in the order of the problem."""

    kind: str
    """Name of the kind of problem."""
    program: str
    """Name of the problem."""
    problem_digest: str
    """Digest of the problem, which ties the table to it."""
    plan_digest: str
    """Hex SHA-256 of the plan. Equal plans have equal tables."""
    arenas: tuple[Arena, ...]
    """The arenas, which rows refer to by their position in this tuple."""
    rows: tuple[OffsetRow, ...]
    """One row for each buffer, and one for each tensor that lies inside a buffer."""
    results: tuple[int, ...] = ()
    """Numbers of the rows that the model returns, in its order; empty if the reader of the model does not provide them."""
    format: str = "stowplan.offset_table"
    version: int = 1


def make_table(
    kind: str,
    problem: ProblemDocument[PlanDocument],
    plan: PlanDocument,
    arenas: Mapping[str, int | None],
    rows: Iterable[OffsetRow],
    results: Iterable[str] = (),
) -> OffsetTable:
    """Build the offset table of a plan.

    Parameters
    ----------
    kind
        Name of the kind of problem.
    arenas
        Capacity in bytes of every arena by its name, in the order of their numbers; None for an arena without a limit.
    rows
        The rows, in an order that depends on the problem and the plan alone. The bytes and alignments of arenas are computed
        from them.
    results
        Names of the rows that the model returns, in its order. Each must be the name of exactly one row. Names that are not
        in this list may belong to several rows.

    Raises
    ------
    InputError
        A result is the name of no row or of several rows.
    """
    all_rows = tuple(rows)
    numbers: dict[str, list[int]] = {}
    for number, row in enumerate(all_rows):
        numbers.setdefault(row.name, []).append(number)
    names = tuple(results)
    for name in names:
        if (count := len(numbers.get(name, ()))) != 1:
            raise InputError(f"found {count} rows of the offset table for the result {name!r}, expected exactly one")
    rows_of = [[row for row in all_rows if row.arena == number] for number in range(len(arenas))]
    return OffsetTable(
        kind=kind,
        program=getattr(problem, "name", ""),
        problem_digest=problem.digest,
        plan_digest=hashlib.sha256(files.encode(plan)).hexdigest(),
        arenas=tuple(
            Arena(
                name=name,
                bytes=max((row.offset + row.size for row in rows_inside), default=0),
                alignment=math.lcm(*(row.alignment for row in rows_inside)),
                capacity=capacity,
            )
            for (name, capacity), rows_inside in zip(arenas.items(), rows_of, strict=True)
        ),
        rows=all_rows,
        results=tuple(numbers[name][0] for name in names),
    )
