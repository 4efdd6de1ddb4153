"""The part of a plan outside a neighbourhood, as constants of the neighbourhood's model.

A neighbourhood is a problem of its own, with fewer tensors and steps (``neighbourhood``): some tensors within a window of
steps. Consecutive steps that use none of these tensors are merged into one. A *boundary* is the moment before a step. The rest
of the plan enters the neighbourhood's model as constants:

- the bytes that other tensors occupy
- the copies of other tensors
- the times until which earlier copies keep the channel busy, or the program waiting at a boundary
- the time from the end of the window to the end of the program

Times are in ps, counted from the time at which the neighbourhood's first boundary is reached. With a *frozen clock*, boundaries
have the times that they have in the given plan. Nothing here raises an error for valid arguments.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from ortools.sat.python import cp_model

from stowplan.models.memory_mapping.accesses import IntArray


class Moment(NamedTuple):
    """The time of a boundary of the program, relative to a neighbourhood in which several steps may be merged into one."""

    boundary: int
    """The last boundary of the neighbourhood that is not after the moment."""
    after_ps: int = 0
    """Time since that boundary was left, if the moment is inside a merged step."""


@dataclass(frozen=True, slots=True)
class FixedCopy:
    """A copy of a tensor outside the neighbourhood, which takes place in any case. The model chooses when it begins."""

    place: int
    """Index of the copy in the plan's list of copies."""
    queued: Moment
    """Moment at which the copy is queued."""
    due: Moment | None
    """Moment at which the copy must be complete; None if the program waits for it only after the neighbourhood."""
    duration_ps: int
    """Duration on an idle channel."""
    begin_ps: int
    """Time at which the copy begins in the given plan."""
    tail_ps: int = 0
    """For a copy that is due after the neighbourhood: time from its end to the end of the program, without other waits."""
    latest_end_ps: int = 0
    """For a copy that is due after the neighbourhood: time at which it must be complete if the clock is frozen."""


@dataclass(frozen=True)
class FixedPart:
    """The constants of a neighbourhood's model.

    Attributes
    ----------
    floor_until : sequence of int
        Earliest time of every boundary; with a frozen clock, the time itself.
    slack_ps : int
        Largest delay of any boundary, compared with ``floor_until``.
    busy : sequence of (int, int)
        Begin and end of the copies that were queued before the window and are not complete when it begins.
    waits : mapping
        For each boundary at which the program waits for such copies, the time before which it does not leave the boundary.
    copies : sequence of FixedCopy
        Copies of other tensors that are queued within the window.
    tail_ps : int or None
        Time from the last boundary to the end of the program if nothing delays it. None with a frozen clock, where the
        objective is the sum of the latencies.
    most_ps : int
        Time from the neighbourhood's first boundary to the end of the program in the given plan; with a frozen clock, the sum
        of the latencies of the neighbourhood's steps in that plan.
    entering, leaving : mapping of int to int
        Offsets, in units of the alignment, of tensors that are resident at the first or the last boundary, by tensor.
    preloads : int or None
        Number of tensors of the neighbourhood that may be preloaded; None if it does not begin with the program.
    given_in, given_out : mapping of int to sequence of int
        For each tensor, the boundaries at which the given plan queues its copies-in, and at which its copies-out must end.
    space : FixedSpace
        Memory that other tensors occupy.
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
    """The memory that residencies outside the neighbourhood occupy, in units of the alignment.

    Parameters
    ----------
    boundaries
        Boundary of the program for each boundary of the neighbourhood.
    start, end, low, high
        Steps ``[start, end)`` and units ``[low, high)`` of the residencies; arrays with an entry for each residency.
    capacity
        Size of fast memory in units.
    """

    def __init__(self, boundaries: Sequence[int], start: IntArray, end: IntArray, low: IntArray, high: IntArray, capacity: int):
        self._boundaries = boundaries
        order = np.argsort(low, kind="stable")
        self._start, self._end, self._low, self._high = start[order], end[order], low[order], high[order]
        self._capacity = capacity
        self._cached_gaps: dict[tuple[int, int], list[tuple[int, int]]] = {}

    def gaps(self, first: int, last: int) -> list[tuple[int, int]]:
        """Ranges of units ``[low, high)`` that are free during all steps between two boundaries of the neighbourhood."""
        begin, end = self._boundaries[first], self._boundaries[last]
        if begin >= end:
            return [(0, self._capacity)]
        if (begin, end) not in self._cached_gaps:
            meets = (self._start < end) & (self._end > begin)
            gaps, top = [], 0
            for low, high in zip(self._low[meets].tolist(), self._high[meets].tolist(), strict=True):
                if low > top:
                    gaps.append((top, low))
                top = max(top, high)
            if top < self._capacity:
                gaps.append((top, self._capacity))
            self._cached_gaps[begin, end] = gaps
        return self._cached_gaps[begin, end]

    def free_units(self, step: int) -> int:
        """Number of units that are free during all of one step of the neighbourhood."""
        return sum(high - low for low, high in self.gaps(step, step + 1))

    def offsets(self, first: int, last: int, units: int) -> cp_model.Domain | None:
        """The offsets at which this many units are free during all steps between two boundaries.

        The domain is empty if there are no such offsets. The result is None if all memory is free.
        """
        gaps = self.gaps(first, last)
        if gaps == [(0, self._capacity)]:
            return None
        fitting = [[low, high - units] for low, high in gaps if high - low >= units]
        return cp_model.Domain.from_intervals(fitting)
