"""Orders without a search: those that compilers take, and the optimum of in-trees.

Compilers run operators as given or schedule for memory, as PyTorch's Inductor has it in three ways. Each gives an order in
which the operators can run.

In an in-tree each operator's result is read by one other. Liu, "An application of generalized tree pebbling to sparse matrix
factorization" (1987): the best order of a subtree is a sequence of segments, each of which climbs to a *hill* and ends in a
*valley*, hills falling and valleys rising. Segments of several subtrees are best merged by hill minus valley, largest first.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from stowplan.models.operator_order.problem import Problem
from stowplan.models.operator_order.structure import Structure, build, needed_first, stable_order
from stowplan.portfolio.context import Context
from stowplan.portfolio.operator_order.arena import Lives

Stop = Callable[[], bool]


class _Lists:
    """A structure as lists of Python."""

    def __init__(self, structure: Structure):
        def rows(start: np.ndarray, items: np.ndarray) -> list[list[int]]:
            at, flat = start.tolist(), items.tolist()
            return [flat[one:two] for one, two in itertools.pairwise(at)]

        self.pred = rows(structure.pred_start, structure.pred)
        self.succ = rows(structure.succ_start, structure.succ)
        self.touch = rows(structure.touch_start, structure.touch)
        self.user = rows(structure.user_start, structure.user)
        self.size: list[int] = structure.size.tolist()
        self.allocated: list[int] = structure.allocated.tolist()
        self.left: list[int] = (structure.users + structure.kept).tolist()


def least_memory_first(structure: Structure, should_stop: Stop = lambda: False) -> list[int] | None:
    """Of the ready operators one that does not raise the peak; of those the one that allocates least more than it frees.

    Inductor's ``lpmf``. Freed is what no other operator is left to read. None where it was stopped.
    """
    lists = _Lists(structure)
    n = structure.ops
    waits = [len(each) for each in lists.pred]
    ready = {op for op in range(n) if not waits[op]}
    left = lists.left[:]
    frees = [0] * n
    for op in range(n):
        frees[op] = sum(lists.size[x] for x in lists.touch[op] if left[x] == 1)
    live = peak = structure.start_bytes
    order: list[int] = []
    while ready:
        if should_stop():
            return None
        op = min(ready, key=lambda op: (max(live + lists.allocated[op], peak), lists.allocated[op] - frees[op], op))
        ready.remove(op)
        order.append(op)
        peak = max(peak, live + lists.allocated[op])
        live += lists.allocated[op] - frees[op]
        for x in lists.touch[op]:
            left[x] -= 1
            if left[x] == 1:
                # One more is left that touches it, which frees it.
                for other in lists.user[x]:
                    if other != op:
                        frees[other] += lists.size[x]
        for other in lists.succ[op]:
            waits[other] -= 1
            if not waits[other]:
                ready.add(other)
    return order


def breadth_first(structure: Structure, should_stop: Stop = lambda: False) -> list[int] | None:
    """Of the ready operators the one whose predecessors ran first: first in, first out. Inductor's ``bfs``."""
    lists = _Lists(structure)
    waits = [len(each) for each in lists.pred]
    ready: list[tuple[list[int], int]] = [([], op) for op in range(structure.ops) if not waits[op]]
    heapq.heapify(ready)
    position: dict[int, int] = {}
    while ready:
        if should_stop():
            return None
        _, op = heapq.heappop(ready)
        position[op] = len(position)
        for other in lists.succ[op]:
            waits[other] -= 1
            if not waits[other]:
                heapq.heappush(ready, (sorted(position[each] for each in lists.pred[other]), other))
    return list(position)


def depth_first(structure: Structure) -> list[int]:
    """Each operator right after what it needs, those first that read and write most bytes. Inductor's ``dfs``."""
    lists = _Lists(structure)
    weight = [sum(lists.size[x] for x in each) for each in lists.touch]
    return needed_first(structure, sorted(range(structure.ops), key=lambda op: -weight[op]))


#: Name and function of each, the cheapest first.
BASELINES: dict[str, Callable[[Structure, Stop], list[int] | None]] = {
    "given": lambda structure, should_stop: stable_order(structure),
    "bfs": breadth_first,
    "dfs": lambda structure, should_stop: depth_first(structure),
    "lpmf": least_memory_first,
}


def alone(name: str, problem: Problem, context: Context) -> None:
    """One of them as a candidate that does nothing more."""
    structure = build(problem)
    order = BASELINES[name](structure, context.closed)
    if order is not None:
        context.plan(Lives(problem, structure, order).quick(), name)


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
    segments: list[_Segment] = []
    at = 0
    # From the end: the lowest valley from each place on, and the highest hill.
    while at < len(steps):
        hill = max(range(at, len(steps)), key=lambda i: (steps[i].hill, i))
        valley = min(range(hill, len(steps)), key=lambda i: (steps[i].valley, -i))
        ops = [op for step in steps[at : valley + 1] for op in step.ops]
        segments.append(_Segment(steps[hill].hill, steps[valley].valley, ops))
        at = valley + 1
    return segments
