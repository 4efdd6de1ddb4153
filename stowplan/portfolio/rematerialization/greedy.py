"""Sequences by simulation: run a given order, evict what promises most where memory runs out, and run its writers
again where it is needed.

What is evicted goes by its bytes, the time to its next use and the cost of having it again, as caches with known requests
(Belady 1966) and dynamic tensor rematerialization (Kirisame et al. 2021) have it. Checkpoints (Griewank and Walther 2000; Chen
et al. 2016) are the same simulation that keeps over long times only what is live between segments of the order.

A simulation holds one instance of a storage at most, and may hold what no one needs any more, so that the plan's peak is never
above the simulation's.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

from stowplan.models.rematerialization.structure import Structure

#: Operators looked at for the cost of having a value again.
CLOSURE = 40

#: Runs of a sequence at most, for each operator.
MOST_RUNS = 8


@dataclass(frozen=True)
class Policy:
    """What is evicted first: the largest ``size ** bytes * distance ** time / cost ** cost``."""

    bytes: float = 1.0
    time: float = 1.0
    cost: float = 1.0
    checkpoints: Collection[int] | None = None
    """Storages that are kept over times longer than ``reach`` though there is room for others, too; None for all."""
    reach: int = 0
    """Operators of the order."""


class _FailedError(Exception):
    """The simulation found no way on."""


def simulate(
    structure: Structure,
    order: Sequence[int],
    limit: int,
    policy: Policy = Policy(),
    should_stop: Callable[[], bool] = lambda: False,
) -> list[int] | None:
    """A sequence whose peak is within a limit; None where this way finds none.

    Parameters
    ----------
    order
        In which operators run first: all of them, so that each can run.
    limit
        Bytes.
    should_stop
        Asked before every operator of the order.
    """
    try:
        return _Simulation(structure, order, limit, policy).run(should_stop)
    except _FailedError:
        return None


class _Simulation:
    def __init__(self, structure: Structure, order: Sequence[int], limit: int, policy: Policy):
        self.structure, self.order, self.limit, self.policy = structure, order, limit, policy
        self.position = {op: at for at, op in enumerate(order)}
        values = len(structure.size)
        self.uses: list[list[int]] = [[] for _ in range(values)]
        self.members: list[list[int]] = [[] for _ in range(values)]
        for value in range(values):
            root = structure.root[value]
            self.members[root].append(value)
            self.uses[root] += [self.position[op] for op in structure.readers[value]]
            if structure.kept[value]:
                self.uses[root].append(len(order))
        for each in self.uses:
            each.sort()
        self.uses_of = [sorted([*(self.position[op] for op in structure.readers[v])]) for v in range(values)]
        self.until = [self.position[op] if structure.once[op] else len(order) for op in range(structure.ops)]
        """[operators] place in the order up to which each may run again."""
        for first, second in structure.problem.precedences:
            self.until[first] = min(self.until[first], self.position[second])
        self.there = [False] * values
        self.resident: set[int] = set()
        self.live = 0
        self.sequence: list[int] = []
        self.now = -1
        """Place in the order of the operator that is being made ready, or runs."""
        for value in range(values):
            if structure.writer[value] < 0 and self.uses[structure.root[value]]:
                self._put(value)

    def run(self, should_stop: Callable[[], bool]) -> list[int]:
        structure = self.structure
        for at, op in enumerate(self.order):
            if should_stop():
                raise _FailedError
            self.now = at
            self._reach(structure.needs[op], op)
            self._run(op, set())
            if self.policy.checkpoints is not None:
                self._drop_far()
        self.now = len(self.order)
        kept = [value for value in range(len(structure.size)) if structure.kept[value]]
        self._reach(kept, None)
        return self.sequence

    # ------------------------------------------------------------------------------------------------------------- memory

    def _put(self, value: int) -> None:
        root = self.structure.root[value]
        self.there[value] = True
        if root not in self.resident:
            self.resident.add(root)
            self.live += self.structure.size[root]

    def _drop(self, root: int) -> None:
        for value in self.members[root]:
            self.there[value] = False
        self.resident.discard(root)
        self.live -= self.structure.size[root]

    def _next_use(self, root: int) -> int | None:
        """Place in the order of the next use behind the present one; what stays is used at its end."""
        uses = self.uses[root]
        at = bisect_right(uses, self.now)
        return uses[at] if at < len(uses) else None

    def _missing_of(self, values: Iterable[int], most: int | None = None) -> tuple[list[int], set[int]] | None:
        """Operators that must run again to have values, and the storages that are there and that they read.

        None where one may not, or reads an input that is gone. Of what is larger than ``most``, so many.
        """
        structure = self.structure
        found: list[int] = []
        seen: set[int] = set()
        read: set[int] = set()
        stack = list(values)
        while stack and (most is None or len(found) < most):
            value = stack.pop()
            if self.there[value]:
                read.add(structure.root[value])
                continue
            op = structure.writer[value]
            if op in seen:
                continue
            if op < 0 or self.until[op] < self.now:
                return None
            seen.add(op)
            found.append(op)
            stack += structure.needs[op]
        return found, read

    def _cost_again(self, root: int) -> float:
        """Cost of having what is needed of a storage again, were it gone; infinite where that cannot be."""
        structure = self.structure
        gone = [value for value in self.members[root] if self.there[value]]
        for value in gone:
            self.there[value] = False
        found = self._missing_of(gone, CLOSURE)
        for value in gone:
            self.there[value] = True
        return math.inf if found is None else float(sum(structure.cost[op] for op in found[0]))

    def _protected(self) -> set[int]:
        """Storages that are there and from which something is computed again that is gone and will be needed."""
        structure = self.structure
        wanted = []
        for value, writer in enumerate(structure.writer):
            if self.there[value] or (writer >= 0 and self.position[writer] >= self.now):
                continue
            if structure.kept[value] or (self.uses_of[value] and self.uses_of[value][-1] >= self.now):
                wanted.append(value)
        found = self._missing_of(wanted)
        return set() if found is None else found[1]

    def _make_room(self, size: int, pinned: Collection[int]) -> None:
        """Evict until so many bytes fit beside what is there, but nothing that is pinned."""
        policy, sizes = self.policy, self.structure.size
        ranked: list[tuple[float, int]] | None = None
        protected: set[int] | None = None
        while self.live + size > self.limit:
            if ranked is None:
                ranked = []
                for root in self.resident:
                    if root in pinned or not sizes[root]:
                        continue
                    following, cost = self._next_use(root), self._cost_again(root)
                    if math.isinf(cost):
                        if following is not None:
                            continue
                        protected = self._protected() if protected is None else protected
                        if root in protected:
                            continue
                        score = math.inf
                    elif following is None:
                        score = 1e300 / (1.0 + cost)
                    else:
                        distance = max(1, following - self.now)
                        score = sizes[root] ** policy.bytes * distance**policy.time / (1.0 + cost) ** policy.cost
                    ranked.append((score, root))
                ranked.sort(key=lambda each: (each[0], -each[1]))
            if not ranked:
                raise _FailedError
            score, root = ranked.pop()
            # What is evicted makes others dearer, or protects them: those are looked at again.
            if math.isinf(self._cost_again(root)) and (self._next_use(root) is not None or root in self._protected()):
                continue
            self._drop(root)

    def _drop_far(self) -> None:
        checkpoints = self.policy.checkpoints or ()
        for root in sorted(self.resident):
            following = self._next_use(root)
            if root in checkpoints or following is None or following - self.now <= self.policy.reach:
                continue
            if self.structure.size[root] and not math.isinf(self._cost_again(root)):
                self._drop(root)

    # --------------------------------------------------------------------------------------------------------------- runs

    def _reach(self, values: Iterable[int], last: int | None) -> None:
        """Have all of these there at once, with room for what ``last`` writes."""
        structure = self.structure
        values = list(values)
        found = self._missing_of(values)
        if found is None:
            raise _FailedError
        if last is not None:
            found[0].append(last)
        again = sorted(found[0], key=self.position.__getitem__)
        left: dict[int, int] = {}
        for value in values:
            left[structure.root[value]] = 1
        for op in again:
            for value in structure.needs[op]:
                left[structure.root[value]] = left.get(structure.root[value], 0) + 1
        for op in again:
            pinned = {root for root, count in left.items() if count}
            if op == last:
                self._fit(op, pinned)
                return
            self._run(op, pinned)
            for value in structure.needs[op]:
                left[structure.root[value]] -= 1

    def _taken(self, op: int, pinned: Collection[int]) -> list[int]:
        """Storages whose bytes results of an operator take, since no one needs them any more."""
        found = []
        for value in self.structure.pairs[op]:
            root = self.structure.root[value]
            is_last = op == self.order[self.now] if self.now < len(self.order) else False
            if is_last and self._next_use(root) is None and root not in found and not self.structure.kept[value]:
                found.append(root)
        return found

    def _fit(self, op: int, pinned: Collection[int]) -> None:
        structure = self.structure
        needed = {structure.root[value] for value in structure.needs[op]} | set(pinned)
        new = sum(structure.size[value] for value in structure.writes[op] if structure.root[value] not in self.resident)
        taken = self._taken(op, pinned)
        saved = sum(structure.size[root] for root in taken)
        self._make_room(new - saved, needed | {structure.root[value] for value in structure.writes[op]})

    def _run(self, op: int, pinned: Collection[int]) -> None:
        structure = self.structure
        self._fit(op, pinned)
        self.sequence.append(op)
        if len(self.sequence) > MOST_RUNS * len(self.order):
            raise _FailedError
        taken = self._taken(op, pinned)
        for value in structure.writes[op]:
            if structure.parent[value] < 0:
                # Views of the instance before have to be made again.
                for view in self.members[value]:
                    self.there[view] = False
            self._put(value)
        protected = self._protected() if taken else ()
        for root in taken:
            if root in self.resident and not (root in protected and math.isinf(self._cost_again(root))):
                self._drop(root)
            elif self.live > self.limit:
                raise _FailedError


def checkpoint_policies(structure: Structure, order: Sequence[int]) -> list[Policy]:
    """Keep what is live between segments: square root of the number of operators, half and twice as many.

    Segments end evenly, or near there where least is live.
    """
    ordering = structure.ordering
    begin, end = ordering.lives(order)
    profile = ordering.profile(order)
    storage_of = {int(tensor): at for at, tensor in enumerate(ordering.tensor)}
    storage = {value: storage_of[tensor] for value, tensor in enumerate(structure.tensor) if tensor in storage_of}
    count = len(order)
    found = []
    for parts in dict.fromkeys(max(2, round(math.sqrt(count) * factor)) for factor in (0.5, 1.0, 2.0)):
        step = max(1, count // parts)
        places = list(range(step, count, step))
        valleys = [min(range(at, min(count, at + step)), key=lambda each: (int(profile[each]), each)) for at in places]
        for cuts in (places, valleys):
            kept = {value for value, at in storage.items() if any(int(begin[at]) < cut < int(end[at]) for cut in cuts)}
            found.append(Policy(checkpoints=frozenset(kept), reach=step))
    return found
