"""What stands around a neighbourhood: everything of a plan that a small model takes as given.

A neighbourhood is a problem of its own, with fewer tensors and steps. The rest of the plan enters its model as constants:
places that are taken, copies that are made in any case, moments before which the channel is busy or a boundary waits, and
what follows. ``neighbourhood`` makes them. Moments are in ps from the moment the neighbourhood's first boundary is reached.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from ortools.sat.python import cp_model

from stowplan.models.memory_mapping.accesses import IntArray


class Moment(NamedTuple):
    """A boundary of the whole program, seen from a neighbourhood in which several steps may be merged into one."""

    boundary: int
    """The neighbourhood's boundary at or before it."""
    after_ps: int = 0
    """How long after that boundary is left, where it lies inside a merged step."""


@dataclass(frozen=True, slots=True)
class FixedCopy:
    """A copy that is made in any case; when it begins is open."""

    place: int
    """Its place in the plan's list of copies."""
    queued: Moment
    due: Moment | None
    """None where the program waits for it after the neighbourhood."""
    duration_ps: int
    begin_ps: int
    """When it begins in the given plan."""
    tail_ps: int = 0
    """From its end to the end of the program, if that waits for nothing else; for a copy that is due later."""
    latest_end_ps: int = 0
    """When it must be complete where nothing may stall; for a copy that is due later."""


@dataclass(frozen=True)
class FixedPart:
    """Constants of a neighbourhood's model.

    Attributes
    ----------
    floor_until : sequence of int
        Least moment of every boundary; where nothing may stall, its moment.
    slack_ps : int
        How much later any boundary may be reached.
    busy : sequence of (int, int)
        When copies that were queued before begin and end, as far as they are not complete.
    waits : mapping
        Boundaries, and moments before which they are not left.
    tail_ps : int or None
        From the last boundary to the end of the program if nothing delays it; None where moments are fixed, and the objective
        is the sum of the latencies.
    most_ps : int
        Objective of the given plan.
    entering, leaving : mapping of int to int
        Offsets (units of alignment) of tensors that are resident at the first or the last boundary.
    given_in, given_out : mapping of int to sequence of int
        For each tensor, the boundaries at which the given plan queues its copies in, and at which its copies out are due.
    preloads : int or None
        How many tensors may newly be preloaded; None where the neighbourhood does not begin with the program.
    """

    floor_until: Sequence[int]
    slack_ps: int
    busy: Sequence[tuple[int, int]]
    waits: Mapping[int, int]
    copies: Sequence[FixedCopy]
    tail_ps: int | None
    most_ps: int
    entering: Mapping[int, int]
    leaving: Mapping[int, int]
    preloads: int | None
    given_in: Mapping[int, Sequence[int]]
    given_out: Mapping[int, Sequence[int]]
    space: FixedSpace


class FixedSpace:
    """Space that residencies outside the model take, in units of alignment.

    Parameters
    ----------
    boundaries
        Program boundary of each of the neighbourhood's boundaries.
    start, end, low, high
        Steps and units of the residencies, all of shape ``[R]``.
    capacity
        Units of fast memory.
    """

    def __init__(self, boundaries: Sequence[int], start: IntArray, end: IntArray, low: IntArray, high: IntArray, capacity: int):
        self._boundaries = boundaries
        order = np.argsort(low, kind="stable")
        self._start, self._end, self._low, self._high = start[order], end[order], low[order], high[order]
        self._capacity = capacity
        self._known: dict[tuple[int, int], list[tuple[int, int]]] = {}

    def gaps(self, first: int, last: int) -> list[tuple[int, int]]:
        """Ranges ``[low, high)`` that nothing takes at any moment between two boundaries of the neighbourhood."""
        begin, end = self._boundaries[first], self._boundaries[last]
        if begin >= end:
            return [(0, self._capacity)]
        if (begin, end) not in self._known:
            meets = (self._start < end) & (self._end > begin)
            gaps, top = [], 0
            for low, high in zip(self._low[meets].tolist(), self._high[meets].tolist(), strict=True):
                if low > top:
                    gaps.append((top, low))
                top = max(top, high)
            if top < self._capacity:
                gaps.append((top, self._capacity))
            self._known[begin, end] = gaps
        return self._known[begin, end]

    def room(self, step: int) -> int:
        """Units that are free all through one of the neighbourhood's steps."""
        return sum(high - low for low, high in self.gaps(step, step + 1))

    def offsets(self, first: int, last: int, units: int) -> cp_model.Domain | None:
        """Offsets at which ``units`` are free all the time between two boundaries; None where all fit."""
        gaps = self.gaps(first, last)
        if gaps == [(0, self._capacity)]:
            return None
        fitting = [[low, high - units] for low, high in gaps if high - low >= units]
        return cp_model.Domain.from_intervals(fitting)
