"""Compiled placement from the bottom up: the lowest valley of the skyline takes the best buffer that lives within it.

The buffers are those of :class:`stowplan.portfolio.packing.arrays.Data`: time is divided into *sections*, and sizes and offsets
are counted in *units*. The *skyline* is the height that the placed buffers reach in every section. A *stretch* is a longest
range of sections of equal height, and a *valley* is a lowest stretch. Of the buffers whose lives lie within the valley, the one
with the largest key is placed there. If there is none, the valley is raised to its lower neighbour. This is the best-fit rule
for strip packing of Burke, Kendall and Whitwell (Operations Research 52, 2004) with fixed positions in time, as in Sekiyama et
al. ("Profile-guided memory optimization for deep neural networks", 2018). A tree over the lives finds the buffer, so that
placing n buffers takes about n log n steps. First fit, in contrast, compares all pairs.

The *key* [n] gives every buffer a number, by which the search sorts buffers. A buffer is *waiting* until it is placed.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from stowplan.compiled import njit, njit_inner
from stowplan.portfolio.packing.arrays import Data, Ints
from stowplan.portfolio.packing.orders import Floats

#: Largest number of buffers in a leaf of the tree.
_LEAF = 8

#: A number of sections or units that is larger than any other.
_FAR = 1 << 62

#: A number that is larger than the number of levels of the tree.
_DEPTH = 64


class Skyline:
    """The buffers of one problem, prepared for placements by many keys.

    Gaps in lives are treated as if the buffers took space in them. Fixed offsets are not supported, and neither are overlaps,
    that is, pairs of buffers that may share bytes although both are live (:func:`supports`).
    """

    def __init__(self, data: Data):
        begin, end = data.begin, data.end
        n, leaves = len(begin), 1
        while leaves * _LEAF < n:
            leaves *= 2
        self._order, self._leaf = np.empty(n, np.int64), np.empty(n, np.int64)
        self._latest, self._soonest = np.empty(2 * leaves, np.int64), np.empty(2 * leaves, np.int64)
        build_tree(begin, end, self._order, self._leaf, self._latest, self._soonest)
        self._scratch = np.empty(2 * leaves + 2 * _DEPTH + 3 * (data.sections + 1) + 2 * (5 * n + 2), np.int64)
        self._size, self._align, self._begin, self._end = (row[self._order] for row in (data.size, data.align, begin, end))
        self._sections = data.sections

    def place(self, key: Floats) -> tuple[int, Ints]:
        """Place all buffers by their key [n]; returns the height and the offsets [n], in units."""
        offsets = np.empty(len(key), np.int64)
        placed = np.empty(len(key), np.int64)
        height = fill(
            self._size,
            self._align,
            self._begin,
            self._end,
            np.ascontiguousarray(key, np.float64)[self._order],
            self._sections,
            self._leaf,
            self._latest,
            self._soonest,
            placed,
            np.empty(len(key), np.int8),
            self._scratch,
        )
        offsets[self._order] = placed
        return height, offsets


def supports(data: Data) -> bool:
    """Whether skyline placement supports these buffers: there are some, none has a fixed offset, and there are no overlaps."""
    return len(data.size) > 0 and not len(data.overlaps) and bool((data.fixed < 0).all())


@njit_inner
def _select(order: Ints, low: int, high: int, middle: int, value: Ints) -> None:
    """Reorder ``order[low:high]`` by ``value``, so that the entry at ``middle`` is the one that sorting would put there.

    No buffer before ``middle`` then has a larger value, and none after it a smaller one (quickselect).
    """
    high -= 1
    while low < high:
        pivot = value[order[(low + high) // 2]]
        left, right = low, high
        while left <= right:
            while value[order[left]] < pivot:
                left += 1
            while value[order[right]] > pivot:
                right -= 1
            if left <= right:
                order[left], order[right] = order[right], order[left]
                left += 1
                right -= 1
        if middle <= right:
            high = right
        elif middle >= left:
            low = left
        else:
            return


@njit
def build_tree(begin: Ints, end: Ints, order: Ints, leaf: Ints, latest: Ints, soonest: Ints) -> None:
    """Build a binary tree over the lives. It halves them by their begins and by their ends in turn, level by level.

    Node 1 is the root, and node v has the children 2 v and 2 v + 1.

    Parameters
    ----------
    begin, end
        [n] lives, in sections.
    order
        [n] output: the buffers in the order of the leaves.
    leaf
        [n] output: the leaf node to which each place of ``order`` belongs.
    latest, soonest
        [nodes] output: the latest begin and the soonest end of the lives below each node.
    """
    n, leaves = len(begin), len(latest) // 2
    for at in range(n):
        order[at] = at
    count, by_begin = 1, True
    while count < leaves:
        for at in range(count):
            middle = n * (2 * at + 1) // (2 * count)
            _select(order, n * at // count, n * (at + 1) // count, middle, begin if by_begin else end)
        count, by_begin = 2 * count, not by_begin
    latest[:], soonest[:] = -1, _FAR
    for at in range(leaves):
        node = leaves + at
        for place in range(n * at // leaves, n * (at + 1) // leaves):
            leaf[place] = node
            latest[node] = max(latest[node], begin[order[place]])
            soonest[node] = min(soonest[node], end[order[place]])
    for node in range(leaves - 1, 0, -1):
        latest[node] = max(latest[2 * node], latest[2 * node + 1])
        soonest[node] = min(soonest[2 * node], soonest[2 * node + 1])


@njit_inner
def _update_leaf(node: int, n: int, leaves: int, key: Floats, waiting: NDArray[np.int8], best: Ints) -> None:
    """Recompute the place of the waiting buffer with the largest key in a leaf, -1 if there is none."""
    best_place = -1
    for place in range(n * (node - leaves) // leaves, n * (node - leaves + 1) // leaves):
        if waiting[place] == 1 and (best_place < 0 or key[place] > key[best_place]):
            best_place = place
    best[node] = best_place


@njit_inner
def _update_node(node: int, key: Floats, best: Ints) -> None:
    """Recompute the place of the waiting buffer with the largest key below an inner node; ties go to the first child."""
    left, right = best[2 * node], best[2 * node + 1]
    best[node] = left if right < 0 or (left >= 0 and key[left] >= key[right]) else right


@njit_inner
def _best_within(
    since: int,
    until: int,
    n: int,
    begin: Ints,
    end: Ints,
    key: Floats,
    waiting: NDArray[np.int8],
    latest: Ints,
    soonest: Ints,
    best: Ints,
    stack: Ints,
) -> int:
    """The waiting buffer with the largest key that lives within ``[since, until)``; -1 if there is none.

    ``best`` [nodes] has the waiting buffer with the largest key below each node, and ``stack`` is scratch space.
    """
    leaves = len(best) // 2
    best_place, depth = -1, 1
    stack[0] = 1
    while depth > 0:
        depth -= 1
        node = stack[depth]
        top = best[node]
        if top < 0 or latest[node] < since or soonest[node] > until or (best_place >= 0 and key[top] <= key[best_place]):
            continue
        if begin[top] >= since and end[top] <= until:
            best_place = top
        elif node >= leaves:
            for place in range(n * (node - leaves) // leaves, n * (node - leaves + 1) // leaves):
                is_better = best_place < 0 or key[place] > key[best_place]
                if is_better and waiting[place] == 1 and begin[place] >= since and end[place] <= until:
                    best_place = place
        else:
            left, right = best[2 * node], best[2 * node + 1]
            # The child with the larger key is pushed last, so that it is visited first.
            first = 0 if right < 0 or (left >= 0 and key[left] >= key[right]) else 1
            stack[depth] = 2 * node + 1 - first
            stack[depth + 1] = 2 * node + first
            depth += 2
    return best_place


@njit_inner
def _push(level: int, start: int, levels: Ints, starts: Ints, count: int) -> None:
    """Add a stretch to a heap of ``count`` stretches, in which the lowest comes first, and of equal ones the earliest."""
    at = count
    while at > 0:
        above = (at - 1) // 2
        if level > levels[above] or (level == levels[above] and start >= starts[above]):
            break
        levels[at], starts[at] = levels[above], starts[above]
        at = above
    levels[at], starts[at] = level, start


@njit_inner
def _pop(levels: Ints, starts: Ints, count: int) -> None:
    """Remove the first stretch from a heap of ``count`` stretches."""
    level, start = levels[count - 1], starts[count - 1]
    at = 0
    while True:
        below = 2 * at + 1
        if below >= count - 1:
            break
        if below + 1 < count - 1 and (
            levels[below + 1] < levels[below] or (levels[below + 1] == levels[below] and starts[below + 1] < starts[below])
        ):
            below += 1
        if levels[below] > level or (levels[below] == level and starts[below] >= start):
            break
        levels[at], starts[at] = levels[below], starts[below]
        at = below
    levels[at], starts[at] = level, start


@njit
def fill(
    size: Ints,
    align: Ints,
    begin: Ints,
    end: Ints,
    key: Floats,
    sections: int,
    leaf: Ints,
    latest: Ints,
    soonest: Ints,
    offsets: Ints,
    waiting: NDArray[np.int8],
    scratch: Ints,
) -> int:
    """Place all buffers; returns the height in units.

    All arrays of buffers are in the order of the tree's leaves; ``leaf``, ``latest`` and ``soonest`` come from
    :func:`build_tree`. ``offsets`` [n] is written, in units. ``waiting`` [n] and ``scratch``, of the length that
    :class:`Skyline` allocates, are scratch space.
    """
    n, leaves = len(size), len(latest) // 2
    waiting[:] = 1
    best, stack, scratch = (
        scratch[: 2 * leaves],
        scratch[2 * leaves : 2 * leaves + 2 * _DEPTH],
        scratch[2 * leaves + 2 * _DEPTH :],
    )
    for node in range(leaves, 2 * leaves):
        _update_leaf(node, n, leaves, key, waiting, best)
    for node in range(leaves - 1, 0, -1):
        _update_node(node, key, best)
    # The stretches of the skyline, indexed by their first section: the level (-1 if no stretch starts there), the start of the
    # next stretch, and the start of the one before.
    width = sections + 1
    level, after, before, scratch = (
        scratch[:width],
        scratch[width : 2 * width],
        scratch[2 * width : 3 * width],
        scratch[3 * width :],
    )
    level[:], before[:] = -1, -1
    level[0], after[0] = 0, sections
    # A heap of the stretches that may be the lowest. Outdated entries stay in it until they are popped, so there must be room
    # for all entries that are ever added. The first stretch is one entry. Each of the n placements adds at most three entries,
    # and at most two to the number of stretches. Raising a valley adds at most one entry, and it merges at least two stretches,
    # so that there are at most 2 n raises. Together these are at most 5 n + 1 entries.
    levels, starts, count = scratch[: 5 * n + 2], scratch[5 * n + 2 :], 1
    levels[0], starts[0] = 0, 0
    height, unplaced = 0, n
    while unplaced > 0:
        floor, since = levels[0], starts[0]
        _pop(levels, starts, count)
        count -= 1
        if level[since] != floor:
            continue
        until = after[since]
        i = _best_within(since, until, n, begin, end, key, waiting, latest, soonest, best, stack)
        if i >= 0:
            unplaced -= 1
            offsets[i] = floor + -floor % align[i]
            top = offsets[i] + size[i]
            height = max(height, top)
            waiting[i] = 0
            _update_leaf(leaf[i], n, leaves, key, waiting, best)
            node = leaf[i] // 2
            while node > 0:
                _update_node(node, key, best)
                node //= 2
            first, last = begin[i], end[i]
            if first > since:
                after[since], before[first] = first, since
                _push(floor, since, levels, starts, count)
                count += 1
            if last < until:
                level[last], after[last], before[last] = floor, until, first
                before[until] = last
                _push(floor, last, levels, starts, count)
                count += 1
            else:
                before[until] = first
            level[first], after[first] = top, last
            middle = first
        else:
            # The valley does not cover all sections, because any waiting buffer would live within such a valley.
            middle = since
            top = _FAR
            if since > 0:
                top = level[before[since]]
            if until < sections:
                top = min(top, level[until])
            level[since] = top
        # The changed stretch is merged with adjacent ones of equal level.
        follower = after[middle]
        if follower < sections and level[follower] == top:
            after[middle], level[follower] = after[follower], -1
            before[after[middle]] = middle
        if middle > 0 and level[before[middle]] == top:
            leader = before[middle]
            after[leader], level[middle] = after[middle], -1
            before[after[leader]] = leader
        else:
            _push(top, middle, levels, starts, count)
            count += 1
    return height
