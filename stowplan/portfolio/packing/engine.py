"""Compiled code for packing: greedy placement in a given order, and depth-first search over canonical plans.

Buffers, sections and units are those of :class:`stowplan.portfolio.packing.arrays.Data`.
"""

from __future__ import annotations

import numpy as np

from stowplan.portfolio.compiled import njit
from stowplan.portfolio.packing.arrays import Ints

_FAR = 1 << 62

FOUND, EXHAUSTED, LIMIT = 1, 0, -1


@njit
def greedy(
    order: Ints, size: Ints, align: Ints, fixed: Ints, piece: Ints, first: Ints, last: Ints, best_fit: bool, offsets: Ints
) -> int:
    """Place buffers one after the other, each into the lowest (or the tightest) hole; returns the height.

    Buffers of fixed offset must come first in ``order``. ``offsets`` [n] is written.
    """
    n = len(order)
    begin, end = np.empty(n, np.int64), np.empty(n, np.int64)
    low, top, who = np.empty(n, np.int64), np.empty(n, np.int64), np.empty(n, np.int64)
    height = 0
    for placed in range(n):
        i = order[placed]
        at = fixed[i]
        since, until = first[piece[i]], last[piece[i + 1] - 1]
        if at < 0:
            ceiling, tightest = 0, _FAR
            for k in range(placed):
                if begin[k] >= until or since >= end[k]:
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
        begin[k], end[k], low[k], top[k], who[k] = since, until, at, at + size[i], i
    return height


