"""Checks proofs of the form ``search`` for operator order, by a search over the sets of operators that may have run so far.

The search goes forwards from the start or backwards from the end. In a backward search, an operator "has run" if the search has
visited it, so that a set has the last operators of an order.

Sets are bit masks. Bit i is operator i. To *touch* a storage, a tensor with bytes of its own, is to read or write it. Two more
bits represent the start, which touches the inputs, and the end, which touches the storages that must exist then. A storage is
live between a set of operators and the others if both touch it:

    live(done) = sum of the sizes of storages with users & done and users & ~done
"""

from __future__ import annotations

from typing import NamedTuple

from stowplan.certificates.checker.graphs import Graph
from stowplan.certificates.checker.reading import LOOKS, Fields, need, walk, whole


class Run(NamedTuple):
    """The state after an operator has run. States are compared by their fields in this order."""

    live: int
    """Bytes that are live afterwards."""
    op: int
    """The operator that ran."""
    done: int
    """Mask of all operators that have run."""


class Orders:
    """Tells which operators may run next and how many bytes are live, in a search from the start or backwards from the end."""

    def __init__(self, graph: Graph, is_backwards: bool):
        self.size, self.is_backwards = graph.size, is_backwards
        ops = range(len(graph.ops))
        self.touched, self.replaced = [graph.touched(op) for op in ops], graph.replaced
        start, end = 1 << len(ops), 2 << len(ops)
        self.users = [start * (storage in graph.initial) + end * (storage in graph.final) for storage in range(len(graph.size))]
        """Mask of the operators that touch each storage."""
        for op in ops:
            for storage in self.touched[op]:
                self.users[storage] |= 1 << op
        before, self.next = (graph.after, graph.before) if is_backwards else (graph.before, graph.after)
        self.needed = [sum(1 << other for other in before[op]) for op in ops]
        """Mask of the operators that must run before each operator."""
        self.first = end if is_backwards else start
        """The mask at which the search begins: only the start, or only the end."""

    def live(self, done: int) -> int:
        """Bytes that are live between the operators that have run and the others."""
        return sum(size for size, users in zip(self.size, self.users, strict=True) if users & done and users & ~done)

    def ready(self, done: int, ops: list[int]) -> list[int]:
        """Those of ``ops`` whose predecessors have all run."""
        return [op for op in ops if not self.needed[op] & ~done]

    def run(self, op: int, done: int, live: int) -> tuple[int, Run]:
        """The number of bytes that are live while an operator runs, and the state afterwards.

        peak = live + sizes of storages that become live with it - sizes of storages whose bytes a result overwrites
        """
        then = done | 1 << op
        peak = after = live
        for storage in self.touched[op]:
            size, users = self.size[storage], self.users[storage]
            is_live, stays = bool(users & done), bool(users & ~then)
            after += size * (stays - is_live)
            # A result may overwrite a storage only if no later operator uses it. In a backward search, the later operators are
            # those in ``done``.
            is_overwritten = storage in self.replaced[op] and not (is_live if self.is_backwards else stays)
            peak += size * (not is_live) - size * is_overwritten
        return peak, Run(after, op, then)


def search(problem: Fields, proof: Fields, looks: int = LOOKS // 4) -> int:
    """Checks that every order has a peak of at least ``below``, a number of bytes in the proof, and returns this number.

    The search runs an operator only if the peak at it is smaller than ``below``. The proof holds if the search never gets to
    the set of all operators. If the bytes that are live where the search begins are already at least ``below``, nothing is
    searched.

    ``live`` is submodular. If an operator has a peak smaller than ``below`` and leaves no more bytes live than before, it may
    therefore be run at once: every order can be changed so that it comes next, without a higher peak.

    Parameters
    ----------
    looks
        Maximum number of operators that the search looks at.

    Raises
    ------
    UnprovenError
        An order has a peak smaller than ``below``, the search would take too long, or a tensor is a view of itself.
    MalformedError
        ``below`` is not a whole number.
    """
    graph, below = Graph(problem), whole(proof, "below")
    orders = Orders(graph, proof.get("from") == "end")
    done, live = orders.first, orders.live(orders.first)
    first = [op for op in range(len(graph.ops)) if not orders.needed[op]]
    waiting, seen = [(done, live, first)] if live < below else [], {done}
    for done, live, ready in walk(waiting, lambda state: 1 + len(state[2]), looks):
        need(bool(ready), "proof.below", "an order stays below it")
        for run in _runs_below(orders, below, done, live, ready):
            if run.done not in seen:
                seen.add(run.done)
                others = [op for op in ready if op != run.op]
                waiting.append((run.done, run.live, others + orders.ready(run.done, [*orders.next[run.op]])))
    return below


def _runs_below(orders: Orders, below: int, done: int, live: int, ready: list[int]) -> list[Run]:
    """The states after those operators of ``ready`` whose peak is smaller than ``below``.

    If one of them leaves no more bytes live than before, only the state with the fewest live bytes is returned.
    """
    runs = [run for peak, run in (orders.run(op, done, live) for op in ready) if peak < below]
    best = min(runs, default=None)
    return [best] if best is not None and best.live <= live else runs
