"""Compiled depth-first search over canonical packings.

Buffers, sections and units are those of :class:`stowplan.portfolio.packing.arrays.Data`.
"""

from __future__ import annotations

import numpy as np

from stowplan.portfolio.compiled import njit
from stowplan.portfolio.packing.arrays import Ints

_FAR = 1 << 62

FOUND, EXHAUSTED, LIMIT = 1, 0, -1

#: What to do next, in :func:`canonical_search`.
_ENTER, _SUCCEED, _NEXT_CANDIDATE, _NEXT_PART = 0, 1, 2, 3


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

    - a buffer that was passed over can only go on top of a neighbour that is still to come;
    - where some open buffer would fit below a candidate, the candidate is not canonical;
    - in each section, what is open must fit above the lowest place that any of it can still get;
    - a placement that is in nobody's way cannot be why the rest fails, so that no other is tried in its place;
    - after a placement, parts of time that no open buffer connects are searched apart: where one fails, so does the placement.

    The third is most of the work. Each section therefore watches one open buffer that can still go low enough, and its members
    are looked through only when that one no longer can.

    ``start`` and ``others`` are those of :func:`stowplan.portfolio.packing.arrays.neighbours`. ``offsets`` [n] is written; valid
    where FOUND. ``limit`` is in nodes.
    """
    n = len(size)
    by_rank = np.argsort(rank)
    place = np.zeros(n, np.int64)
    done = np.zeros(n, np.bool_)
    begin, end = np.empty(n, np.int64), np.empty(n, np.int64)
    # By section: how high the lowest of its open buffers may start, how many are open, how many cross over from the section before.
    room, open_count, spanning = np.full(sections, capacity), np.zeros(sections, np.int64), np.zeros(sections + 1, np.int64)
    for i in range(n):
        begin[i], end[i] = first[piece[i]], last[piece[i + 1] - 1]
        place[i] = max(0, fixed[i])
        for p in range(piece[i], piece[i + 1]):
            for s in range(first[p], last[p]):
                room[s] -= size[i]
                open_count[s] += 1
        for s in range(begin[i] + 1, end[i]):
            spanning[s] += 1
    # The members of section s are members[member[s] : member[s + 1]], by rank.
    member = np.zeros(sections + 1, np.int64)
    for s in range(sections):
        member[s + 1] = member[s] + open_count[s]
    members, filled = np.empty(member[sections], np.int64), member.copy()
    for i in by_rank:
        for p in range(piece[i], piece[i + 1]):
            for s in range(first[p], last[p]):
                members[filled[s]] = i
                filled[s] += 1
    watched, failed_last = members[member[:-1]], 0
    # What to undo: places that were raised, and buffers that were placed.
    raised, before, raises = np.empty(len(others) + 1, np.int64), np.empty(len(others) + 1, np.int64), 0
    stack, placed = np.empty(n, np.int64), 0
    # A frame for each part of time under search: its sections, the last placement above it, its open buffers by rank, and its
    # candidates.
    since, until = np.empty(n + 2, np.int64), np.empty(n + 2, np.int64)
    level, last_rank = np.empty(n + 2, np.int64), np.empty(n + 2, np.int64)
    opens, open_base, open_end = np.empty((n + 1) * n + 1, np.int64), np.empty(n + 2, np.int64), np.empty(n + 2, np.int64)
    candidates, base = np.empty((n + 1) * n + 1, np.int64), np.empty(n + 2, np.int64)
    beyond, upcoming = np.empty(n + 2, np.int64), np.empty(n + 2, np.int64)
    raises_at, placed_at, scan = np.empty(n + 2, np.int64), np.empty(n + 2, np.int64), np.empty(n + 2, np.int64)
    lonely = np.zeros(n + 2, np.bool_)
    depth, nodes = 0, 0
    since[0], until[0], level[0], last_rank[0], base[0] = 0, sections, 0, -1, 0
    open_base[0], open_end[0] = 0, n
    opens[:n] = by_rank
    step = _ENTER
    while True:
        if step == _ENTER:
            nodes += 1
            if nodes > limit:
                return LIMIT, nodes
            lower, upper, floor, previous = since[depth], until[depth], level[depth], last_rank[depth]
            fits_below, raised_floor, dead = _FAR, _FAR, False
            count = base[depth]
            for m in range(open_base[depth], open_end[depth]):
                i = opens[m]
                at = place[i]
                top = at + size[i]
                if top < fits_below and fixed[i] < 0:
                    fits_below = top
                if at > floor or (at == floor and rank[i] >= previous):
                    raised_floor = min(raised_floor, top)
                    if at < fits_below:
                        candidates[count] = i
                        count += 1
                else:
                    # Passed over.
                    raised_floor = min(raised_floor, floor + size[i])
                    dead |= fixed[i] >= 0
            raises_at[depth], placed_at[depth], lonely[depth] = raises, placed, False
            beyond[depth] = upcoming[depth] = base[depth]
            if open_base[depth] == open_end[depth]:
                step = _SUCCEED
                continue
            # The section that failed last is the likeliest to fail again.
            at_first = failed_last if lower <= failed_last < upper else lower
            for turn in range(lower - 1, upper if not dead else lower - 1):
                s = turn if turn >= lower else at_first
                if open_count[s] == 0:
                    continue
                i = watched[s]
                if not done[i]:
                    at = place[i]
                    if at < floor or (at == floor and rank[i] < previous):
                        at = raised_floor
                    if at <= room[s]:
                        continue
                dead = True
                for m in range(member[s], member[s + 1]):
                    i = members[m]
                    at = place[i]
                    if done[i] or at > room[s]:
                        continue
                    if at < floor or (at == floor and rank[i] < previous):
                        at = raised_floor
                        if at <= room[s]:
                            # More exactly: on top of the lowest of its own neighbours.
                            at = _FAR
                            for k in range(start[i], start[i + 1]):
                                j = others[k]
                                if not done[j]:
                                    at = min(at, max(floor, place[j]) + size[j])
                    if at <= room[s]:
                        watched[s], dead = i, False
                        break
                if dead:
                    failed_last = s
                    break
            if not dead:
                # Candidates by place, then rank: an insertion sort, since they are few.
                for m in range(base[depth], count):
                    i = candidates[m]
                    at = place[i]
                    if at < fits_below:
                        k = beyond[depth]
                        while k > base[depth] and place[candidates[k - 1]] > at:
                            candidates[k] = candidates[k - 1]
                            k -= 1
                        candidates[k] = i
                        beyond[depth] += 1
            step = _NEXT_CANDIDATE
        elif step == _NEXT_CANDIDATE:
            while raises > raises_at[depth]:
                raises -= 1
                place[raised[raises]] = before[raises]
            while placed > placed_at[depth]:
                placed -= 1
                i = stack[placed]
                done[i] = False
                for p in range(piece[i], piece[i + 1]):
                    for s in range(first[p], last[p]):
                        room[s] -= size[i]
                        open_count[s] += 1
                for s in range(begin[i] + 1, end[i]):
                    spanning[s] += 1
            if upcoming[depth] >= beyond[depth] or lonely[depth]:
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
                for s in range(first[p], last[p]):
                    room[s] += size[i]
                    open_count[s] -= 1
            for s in range(begin[i] + 1, end[i]):
                spanning[s] -= 1
            fails = top > capacity
            lonely[depth] = True
            for k in range(start[i], start[i + 1]):
                j = others[k]
                if done[j]:
                    continue
                lonely[depth] = False
                if place[j] >= top:
                    continue
                raised[raises], before[raises] = j, place[j]
                raises += 1
                place[j] = top + -top % align[j]
                if fixed[j] >= 0 or place[j] + size[j] > capacity:
                    fails = True
                    break
            if not fails:
                scan[depth], step = since[depth], _NEXT_PART
        elif step == _NEXT_PART:
            s, upper = scan[depth], until[depth]
            while s < upper and open_count[s] == 0:
                s += 1
            if s >= upper:
                step = _SUCCEED
                continue
            stop = s + 1
            while stop < upper and spanning[stop] > 0:
                stop += 1
            scan[depth] = stop
            i = candidates[upcoming[depth] - 1]
            m = open_end[depth]
            for k in range(open_base[depth], open_end[depth]):
                j = opens[k]
                if not done[j] and begin[j] >= s and end[j] <= stop:
                    opens[m] = j
                    m += 1
            depth += 1
            open_base[depth], open_end[depth] = open_end[depth - 1], m
            since[depth], until[depth], base[depth] = s, stop, beyond[depth - 1]
            level[depth], last_rank[depth] = offsets[i], rank[i]
            step = _ENTER
        else:
            if depth == 0:
                return FOUND, nodes
            depth -= 1
            step = _NEXT_PART
