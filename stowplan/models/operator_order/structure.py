"""A problem as arrays: what the heuristics, the search and the bounds work on.

*Storages* are the tensors with bytes of their own; views count as their bases. An operator *touches* the storages that it
reads, writes or has a view of. A storage is live at a moment if some that touch it have run and some have not: inputs have been
touched before the first operator, what stays has to be touched after the last. So all is the same backwards in time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from stowplan.graph.rules import GraphRules

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Structure:
    """Graph of operators and storages. Lists of lists stand as ``(start, items)``: those of i are items[start[i]:start[i + 1]].

    Every array is int64.
    """

    tensor: Ints
    """[storages] number of the tensor."""
    size: Ints
    """[storages] bytes."""
    given: Ints
    """[storages] 1 for inputs."""
    kept: Ints
    """[storages] 1 for what stays to the end."""
    creator: Ints
    """[storages] operator that writes it; -1 for inputs."""
    pred_start: Ints
    pred: Ints
    """Operators right before each operator."""
    succ_start: Ints
    succ: Ints
    touch_start: Ints
    touch: Ints
    """Storages that each operator touches."""
    user_start: Ints
    user: Ints
    """Operators that touch each storage."""
    made_start: Ints
    made: Ints
    """Storages that each operator writes."""
    pair_start: Ints
    pair: Ints
    """Storages that a result of the operator may take the place of."""
    pair_result: Ints
    """The storages of those results."""

    @property
    def ops(self) -> int:
        """Number of operators."""
        return len(self.pred_start) - 1

    @property
    def storages(self) -> int:
        """Number of storages."""
        return len(self.size)

    @cached_property
    def users(self) -> Ints:
        """[storages] how many operators touch it."""
        return np.diff(self.user_start)

    @cached_property
    def allocated(self) -> Ints:
        """[ops] bytes that an operator writes."""
        return _sums(self.made_start, self.size[self.made])

    @cached_property
    def is_there(self) -> NDArray[np.bool_]:
        """[storages] whether it is ever live: inputs that nobody reads or keeps are not."""
        return (self.users + self.kept > 0) & (self.users + self.given > 0)

    @property
    def start_bytes(self) -> int:
        """Bytes that are live before the first operator."""
        return int(self.size[(self.given > 0) & self.is_there].sum())

    def lives(self, order: Sequence[int] | Ints) -> tuple[Ints, Ints]:
        """First operator's position and position after the last, of each storage in an order ([storages] each).

        Inputs live from 0, what stays lives to the end. Storages that are never live have equal ends. A storage whose bytes a
        result takes ends at that operator's position; its successor begins there.
        """
        position = np.empty(self.ops, np.int64)
        position[np.asarray(order, np.int64)] = np.arange(self.ops)
        at = position[self.user]
        end = np.zeros(self.storages, np.int64)
        np.maximum.at(end, np.repeat(np.arange(self.storages), self.users), at + 1)
        begin = np.where(self.given > 0, 0, position[np.maximum(self.creator, 0)] if self.ops else 0)
        end = np.where(self.kept > 0, max(1, self.ops), end)
        end = np.where(self.is_there, end, begin)
        owner = np.repeat(np.arange(self.ops), np.diff(self.pair_start))
        taken = (end[self.pair] == position[owner] + 1) & (self.kept[self.pair] == 0)
        end[self.pair[taken]] -= 1
        return begin, end

    def taken_places(self, order: Sequence[int] | Ints) -> list[tuple[int, int]]:
        """Pairs (storage, storage that takes its bytes) in an order."""
        position = np.empty(self.ops, np.int64)
        position[np.asarray(order, np.int64)] = np.arange(self.ops)
        owner = np.repeat(np.arange(self.ops), np.diff(self.pair_start))
        _, end = self.lives(order)
        taken = (end[self.pair] == position[owner]) & (self.kept[self.pair] == 0) & self.is_there[self.pair]
        return list(zip(self.pair[taken].tolist(), self.pair_result[taken].tolist(), strict=True))

    def profile(self, order: Sequence[int] | Ints) -> Ints:
        """[ops] bytes that are live while each operator of an order runs."""
        begin, end = self.lives(order)
        change = np.zeros(max(1, self.ops) + 1, np.int64)
        np.add.at(change, begin, self.size)
        np.add.at(change, end, -self.size)
        return np.cumsum(change)[:-1]

    def peak(self, order: Sequence[int] | Ints) -> int:
        """Most bytes that are live while an operator of an order runs."""
        return int(self.profile(order).max(initial=0))


def build(problem: GraphRules) -> Structure:
    """Arrays of a graph, or of a problem with one."""
    storages = [number for number, tensor in enumerate(problem.tensors) if tensor.alias_of is None]
    index = {tensor: at for at, tensor in enumerate(storages)}
    root = [index[base] for base in problem.base]
    given, kept = np.zeros(len(storages), np.int64), np.zeros(len(storages), np.int64)
    given[[root[tensor] for tensor in problem.inputs]] = 1
    kept[[root[tensor] for tensor in problem.outputs]] = 1
    if not problem.free_inputs:
        kept[given > 0] = 1
    creator = np.full(len(storages), -1, np.int64)
    touched, made, pairs = [], [], []
    for number, op in enumerate(problem.ops):
        touched.append(sorted({root[tensor] for tensor in (*op.reads, *op.writes)}))
        made.append([index[tensor] for tensor in op.writes if tensor in index])
        creator[made[-1]] = number
        pairs.append([(root[operand], root[result]) for operand, result in op.in_place])
    users: list[list[int]] = [[] for _ in storages]
    for number, own in enumerate(touched):
        for storage in own:
            users[storage].append(number)
    successors: list[list[int]] = [[] for _ in problem.ops]
    for number, befores in enumerate(problem.predecessors):
        for before in befores:
            successors[before].append(number)
    return Structure(
        tensor=np.array(storages, np.int64),
        size=np.array([problem.tensors[number].size for number in storages], np.int64),
        given=given,
        kept=kept,
        creator=creator,
        **_lists("pred", problem.predecessors),
        **_lists("succ", successors),
        **_lists("touch", touched),
        **_lists("user", users),
        **_lists("made", made),
        **_lists("pair", [[one for one, _ in own] for own in pairs]),
        pair_result=np.array([other for own in pairs for _, other in own], np.int64),
    )


def _lists(name: str, lists: Sequence[Iterable[int]]) -> dict[str, Ints]:
    rows = [list(items) for items in lists]
    start = np.concatenate([[0], np.cumsum([len(row) for row in rows], dtype=np.int64)]).astype(np.int64)
    return {f"{name}_start": start, name: np.array([item for row in rows for item in row], np.int64)}


def _sums(start: Ints, values: Ints) -> Ints:
    total: Ints = np.concatenate([[0], np.cumsum(values)]).astype(np.int64)
    return np.subtract(total[start[1:]], total[start[:-1]])


def stable_order(structure: Structure) -> list[int]:
    """The operators in the order given; where one comes too early, what it needs comes right before it."""
    return needed_first(structure, range(structure.ops))


def needed_first(structure: Structure, sequence: Iterable[int]) -> list[int]:
    """Operators one after the other as in a sequence of all, each right after those that it needs and that are missing."""
    order: list[int] = []
    done = [False] * structure.ops
    pred, start = structure.pred.tolist(), structure.pred_start.tolist()
    for first in sequence:
        stack = [first]
        while stack:
            op = stack[-1]
            missing = [] if done[op] else [other for other in pred[start[op] : start[op + 1]] if not done[other]]
            if missing:
                stack += reversed(missing)
                continue
            stack.pop()
            if not done[op]:
                done[op] = True
                order.append(op)
    return order
