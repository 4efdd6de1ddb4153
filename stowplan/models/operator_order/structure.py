"""An operator-order problem as arrays, for heuristics, search and bounds.

A *storage* is a tensor with bytes of its own; a view counts as its base. An operator *touches* the storages that it reads or
writes, directly or through a view. A storage is live between two operators if some operator that touches it has run and another
one has not. Inputs count as touched before the first operator, and tensors that stay to the end as touched after the last
operator. This definition is the same forwards and backwards in time. Nothing here raises an error for a valid problem and a
feasible order of its operators.
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
    """The graph of operators and storages as arrays of int64.

    A list of lists is stored as two arrays, such as ``pred_start`` and ``pred``: the list of ``i`` is
    ``pred[pred_start[i]:pred_start[i + 1]]``.
    """

    tensor: Ints
    """[storages] number of the tensor."""
    size: Ints
    """[storages] size in bytes."""
    given: Ints
    """[storages] 1 for inputs, otherwise 0."""
    kept: Ints
    """[storages] 1 for storages that must be live to the end: outputs, and inputs that may not be overwritten; otherwise 0."""
    creator: Ints
    """[storages] operator that creates the storage, by writing its tensor itself; -1 for inputs."""
    pred_start: Ints
    """[ops + 1] starts of the lists in ``pred``."""
    pred: Ints
    """For each operator, its direct predecessors."""
    succ_start: Ints
    """[ops + 1] starts of the lists in ``succ``."""
    succ: Ints
    """For each operator, its direct successors."""
    touch_start: Ints
    """[ops + 1] starts of the lists in ``touch``."""
    touch: Ints
    """For each operator, the storages that it touches."""
    user_start: Ints
    """[storages + 1] starts of the lists in ``user``."""
    user: Ints
    """For each storage, the operators that touch it."""
    made_start: Ints
    """[ops + 1] starts of the lists in ``made``."""
    made: Ints
    """For each operator, the storages that it creates."""
    pair_start: Ints
    """[ops + 1] starts of the lists in ``pair``."""
    pair: Ints
    """For each operator, the storages of operands whose bytes a result may reuse (``in_place``)."""
    pair_result: Ints
    """The storage of the result for each entry of ``pair``."""

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
        """[storages] number of operators that touch the storage."""
        return np.diff(self.user_start)

    @cached_property
    def allocated(self) -> Ints:
        """[ops] bytes of the storages that an operator creates."""
        return _sums(self.made_start, self.size[self.made])

    @cached_property
    def is_there(self) -> NDArray[np.bool_]:
        """[storages] whether the storage is ever live. An input that no operator touches and that need not stay is never
        live."""
        return (self.users + self.kept > 0) & (self.users + self.given > 0)

    @property
    def start_bytes(self) -> int:
        """Bytes that are live before the first operator."""
        return int(self.size[(self.given > 0) & self.is_there].sum())

    def lives(self, order: Sequence[int] | Ints) -> tuple[Ints, Ints]:
        """The live range ``[begin, end)`` of each storage in an order of the operators, as positions in that order.

        Inputs are live from position 0, and storages that stay are live to the end. Begin and end are equal for storages that
        are never live. If a result reuses the bytes of an operand, the operand's live range ends at the position of the
        operator, where the live range of the result begins.

        Returns
        -------
        tuple of arrays
            Begin and end, each of shape ``[storages]``.
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
        is_reused = (end[self.pair] == position[owner] + 1) & (self.kept[self.pair] == 0)
        end[self.pair[is_reused]] -= 1
        return begin, end

    def reused_storages(self, order: Sequence[int] | Ints) -> list[tuple[int, int]]:
        """Pairs (storage of an operand, storage of the result that reuses its bytes), for an order of the operators."""
        position = np.empty(self.ops, np.int64)
        position[np.asarray(order, np.int64)] = np.arange(self.ops)
        owner = np.repeat(np.arange(self.ops), np.diff(self.pair_start))
        _, end = self.lives(order)
        is_reused = (end[self.pair] == position[owner]) & (self.kept[self.pair] == 0) & self.is_there[self.pair]
        return list(zip(self.pair[is_reused].tolist(), self.pair_result[is_reused].tolist(), strict=True))

    def profile(self, order: Sequence[int] | Ints) -> Ints:
        """[ops] bytes that are live while each operator of an order runs. For a graph without operators, the result has a
        single entry: the bytes that are live in any case."""
        begin, end = self.lives(order)
        change = np.zeros(max(1, self.ops) + 1, np.int64)
        np.add.at(change, begin, self.size)
        np.add.at(change, end, -self.size)
        return np.cumsum(change)[:-1]

    def peak(self, order: Sequence[int] | Ints) -> int:
        """The largest number of bytes that are live while an operator runs, in an order of the operators."""
        return int(self.profile(order).max(initial=0))


def build(problem: GraphRules) -> Structure:
    """Build the arrays of a graph of operators, or of a problem that contains one, such as those of operator order and
    rematerialization."""
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
    for number, storages_of in enumerate(touched):
        for storage in storages_of:
            users[storage].append(number)
    successors: list[list[int]] = [[] for _ in problem.ops]
    for number, before_ops in enumerate(problem.predecessors):
        for before in before_ops:
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
        **_lists("pair", [[one for one, _ in storages_of] for storages_of in pairs]),
        pair_result=np.array([other for storages_of in pairs for _, other in storages_of], np.int64),
    )


def _lists(name: str, lists: Sequence[Iterable[int]]) -> dict[str, Ints]:
    """The two arrays of a list of lists with this name, as keyword arguments of :class:`Structure`."""
    rows = [list(items) for items in lists]
    start = np.concatenate([[0], np.cumsum([len(row) for row in rows], dtype=np.int64)]).astype(np.int64)
    return {f"{name}_start": start, name: np.array([item for row in rows for item in row], np.int64)}


def _sums(start: Ints, values: Ints) -> Ints:
    """The sum of each list, for a list of lists that is stored as starts and values."""
    total: Ints = np.concatenate([[0], np.cumsum(values)]).astype(np.int64)
    return np.subtract(total[start[1:]], total[start[:-1]])


def stable_order(structure: Structure) -> list[int]:
    """The order of the input, made feasible: if an operator needs operators that come later, they are moved right before it."""
    return needed_first(structure, range(structure.ops))


def needed_first(structure: Structure, sequence: Iterable[int]) -> list[int]:
    """Turn a sequence of all operators into a feasible order.

    Operators are appended in the given sequence, each preceded by those of its predecessors that have not been appended yet. An
    operator that occurs again is skipped.
    """
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
