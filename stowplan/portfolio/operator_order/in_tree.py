"""The optimum of in-trees: graphs in which each operator's result is read by one other.

Liu, "An application of generalized tree pebbling to sparse matrix factorization" (1987): the best order of a subtree is a
sequence of segments, each of which climbs to a *hill* and ends in a *valley*, hills falling and valleys rising. Segments of
several subtrees are best merged by hill minus valley, the largest first.
"""

from __future__ import annotations

import heapq
from typing import NamedTuple

import numpy as np

from stowplan.models.operator_order.structure import Structure, stable_order


class _Segment(NamedTuple):
    hill: int
    """Most bytes that are live in it, those before the subtree left out."""
    valley: int
    """Bytes of the subtree that are live after it."""
    ops: list[int]


def is_in_tree(structure: Structure) -> bool:
    """Whether every operator has at most one successor, reads what that needs alone, and no input is freed."""
    if (np.diff(structure.succ_start) > 1).any():
        return False
    freed = (structure.given > 0) & (structure.kept == 0) & structure.is_there & (structure.size > 0)
    stays = (structure.given == 0) & (structure.kept > 0) & (np.diff(structure.user_start) > 1)
    return not freed.any() and not stays.any()


def best_order(structure: Structure) -> list[int]:
    """An order of least peak of an in-tree (or several)."""
    segments: dict[int, list[_Segment]] = {}
    roots = []
    for op in stable_order(structure):
        children = structure.pred[structure.pred_start[op] : structure.pred_start[op + 1]].tolist()
        merged, live = _merge([segments.pop(child) for child in children])
        come, go, saved = _costs(structure, op)
        merged.append(_Segment(live + come - saved, live + come - go, [op]))
        segments[op] = _canonical(merged)
        if structure.succ_start[op + 1] == structure.succ_start[op]:
            roots.append(op)
    merged, _ = _merge([segments[root] for root in roots])
    return [op for segment in merged for op in segment.ops]


def _costs(structure: Structure, op: int) -> tuple[int, int, int]:
    """Bytes that come with an operator, that go with it, and that are saved in place."""
    come = int(structure.allocated[op])
    touched = structure.touch[structure.touch_start[op] : structure.touch_start[op + 1]].tolist()
    # All that touch a storage are a path to its last, which frees it.
    last = {x for x in touched if not structure.kept[x] and _last_user(structure, x) == op}
    go = sum(int(structure.size[x]) for x in last)
    pairs = structure.pair[structure.pair_start[op] : structure.pair_start[op + 1]].tolist()
    return come, go, sum(int(structure.size[x]) for x in pairs if x in last)


def _last_user(structure: Structure, storage: int) -> int:
    users = structure.user[structure.user_start[storage] : structure.user_start[storage + 1]].tolist()
    behind = set(users)
    for op in users:
        behind -= set(structure.pred[structure.pred_start[op] : structure.pred_start[op + 1]].tolist())
    last: int = max(behind, key=users.index)
    return last


def _merge(parts: list[list[_Segment]]) -> tuple[list[_Segment], int]:
    """Segments of several subtrees in their best order, with the bytes of all; and what is live after them."""
    heap = [(part[0].valley - part[0].hill, number, 0) for number, part in enumerate(parts) if part]
    heapq.heapify(heap)
    level = [0] * len(parts)
    live = 0
    merged = []
    while heap:
        _, number, at = heapq.heappop(heap)
        segment = parts[number][at]
        live -= level[number]
        merged.append(_Segment(live + segment.hill, live + segment.valley, segment.ops))
        level[number] = segment.valley
        live += segment.valley
        if at + 1 < len(parts[number]):
            following = parts[number][at + 1]
            heapq.heappush(heap, (following.valley - following.hill, number, at + 1))
    return merged, live


def _canonical(steps: list[_Segment]) -> list[_Segment]:
    """Hills and valleys of a sequence: the highest hill and the lowest valley after it, then the same of the rest."""
    found: list[_Segment] = []
    at = 0
    # From the end: the lowest valley from each place on, and the highest hill.
    while at < len(steps):
        hill = max(range(at, len(steps)), key=lambda i: (steps[i].hill, i))
        valley = min(range(hill, len(steps)), key=lambda i: (steps[i].valley, -i))
        ops = [op for step in steps[at : valley + 1] for op in step.ops]
        found.append(_Segment(steps[hill].hill, steps[valley].valley, ops))
        at = valley + 1
    return found
