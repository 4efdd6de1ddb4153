"""A packing problem as arrays of integers, on which the compiled search works.

To make the search quick, moments that make no difference are removed from the time axis, and sizes are divided by their
greatest common divisor. The problem can also be split into parts that are packed independently. A *gap* is a time within the
life of a buffer in which it takes no bytes. An *overlap* permits a buffer, the *result*, to share bytes with a buffer that is
still live, the *operand*. The functions raise no errors.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd

import numpy as np
from numpy.typing import NDArray

from stowplan.models.packing.overlaps import separations
from stowplan.models.packing.plan import Plan, make_plan
from stowplan.models.packing.problem import Problem

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Data:
    """The buffers of a problem, or of an independent part of it, as arrays of int64. The description of an array begins with
    its shape. *n* is the number of buffers that are not left out.

    Time is compressed to *sections*, numbered from 0. They are the moments at which the set of live buffers is maximal, that
    is, not contained in the set of another moment nearby. Two buffers are live at the same time if and only if they share a
    section.

    Sizes and offsets are in *units* of ``unit`` bytes. A life without gaps has one *piece*; each gap adds another.
    """

    numbers: Ints
    """[n] index of each buffer in the problem. Buffers of 0 bytes are left out."""
    size: Ints
    """[n] size in units."""
    align: Ints
    """[n] alignment in units, at least 1."""
    fixed: Ints
    """[n] fixed offset in units, -1 if the buffer may go anywhere."""
    life: Ints
    """[n] length of the life span, with its gaps, in the problem's own time, which is not compressed."""
    piece: Ints
    """[n + 1] the life of buffer i has the pieces ``piece[i]`` to ``piece[i + 1] - 1``; several if it has gaps."""
    first: Ints
    """[pieces] first section of each piece."""
    last: Ints
    """[pieces] section after the last section of each piece."""
    unit: int
    """Bytes of a unit: the greatest common divisor of all sizes, alignments, fixed offsets and overlap distances."""
    sections: int
    """Number of sections."""
    overlaps: Ints
    """[overlaps, 4] the pairs of buffers that may share bytes although both are live. The columns are the result, the operand
    whose bytes it may share, their separation, and a flag. The separation is the least distance in units from the result's
    offset up to the operand's if the result is the lower one. It may be negative; then the result may even start above the
    operand. The flag is 1, and the separation is 0, if the two may share bytes only at the same offset. Otherwise the flag is
    0."""

    @property
    def begin(self) -> Ints:
        """[n] first section of each buffer."""
        return self.first[self.piece[:-1]]

    @property
    def end(self) -> Ints:
        """[n] section after the last section of each buffer."""
        return self.last[self.piece[1:] - 1]

    @property
    def has_gaps(self) -> bool:
        """Whether the life of some buffer has a gap, during which the buffer takes no space."""
        return len(self.first) > len(self.size)

    @property
    def is_plain(self) -> bool:
        """Whether there is at least one buffer, and no fixed offset, gap or overlap. Some searches support only such data."""
        return len(self.size) > 0 and not self.has_gaps and not len(self.overlaps) and bool((self.fixed < 0).all())

    def load(self) -> Ints:
        """[sections] the sum of the sizes of the buffers that are live in each section, in units."""
        change = np.zeros(self.sections + 1, np.int64)
        sizes = np.repeat(self.size, np.diff(self.piece))
        np.add.at(change, self.first, sizes)
        np.add.at(change, self.last, -sizes)
        return np.cumsum(change)[:-1]


