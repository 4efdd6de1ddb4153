"""A plain sweep for what stands in one place at one moment, which verifiers share. Models and heuristics do not use it."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from operator import itemgetter

#: Overlaps listed at most: where everything lies at 0, the pairs fill any memory.
MOST_OVERLAPS = 10_000

#: Moments ``[start, end)`` and bytes ``[low, high)`` that something takes, and its number: (start, end, low, high, number).
Box = tuple[int, int, int, int, int]


def overlaps(boxes: Iterable[Box], most: int = MOST_OVERLAPS) -> dict[tuple[int, int], int]:
    """Pairs that share bytes at a moment, smaller number first, each with the first such moment.

    Parameters
    ----------
    boxes
        Of one memory. Several may have one number, at different moments.
    most
        Pairs listed at most.
    """
    boxes = sorted(box for box in boxes if box[2] < box[3])
    ended = sorted(boxes, key=itemgetter(1), reverse=True)
    pairs: dict[tuple[int, int], int] = {}
    # (low, number, high) of what lives now.
    live: list[tuple[int, int, int]] = []
    clashing: set[int] = set()
    for moment, _, low, high, number in boxes:
        # Lives are half-open: what ends at a moment makes room for what begins at it.
        while ended[-1][1] <= moment:
            _, _, start, _, gone = ended.pop()
            del live[bisect_left(live, (start, gone))]
            clashing.discard(gone)
        at = bisect_left(live, (low, number))
        # Where no two that live share bytes, whatever meets the newcomer is its neighbour, or stands behind one that meets it.
        above, below = live[at : at + 1], live[max(0, at - 1) : at]
        is_met = clashing or (above and above[0][0] < high) or (below and below[0][2] > low)
        for start, other, end in live if is_met else ():
            if start < high and end > low and len(pairs) < most:
                clashing |= {number, other}
                pairs.setdefault((min(number, other), max(number, other)), moment)
        live.insert(at, (low, number, high))
    return pairs
