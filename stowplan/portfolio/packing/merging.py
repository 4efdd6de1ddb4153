"""Merged buffers: a restriction of a packing problem to plans in which certain buffers lie next to each other.

Two rules merge buffers, in turn, until neither applies any more:

- Buffers that are live in the same sections lie on top of each other. Together they are one buffer with the sum of their sizes.
- If a buffer ends where another one of the same size begins, both have the same offset. Together they are one buffer with both
  lives.

After each round, sections in which nothing begins or ends any more are removed, so that more lives become equal. *Sections* and
*units* are those of :class:`stowplan.portfolio.packing.arrays.Data`. A plan for the merged buffers is a plan for the buffers,
at the same height. The converse does not hold: the merged buffers may have no plan at a height at which the buffers have one.
So a plan that is found counts, and that there is none proves nothing.

In plans as low as the load, buffers of the same life are next to each other, and buffers of one size follow each other at the
same offset, much more often than in higher plans (docs/results/packing.md). Nothing in this module raises an error.
"""

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple

import numpy as np

from stowplan.portfolio.packing.arrays import Data, Ints, compressed


class Merged(NamedTuple):
    """The merged buffers of a problem with n buffers."""

    data: Data
    """The merged buffers. Their numbers are their indices, and the lengths of their lives are counted in sections."""
    owner: Ints
    """[n] the merged buffer that each buffer is part of."""
    above: Ints
    """[n] how far the offset of each buffer is above that of its merged buffer, in units."""

    def offsets(self, merged: Ints) -> Ints:
        """[n] offsets of the buffers in units, from those of the merged buffers."""
        return merged[self.owner] + self.above


def merge(data: Data) -> Merged:
    """Merge buffers, which must have no gaps, overlaps, fixed offsets and alignments beyond one unit
    (:func:`.valleys.supports`)."""
    begin, end, size, sections = data.begin, data.end, data.size, data.sections
    owner, above = np.arange(len(size)), np.zeros(len(size), np.int64)
    while True:
        count = len(size)
        lives, group = np.unique(np.column_stack([begin, end]), axis=0, return_inverse=True)
        group = group.reshape(-1)
        above += _stacked(group, size)[owner]
        begin, end, size, owner = lives[:, 0], lives[:, 1], np.bincount(group, size).astype(np.int64), group[owner]
        begin, end, size, group = _chained(begin, end, size)
        owner = group[owner]
        if len(size) == count:
            break
        # Moments at which nothing begins or ends any more make no difference, so that lives may become equal.
        begin, end, sections = compressed(begin, end)
    merged = Data(
        numbers=np.arange(count),
        size=size,
        align=np.ones(count, np.int64),
        fixed=np.full(count, -1),
        life=end - begin,
        piece=np.arange(count + 1),
        first=begin,
        last=end,
        unit=data.unit,
        sections=sections,
        overlaps=np.empty((0, 4), np.int64),
    )
    return Merged(merged, owner, above)


def _stacked(group: Ints, size: Ints) -> Ints:
    """[n] for each buffer, the sum of the sizes of the buffers before it in the same group."""
    order = np.argsort(group, kind="stable")
    ends = np.cumsum(size[order])
    starts = ends - size[order]
    is_first = np.append(True, np.diff(group[order]) != 0)
    base = np.maximum.accumulate(np.where(is_first, starts, 0))
    below = np.empty(len(size), np.int64)
    below[order] = starts - base
    return below


def _chained(begin: Ints, end: Ints, size: Ints) -> tuple[Ints, Ints, Ints, Ints]:
    """Merge each buffer with one of equal size that begins where it ends, if there is one, and so on.

    Returns begin, end and size of the merged buffers, and [n] the merged buffer that each buffer is part of. Of several buffers
    that might follow, the one with the longest life does.
    """
    waiting: dict[tuple[int, int], list[int]] = defaultdict(list)
    for number in np.lexsort((end, begin)).tolist():
        waiting[int(begin[number]), int(size[number])].append(number)
    group = np.full(len(size), -1)
    first: list[int] = []
    last: list[int] = []
    # A buffer is taken before all that may follow it, because these begin later.
    for number in np.argsort(begin, kind="stable").tolist():
        if group[number] >= 0:
            continue
        at = number
        group[at] = len(first)
        while others := waiting.get((int(end[at]), int(size[at]))):
            at = others.pop()
            group[at] = len(first)
        first.append(number)
        last.append(at)
    return begin[first], end[last], size[first], group
