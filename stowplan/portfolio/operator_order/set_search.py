"""Exact search for an order of least peak, over sets of operators that have run."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from stowplan.portfolio.operator_order import kernel
from stowplan.portfolio.operator_order.graph import Graph, Ints

#: Bytes that the tables of a search take at most, and sets in the smallest.
MEMORY = 400_000_000
FEWEST = 1 << 10

#: Operators times sets between two looks at the clock.
_SLICE = 3_000_000


class SetSearch:
    """A search from one set of operators to another; it goes on where it was stopped.

    Parameters
    ----------
    lower
        A bound in bytes: no order is better.
    upper
        Orders that need so many bytes or more are of no use.
    done
        Operators that have run before.
    among
        Those that are to run; all others that are not done by default.
    memory
        Bytes of its tables at most. They grow as they are needed.
    """

    def __init__(
        self,
        graph: Graph,
        lower: int,
        upper: int,
        done: Sequence[int] | Ints = (),
        among: Sequence[int] | Ints | None = None,
        memory: int = MEMORY,
    ):
        self._graph, self.upper = graph, upper
        n = len(graph.waits)
        self._words = max(1, (n + 63) // 64)
        self._allowed = np.ones(n, np.int64) if among is None else np.zeros(n, np.int64)
        if among is not None:
            self._allowed[np.asarray(among, np.int64)] = 1
        self._goal = n if among is None else len(done) + len(among)
        # What is lazy runs with who reads it, so it counts as well.
        self._random = np.random.default_rng(20_240_607).integers(0, 1 << 63, (n, 2), np.int64).astype(np.uint64)
        self._most = max(FEWEST, int(memory / (8 * self._words + 700)))
        self._state = np.zeros(7, np.int64)
        self._make(min(FEWEST, self._most))
        bits = self._closed_bits[0]
        for op in done:
            bits[int(op) >> 6] |= np.uint64(1) << np.uint64(int(op) & 63)
        self._closed[0] = (-1, 0, 0)
        self._node_key[0], self._node[0] = lower, (len(done), 0, -1)
        self._state[[kernel.CLOSED, kernel.NODES, kernel.HEAP, kernel.BOUND]] = 1, 1, 1, lower
        self.outcome = kernel.RUNNING

    @property
    def bound(self) -> int:
        """Proven least peak in bytes, or ``upper`` where nothing is below that."""
        return min(self.upper, int(self._state[kernel.BOUND]))

    @property
    def sets(self) -> int:
        """Sets looked at."""
        return int(self._state[kernel.POPS])

    def run(self, should_stop: Callable[[], bool], sets: int | None = None) -> int:
        """Search until it is decided, stopped, or has looked at so many sets; returns the outcome (:mod:`.kernel`)."""
        slice_ = max(20, _SLICE // (len(self._graph.waits) + 50))
        until = None if sets is None else self.sets + sets
        while self.outcome == kernel.RUNNING and not should_stop() and (until is None or self.sets < until):
            pops = slice_ if until is None else min(slice_, until - self.sets)
            self.outcome = kernel.search(
                self._graph, self._allowed, self._goal, self.upper, pops, self._random, self._state, *self._tables()
            )
            if self.outcome == kernel.FULL and len(self._closed) < self._most:
                self._grow()
                self.outcome = kernel.RUNNING
        return self.outcome

    def order(self) -> list[int]:
        """The operators in the order found, in the graph's direction."""
        found: list[Ints] = []
        at = int(self._state[kernel.GOAL])
        while at > 0:
            parent, first, count = self._closed[at]
            found.append(self._pool[first : first + count])
            at = int(parent)
        return [int(op) for part in reversed(found) for op in part]

    def _tables(self) -> tuple[np.ndarray, ...]:
        return (
            self._closed_bits, self._closed, self._node_key, self._node_live, self._node, self._node_hash, self._heap,
            self._pool, self._closed_table, self._node_table,
        )  # fmt: skip

    def _make(self, sets: int) -> None:
        n = len(self._graph.waits)
        nodes, pool = 8 * sets + 2 * n, 6 * sets + 2 * n
        self._closed_bits = np.zeros((sets + 2, self._words), np.uint64)
        self._closed = np.zeros((sets + 2, 3), np.int64)
        self._node_key, self._node_live = np.zeros(nodes, np.int64), np.zeros(nodes, np.int64)
        self._node, self._node_hash = np.zeros((nodes, 3), np.int64), np.zeros((nodes, 2), np.uint64)
        self._heap, self._pool = np.zeros(nodes, np.int64), np.zeros(pool, np.int64)
        self._closed_table = np.full(1 << (2 * sets + 4).bit_length(), -1, np.int64)
        self._node_table = np.full(1 << (2 * nodes).bit_length(), -1, np.int64)

    def _grow(self) -> None:
        """Larger tables with the same content."""
        before = self._tables()[:8]
        self._make(min(self._most, 4 * (len(self._closed) - 2)))
        for old, new in zip(before, self._tables()[:8], strict=True):
            new[: len(old)] = old
        kernel.refill(self._state, self._random, self._closed_bits, self._node_hash, self._closed_table, self._node_table)
