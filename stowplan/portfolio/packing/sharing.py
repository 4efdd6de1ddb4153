"""First fit and best fit for problems with overlaps, which permit a new buffer to share bytes with one that is still live.

First fit puts a buffer into the lowest *hole*, that is, the lowest free range of offsets that is large enough. Best fit puts it
into the smallest such range. :class:`stowplan.portfolio.packing.arrays.Data` has the buffers: time is divided into *sections*,
sizes and offsets are counted in *units*, and n is the number of buffers. The functions raise no errors.
"""

from __future__ import annotations

import numpy as np

from stowplan.compiled import Ints2D, njit, njit_inner
from stowplan.portfolio.packing.arrays import Data, Ints


def partners(data: Data) -> tuple[Ints, Ints2D]:
    """Returns the overlaps of each buffer, as a pair (start [n + 1], table [2 overlaps, 3]).

    The overlaps of buffer i are in rows ``start[i]`` to ``start[i + 1] - 1``. A row has three numbers. The first is the other
    buffer. The second is the least distance, in units, from the offset of i up to the other's offset, if i lies below. The
    third is the least distance from the other's offset up to that of i, if the other lies below. A distance may be negative.
    Both are 0 if the two may share bytes only at the same offset.
    """
    result, operand, distance, is_same = data.overlaps.T
    above = data.size[operand] * (1 - is_same)
    table = np.concatenate(
        [np.stack([result, operand, distance, above], axis=1), np.stack([operand, result, above, distance], axis=1)]
    )
    table = table[np.argsort(table[:, 0], kind="stable")]
    start = np.searchsorted(table[:, 0], np.arange(len(data.size) + 1)).astype(np.int64)
    return start, np.ascontiguousarray(table[:, 1:])


@njit
def greedy_with_overlaps(
    order: Ints,
    size: Ints,
    align: Ints,
    fixed: Ints,
    piece: Ints,
    first: Ints,
    last: Ints,
    best_fit: bool,
    offsets: Ints,
    table: Ints2D,
    since: int,
    until: int,
    partner_start: Ints,
    partner: Ints2D,
) -> int:
    """Place the buffers ``order[since:until]`` as :func:`stowplan.portfolio.packing.search.greedy` does, but with overlaps.

    A placed buffer forbids a new one the offsets between the highest at which the new one lies below it and the lowest at which
    the new one lies above it. If the two may share an offset, there are two such ranges, one below and one above that offset.
    The new buffer goes between the ranges of all placed buffers that live at the same time.

    ``table`` [6, 2 n] keeps the placed buffers from one call to the next, by ascending offset; its last two rows are scratch
    space. ``partner_start`` and ``partner`` come from :func:`partners`. The other arguments are those of ``greedy``. Returns
    the height of these buffers in units.
    """
    begin, end, bottom, who, low, high = table[0], table[1], table[2], table[3], table[4], table[5]
    height = 0
    for placed in range(since, until):
        i = order[placed]
        at = fixed[i]
        start_section, end_section = first[piece[i]], last[piece[i + 1] - 1]
        if at < 0:
            count = 0
            for k in range(placed):
                if begin[k] >= end_section or start_section >= end[k]:
                    continue
                j = who[k]
                # Buffers whose lives have gaps are compared piece by piece.
                has_gaps = piece[i + 1] - piece[i] > 1 or piece[j + 1] - piece[j] > 1
                if has_gaps and not are_live_together(i, j, piece, first, last):
                    continue
                below, above, ranges = size[i], size[j], 1
                for p in range(partner_start[i], partner_start[i + 1]):
                    if partner[p, 0] == j:
                        if partner[p, 1] or partner[p, 2]:
                            below, above = partner[p, 1], partner[p, 2]
                        else:
                            ranges = 2
                if below + above <= 0:
                    continue
                for upper in range(ranges):
                    low_enough, high_enough = offsets[j] - below * (1 - upper), offsets[j] + above * (upper + 2 - ranges)
                    # Insertion sort by the start of the range is fast, because the ranges come almost in this order.
                    m = count
                    while m > 0 and low[m - 1] > low_enough:
                        low[m], high[m] = low[m - 1], high[m - 1]
                        m -= 1
                    low[m], high[m] = low_enough, high_enough
                    count += 1
            start, tightest = 0, -1
            for m in range(count):
                room = low[m] - start
                if room >= 0:
                    if at < 0 or room < tightest:
                        at, tightest = start, room
                    if not best_fit:
                        break
                if high[m] > start and (room < 0 or best_fit):
                    start = high[m] + -high[m] % align[i]
            if at < 0:
                at = start
        offsets[i] = at
        height = max(height, at + size[i])
        k = placed
        while k > 0 and bottom[k - 1] > at:
            begin[k], end[k], bottom[k], who[k] = begin[k - 1], end[k - 1], bottom[k - 1], who[k - 1]
            k -= 1
        begin[k], end[k], bottom[k], who[k] = start_section, end_section, at, i
    return height


@njit_inner
def are_live_together(i: int, j: int, piece: Ints, first: Ints, last: Ints) -> bool:
    """Whether there is a section in which buffers i and j both take space. ``piece``, ``first`` and ``last`` are the arrays of
    :class:`~stowplan.portfolio.packing.arrays.Data`."""
    p, q = piece[i], piece[j]
    while p < piece[i + 1] and q < piece[j + 1]:
        if first[p] < last[q] and first[q] < last[p]:
            return True
        if last[p] < last[q]:
            p += 1
        else:
            q += 1
    return False
