"""Minimum cuts at the first run of an operator, which bound the bytes that are live there and the cost of recomputations.

Consider the moment at which an operator runs for the first time. All operators that must precede it have run, and all that
must follow it have not. Let ``S`` be the set of operators that run after this moment. Operators of ``S`` that have run before
it are recomputed, and their cost is added. The values that operators of ``S`` read and none of them writes must be live at the
moment, so they must fit into memory together with the operator's own bytes. The added cost of any plan is therefore at least
the minimum of the cost of recomputed operators over all sets ``S`` that fit.

That minimum is relaxed (Lagrangian relaxation): instead of the limit on bytes, each byte gets a *multiplier*, a price in units
of cost. The minimum of the weighted sum of cost and bytes is then a minimum cut. Each cut determines the next multiplier to
try, as for constrained shortest paths (Handler and Zang 1980), until the best multiplier is found. If costs have weight 0, the
cut is the smallest number of bytes that can be live while the operator runs, which bounds the peak of any plan.

All sums are of whole numbers. If capacities must be rounded, they are rounded down, so the bounds stay valid.

A *storage* is a tensor with bytes of its own. The *load* of a step is its live bytes plus the largest reservation in force,
which is memory that something outside the graph occupies. Nothing here raises an error for a valid problem.
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

#: The amount of flow on each arc, and the number of bits by which the amounts must be shifted to the left.
Flow = tuple[NDArray[np.int64], int]

#: An infinite capacity: finite capacities are shifted so that they add up to less than this.
_INFINITE = 1 << 46

#: Largest number of multipliers that are tried for one operator.
_MOST_MULTIPLIERS = 30

#: A proof of a bound on the added cost: the weights of costs and of bytes, and a flow (:attr:`Moments.proof`).
Proof = tuple[int, int, list[tuple[int, int, int]]]


@dataclass(frozen=True)
class Cut:
    """A set of operators that run after the first run of an operator, chosen to minimize a weighted sum of cost and bytes."""

    value: int
    """A lower bound on the minimum of the weighted sum; it is the minimum itself unless capacities were rounded down."""
    cost: int
    """Cost of the recomputed operators."""
    bytes: int
    """Bytes that must be live at the moment for operators of the set, without the bytes that the operator itself needs."""
    again: frozenset[int] = frozenset()
    """Recomputed operators: those of the set that must have run before the moment."""


class Moments:
    """Minimum cuts at the first runs of a problem's operators. The network is built once for all operators."""

    def __init__(self, structure: Structure):
        self.structure = structure
        roots = structure.root
        self.read = [sorted({roots[value] for value in values}) for values in structure.needs]
        """[operators] storages that the operator reads, ascending."""
        self.storages = [value for value, parent in enumerate(structure.parent) if parent < 0]
        self._flow: Flow | None = None
        """The flow of the last cut."""
        self._proof: tuple[int, int, Flow | None] = (1, 0, None)
        self.bracketing_cuts: tuple[Cut, Cut] | None = None
        """The two cuts between which the best multiplier of the last :meth:`added_cost` lies: one that exceeds the limit, and
        one that fits. None if no recomputation is needed or no plan fits."""

    @cached_property
    def before(self) -> list[int]:
        """[operators] operators that must have run before the operator's first run, as the bits of an integer."""
        return ancestors(self.structure.ordering)

    @cached_property
    def after(self) -> list[int]:
        """[operators] operators that can first run only after the operator has run, as the bits of an integer."""
        return descendants(self.structure.ordering)

    def with_fetches(self, graph: Structure) -> Moments:
        """The cuts of ``graph``, this structure with fetches from a host (:meth:`.Structure.with_fetches`).

        A fetch is an operator that copies a value back from the host. It first runs right behind the writer of its value.
        Predecessors and successors are derived from those of this object, which is faster than computing them again.
        """
        writer, ops = self.structure.writer, self.structure.ops
        fetches_behind: dict[int, int] = {}
        for number, value in enumerate(graph.fetched, ops):
            fetches_behind[writer[value]] = fetches_behind.get(writer[value], 0) | 1 << number
        input_fetches = fetches_behind.pop(-1, 0)

        def with_own(before_or_after: int) -> int:
            """These operators, and the fetches behind them."""
            return before_or_after | sum(own for op, own in fetches_behind.items() if before_or_after >> op & 1)

        result = Moments(graph)
        result.before = [with_own(before) | input_fetches for before in self.before]
        result.after = [with_own(after) | fetches_behind.get(op, 0) for op, after in enumerate(self.after)]
        for op in (writer[value] for value in graph.fetched):
            result.before.append(0 if op < 0 else result.before[op] | 1 << op)
            result.after.append((1 << ops) - 1 if op < 0 else with_own(self.after[op]))
        return result

    def in_force(self, op: int) -> list[Reservation]:
        """Reservations (:class:`~.problem.Reservation`) that are in force at the operator's first run in every order."""
        return [row for row in self.structure.reservations if self._is_in_force(row, op)]

    def _is_in_force(self, row: Reservation, op: int) -> bool:
        """Whether a reservation is in force at the operator's first run in every order."""
        if row.is_of_one_run:
            return op == row.since
        has_begun = row.since is None or op == row.since or bool(self.before[op] >> row.since & 1)
        return has_begun and (row.until is None or bool(self.after[op] >> row.until & 1))

    def available_bytes(self, op: int, limit: int) -> int:
        """The largest number of live bytes with which the load of the operator's first run is within the limit. It is negative
        if even 0 live bytes are too many."""
        limits = [limit]
        for row in self.in_force(op):
            if row.of == op:
                limits.append((limit - row.size) // (1 + row.times))
            else:
                limits.append(limit - row.size - (0 if row.of is None else row.times * self.own_bytes(row.of)))
        return min(limits)

    def load(self, op: int, live: int) -> int:
        """Lower bound on the load of the operator's first run if ``live`` bytes are live at it.

        It is the inverse of :meth:`available_bytes`.
        """
        loads = [live]
        for row in self.in_force(op):
            waiting = 0 if row.of is None else row.times * (live if row.of == op else self.own_bytes(row.of))
            loads.append(live + row.size + waiting)
        return max(loads)

    def own_bytes(self, op: int) -> int:
        """Bytes that the operator itself needs while it runs: those that it writes, and those of :meth:`retained`."""
        return sum(self.structure.size[value] for value in {*self.structure.writes[op], *self.retained(op)})

    def least_loads(self, stays: set[int]) -> list[int]:
        """[operators] lower bound on the load of each operator: its own bytes, and those of the storages that are always live,
        ``stays``."""
        size, read = self.structure.size, self.read
        own = (self.own_bytes(op) + sum(size[value] for value in stays - {*read[op]}) for op in range(len(read)))
        return [self.load(op, live) for op, live in enumerate(own)]

    def retained(self, op: int) -> set[int]:
        """Storages that the operator reads and whose bytes no result may reuse."""
        structure = self.structure
        return {*self.read[op]} - {structure.root[value] for value in structure.pairs[op]}

    def least_bytes(self, op: int) -> int:
        """Lower bound in bytes on the load of the operator's first run in any plan, however much is recomputed."""
        return self.load(op, self._cut(op, 0, 1).bytes + self.own_bytes(op))

    def added_cost(self, op: int, limit: int) -> int | None:
        """Lower bound on the added cost of plans within the limit in bytes, from this operator's first run; None if no plan
        fits."""
        available_bytes, self.bracketing_cuts = self.available_bytes(op, limit) - self.own_bytes(op), None
        fewest = self._cut(op, 0, 1)
        self._proof = 0, 1, self._flow
        if fewest.bytes > available_bytes:
            return None
        dearest = self._cut(op, 1, 0)
        self._proof = 1, 0, None
        if dearest.bytes <= available_bytes:
            return 0
        best = 0
        low, high = dearest, fewest
        for _ in range(_MOST_MULTIPLIERS):
            multiplier, scale = high.cost - low.cost, low.bytes - high.bytes
            if multiplier <= 0 or scale <= 0:
                break
            cut = self._cut(op, scale, multiplier)
            proven = -(-(cut.value - multiplier * available_bytes) // scale)
            if proven > best:
                best, self._proof = proven, (scale, multiplier, self._flow)
            if scale * cut.cost + multiplier * cut.bytes >= scale * low.cost + multiplier * low.bytes:
                break
            if cut.bytes > available_bytes:
                low = cut
            else:
                high = cut
        self.bracketing_cuts = low, high
        return best

    @cached_property
    def _arcs(self) -> tuple[Ints, Ints]:
        """[arcs] tails and heads of the network. Nodes are the operators, the storages behind them, the source and the sink.

        There are arcs from the source to each operator, and from each operator to the sink and to the storages that it reads.
        Each storage has an arc to its writer, or to the sink if it is an input. There are also arcs from the source to storages
        that stay to the end.
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
        """Costs of operators, [operators], and sizes of storages in bytes, [storages], as Python integers."""
        structure = self.structure
        return np.array(structure.cost, object), np.array([structure.size[storage] for storage in self.storages], object)

    def _mask(self, bits: int) -> NDArray[np.bool_]:
        """The bits of an integer as a Boolean array of shape ``[operators]``."""
        n = self.structure.ops
        raw = np.frombuffer(bits.to_bytes((n + 7) // 8, "little"), np.uint8)
        return np.unpackbits(raw, count=n, bitorder="little").astype(bool)

    def _cut(self, op: int, cost_weight: int, byte_weight: int) -> Cut:
        """The set of operators that run after the first run of ``op`` for which the weighted sum of cost and bytes is
        smallest."""
        from ortools.graph.python import max_flow

        structure, n = self.structure, self.structure.ops
        tail, head = self._arcs
        costs, sizes = self._weights
        total = cost_weight * int(costs.sum()) + byte_weight * int(sizes.sum())
        shift = max(0, total.bit_length() - _INFINITE.bit_length() + 1)
        before = self._mask(self.before[op])
        retained = np.isin(self.storages, [*self.retained(op), *structure.writes[op]])
        has_run = self.before[op] | 1 << op
        may_not_run = np.array(structure.once)
        # An operator all of whose runs must precede an operator that has run is not recomputed.
        may_not_run[[first for first, second in structure.problem.precedences if has_run >> second & 1]] = True
        prices = np.where(may_not_run, _INFINITE, costs * cost_weight >> shift)
        capacity = np.full(len(tail), _INFINITE, np.int64)
        capacity[:n] *= self._mask(self.after[op])
        capacity[n : 2 * n] = prices * before
        first = len(tail) - sum(structure.kept) - len(retained)
        capacity[first : first + len(retained)] = np.where(retained, 0, sizes * byte_weight >> shift)
        flow = max_flow.SimpleMaxFlow()
        flow.add_arcs_with_capacity(tail, head, capacity)
        source, sink = n + len(structure.size), n + len(structure.size) + 1
        if flow.solve(source, sink) != flow.OPTIMAL:
            return Cut(0, 0, 0)
        self._flow = flow.flows(np.arange(len(tail))), shift
        inside = np.zeros(sink + 1, bool)
        inside[flow.get_source_side_min_cut()] = True
        again = np.flatnonzero(before & inside[:n]).tolist()
        # For an input, which has no writer, the head of the arc is the sink.
        must_be_live = inside[tail[first : first + len(retained)]] & ~retained & ~inside[head[first : first + len(retained)]]
        return Cut(
            int(flow.optimal_flow()) << shift,
            sum(structure.cost[operator] for operator in again),
            int(sizes[must_be_live].sum()),
            frozenset(again),
        )

    @property
    def proof(self) -> Proof:
        """The proof of the last result of :meth:`added_cost`: the weights of costs and of bytes, and a flow.

        The entries of the flow are (tensor, operator that reads it or -1 for the end, amount).
        """
        scale, multiplier, flow = self._proof
        if flow is None:
            return scale, multiplier, []
        amounts, shift = flow
        n, tensor = self.structure.ops, self.structure.tensor
        tail, head = self._arcs
        is_read = (head >= n) & (head < n + len(tensor)) & (amounts > 0)
        columns = (tail[is_read].tolist(), head[is_read].tolist(), amounts[is_read].tolist())
        storage_flow = [
            (tensor[storage - n], reader if reader < n else -1, amount << shift)
            for reader, storage, amount in zip(*columns, strict=True)
        ]
        return scale, multiplier, storage_flow


def bits(number: int) -> Iterable[int]:
    """Positions of the bits that are set in an integer of at least 0, the lowest first."""
    while number:
        low = number & -number
        yield low.bit_length() - 1
        number ^= low
