"""A sweep over time that finds buffers which occupy the same bytes at the same moment.

Several verifiers share it. Models and heuristics do not use it, so that a fault in them cannot hide here.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from operator import itemgetter

#: Largest number of overlaps that are listed. If all buffers were at offset 0, the list of all pairs could fill the memory.
MOST_OVERLAPS = 10_000

#: (start, end, low, high, number): the buffer with this number occupies bytes ``[low, high)`` during ``[start, end)``. The time
#: must not be empty; a box without bytes is ignored.
Box = tuple[int, int, int, int, int]


def overlaps(boxes: Iterable[Box], most: int = MOST_OVERLAPS) -> dict[tuple[int, int], int]:
    """Pairs of buffers that share bytes at some moment.

    Parameters
    ----------
    boxes
        The boxes of all buffers in one memory. A buffer may have several boxes, at different moments.
    most
        Largest number of pairs that are returned; further ones are left out.

    Returns
    -------
    dict
        The first moment at which two buffers share bytes, by the pair of their numbers, the smaller one first.
    """
    boxes = sorted(box for box in boxes if box[2] < box[3])
    by_end = sorted(boxes, key=itemgetter(1), reverse=True)
    pairs: dict[tuple[int, int], int] = {}
    # (low, number, high) of the boxes that are live now.
    live: list[tuple[int, int, int]] = []
    overlapping: set[int] = set()
    for moment, _, low, high, number in boxes:
        # Live ranges are half-open: a box that ends at this moment does not overlap one that begins at it.
        while by_end[-1][1] <= moment:
            _, _, start, _, ended_number = by_end.pop()
            del live[bisect_left(live, (start, ended_number))]
            overlapping.discard(ended_number)
        at = bisect_left(live, (low, number))
        # If no two live boxes overlap, it is enough to test the neighbours of the new box: a box further away can overlap it
        # only if the neighbour on that side overlaps it, too.
        above, below = live[at : at + 1], live[max(0, at - 1) : at]
        may_overlap = overlapping or (above and above[0][0] < high) or (below and below[0][2] > low)
        for start, other, end in live if may_overlap else ():
            if start < high and end > low and len(pairs) < most:
                overlapping |= {number, other}
                pairs.setdefault((min(number, other), max(number, other)), moment)
        live.insert(at, (low, number, high))
    return pairs