@njit
def canonical_search(
    capacity: int,
    rank: Ints,
    size: Ints,
    align: Ints,
    fixed: Ints,
    piece: Ints,
    first: Ints,
    last: Ints,
    sections: int,
    start: Ints,
    others: Ints,
    limit: int,
    offsets: Ints,
) -> tuple[int, int]:
    """Depth-first search for a plan within ``capacity``; returns (FOUND, EXHAUSTED or LIMIT, nodes).

    A plan is canonical when no single buffer can be moved to a lower place; wherever there is a plan there is a canonical
    one. Such plans are built by placing buffers in the order of their offsets, equal ones in the order of ``rank``, each at the
    lowest offset above its placed neighbours (Moffitt, "MiniMalloc", ASPLOS 2023). What that order allows to cut:

    - a buffer that was passed over can only go above one that is still to come;
    - where some open buffer would fit below a candidate, the candidate is not canonical;
    - in each section, what is open must fit above the lowest place that any of it can still get;
    - after a placement, parts of time that no open buffer connects are searched apart: where one fails, so does the placement.

    ``offsets`` [n] is written; valid where FOUND. ``limit`` is in nodes.
    """
    n = len(size)
    by_rank = np.argsort(rank)
    place = np.zeros(n, np.int64)
    done = np.zeros(n, np.bool_)
    begin, end = np.empty(n, np.int64), np.empty(n, np.int64)
    open_load, spanning = np.zeros(sections, np.int64), np.zeros(sections + 1, np.int64)
    for i in range(n):
        begin[i], end[i] = first[piece[i]], last[piece[i + 1] - 1]
        place[i] = max(0, fixed[i])
        for p in range(piece[i], piece[i + 1]):
            open_load[first[p] : last[p]] += size[i]
        spanning[begin[i] + 1 : end[i]] += 1
    lowest = np.empty(sections, np.int64)
    # What to undo: places that were raised, and buffers that were placed.
    raised, before, raises = np.empty(len(others) + 1, np.int64), np.empty(len(others) + 1, np.int64), 0
    stack, placed = np.empty(n, np.int64), 0
    # A frame for each part of time under search: its sections, the last placement above it, and its candidates.
    since, until = np.empty(n + 2, np.int64), np.empty(n + 2, np.int64)
    level, last_rank = np.empty(n + 2, np.int64), np.empty(n + 2, np.int64)
    candidates, base = np.empty((n + 1) * n + 1, np.int64), np.empty(n + 2, np.int64)
    beyond, upcoming = np.empty(n + 2, np.int64), np.empty(n + 2, np.int64)
    raises_at, placed_at, scan = np.empty(n + 2, np.int64), np.empty(n + 2, np.int64), np.empty(n + 2, np.int64)
    depth, nodes = 0, 0
    since[0], until[0], level[0], last_rank[0], base[0] = 0, sections, 0, -1, 0
    enter, succeed = 0, 1
    next_candidate, next_part = 2, 3
    step = enter
    while True:
        if step == enter:
            nodes += 1
            if nodes > limit:
                return LIMIT, nodes
            lower, upper, floor = since[depth], until[depth], level[depth]
            fits_below, raised_floor, remaining, dead = _FAR, _FAR, 0, False
            for i in by_rank:
                if done[i] or begin[i] < lower or end[i] > upper:
                    continue
                remaining += 1
                if fixed[i] < 0:
                    fits_below = min(fits_below, place[i] + size[i])
                raised_floor = min(raised_floor, max(floor, place[i]) + size[i])
            count = base[depth]
            lowest[lower:upper] = _FAR
            for i in by_rank:
                if done[i] or begin[i] < lower or end[i] > upper:
                    continue
                at = place[i]
                if at < floor or (at == floor and rank[i] < last_rank[depth]):
                    at = raised_floor
                    dead |= fixed[i] >= 0
                elif at < fits_below:
                    # Candidates by place, then rank: an insertion sort, since they are few.
                    k = count
                    while k > base[depth] and place[candidates[k - 1]] > at:
                        candidates[k] = candidates[k - 1]
                        k -= 1
                    candidates[k] = i
                    count += 1
                for p in range(piece[i], piece[i + 1]):
                    for s in range(first[p], last[p]):
                        lowest[s] = min(lowest[s], at)
            beyond[depth], upcoming[depth] = count, base[depth]
            raises_at[depth], placed_at[depth] = raises, placed
            if remaining == 0:
                step = succeed
                continue
            for s in range(lower, upper):
                dead |= open_load[s] > 0 and lowest[s] + open_load[s] > capacity
            if dead:
                upcoming[depth] = count
            step = next_candidate
        elif step == next_candidate:
            while raises > raises_at[depth]:
                raises -= 1
                place[raised[raises]] = before[raises]
            while placed > placed_at[depth]:
                placed -= 1
                i = stack[placed]
                done[i] = False
                for p in range(piece[i], piece[i + 1]):
                    open_load[first[p] : last[p]] += size[i]
                spanning[begin[i] + 1 : end[i]] += 1
            if upcoming[depth] >= beyond[depth]:
                if depth == 0:
                    return EXHAUSTED, nodes
                depth -= 1
                continue
            i = candidates[upcoming[depth]]
            upcoming[depth] += 1
            top = place[i] + size[i]
            offsets[i], done[i], stack[placed] = place[i], True, i
            placed += 1
            for p in range(piece[i], piece[i + 1]):
                open_load[first[p] : last[p]] -= size[i]
            spanning[begin[i] + 1 : end[i]] -= 1
            fails = top > capacity
            for k in range(start[i], start[i + 1]):
                j = others[k]
                if done[j] or place[j] >= top:
                    continue
                raised[raises], before[raises] = j, place[j]
                raises += 1
                place[j] = top + -top % align[j]
                if fixed[j] >= 0 or place[j] + size[j] > capacity:
                    fails = True
            if not fails:
                scan[depth], step = since[depth], next_part
        elif step == next_part:
            s, upper = scan[depth], until[depth]
            while s < upper and open_load[s] == 0:
                s += 1
            if s >= upper:
                step = succeed
                continue
            stop = s + 1
            while stop < upper and spanning[stop] > 0:
                stop += 1
            scan[depth] = stop
            i = candidates[upcoming[depth] - 1]
            depth += 1
            since[depth], until[depth], base[depth] = s, stop, beyond[depth - 1]
            level[depth], last_rank[depth] = offsets[i], rank[i]
            step = enter
        else:
            if depth == 0:
                return FOUND, nodes
            depth -= 1
            step = next_part
