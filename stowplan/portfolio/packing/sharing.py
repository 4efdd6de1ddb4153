"""First fit and best fit where buffers may share bytes of others that are live as they are born."""

from __future__ import annotations

import numpy as np

from stowplan.compiled import Ints2D, njit, njit_inner
from stowplan.portfolio.packing.arrays import Data, Ints


def partners(data: Data) -> tuple[Ints, Ints2D]:
    """What each buffer has overlaps with: those of i are rows ``start[i]..start[i + 1]`` of the table.

    Each row has the other buffer, and the units from the offset of i to the other's, at least, where i lies below, and from the
    other's to that of i where the other does; 0 and 0 where the two share bytes at the same offset only.
    """
    result, operand, least, is_same = data.overlaps.T
    above = data.size[operand] * (1 - is_same)
    table = np.concatenate(
        [np.stack([result, operand, least, above], axis=1), np.stack([operand, result, above, least], axis=1)]
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
    """Compiled: as :func:`stowplan.portfolio.packing.search.greedy`; the last two are of :func:`partners`.

    A buffer that is placed already keeps another from the offsets between two: those from which on it is too high to lie below,
    and up to which it is too low to lie above: two ranges, below and above its own, where both may have the same offset.
    ``table`` [6, 2 n] is what is kept from one call to the next, by ascending offset, and two rows for work.
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
                # Lives with gaps are compared piece by piece.
                has_gaps = piece[i + 1] - piece[i] > 1 or piece[j + 1] - piece[j] > 1
                if has_gaps and not meet(i, j, piece, first, last):
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
                    too_high, enough = offsets[j] - below * (1 - upper), offsets[j] + above * (upper + 2 - ranges)
                    # Ascending by the first offset that is too high, as they mostly come.
                    m = count
                    while m > 0 and low[m - 1] > too_high:
                        low[m], high[m] = low[m - 1], high[m - 1]
                        m -= 1
                    low[m], high[m] = too_high, enough
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
def meet(i: int, j: int, piece: Ints, first: Ints, last: Ints) -> bool:
    """Whether two buffers take space at some moment both."""
    p, q = piece[i], piece[j]
    while p < piece[i + 1] and q < piece[j + 1]:
        if first[p] < last[q] and first[q] < last[p]:
            return True
        if last[p] < last[q]:
            p += 1
        else:
            q += 1
    return False
