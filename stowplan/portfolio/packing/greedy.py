"""Compiled greedy placement in a given order.

Buffers, sections and units are those of :class:`stowplan.portfolio.packing.arrays.Data`.
"""

from __future__ import annotations

from stowplan.compiled import njit
from stowplan.portfolio.packing.arrays import Ints

_FAR = 1 << 62


@njit
def greedy(
    order: Ints,
    size: Ints,
    align: Ints,
    fixed: Ints,
    piece: Ints,
    first: Ints,
    last: Ints,
    best_fit: bool,
    offsets: Ints,
    table: Ints,
    since: int,
    until: int,
) -> int:
    """Place the buffers ``order[since:until]`` one after the other, each into the lowest (or the tightest) hole.

    Returns their height. Buffers of fixed offset must come first in ``order``. ``offsets`` [n] is written; ``table`` [5, n] is
    what is kept from one call to the next.
    """
    begin, end, low, top, who = table[0], table[1], table[2], table[3], table[4]
    height = 0
    for placed in range(since, until):
        i = order[placed]
        at = fixed[i]
        start_section, end_section = first[piece[i]], last[piece[i + 1] - 1]
        if at < 0:
            ceiling, tightest = 0, _FAR
            for k in range(placed):
                if begin[k] >= end_section or start_section >= end[k]:
                    continue
                j = who[k]
                if piece[i + 1] - piece[i] > 1 or piece[j + 1] - piece[j] > 1:
                    # Lives with gaps: compare them piece by piece.
                    p, q, meet = piece[i], piece[j], False
                    while p < piece[i + 1] and q < piece[j + 1] and not meet:
                        meet = first[p] < last[q] and first[q] < last[p]
                        if last[p] < last[q]:
                            p += 1
                        else:
                            q += 1
                    if not meet:
                        continue
                start = ceiling + -ceiling % align[i]
                room = low[k] - start
                if room >= size[i] and room < tightest:
                    at, tightest = start, room
                    if not best_fit:
                        break
                if top[k] > ceiling:
                    ceiling = top[k]
            if at < 0:
                at = ceiling + -ceiling % align[i]
        offsets[i] = at
        height = max(height, at + size[i])
        k, right = 0, placed
        while k < right:
            middle = (k + right) // 2
            if low[middle] <= at:
                k = middle + 1
            else:
                right = middle
        for m in range(placed, k, -1):
            begin[m], end[m], low[m], top[m], who[m] = begin[m - 1], end[m - 1], low[m - 1], top[m - 1], who[m - 1]
        begin[k], end[k], low[k], top[k], who[k] = start_section, end_section, at, at + size[i], i
    return height
