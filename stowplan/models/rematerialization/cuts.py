"""Minimum cuts at the first run of an operator: what is live there at least, and what is computed again at least.

When an operator runs for the first time, all that must run before it has run, and all that must run after it has not. What runs
afterwards reads what is live at that moment, or what is computed afterwards; and of what has run, whatever runs afterwards is
paid for again. So the least that a plan pays is at least the minimum, over sets of operators that run afterwards, of the costs
of those that have run already, where what they and the operators behind read, and do not write, fits beside the operator.

Bytes that are to fit are a knapsack row. With a price for a byte in its place (Lagrangian relaxation) the minimum is a minimum
cut; the best price is found by going from one cut to the next (as for constrained shortest paths, Handler and Zang 1980). Where
costs count nothing, the cut is the least that is live while the operator runs: a bound on the peak of any plan. All sums are of
whole numbers; where capacities are rounded, they are rounded down, so that no bound is above what it bounds.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from stowplan.models.operator_order.bounds import ancestors, descendants
from stowplan.models.rematerialization.problem import Reservation
from stowplan.models.rematerialization.structure import Structure

Ints = NDArray[np.int32 | np.int64]

#: Amounts on arcs, and by how many bits they are to be moved to the left.
Flow = tuple[NDArray[np.int64], int]

#: Capacities add up to less than this, and this is more than any cut.
_ENDLESS = 1 << 46

#: Prices tried at most for one operator.
_PRICES = 30

#: Weights of costs and of bytes, and the flow, that prove a bound on the added cost.
Proof = tuple[int, int, list[tuple[int, int, int]]]


@dataclass(frozen=True)
class Cut:
    """What runs after the first run of an operator, for a price of bytes."""

    value: int
    """Of the weighted sum; no larger than the minimum."""
    cost: int
    """Added cost of the operators in it."""
    bytes: int
    """Saved for those that run afterwards, without what the operator itself reads and writes."""
    again: frozenset[int] = frozenset()
    """Operators in it that had to run before, too."""


class Moments:
    """The network of a problem, for every operator's first run."""

    def __init__(self, structure: Structure):
        self.structure = structure
        roots = structure.root
        self.read = [sorted({roots[value] for value in values}) for values in structure.needs]
        """[operators] storages that it reads."""
        self.storages = [value for value, parent in enumerate(structure.parent) if parent < 0]
        self._flow: Flow | None = None
        """Of the last cut."""
        self._proof: tuple[int, int, Flow | None] = (1, 0, None)
        self.around: tuple[Cut, Cut] | None = None
        """Of the last result of :meth:`added_cost` that is above 0: the dearest cut above the limit, the cheapest within it."""

    @cached_property
    def before(self) -> list[int]:
        """[operators] those that must have run before it, as bits."""
        return ancestors(self.structure.ordering)

    @cached_property
    def after(self) -> list[int]:
        """[operators] those that it must have run before, as bits."""
        return descendants(self.structure.ordering)

    def with_fetches(self, graph: Structure) -> Moments:
        """Moments of the structure with fetches: each first runs right behind the writer of its value."""
        writer, ops = self.structure.writer, self.structure.ops
        behind: dict[int, int] = {}
        for number, value in enumerate(graph.fetched, ops):
            behind[writer[value]] = behind.get(writer[value], 0) | 1 << number
        given = behind.pop(-1, 0)

        def with_own(before_or_after: int) -> int:
            return before_or_after | sum(own for op, own in behind.items() if before_or_after >> op & 1)

        made = Moments(graph)
        made.before = [with_own(before) | given for before in self.before]
        made.after = [with_own(after) | behind.get(op, 0) for op, after in enumerate(self.after)]
        for op in (writer[value] for value in graph.fetched):
            made.before.append(0 if op < 0 else made.before[op] | 1 << op)
            made.after.append((1 << ops) - 1 if op < 0 else with_own(self.after[op]))
        return made

    def in_force(self, op: int) -> list[Reservation]:
        """Reservations that are in force at the operator's first run, whatever the order."""
        return [row for row in self.structure.reservations if self._is_in_force(row, op)]

    def _is_in_force(self, row: Reservation, op: int) -> bool:
        if row.is_of_one_run:
            return op == row.since
        has_begun = row.since is None or op == row.since or bool(self.before[op] >> row.since & 1)
        return has_begun and (row.until is None or bool(self.after[op] >> row.until & 1))

    def room(self, op: int, limit: int) -> int:
        """Bytes that may be live at the operator's first run, at most, so that its load is within a limit."""
        rooms = [limit]
        for row in self.in_force(op):
            if row.of == op:
                rooms.append((limit - row.size) // (1 + row.times))
            else:
                rooms.append(limit - row.size - (0 if row.of is None else row.times * self.own_bytes(row.of)))
        return min(rooms)

    def load(self, op: int, live: int) -> int:
        """The least load of the operator's first run where so many bytes are live at it: what :meth:`room` turns round."""
        loads = [live]
        for row in self.in_force(op):
            waiting = 0 if row.of is None else row.times * (live if row.of == op else self.own_bytes(row.of))
            loads.append(live + row.size + waiting)
        return max(loads)

    def own_bytes(self, op: int) -> int:
        """What is live for the operator itself while it runs: what it writes, and what it reads and no result replaces."""
        return sum(self.structure.size[value] for value in {*self.structure.writes[op], *self.held(op)})

    def least_loads(self, stays: set[int]) -> list[int]:
        """[operators] load of each, at least: of its own bytes, and those of some inputs that are always live."""
        size, read = self.structure.size, self.read
        own = (self.own_bytes(op) + sum(size[value] for value in stays - {*read[op]}) for op in range(len(read)))
        return [self.load(op, live) for op, live in enumerate(own)]

    def held(self, op: int) -> set[int]:
        """Storages that it reads, and whose place no result takes."""
        structure = self.structure
        return {*self.read[op]} - {structure.root[value] for value in structure.pairs[op]}

    def least_bytes(self, op: int) -> int:
        """The load of the operator's first run, at least, whatever is computed again."""
        return self.load(op, self._cut(op, 0, 1).bytes + self.own_bytes(op))

    def added_cost(self, op: int, limit: int) -> int | None:
        """Cost that a plan within the limit adds, at least, by this operator's first run; None where nothing fits."""
        room, self.around = self.room(op, limit) - self.own_bytes(op), None
        fewest = self._cut(op, 0, 1)
        self._proof = 0, 1, self._flow
        if fewest.bytes > room:
            return None
        dearest = self._cut(op, 1, 0)
        self._proof = 1, 0, None
        if dearest.bytes <= room:
            return 0
        best = 0
        low, high = dearest, fewest
        for _ in range(_PRICES):
            price, scale = high.cost - low.cost, low.bytes - high.bytes
            if price <= 0 or scale <= 0:
                break
            cut = self._cut(op, scale, price)
            proven = -(-(cut.value - price * room) // scale)
            if proven > best:
                best, self._proof = proven, (scale, price, self._flow)
            if scale * cut.cost + price * cut.bytes >= scale * low.cost + price * low.bytes:
                break
            if cut.bytes > room:
                low = cut
            else:
                high = cut
        self.around = low, high
        return best

    @cached_property
    def _arcs(self) -> tuple[Ints, Ints]:
        """[arcs] tails and heads; numbers of storages are behind those of operators.

        From the source to each operator, from each to the sink, from each to what it reads; from each storage to its writer,
        and from the source to what stays.
        """
        structure, n = self.structure, self.structure.ops
        source, sink = n + len(structure.size), n + len(structure.size) + 1
        ops = range(n)
        arcs = [(source, op) for op in ops] + [(op, sink) for op in ops]
        arcs += [(op, n + storage) for op in ops for storage in self.read[op]]
        for storage in self.storages:
            writer = structure.writer[storage]
            arcs.append((n + storage, sink if writer < 0 else writer))
        arcs += [(source, n + structure.root[value]) for value, kept in enumerate(structure.kept) if kept]
        tail, head = np.array(arcs, np.int32).reshape(-1, 2).T
        return np.ascontiguousarray(tail), np.ascontiguousarray(head)

    @cached_property
    def _weights(self) -> tuple[NDArray[np.object_], NDArray[np.object_]]:
        """[operators], [storages] costs and bytes as whole numbers of any length."""
        structure = self.structure
        return np.array(structure.cost, object), np.array([structure.size[storage] for storage in self.storages], object)

    def _mask(self, bits: int) -> NDArray[np.bool_]:
        """[operators] from bits."""
        n = self.structure.ops
        raw = np.frombuffer(bits.to_bytes((n + 7) // 8, "little"), np.uint8)
        return np.unpackbits(raw, count=n, bitorder="little").astype(bool)

    def _cut(self, op: int, cost_weight: int, byte_weight: int) -> Cut:
        """Operators that run after the first run of ``op`` for the least weighted sum of costs and bytes."""
        from ortools.graph.python import max_flow

        structure, n = self.structure, self.structure.ops
        tail, head = self._arcs
        costs, sizes = self._weights
        total = cost_weight * int(costs.sum()) + byte_weight * int(sizes.sum())
        shift = max(0, total.bit_length() - _ENDLESS.bit_length() + 1)
        before = self._mask(self.before[op])
        held = np.isin(self.storages, [*self.held(op), *structure.writes[op]])
        past = self.before[op] | 1 << op
        barred = np.array(structure.once)
        # What must precede something that has run does not run again.
        barred[[first for first, second in structure.problem.precedences if past >> second & 1]] = True
        prices = np.where(barred, _ENDLESS, costs * cost_weight >> shift)
        capacity = np.full(len(tail), _ENDLESS, np.int64)
        capacity[:n] *= self._mask(self.after[op])
        capacity[n : 2 * n] = prices * before
        first = len(tail) - sum(structure.kept) - len(held)
        capacity[first : first + len(held)] = np.where(held, 0, sizes * byte_weight >> shift)
        flow = max_flow.SimpleMaxFlow()
        flow.add_arcs_with_capacity(tail, head, capacity)
        source, sink = n + len(structure.size), n + len(structure.size) + 1
        if flow.solve(source, sink) != flow.OPTIMAL:
            return Cut(0, 0, 0)
        self._flow = flow.flows(np.arange(len(tail))), shift
        inside = np.zeros(sink + 1, bool)
        inside[flow.get_source_side_min_cut()] = True
        again = np.flatnonzero(before & inside[:n]).tolist()
        # What has no writer has the sink's side in its place.
        saved = inside[tail[first : first + len(held)]] & ~held & ~inside[head[first : first + len(held)]]
        return Cut(
            int(flow.optimal_flow()) << shift,
            sum(structure.cost[operator] for operator in again),
            int(sizes[saved].sum()),
            frozenset(again),
        )

    @property
    def proof(self) -> Proof:
        """What proves the last result of :meth:`added_cost`: weights of costs and of bytes, and a flow.

        The flow is (tensor, operator that reads it or -1 for the end, amount).
        """
        scale, price, flow = self._proof
        if flow is None:
            return scale, price, []
        amounts, shift = flow
        n, tensor = self.structure.ops, self.structure.tensor
        tail, head = self._arcs
        is_read = (head >= n) & (head < n + len(tensor)) & (amounts > 0)
        columns = (tail[is_read].tolist(), head[is_read].tolist(), amounts[is_read].tolist())
        held = [
            (tensor[storage - n], reader if reader < n else -1, amount << shift)
            for reader, storage, amount in zip(*columns, strict=True)
        ]
        return scale, price, held


def bits(number: int) -> Iterable[int]:
    """Places of the bits that are set, the lowest first."""
    while number:
        low = number & -number
        yield low.bit_length() - 1
        number ^= low
