"""Orders that compilers use, which need no search.

Compilers run operators in the order of the input, or schedule them for memory. PyTorch's Inductor has three such schedules,
which are reimplemented here. The functions that compute them take the
:class:`~stowplan.models.operator_order.structure.Structure` of a problem and return the numbers of all operators, in an order
in which they can run. An operator is *ready* if all operators on which it depends have run. A *storage* is a tensor with bytes
of its own, which its views share. The functions raise no errors, except as stated.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable

import numpy as np

from stowplan.kernel.context import Context
from stowplan.models.operator_order.problem import Problem
from stowplan.models.operator_order.structure import Structure, build, needed_first, stable_order
from stowplan.portfolio.operator_order.arena import Lives

Stop = Callable[[], bool]
"""A function that is called now and then, and returns True if the caller should give up."""


class _Lists:
    """A structure as Python lists, which these algorithms read faster than arrays.

    An operator *touches* a storage if it reads or writes it. ``left`` has, for each storage, the number of operators that touch
    it, plus one if it is kept to the end. The other lists are named as in the structure.
    """

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
    """Inductor's ``lpmf``: run next the ready operator that raises the peak least.

    Of several such operators, the one after which the fewest bytes are live runs next, and among equal ones the first of the
    input. An operator frees a storage if no other operator is left that reads or writes it. Returns None if ``should_stop``
    returned True.
    """
    lists = _Lists(structure)
    n = structure.ops
    waits = [len(needed) for needed in lists.pred]
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
                # Only one operator is left that touches the storage, so it frees the storage.
                for other in lists.user[x]:
                    if other != op:
                        frees[other] += lists.size[x]
        for other in lists.succ[op]:
            waits[other] -= 1
            if not waits[other]:
                ready.add(other)
    return order


def breadth_first(structure: Structure, should_stop: Stop = lambda: False) -> list[int] | None:
    """Inductor's ``bfs``: run next the ready operator whose predecessors ran earliest.

    Two operators are compared by the sorted positions of their predecessors, then by their positions in the input. Returns None
    if ``should_stop`` returned True.
    """
    lists = _Lists(structure)
    waits = [len(needed) for needed in lists.pred]
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
                heapq.heappush(ready, (sorted(position[before] for before in lists.pred[other]), other))
    return list(position)


def depth_first(structure: Structure) -> list[int]:
    """Inductor's ``dfs``: run each operator right after the operators that it needs, starting with those that touch most
    bytes."""
    lists = _Lists(structure)
    weight = [sum(lists.size[x] for x in touched) for touched in lists.touch]
    return needed_first(structure, sorted(range(structure.ops), key=lambda op: -weight[op]))


#: The functions that compute the orders of the baselines, by name, the fastest first. A *baseline* is a plan with which results
#: are compared. Each function takes a structure and a stop function. ``given`` is the order of the input, in which operators
#: that come too late are moved to where they are needed.
BASELINES: dict[str, Callable[[Structure, Stop], list[int] | None]] = {
    "given": lambda structure, should_stop: stable_order(structure),
    "bfs": breadth_first,
    "dfs": lambda structure, should_stop: depth_first(structure),
    "lpmf": least_memory_first,
}


def baseline_candidate(name: str, problem: Problem, context: Context) -> None:
    """The candidate that computes the plan of the baseline ``name`` and nothing else.

    It reports no plan if it is stopped. Raises KeyError if there is no baseline of this name.
    """
    structure = build(problem)
    order = BASELINES[name](structure, context.closed)
    if order is not None:
        context.plan(Lives(problem, structure, order).quick(), name)
