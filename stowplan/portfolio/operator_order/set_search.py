"""Exact search for an order of minimal peak: compiled best-first search over the sets of operators that have run.

A *node* is a set of operators that have run, together with the operator that runs next. Its *peak* is the largest number of
bytes that are live until this operator has run. Nodes are expanded by ascending peak. The peak of the first node in the heap is
therefore a lower bound of the peak of every order, and the first complete set has a minimal peak. A set is *closed* when a node
that leads to it has been expanded. Its *parent* is the set of the expanded node, and its *moves* are the operators that lead
from the parent to it: the operator of the node, and steps that are safe to take at once. :mod:`.graph` explains these steps,
lazy operators and graphs backwards in time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from stowplan.compiled import Bits2D, Ints2D, njit, njit_inner
from stowplan.parameters import Parameters, parameters
from stowplan.portfolio.operator_order.graph import Graph, Ints, Room, is_done, restore, room_for, run, settle, weigh


class SetSearchParameters(Parameters, frozen=True):
    """Parameters of the search over sets."""

    memory: int = 400_000_000
    """Largest number of bytes of the tables of a search."""
    fewest: int = 1 << 10
    """Number of sets for which the first, smallest tables have room."""
    slice: int = 3_000_000
    """Number of sets that are examined between two calls of ``should_stop``, times the number of operators."""


PARAMS = parameters(SetSearchParameters, __name__)


#: Outcomes of a search, in this order: it is not finished; it found an order; it proved that no order has a peak below
#: ``upper``; or its tables are full and may not grow.
RUNNING, FOUND, EXHAUSTED, FULL = 0, 1, 2, 3

#: Indices of ``state`` of :func:`search_sets`, in this order: the numbers of closed sets, of nodes, of heap entries, and of
#: moves of all sets together (``Sets.pool``); the bound in bytes; the number of the set that completes an order; and the number
#: of expanded nodes.
CLOSED, NODES, HEAP, MOVES, BOUND, GOAL, POPS = range(7)


class Nodes(NamedTuple):
    """The nodes of the search: each is a closed set with an operator that runs next. Node 0 is the start, without an
    operator."""

    key: Ints
    """[nodes] peak, in bytes."""
    live: Ints
    """[nodes] live bytes after the operator."""
    of: Ints2D
    """[nodes, 3] number of operators that have run after the node's operator, number of the closed set, and operator that runs
    next (-1 for none)."""
    hashes: Bits2D
    """[nodes, 2] two hashes of the set after the operator."""
    heap: Ints
    """Binary heap of the nodes that are not expanded yet, best first."""
    table: Ints
    """Hash table of the nodes, whose entries are their numbers; -1 for a free entry."""


class Sets(NamedTuple):
    """The closed sets of the search. Set 0 has the operators that had run before the search."""

    bits: Bits2D
    """[sets, words] one bit for each operator, 1 if it has run."""
    moves: Ints2D
    """[sets, 3] number of the parent set (-1 for none), index of the first move in the pool, and number of moves."""
    pool: Ints
    """The moves of all sets, one set after the other, as numbers of operators."""
    table: Ints
    """Hash table of the sets, whose entries are their numbers; -1 for a free entry."""


class SetSearch:
    """A search for an order from one set of operators to another. It can be interrupted and continued.

    Its attribute ``outcome`` is RUNNING until the search ends. The attribute ``upper`` may be lowered between two calls of
    :meth:`run`.

    Parameters
    ----------
    graph
        The operators, forwards or backwards in time.
    lower
        A lower bound of the peak, in bytes.
    upper
        Number of bytes below which the peak must be.
    done
        Operators that have run before; backwards in time, those that run afterwards.
    among
        Operators that are to run; by default all that are not in ``done``.
    memory
        Largest number of bytes of the tables, which grow as needed.
    """

    def __init__(
        self,
        graph: Graph,
        lower: int,
        upper: int,
        done: Sequence[int] | Ints = (),
        among: Sequence[int] | Ints | None = None,
        memory: int = PARAMS.memory,
    ):
        self._graph, self.upper = graph, upper
        n = len(graph.waits)
        self._words = max(1, (n + 63) // 64)
        self._allowed = np.ones(n, np.int64) if among is None else np.zeros(n, np.int64)
        if among is not None:
            self._allowed[np.asarray(among, np.int64)] = 1
        self._goal = n if among is None else len(done) + len(among)
        # The hash of a set combines random numbers, one for each operator in it. Lazy operators have random numbers too: they
        # never run next in a node, but they are members of sets.
        self._random = np.random.default_rng(20_240_607).integers(0, 1 << 63, (n, 2), np.int64).astype(np.uint64)
        # Each set takes about 700 bytes for itself and its nodes (:meth:`_allocate`), and 8 bytes for each word of its bits.
        self._most = max(PARAMS.fewest, int(memory / (8 * self._words + 700)))
        self._room = room_for(graph, self._words)
        self._state = np.zeros(7, np.int64)
        self._allocate(min(PARAMS.fewest, self._most))
        bits = self._sets.bits[0]
        for op in done:
            bits[int(op) >> 6] |= np.uint64(1) << np.uint64(int(op) & 63)
        self._sets.moves[0] = (-1, 0, 0)
        self._nodes.key[0], self._nodes.of[0] = lower, (len(done), 0, -1)
        self._state[[CLOSED, NODES, HEAP, BOUND]] = 1, 1, 1, lower
        self.outcome = RUNNING

    @property
    def bound(self) -> int:
        """Proven lower bound of the peak in bytes; ``upper`` if it is proven that no order stays below ``upper``."""
        return min(self.upper, int(self._state[BOUND]))

    @property
    def sets(self) -> int:
        """Number of sets that were examined."""
        return int(self._state[POPS])

    def run(self, should_stop: Callable[[], bool], sets: int | None = None) -> int:
        """Search until there is an outcome, ``should_stop`` returns True, or ``sets`` more sets are examined.

        Returns the outcome (RUNNING, FOUND, EXHAUSTED or FULL), which is RUNNING if the search can be continued. A finished
        search returns its outcome again.
        """
        slice_ = max(20, PARAMS.slice // (len(self._graph.waits) + 50))
        until = None if sets is None else self.sets + sets
        while self.outcome == RUNNING and not should_stop() and (until is None or self.sets < until):
            pops = slice_ if until is None else min(slice_, until - self.sets)
            self.outcome = search_sets(
                self._graph,
                self._allowed,
                self._goal,
                self.upper,
                pops,
                self._random,
                self._state,
                self._nodes,
                self._sets,
                self._room,
            )
            if self.outcome == FULL and len(self._sets.moves) < self._most:
                self._grow()
                self.outcome = RUNNING
        return self.outcome

    def order(self) -> list[int]:
        """The order that was found, from the first operator to the last, without the operators ``done``.

        The outcome must be FOUND; otherwise the list is empty.
        """
        parts: list[Ints] = []
        at = int(self._state[GOAL])
        while at > 0:
            parent, first, count = self._sets.moves[at]
            parts.append(self._sets.pool[first : first + count])
            at = int(parent)
        order = [int(op) for part in reversed(parts) for op in part]
        return order[::-1] if self._graph.backward else order

    def _allocate(self, sets: int) -> None:
        """Allocate empty tables for a number of sets."""
        n = len(self._graph.waits)
        nodes, pool = 8 * sets + 2 * n, 6 * sets + 2 * n
        self._nodes = Nodes(
            key=np.zeros(nodes, np.int64),
            live=np.zeros(nodes, np.int64),
            of=np.zeros((nodes, 3), np.int64),
            hashes=np.zeros((nodes, 2), np.uint64),
            heap=np.zeros(nodes, np.int64),
            table=np.full(1 << (2 * nodes).bit_length(), -1, np.int64),
        )
        self._sets = Sets(
            bits=np.zeros((sets + 2, self._words), np.uint64),
            moves=np.zeros((sets + 2, 3), np.int64),
            pool=np.zeros(pool, np.int64),
            table=np.full(1 << (2 * sets + 4).bit_length(), -1, np.int64),
        )

    def _grow(self) -> None:
        """Replace the tables by ones with the same content that have room for four times as many sets, within the memory."""
        before = *self._nodes[:-1], *self._sets[:-1]
        self._allocate(min(self._most, 4 * (len(self._sets.moves) - 2)))
        for old, new in zip(before, (*self._nodes[:-1], *self._sets[:-1]), strict=True):
            new[: len(old)] = old
        _refill(self._state, self._random, self._nodes, self._sets)


@njit_inner
def _before(key: Ints, done: Ints, live: Ints, one: int, other: int) -> bool:
    """Whether a node is expanded before another: the lower peak first, then more operators done, then fewer live bytes."""
    if key[one] != key[other]:
        return bool(key[one] < key[other])
    if done[one] != done[other]:
        return bool(done[one] > done[other])
    return bool(live[one] < live[other])


@njit_inner
def _push(heap: Ints, size: int, node: int, key: Ints, done: Ints, live: Ints) -> int:
    """Add a node to the heap; returns the new size."""
    at = size
    while at > 0:
        up = (at - 1) >> 1
        if not _before(key, done, live, node, heap[up]):
            break
        heap[at] = heap[up]
        at = up
    heap[at] = node
    return size + 1


@njit_inner
def _pop(heap: Ints, size: int, key: Ints, done: Ints, live: Ints) -> int:
    """Remove the first node from the heap and store it behind the last node; returns the new size."""
    first, size = heap[0], size - 1
    node = heap[size]
    at = 0
    while True:
        child = 2 * at + 1
        if child >= size:
            break
        if child + 1 < size and _before(key, done, live, heap[child + 1], heap[child]):
            child += 1
        if not _before(key, done, live, heap[child], node):
            break
        heap[at] = heap[child]
        at = child
    heap[at] = node
    heap[size] = first
    return size


@njit
def search_sets(
    g: Graph, allowed: Ints, goal: int, upper: int, pops: int, random: Bits2D, state: Ints, nodes: Nodes, sets: Sets, room: Room
) -> int:
    """Expand up to ``pops`` nodes, best first; returns an outcome (RUNNING, FOUND, EXHAUSTED or FULL).

    ``goal`` is the number of operators that have run at the end, and ``allowed`` [ops] is 1 for operators that may run. Orders
    whose peak is ``upper`` bytes or more are dropped. ``random`` [ops, 2] has random numbers for hashing. ``state`` (with the
    indices :data:`CLOSED` and so on), ``nodes`` and ``sets`` keep the search from one call to the next. ``room`` is scratch
    space.
    """
    # The arrays are unpacked, because numba would count references to the members of a tuple in every iteration.
    node_key, node_live, node, node_hash, heap, node_table = nodes
    closed_bits, closed, pool, closed_table = sets
    n, words = len(g.waits), closed_bits.shape[1]
    rem, waits, ready, moves, bits = room
    done_column = node[:, 0]
    closed_mask, node_mask = len(closed_table) - 1, len(node_table) - 1
    for _ in range(pops):
        if state[HEAP] == 0:
            state[BOUND] = upper
            return EXHAUSTED
        at = heap[0]
        most = node_key[at]
        if most >= upper:
            state[BOUND] = upper
            return EXHAUSTED
        state[BOUND] = max(state[BOUND], most)
        if state[CLOSED] + 1 >= len(closed_bits) or state[NODES] + n >= len(node_key) or state[MOVES] + n >= len(pool):
            return FULL
        state[POPS] += 1
        state[HEAP] = _pop(heap, state[HEAP], node_key, done_column, node_live)
        parent, op = node[at, 1], node[at, 2]
        for word in range(words):
            bits[word] = closed_bits[parent, word]
        live, count = restore(g, bits, rem, waits, ready, allowed)
        moved = 0
        if op >= 0:
            come, go, saved = weigh(g, rem, op)
            count, moved = run(g, rem, waits, bits, ready, count, moves, moved, op, allowed)
            live += come - go
        live, count, moved = settle(g, rem, waits, bits, ready, count, moves, moved, live, most, allowed)
        one_hash = np.uint64(0)
        done = 0
        for i in range(n):
            if is_done(bits, i):
                one_hash ^= random[i, 0]
                done += 1
        slot = np.int64(one_hash & np.uint64(closed_mask))
        seen = False
        while closed_table[slot] >= 0 and not seen:
            other = closed_table[slot]
            seen = True
            for w in range(words):
                if closed_bits[other, w] != bits[w]:
                    seen = False
                    break
            slot = (slot + 1) & closed_mask
        if seen and op >= 0:
            continue
        here = state[CLOSED]
        state[CLOSED] += 1
        closed_table[slot] = here
        for word in range(words):
            closed_bits[here, word] = bits[word]
        closed[here, 0], closed[here, 1], closed[here, 2] = parent, state[MOVES], moved
        for i in range(moved):
            pool[state[MOVES] + i] = moves[i]
        state[MOVES] += moved
        if done == goal:
            state[GOAL] = here
            return FOUND
        hash_one, hash_two = one_hash, np.uint64(0)
        for i in range(n):
            if is_done(bits, i):
                hash_two ^= random[i, 1]
        for i in range(count):
            op = ready[i]
            if is_done(bits, op):
                continue
            come, go, saved = weigh(g, rem, op)
            key = max(most, live + come - saved)
            if key >= upper:
                continue
            child_one, child_two, more = hash_one ^ random[op, 0], hash_two ^ random[op, 1], 1
            for k in range(g.touch_start[op], g.touch_start[op + 1]):
                x = g.touch[k]
                maker = g.maker[x]
                if rem[x] == g.total[x] and maker >= 0 and maker != op:
                    child_one ^= random[maker, 0]
                    child_two ^= random[maker, 1]
                    more += 1
            slot = np.int64(child_one & np.uint64(node_mask))
            is_dominated = False
            while node_table[slot] >= 0:
                other = node_table[slot]
                if node_hash[other, 0] == child_one and node_hash[other, 1] == child_two:
                    is_dominated = node_key[other] <= key
                    break
                slot = (slot + 1) & node_mask
            if is_dominated:
                continue
            new = state[NODES]
            state[NODES] += 1
            node_table[slot] = new
            node_hash[new, 0], node_hash[new, 1] = child_one, child_two
            node_key[new], node_live[new] = key, live + come - go
            node[new, 0], node[new, 1], node[new, 2] = done + more, here, op
            state[HEAP] = _push(heap, state[HEAP], new, node_key, done_column, node_live)
    return RUNNING


@njit
def _refill(state: Ints, random: Bits2D, nodes: Nodes, sets: Sets) -> None:
    """Rebuild the hash tables of a search. Of nodes that lead to equal sets, the latest one, which has the lowest peak, is
    entered."""
    closed_bits, closed_table, node_hash, node_table = sets.bits, sets.table, nodes.hashes, nodes.table
    closed_mask, node_mask = len(closed_table) - 1, len(node_table) - 1
    for at in range(1, state[CLOSED]):
        mixed = np.uint64(0)
        for op in range(len(random)):
            if is_done(closed_bits[at], op):
                mixed ^= random[op, 0]
        slot = np.int64(mixed & np.uint64(closed_mask))
        while closed_table[slot] >= 0:
            slot = (slot + 1) & closed_mask
        closed_table[slot] = at
    for at in range(1, state[NODES]):
        slot = np.int64(node_hash[at, 0] & np.uint64(node_mask))
        while node_table[slot] >= 0:
            other = node_table[slot]
            if node_hash[other, 0] == node_hash[at, 0] and node_hash[other, 1] == node_hash[at, 1]:
                break
            slot = (slot + 1) & node_mask
        node_table[slot] = at
