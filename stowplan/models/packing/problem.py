"""The instance of packing: buffers that live at fixed times and want an offset each. See docs/reference/packing.md."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from stowplan import files
from stowplan.checks import expect, expect_unique
from stowplan.document import ProblemDocument
from stowplan.errors import InputError

if TYPE_CHECKING:
    from stowplan.models.packing.plan import Plan  # noqa: F401

#: Times, offsets and the sum of all sizes stay below this in absolute value, so that sums of two fit in 64 bits.
LIMIT = 1 << 61


class SizedLife(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What buffers of packing and of banked packing have: bytes, and when they are taken."""

    id: str
    lower: int
    """First moment of its life."""
    upper: int
    """Moment after its last: the life is half-open, ``[lower, upper)``."""
    size: int
    """Bytes; a buffer of 0 bytes never collides."""


class Overlap(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Permission for a buffer, the result, to share bytes with a buffer that is live when the result is born, the operand.

    With a distance, the operand must not outlive the result, and while both live
    ``result.offset + distance <= operand.offset + operand.size``, or they share no byte. Without one (None), both buffers hold
    the same bytes: while both live, they have the same offset, or they share no byte.
    """

    operand: str
    """Id of the buffer whose bytes may be shared."""
    distance: int | None
    """Bytes from the result's begin up to the operand's end, at least; 0 where the operand's bytes are not needed any more.
    None: the result may only have the operand's own offset; both buffers have the same size, and either may die first."""


class Buffer(SizedLife, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Something that takes ``size`` bytes at one offset while it lives."""

    alignment: int = 1
    """Its offset is a multiple of this many bytes."""
    gaps: tuple[tuple[int, int], ...] = ()
    """Half-open parts of the life, ascending and disjoint, not all of it, in which it holds no data and takes no space."""
    offset: int | None = None
    """Offset it must have, in bytes; None leaves it free."""
    hint: int | None = None
    """Offset to try first, in bytes. Not binding."""
    overlaps: tuple[Overlap, ...] | msgspec.UnsetType = msgspec.UNSET
    """Buffers whose bytes it may take before they have died. Left out of files that have none."""

    @property
    def pieces(self) -> tuple[tuple[int, int], ...]:
        """Half-open parts of the life in which it takes space."""
        starts = (self.lower, *(end for _, end in self.gaps))
        ends = (*(start for start, _ in self.gaps), self.upper)
        return tuple((start, end) for start, end in zip(starts, ends, strict=True) if start < end)


class Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A tensor of a graph that has no buffer of its own. Plans do not depend on it."""

    id: str
    buffer: str | None = None
    """Id of the buffer whose bytes it has; None where it takes none of the arena: the model stores it, for example."""
    offset: int = 0
    """Bytes from the buffer's begin to its own."""
    size: int
    """Bytes, from its first to its last."""


class Pair(NamedTuple):
    """An overlap, its buffers by their numbers."""

    result: int
    operand: int
    distance: int | None
    """Bytes; None where only the same offset is allowed."""


class Spans(NamedTuple):
    """When buffers take space: their pieces as arrays of int64, those of buffer 0 first, each buffer's ascending."""

    owner: NDArray[np.int64]
    """[pieces] number of the buffer."""
    start: NDArray[np.int64]
    end: NDArray[np.int64]
    """[pieces] half-open."""
    size: NDArray[np.int64]
    """[buffers] bytes."""


class Problem(ProblemDocument["Plan"], frozen=True, forbid_unknown_fields=True, dict=True, kw_only=True):
    """A validated instance; construction raises :class:`~stowplan.errors.InputError` where it breaks a rule."""

    buffers: tuple[Buffer, ...]
    capacity: int | None = None
    """Bytes that all buffers must fit into; None asks for the least height."""
    parts: tuple[Part, ...] | msgspec.UnsetType = msgspec.UNSET
    """Of a graph: views, and results of operators in the place of operands. Left out of files that have none."""
    results: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET
    """Ids of the buffers and parts that the graph returns, in its order; one may be returned twice. Left out where there is no
    graph."""
    name: str = ""
    format: str = "stowplan.packing.problem"
    version: int = 1

    def __post_init__(self) -> None:
        if self.capacity is not None and not 0 <= self.capacity < LIMIT:
            raise InputError(f"found {self.capacity}, expected 0 to {LIMIT - 1} bytes", place="capacity")
        is_plain = self._is_plain()
        check_parts(self.buffers, self.parts or (), self.results or ())
        if is_plain:
            return
        expect_unique((buffer.id for buffer in self.buffers), "buffers")
        total = 0
        for number, buffer in enumerate(self.buffers):
            place = f"buffers[{number}] ({buffer.id})"
            check_buffer(buffer, place)
            total += buffer.size + buffer.alignment - 1
            if total >= LIMIT:
                raise InputError(f"the sizes and alignments add up to {total} bytes, expected less than {LIMIT}", place=place)
        check_overlaps(self)

    def _is_plain(self) -> bool:
        """Whether every rule is kept, looked at by columns; False also where that cannot be told quickly."""
        n = len(self.buffers)
        try:
            lower, upper, size, alignment = (
                np.fromiter((getattr(buffer, name) for buffer in self.buffers), np.int64, n)
                for name in ("lower", "upper", "size", "alignment")
            )
        except (OverflowError, TypeError):
            return False
        if any(
            buffer.gaps or buffer.offset is not None or buffer.hint is not None or buffer.overlaps for buffer in self.buffers
        ):
            return False
        inside = (lower > -LIMIT) & (upper < LIMIT) & (lower < upper) & (size >= 0) & (size < LIMIT) & (alignment >= 1)
        return bool(
            inside.all()
            and (alignment < LIMIT).all()
            # As floats the sum cannot wrap; what is close to the limit is added up exactly.
            and size.sum(dtype=np.float64) + alignment.sum(dtype=np.float64) < LIMIT / 2
            and len({buffer.id for buffer in self.buffers}) == n
        )

    @cached_property
    def spans(self) -> Spans:
        """The lives without their gaps, as arrays."""
        n = len(self.buffers)
        size = np.fromiter((buffer.size for buffer in self.buffers), np.int64, n)
        if any(buffer.gaps for buffer in self.buffers):
            pieces = [buffer.pieces for buffer in self.buffers]
            owner = np.repeat(np.arange(n), [len(own) for own in pieces])
            flat = np.array(list(chain.from_iterable(pieces)), np.int64).reshape(-1, 2)
            return Spans(owner, flat[:, 0].copy(), flat[:, 1].copy(), size)
        lower = np.fromiter((buffer.lower for buffer in self.buffers), np.int64, n)
        upper = np.fromiter((buffer.upper for buffer in self.buffers), np.int64, n)
        return Spans(np.arange(n), lower, upper, size)

    @cached_property
    def overlaps(self) -> tuple[Pair, ...]:
        """All overlaps, in the order of the results."""
        overlaps = [(number, overlap) for number, buffer in enumerate(self.buffers) for overlap in buffer.overlaps or ()]
        numbers = {buffer.id: number for number, buffer in enumerate(self.buffers)} if overlaps else {}
        return tuple(Pair(number, numbers[overlap.operand], overlap.distance) for number, overlap in overlaps)

    @cached_property
    def digest(self) -> str:
        """Hex SHA-256 of what a plan depends on: everything but name, capacity, parts, results and hints."""
        rules = [
            msgspec.structs.replace(buffer, hint=None, overlaps=buffer.overlaps or msgspec.UNSET) for buffer in self.buffers
        ]
        return files.digest(rules)


def check_buffer(buffer: Buffer, place: str) -> None:
    """Raise InputError naming ``place`` and field where a buffer breaks a rule by itself."""

    def check(field: str, holds: bool, found: object, expected: str) -> None:
        expect(holds, place, f"{field} {found}", expected)

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


def check_parts(buffers: Iterable[SizedLife], parts: Sequence[Part], results: Sequence[str]) -> None:
    """Raise InputError naming a part that is not inside a buffer, or a result that is neither."""
    if parts or results:
        sizes = {buffer.id: buffer.size for buffer in buffers}
        expect_unique((*sizes, *(part.id for part in parts)), "parts")
        for number, part in enumerate(parts):
            place, end = f"parts[{number}] ({part.id})", part.offset + part.size
            expect(part.buffer is None or part.buffer in sizes, place, f"buffer {part.buffer}", "the id of a buffer")
            most = sizes.get(part.buffer or "", end)
            expect(
                0 <= part.offset <= end <= most, place, f"bytes {part.offset} to {end}", f"some of the {most} of {part.buffer}"
            )
        for name in {*results} - {*sizes} - {part.id for part in parts}:
            raise InputError(f"found {name!r}, expected the id of a buffer or part", place="results")


def check_overlaps(problem: Problem) -> None:
    """Raise InputError naming the result where a pair that may share bytes breaks a rule."""
    buffers = {buffer.id: buffer for buffer in problem.buffers}
    seen: set[frozenset[str]] = set()
    for number, result in enumerate(problem.buffers):
        place = f"buffers[{number}] ({result.id})"
        for overlap in result.overlaps or ():
            operand = buffers.get(overlap.operand)
            if operand is None:
                raise InputError(f"found an overlap with {overlap.operand!r}, expected the id of a buffer", place=place)
            what = f"an overlap with {operand.id!r}"
            expect(operand is not result, place, what, "another buffer")
            expect(frozenset((result.id, operand.id)) not in seen, place, f"{what} again", "one of the two, once")
            seen.add(frozenset((result.id, operand.id)))
            lives = f"{what}, which lives in [{operand.lower}, {operand.upper})"
            is_born_there = operand.lower <= result.lower < operand.upper
            expected = f"one that [{result.lower}, {result.upper}) begins in and does not end before"
            expect(is_born_there and (overlap.distance is None or operand.upper <= result.upper), place, lives, expected)
            expect(not result.gaps and not operand.gaps, place, f"{what} and gaps", "lives without gaps")
            if overlap.distance is None:
                expect(operand.size == result.size, place, f"{what} of {operand.size} bytes", f"one of {result.size}")
                continue
            most = result.size + operand.size
            expect(0 <= overlap.distance <= most, place, f"{what} at distance {overlap.distance}", f"0 to {most} bytes")
