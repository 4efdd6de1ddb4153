"""The table of offsets of a plan, for whoever applies it.

A kind makes the table (``Kind.offset_table``), :mod:`stowplan.backends.emit` writes it.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping

import msgspec

from stowplan import files
from stowplan.document import Document, PlanDocument, ProblemDocument

#: Number of the arena of what takes nothing of any: results that the program stores.
NOWHERE = -1


class Arena(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A stretch of memory that offsets are in."""

    name: str
    bytes: int
    """What the plan needs of it: the highest end of a row."""
    alignment: int = 1
    """Bytes of which its own address must be a multiple, so that aligned offsets are aligned addresses."""
    capacity: int | None = None
    """Bytes that it has; None where that was left open."""


class OffsetRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Something that stands at ``[offset, offset + size)`` bytes of an arena during ``[start, end)``."""

    name: str
    offset: int
    size: int
    alignment: int = 1
    start: int
    end: int
    """Time in the problem's own unit: moments of lives, or steps of the schedule."""
    arena: int = 0
    """Number of its arena; :data:`NOWHERE` for what takes nothing of any."""
    buffer: str | msgspec.UnsetType = msgspec.UNSET
    """Name of the row whose bytes these are. Left out of a row with bytes of its own."""


def part_of(host: OffsetRow | None, name: str, offset: int, size: int) -> OffsetRow:
    """The row of what is ``offset`` bytes inside another row; of what is nowhere where there is none."""
    if host is None:
        return OffsetRow(name=name, offset=0, size=size, start=0, end=0, arena=NOWHERE)
    at, alignment = host.offset + offset, math.gcd(host.alignment, offset)
    return msgspec.structs.replace(host, name=name, buffer=host.name, offset=at, size=size, alignment=alignment)


class OffsetTable(Document, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """All rows of a plan, in the plan's order."""

    kind: str
    program: str
    problem_digest: str
    """Ties the table to its problem."""
    plan_digest: str
    """Hex SHA-256 of the plan: equal plans have equal tables."""
    arenas: tuple[Arena, ...]
    rows: tuple[OffsetRow, ...]
    results: tuple[int, ...] = ()
    """Rows of what the program returns, by their numbers, in its order; empty where its reader does not say."""
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
    """The table of a plan.

    Parameters
    ----------
    kind
        As it is registered.
    arenas
        Capacity of every arena by its name, in the order of their numbers.
    rows
        In an order that the plan decides. What arenas need, and how they are aligned, follows from them.
    results
        Names of the rows that the program returns.
    """
    every = tuple(rows)
    numbers = {row.name: number for number, row in enumerate(every)}
    inside = [[row for row in every if row.arena == number] for number in range(len(arenas))]
    return OffsetTable(
        kind=kind,
        program=getattr(problem, "name", ""),
        problem_digest=problem.digest,
        plan_digest=hashlib.sha256(files.encode(plan)).hexdigest(),
        arenas=tuple(
            Arena(
                name=name,
                bytes=max((row.offset + row.size for row in own), default=0),
                alignment=math.lcm(*(row.alignment for row in own)),
                capacity=capacity,
            )
            for (name, capacity), own in zip(arenas.items(), inside, strict=True)
        ),
        rows=every,
        results=tuple(numbers[name] for name in results),
    )