def build(problem: Problem) -> Data:
    """The arrays for all buffers of a problem whose size is not 0."""
    n, spans = len(problem.buffers), problem.spans
    lower, upper, align = (
        np.fromiter((getattr(buffer, name) for buffer in problem.buffers), np.int64, n)
        for name in ("lower", "upper", "alignment")
    )
    fixed = np.fromiter((-1 if buffer.offset is None else buffer.offset for buffer in problem.buffers), np.int64, n)
    numbers = np.flatnonzero(spans.size)
    size, align, fixed, life = spans.size[numbers], align[numbers], fixed[numbers], (upper - lower)[numbers]
    rows = [(*pair, least or 0, least is None) for pair, least in separations(problem).items()]
    overlaps = np.array(rows, np.int64).reshape(-1, 4)
    overlaps[:, :2] = np.searchsorted(numbers, overlaps[:, :2])
    columns_in_bytes = (size, fixed[fixed >= 0], align[align != 1], overlaps[:, 2])
    unit = gcd(*(int(np.gcd.reduce(column)) for column in columns_in_bytes)) or 1
    overlaps[:, 2] //= unit
    occupying = np.flatnonzero(spans.size[spans.owner])
    first, last, sections = compressed(spans.start[occupying], spans.end[occupying])
    return Data(
        numbers=numbers,
        size=size // unit,
        align=np.maximum(1, align // unit),
        fixed=np.where(fixed < 0, -1, fixed // unit),
        life=life,
        piece=np.append(np.searchsorted(spans.owner[occupying], numbers), len(occupying)),
        first=first,
        last=last,
        unit=unit,
        sections=sections,
        overlaps=overlaps,
    )


def compressed(start: Ints, end: Ints) -> tuple[Ints, Ints, int]:
    """Time compressed to sections: the first section of each piece, the section after its last one, and the number of sections.

    Piece i takes bytes from moment ``start[i]`` until before moment ``end[i]``. A section ends at each moment at which a piece
    ends and the event before was the start of a piece.
    """
    n = len(start)
    # Lives are half-open intervals, so at the same moment ends come before starts.
    order = np.argsort(np.concatenate([end, start]), kind="stable")
    starts = order >= n
    closes = ~starts
    closes[1:] &= starts[:-1]
    closes[:1] = False
    section = np.empty(2 * n, np.int64)
    section[order] = np.cumsum(closes)
    return section[n:], section[:n], int(closes.sum())


def parts(data: Data) -> list[Data]:
    """The parts of the problem that can be packed independently, by time; empty if there are no buffers.

    Two sections are in different parts if there is a border between them that no buffer's life, gaps included, crosses.
    """
    covered = np.zeros(data.sections + 1, np.int64)
    np.add.at(covered, data.begin + 1, 1)
    np.add.at(covered, data.end, -1)
    borders = np.flatnonzero(np.cumsum(covered)[:-1] == 0)
    part = np.searchsorted(borders, data.begin, side="right")
    return [select(data, np.flatnonzero(part == number)) for number in np.unique(part)]


def select(data: Data, chosen: Ints) -> Data:
    """The arrays of the buffers with the indices ``chosen`` in ``data``. Time is compressed again, for these buffers alone."""
    counts = np.diff(data.piece)[chosen]
    piece = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
    pieces = np.arange(piece[-1]) + np.repeat(data.piece[:-1][chosen] - piece[:-1], counts)
    first, last, sections = compressed(data.first[pieces], data.last[pieces])
    numbers, size, align, fixed, life = (
        column[chosen] for column in (data.numbers, data.size, data.align, data.fixed, data.life)
    )
    index = np.full(len(data.size), -1)
    index[chosen] = np.arange(len(chosen))
    overlaps = np.column_stack([index[data.overlaps[:, :2]], data.overlaps[:, 2:]])
    overlaps = overlaps[(overlaps[:, :2] >= 0).all(axis=1)]
    return Data(numbers, size, align, fixed, life, piece, first, last, data.unit, sections, overlaps)


def neighbours(data: Data) -> tuple[Ints, Ints]:
    """Returns which buffers are live at the same time, as two arrays (start [n + 1], others).

    The buffers that are live at some time of the life of buffer i are ``others[start[i] : start[i + 1]]``, in ascending order.
    """
    live = np.zeros((len(data.size), data.sections), np.float32)
    for i in range(len(data.size)):
        for at in range(int(data.piece[i]), int(data.piece[i + 1])):
            live[i, data.first[at] : data.last[at]] = 1.0
    meets = live @ live.T > 0
    np.fill_diagonal(meets, False)
    start = np.concatenate([[0], np.cumsum(meets.sum(axis=1))]).astype(np.int64)
    return start, np.nonzero(meets)[1].astype(np.int64)


def export_plan(problem: Problem, data: Data, offsets: Ints) -> Plan:
    """The plan in which the buffers have the given offsets, [n] in units.

    Buffers of 0 bytes, which are not in ``data``, get their fixed offset, or offset 0. The plan is not checked.
    """
    offsets_in_bytes = np.fromiter((buffer.offset or 0 for buffer in problem.buffers), np.int64, len(problem.buffers))
    offsets_in_bytes[data.numbers] = offsets * data.unit
    return make_plan(problem, offsets_in_bytes.tolist())
