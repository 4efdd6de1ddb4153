"""A packing problem as arrays for compiled code: times compressed, bytes in units, independent parts apart."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd

import numpy as np
from numpy.typing import NDArray

from stowplan.models.packing.plan import Plan
from stowplan.models.packing.problem import Problem

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Data:
    """Buffers of one or all parts of a problem; every array is int64.

    Time is compressed to *sections*: only moments at which the set of live buffers is largest are kept, so that buffers meet
    in time if and only if they share a section.
    """

    numbers: Ints
    """[n] number of the buffer in the problem. Buffers of 0 bytes are left out."""
    size: Ints
    """[n] in units."""
    align: Ints
    """[n] in units, at least 1."""
    fixed: Ints
    """[n] offset in units, -1 where free."""
    life: Ints
    """[n] length of the life in the problem's own time."""
    piece: Ints
    """[n + 1] the pieces of buffer i are piece[i]..piece[i + 1]."""
    first: Ints
    """[pieces] first section of a piece."""
    last: Ints
    """[pieces] section after its last."""
    unit: int
    """Bytes."""
    sections: int

    @property
    def begin(self) -> Ints:
        """[n] first section."""
        return self.first[self.piece[:-1]]

    @property
    def end(self) -> Ints:
        """[n] section after the last."""
        return self.last[self.piece[1:] - 1]

    @property
    def has_gaps(self) -> bool:
        """Whether some buffer takes no space during a part of its life."""
        return len(self.first) > len(self.size)

    def load(self) -> Ints:
        """[sections] units live."""
        change = np.zeros(self.sections + 1, np.int64)
        sizes = np.repeat(self.size, np.diff(self.piece))
        np.add.at(change, self.first, sizes)
        np.add.at(change, self.last, -sizes)
        return np.cumsum(change)[:-1]


def build(problem: Problem) -> Data:
    """All buffers of a problem that take space."""
    numbers = [number for number, buffer in enumerate(problem.buffers) if buffer.size > 0]
    chosen = [problem.buffers[number] for number in numbers]
    unit = gcd(*(value for each in chosen for value in (each.size, each.offset or 0)))
    unit = gcd(unit, *(each.alignment for each in chosen if each.alignment != 1)) or 1
    pieces = [each.pieces for each in chosen]
    flat = [span for each in pieces for span in each]
    first, last, sections = _sections(flat)
    return Data(
        numbers=np.array(numbers, np.int64),
        size=np.array([each.size // unit for each in chosen], np.int64),
        align=np.array([max(1, each.alignment // unit) for each in chosen], np.int64),
        fixed=np.array([-1 if each.offset is None else each.offset // unit for each in chosen], np.int64),
        life=np.array([each.upper - each.lower for each in chosen], np.int64),
        piece=np.cumsum([0, *(len(each) for each in pieces)]).astype(np.int64),
        first=first,
        last=last,
        unit=unit,
        sections=sections,
    )


def _sections(spans: list[tuple[int, int]]) -> tuple[Ints, Ints, int]:
    """First section, section after the last, and how many there are: one before each end that follows a start."""
    events = sorted(
        [(end, 0, number) for number, (_, end) in enumerate(spans)]
        + [(start, 1, number) for number, (start, _) in enumerate(spans)]
    )
    first, last = np.zeros(len(spans), np.int64), np.zeros(len(spans), np.int64)
    section, fresh = 0, False
    for _, starts, number in events:
        if starts:
            first[number], fresh = section, True
        else:
            section, fresh = section + fresh, False
            last[number] = section
    return first, last, section


def parts(data: Data) -> list[Data]:
    """The buffers split where no life spans the border between two sections; each part can be packed by itself."""
    covered = np.zeros(data.sections + 1, np.int64)
    np.add.at(covered, data.begin + 1, 1)
    np.add.at(covered, data.end, -1)
    borders = np.flatnonzero(np.cumsum(covered)[:-1] == 0)
    part = np.searchsorted(borders, data.begin, side="right")
    return [select(data, np.flatnonzero(part == number)) for number in np.unique(part)]


def select(data: Data, chosen: Ints) -> Data:
    """Some of the buffers, with times compressed again."""
    spans = [
        (int(data.first[at]), int(data.last[at])) for i in chosen for at in range(int(data.piece[i]), int(data.piece[i + 1]))
    ]
    first, last, sections = _sections(spans)
    counts = np.diff(data.piece)[chosen]
    piece = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
    numbers, size, align, fixed, life = (each[chosen] for each in (data.numbers, data.size, data.align, data.fixed, data.life))
    return Data(numbers, size, align, fixed, life, piece, first, last, data.unit, sections)


def neighbours(data: Data) -> tuple[Ints, Ints]:
    """Who meets whom in time: the neighbours of i are ``others[start[i] : start[i + 1]]``."""
    live = np.zeros((len(data.size), data.sections), np.float32)
    for i in range(len(data.size)):
        for at in range(int(data.piece[i]), int(data.piece[i + 1])):
            live[i, data.first[at] : data.last[at]] = 1.0
    meet = live @ live.T > 0
    np.fill_diagonal(meet, False)
    start = np.concatenate([[0], np.cumsum(meet.sum(axis=1))]).astype(np.int64)
    return start, np.nonzero(meet)[1].astype(np.int64)


def export_plan(problem: Problem, data: Data, offsets: Ints) -> Plan:
    """Plan from offsets in units."""
    every = [buffer.offset or 0 for buffer in problem.buffers]
    for number, offset in zip(data.numbers.tolist(), offsets.tolist(), strict=True):
        every[number] = offset * data.unit
    height = max((at + each.size for at, each in zip(every, problem.buffers, strict=True)), default=0)
    return Plan(problem=problem.digest, objective=height, offsets=tuple(every))
