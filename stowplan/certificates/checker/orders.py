"""Form ``search`` of operator order: all sets of operators that may have run, from the start or, backwards, from the end.

Sets are masks: bit i is operator i, and two more bits stand for the start, which touches what is given, and the end, which
touches what is kept. What is live between the operators of a set and the others is touched by both:

    live(done) = sum of the sizes of storages with users & done and users & ~done
"""

from __future__ import annotations

from typing import NamedTuple

from stowplan.certificates.checker.graphs import Graph
from stowplan.certificates.checker.reading import LOOKS, Fields, need, walk, whole


class Run(NamedTuple):
    """One operator more has run; runs are compared in this order."""

    live: int
    """Bytes after it."""
    op: int
    done: int
    """Mask of what has run with it."""


class Orders:
    """Sets of operators that may have run, from one end."""

    def __init__(self, graph: Graph, is_backwards: bool):
        self.size, self.is_backwards = graph.size, is_backwards
        ops = range(len(graph.ops))
        self.touched, self.replaced = [graph.touched(op) for op in ops], graph.replaced
        start, end = 1 << len(ops), 2 << len(ops)
        self.users = [start * (storage in graph.given) + end * (storage in graph.kept) for storage in range(len(graph.size))]
        """Of each storage who touches it."""
        for op in ops:
            for storage in self.touched[op]:
                self.users[storage] |= 1 << op
        before, self.next = (graph.after, graph.before) if is_backwards else (graph.before, graph.after)
        self.needed = [sum(1 << other for other in before[op]) for op in ops]
        """Of each operator who must have run."""
        self.first = end if is_backwards else start
        """The set of none but the end that the search begins at."""

    def live(self, done: int) -> int:
        """Bytes between those that have run and the others."""
        return sum(size for size, users in zip(self.size, self.users, strict=True) if users & done and users & ~done)

    def ready(self, done: int, ops: list[int]) -> list[int]:
        """Operators of which all that they need has run."""
        return [op for op in ops if not self.needed[op] & ~done]

    def run(self, op: int, done: int, live: int) -> tuple[int, Run]:
        """Bytes while an operator runs, and what comes of it.

        peak = live + sizes of what begins with it - sizes of what gives its bytes to a result
        """
        then = done | 1 << op
        peak = after = live
        for storage in self.touched[op]:
            size, users = self.size[storage], self.users[storage]
            is_live, stays = bool(users & done), bool(users & ~then)
            after += size * (stays - is_live)
            # Backwards, what is live before an operator has run is what it leaves.
            is_overwritten = storage in self.replaced[op] and not (is_live if self.is_backwards else stays)
            peak += size * (not is_live) - size * is_overwritten
        return peak, Run(after, op, then)


def search(problem: Fields, proof: Fields, looks: int = LOOKS // 4) -> int:
    """Peak ``below`` which no order stays: each way to go on ends where every operator has a peak that is no less.

    There are none to look at where what is live at the chosen end is no less.

    ``live`` is submodular. So an operator that leaves no more live, and stays below, may be taken at once: every order goes on
    no worse after it.
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
    """Operators that stay below; one alone where it leaves no more live."""
    runs = [run for peak, run in (orders.run(op, done, live) for op in ready) if peak < below]
    best = min(runs, default=None)
    return [best] if best is not None and best.live <= live else runs
