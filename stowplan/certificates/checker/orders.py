"""Form ``search`` of operator order, over all sets of operators that may have run, from the start or backwards from the end.

Sets are bit masks. Bit i is operator i. Two more bits stand for the start, which touches the inputs, and for the end, which
touches what must exist at the end. A storage that is live between the operators of a set and the others is touched by both:

    live(done) = sum of the sizes of storages with users & done and users & ~done
"""

from __future__ import annotations

from typing import NamedTuple

from stowplan.certificates.checker.graphs import Graph
from stowplan.certificates.checker.reading import LOOKS, Fields, need, walk, whole


class Run(NamedTuple):
    """The state after another operator has run. States are compared by their fields in this order."""

    live: int
    """Bytes that are live afterwards."""
    op: int
    done: int
    """Mask of all operators that have run."""


class Orders:
    """The sets of operators that may have run, from one end."""

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
        """Bytes that are live while an operator runs, and the state afterwards.

        peak = live + sizes of storages that begin with it - sizes of storages that give their bytes to a result
        """
        then = done | 1 << op
        peak = after = live
        for storage in self.touched[op]:
            size, users = self.size[storage], self.users[storage]
            is_live, stays = bool(users & done), bool(users & ~then)
            after += size * (stays - is_live)
            # In a backward search, bytes that are live before an operator runs are those that it leaves in a forward one.
            is_overwritten = storage in self.replaced[op] and not (is_live if self.is_backwards else stays)
            peak += size * (not is_live) - size * is_overwritten
        return peak, Run(after, op, then)


def search(problem: Fields, proof: Fields, looks: int = LOOKS // 4) -> int:
    """The peak ``below`` which no order stays: every way to continue ends where each operator has a peak of at least that.

    Nothing needs to be searched if the bytes that are live at the chosen end are at least ``below``.

    ``live`` is submodular. An operator that stays below and leaves no more bytes live may therefore be run at once: every order
    can be changed so that it comes next, without a higher peak.
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
    """The states after operators that stay below; only one of them if it leaves no more bytes live."""
    runs = [run for peak, run in (orders.run(op, done, live) for op in ready) if peak < below]
    best = min(runs, default=None)
    return [best] if best is not None and best.live <= live else runs
