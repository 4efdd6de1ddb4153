"""The instance of packing: buffers that live at fixed times and want an offset each. See docs/packing.md."""

from __future__ import annotations

from functools import cached_property

import msgspec

from stowplan import files
from stowplan.errors import InputError
from stowplan.models.document import Document

FORMAT = "stowplan.packing.problem"
VERSION = 1

#: Times, offsets and the sum of all sizes stay below this in absolute value, so that sums of two fit in 64 bits.
LIMIT = 1 << 61


class Buffer(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Something that takes ``size`` bytes at one offset while it lives."""

    id: str
    lower: int
    """First moment of its life."""
    upper: int
    """Moment after its last: the life is half-open, ``[lower, upper)``."""
    size: int
    """Bytes; a buffer of 0 bytes never collides."""
    alignment: int = 1
    """Its offset is a multiple of this many bytes."""
    gaps: tuple[tuple[int, int], ...] = ()
    """Half-open parts of the life, ascending and disjoint, not all of it, in which it holds no data and takes no space."""
    offset: int | None = None
    """Offset it must have, in bytes; None leaves it free."""
    hint: int | None = None
    """Offset to try first, in bytes. Not binding."""

    @property
    def pieces(self) -> tuple[tuple[int, int], ...]:
        """Half-open parts of the life in which it takes space."""
        starts = (self.lower, *(end for _, end in self.gaps))
        ends = (*(start for start, _ in self.gaps), self.upper)
        return tuple((start, end) for start, end in zip(starts, ends, strict=True) if start < end)


class Problem(Document, frozen=True, forbid_unknown_fields=True, dict=True, kw_only=True):
    """A validated instance; construction raises :class:`~stowplan.errors.InputError` where it breaks a rule."""

    buffers: tuple[Buffer, ...]
    capacity: int | None = None
    """Bytes that all buffers must fit into; None asks for the least height."""
    name: str = ""
    format: str = FORMAT
    version: int = VERSION

    def __post_init__(self) -> None:
        if self.capacity is not None and not 0 <= self.capacity < LIMIT:
            raise InputError(f"found {self.capacity}, expected 0 to {LIMIT - 1} bytes", place="capacity")
        seen: set[str] = set()
        total = 0
        for number, buffer in enumerate(self.buffers):
            place = f"buffers[{number}] ({buffer.id})"
            check_buffer(buffer, place)
            if buffer.id in seen:
                raise InputError(f"found the id {buffer.id!r} twice, expected every id once", place=place)
            seen.add(buffer.id)
            total += buffer.size + buffer.alignment - 1
            if total >= LIMIT:
                raise InputError(f"the sizes and alignments add up to {total} bytes, expected less than {LIMIT}", place=place)

    @cached_property
    def digest(self) -> str:
        """Hex SHA-256 of what a plan depends on: everything but the name, the capacity and the hints."""
        rules = [msgspec.structs.replace(buffer, hint=None) for buffer in self.buffers]
        return files.digest(rules)


def check_buffer(buffer: Buffer, place: str) -> None:
    """Raise InputError naming ``place`` and field where a buffer breaks a rule by itself."""

    def check(field: str, holds: bool, found: object, expected: str) -> None:
        if not holds:
            raise InputError(f"found {field} {found}, expected {expected}", place=place)

    check("lower", abs(buffer.lower) < LIMIT, buffer.lower, f"less than {LIMIT} in absolute value")
    check("upper", abs(buffer.upper) < LIMIT, buffer.upper, f"less than {LIMIT} in absolute value")
    check("upper", buffer.lower < buffer.upper, buffer.upper, f"more than lower, {buffer.lower}")
    check("size", 0 <= buffer.size < LIMIT, buffer.size, f"0 to {LIMIT - 1} bytes")
    check("alignment", 1 <= buffer.alignment < LIMIT, buffer.alignment, f"1 to {LIMIT - 1} bytes")
    before = buffer.lower
    for start, end in buffer.gaps:
        check("gap", before <= start < end <= buffer.upper, f"{start}-{end}", "ascending, disjoint parts of the life")
        before = end
    check("gaps", bool(buffer.pieces), "over the whole life", "some of it left")
    if buffer.offset is not None:
        check("offset", 0 <= buffer.offset < LIMIT, buffer.offset, f"0 to {LIMIT - 1} bytes")
        check("offset", buffer.offset % buffer.alignment == 0, buffer.offset, f"a multiple of {buffer.alignment}")
    if buffer.hint is not None:
        check("hint", abs(buffer.hint) < LIMIT, buffer.hint, f"less than {LIMIT} in absolute value")
