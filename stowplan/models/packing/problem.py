"""The packing problem: buffers with sizes and fixed live ranges, each of which needs an offset in one arena.

The rules are on docs/reference/packing.md. This module has the data of problems and checks them when they are created.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from stowplan import files
from stowplan.checks import expect, expect_unique
from stowplan.document import ProblemDocument
from stowplan.errors import InputError, UsageError

if TYPE_CHECKING:
    from stowplan.models.packing.plan import Plan  # noqa: F401

#: Times, offsets and the sum of all sizes stay below this in absolute value, so that sums of two fit in 64 bits.
LIMIT = 1 << 61


class SizedLife(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Name, live range and size: the fields that buffers of packing and of banked packing have in common."""

    id: str
    """Name of the buffer, which is unique in the problem."""
    lower: int
    """First moment of the live range, in any unit of time."""
    upper: int
    """First moment after the live range, which is half-open: ``[lower, upper)``."""
    size: int
    """Size in bytes. A buffer of 0 bytes never overlaps another one."""


class Overlap(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Permission for a buffer, the *result*, to share bytes with a buffer that is live when it is created, the *operand*.

    If ``distance`` is a number, the operand must not outlive the result. While both are live, they share no byte, or
    ``result.offset + distance <= operand.offset + operand.size``. If ``distance`` is None, both buffers hold the same data.
    While both are live, they share no byte, or they have the same offset.
    """

    operand: str
    """Id of the buffer whose bytes may be shared."""
    distance: int | None
    """Least number of bytes from the result's start to the operand's end if they share bytes. It is 0 if the operator has read
    the whole operand before it writes the result. None: the two buffers may share bytes only if they have the same offset; they
    have the same size, and either may die first."""


class Buffer(SizedLife, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A tensor or other data that occupies ``size`` bytes at one offset during its live range."""

    alignment: int = 1
    """The offset is a multiple of this number of bytes."""
    gaps: tuple[tuple[int, int], ...] = ()
    """Half-open intervals of the live range in which the buffer holds no data and occupies no bytes. They are ascending and
    disjoint and do not cover the whole live range."""
    offset: int | None = None
    """Offset in bytes that the buffer must have; None if the plan chooses it."""
    hint: int | None = None
    """Offset in bytes to try first. It is not binding."""
    overlaps: tuple[Overlap, ...] | msgspec.UnsetType = msgspec.UNSET
    """Buffers that are still live when this one is created and whose bytes it may reuse. Files omit the field if there are
    none."""

    @property
    def pieces(self) -> tuple[tuple[int, int], ...]:
        """Half-open intervals in which the buffer occupies its bytes: the live range without the gaps."""
        starts = (self.lower, *(end for _, end in self.gaps))
        ends = (*(start for start, _ in self.gaps), self.upper)
        return tuple((start, end) for start, end in zip(starts, ends, strict=True) if start < end)


class Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A tensor of the model that has no buffer of its own, such as a view. Plans do not depend on it."""

    id: str
    """Name of the tensor, which no buffer and no other part has."""
    buffer: str | None = None
    """Id of the buffer that contains the tensor; None if the tensor is not in the arena, for example because the model file
    stores it."""
    offset: int = 0
    """Bytes from the start of the buffer to the start of this tensor."""
    size: int
    """Bytes from the beginning of the tensor's first element to the end of its last one."""


class Penalty(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A reuse penalty: a cost that is paid if two buffers share bytes, one after the other."""

    first: str
    """Id of one of the two buffers."""
    second: str
    """Id of the other buffer."""
    cost: int
    """Cost, 0 or more, that is added to the objective if the two buffers' ranges of bytes have at least one byte in common."""


class Pair(NamedTuple):
    """An :class:`Overlap` with the two buffers as positions in ``Problem.buffers``."""

    result: int
    """Position of the result."""
    operand: int
    """Position of the operand."""
    distance: int | None
    """Distance in bytes; None if only the same offset is allowed."""


class Spans(NamedTuple):
    """The pieces of all buffers (:attr:`Buffer.pieces`) as arrays of int64, ordered by buffer and then by time."""

    owner: NDArray[np.int64]
    """[pieces] number of the buffer that the piece belongs to."""
    start: NDArray[np.int64]
    """[pieces] first moment of the piece."""
    end: NDArray[np.int64]
    """[pieces] first moment after the piece."""
    size: NDArray[np.int64]
    """[buffers] size in bytes."""


class Problem(ProblemDocument["Plan"], frozen=True, forbid_unknown_fields=True, dict=True, kw_only=True):
    """A packing problem. Constructing one that breaks a rule raises :class:`~stowplan.errors.InputError`."""

    buffers: tuple[Buffer, ...]
    """The buffers. Their *numbers* are their positions in this tuple."""
    capacity: int | None = None
    """Size of the arena in bytes; None asks for the smallest arena."""
    parts: tuple[Part, ...] | msgspec.UnsetType = msgspec.UNSET
    """Tensors of a model that lie inside a buffer: views, and outputs of operators that overwrite an input. Files omit the
    field if there are none."""
    penalties: tuple[Penalty, ...] | msgspec.UnsetType = msgspec.UNSET
    """Reuse penalties, for each pair of buffers at most one. If there are any, the objective is their sum within the capacity,
    which is then required. Files omit the field if there are none."""
    results: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET
    """Ids of the buffers and parts that the model returns, in its order; the same one may be returned twice. Files omit the
    field if the problem was not read from a model."""
    name: str = ""
    """Name of the problem, for people."""
    format: str = "stowplan.packing.problem"
    version: int = 1

    def __post_init__(self) -> None:
        if self.capacity is not None and not 0 <= self.capacity < LIMIT:
            raise InputError(f"found {self.capacity}, expected 0 to {LIMIT - 1} bytes", place="capacity")
        is_plain = self._is_plain()
        check_parts(self.buffers, self.parts or (), self.results or ())
        if self.penalties:
            check_penalties(self)
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

    def save(self, path: str | Path) -> None:
        """Write the problem to a file: as CSV of the minimalloc project if its name ends in ``.csv``, otherwise as JSON.

        CSV has only the buffers, without capacity, parts and results.

        Raises
        ------
        UsageError
            The file is to be CSV, but CSV cannot represent an id that an overlap refers to, or the reuse penalties.
        InputError
            The file cannot be written.
        """
        is_csv = Path(path).suffix.lower() == ".csv"
        if is_csv and self.penalties:
            raise UsageError("reuse penalties cannot be written as CSV: save it as JSON")
        files.write_atomic(path, csv_text(self.buffers).encode() if is_csv else files.encode(self))

    def _is_plain(self) -> bool:
        """Check the rules of all buffers at once with arrays.

        True means that all rules hold. False means that the buffers have to be checked one by one: one may break a rule, or a
        buffer has fields that this check does not cover.
        """
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
        is_in_range = (lower > -LIMIT) & (upper < LIMIT) & (lower < upper) & (size >= 0) & (size < LIMIT) & (alignment >= 1)
        return bool(
            is_in_range.all()
            and (alignment < LIMIT).all()
            # A sum of floats cannot wrap around. If it comes close to the limit, the slow check adds up exactly.
            and size.sum(dtype=np.float64) + alignment.sum(dtype=np.float64) < LIMIT / 2
            and len({buffer.id for buffer in self.buffers}) == n
        )

    @cached_property
    def spans(self) -> Spans:
        """The live ranges of all buffers, without their gaps, as arrays."""
        n = len(self.buffers)
        size = np.fromiter((buffer.size for buffer in self.buffers), np.int64, n)
        if any(buffer.gaps for buffer in self.buffers):
            pieces = [buffer.pieces for buffer in self.buffers]
            owner = np.repeat(np.arange(n), [len(ranges) for ranges in pieces])
            flat = np.array(list(chain.from_iterable(pieces)), np.int64).reshape(-1, 2)
            return Spans(owner, flat[:, 0].copy(), flat[:, 1].copy(), size)
        lower = np.fromiter((buffer.lower for buffer in self.buffers), np.int64, n)
        upper = np.fromiter((buffer.upper for buffer in self.buffers), np.int64, n)
        return Spans(np.arange(n), lower, upper, size)

    @cached_property
    def overlaps(self) -> tuple[Pair, ...]:
        """All permitted overlaps, ordered by the number of the result."""
        overlaps = [(number, overlap) for number, buffer in enumerate(self.buffers) for overlap in buffer.overlaps or ()]
        numbers = {buffer.id: number for number, buffer in enumerate(self.buffers)} if overlaps else {}
        return tuple(Pair(number, numbers[overlap.operand], overlap.distance) for number, overlap in overlaps)

    @cached_property
    def penalty_of(self) -> dict[tuple[int, int], int]:
        """The cost of each reuse penalty above 0, by the numbers of its two buffers, the smaller one first."""
        number = {buffer.id: at for at, buffer in enumerate(self.buffers)} if self.penalties else {}
        pairs = ((sorted((number[each.first], number[each.second])), each.cost) for each in self.penalties or ())
        return {(one, other): cost for (one, other), cost in pairs if cost}

    @cached_property
    def digest(self) -> str:
        """Hex SHA-256 of everything that the validity and the objective of plans depend on.

        Name, capacity, parts, results and hints are left out.
        """
        rules = [
            msgspec.structs.replace(buffer, hint=None, overlaps=buffer.overlaps or msgspec.UNSET) for buffer in self.buffers
        ]
        return files.digest([rules, self.penalties] if self.penalties else rules)


def check_buffer(buffer: Buffer, place: str) -> None:
    """Check the rules that concern one buffer alone.

    Parameters
    ----------
    place
        The position of the buffer in the input, for the message.

    Raises
    ------
    InputError
        A rule is broken; the message names the place and the field.
    """

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
    """Check that ids are unique, that every part lies inside its buffer, and that every result is a buffer or a part.

    Raises
    ------
    InputError
        One of these rules is broken; the message names a part or result that breaks it.
    """
    if parts or results:
        sizes = {buffer.id: buffer.size for buffer in buffers}
        expect_unique((*sizes, *(part.id for part in parts)), "parts")
        for number, part in enumerate(parts):
            place, end = f"parts[{number}] ({part.id})", part.offset + part.size
            expect(part.buffer is None or part.buffer in sizes, place, f"buffer {part.buffer}", "the id of a buffer")
            limit = sizes.get(part.buffer or "", end)
            expect(
                0 <= part.offset <= end <= limit,
                place,
                f"bytes {part.offset} to {end}",
                f"some of the {limit} of {part.buffer}",
            )
        for name in {*results} - {*sizes} - {part.id for part in parts}:
            raise InputError(f"found {name!r}, expected the id of a buffer or part", place="results")


def check_penalties(problem: Problem) -> None:
    """Check the rules of :class:`Penalty`, and that the problem, which has penalties, also has a capacity.

    Raises
    ------
    InputError
        There is no capacity, or a penalty breaks a rule; the message names the first such penalty.
    """
    if problem.capacity is None:
        raise InputError("found penalties and no capacity, expected a capacity: without one, nothing has to be reused")
    names = {buffer.id for buffer in problem.buffers}
    seen: set[frozenset[str]] = set()
    total = 0
    for number, each in enumerate(problem.penalties or ()):
        place = f"penalties[{number}]"
        for name in (each.first, each.second):
            expect(name in names, place, repr(name), "the id of a buffer")
        expect(each.first != each.second, place, f"{each.first!r} twice", "two buffers")
        pair = frozenset((each.first, each.second))
        expect(pair not in seen, place, f"{each.first!r} and {each.second!r} again", "each pair once")
        seen.add(pair)
        expect(each.cost >= 0, place, f"cost {each.cost}", "0 or more")
        total += each.cost
        expect(total < LIMIT, place, f"costs that add up to {total}", f"less than {LIMIT}")


def check_overlaps(problem: Problem) -> None:
    """Check the rules of :class:`Overlap` for all pairs of buffers that may share bytes.

    Raises
    ------
    InputError
        A pair breaks a rule; the message names the result.
    """
    buffers = {buffer.id: buffer for buffer in problem.buffers}
    seen: set[frozenset[str]] = set()
    for number, result in enumerate(problem.buffers):
        place = f"buffers[{number}] ({result.id})"
        for overlap in result.overlaps or ():
            operand = buffers.get(overlap.operand)
            if operand is None:
                raise InputError(f"found an overlap with {overlap.operand!r}, expected the id of a buffer", place=place)
            described = f"an overlap with {operand.id!r}"
            expect(operand is not result, place, described, "another buffer")
            expect(frozenset((result.id, operand.id)) not in seen, place, f"{described} again", "one of the two, once")
            seen.add(frozenset((result.id, operand.id)))
            lives = f"{described}, which lives in [{operand.lower}, {operand.upper})"
            is_born_there = operand.lower <= result.lower < operand.upper
            expected = f"one that [{result.lower}, {result.upper}) begins in and does not end before"
            expect(is_born_there and (overlap.distance is None or operand.upper <= result.upper), place, lives, expected)
            expect(not result.gaps and not operand.gaps, place, f"{described} and gaps", "lives without gaps")
            if overlap.distance is None:
                expect(operand.size == result.size, place, f"{described} of {operand.size} bytes", f"one of {result.size}")
                continue
            limit = result.size + operand.size
            expect(0 <= overlap.distance <= limit, place, f"{described} at distance {overlap.distance}", f"0 to {limit} bytes")


def csv_text(buffers: Sequence[Buffer], offsets: Sequence[int] | None = None) -> str:
    """Write buffers as text in the CSV format of the minimalloc project (:mod:`stowplan.models.packing.csv_files`).

    Optional columns that have their default for all buffers are left out.

    Parameters
    ----------
    offsets
        Offsets of a plan in bytes, one for each buffer. With None, the text has the fixed offsets and the hints of the buffers.

    Raises
    ------
    UsageError
        An overlap refers to an id that has spaces or is empty.
    """
    for operand in (overlap.operand for buffer in buffers for overlap in buffer.overlaps or ()):
        if len(operand.split()) != 1:
            raise UsageError(f"the id {operand!r} has spaces, and overlaps in CSV stand between spaces: save it as JSON")
    columns: dict[str, list[object]] = {
        "id": [buffer.id for buffer in buffers],
        "lower": [buffer.lower for buffer in buffers],
        "upper": [buffer.upper for buffer in buffers],
        "size": [buffer.size for buffer in buffers],
    }
    optional: dict[str, list[object]] = {
        "alignment": [buffer.alignment for buffer in buffers],
        "gaps": [" ".join(f"{start}-{end}" for start, end in buffer.gaps) for buffer in buffers],
        "overlaps": [
            " ".join(f"{each.operand}:{'=' if each.distance is None else each.distance}" for each in buffer.overlaps or ())
            for buffer in buffers
        ],
        "offset": [buffer.offset for buffer in buffers] if offsets is None else [*offsets],
        "hint": [buffer.hint if offsets is None else None for buffer in buffers],
    }
    empty = {"alignment": 1, "gaps": "", "overlaps": "", "offset": None, "hint": None}
    columns |= {
        name: values
        for name, values in optional.items()
        if any(value != empty[name] for value in values) or (name == "offset" and offsets is not None)
    }
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(zip(*columns.values(), strict=True))
    return out.getvalue()
