"""Local search: the operators of a stretch of an order are put into their best order, again and again, around the peak."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from stowplan.models.operator_order.structure import Structure
from stowplan.portfolio.operator_order import kernel
from stowplan.portfolio.operator_order.beam import normalize
from stowplan.portfolio.operator_order.graph import Graph
from stowplan.portfolio.operator_order.set_search import SetSearch

#: Operators of a stretch at first and at most, and sets that its search may look at.
SHORTEST, LONGEST, SETS = 16, 400, 4000

#: Operators of a stretch that CP-SAT is given where that is not enough, and seconds; in runs that are not timed seconds of its
#: own clock count, and these are a net.
MOST_CPSAT, CPSAT_SECONDS, NET_SECONDS = 60, 1.0, 60.0

#: Bytes of the tables of one such search.
_MEMORY = 60_000_000


class Windows:
    """Improves an order by exact search within stretches of it.

    Parameters
    ----------
    graph
        Of ``structure``, forwards.
    order
        One in which the operators can run.
    floor
        A bound in bytes: no order is better.
    is_timed
        Whether work may depend on the clock.
    """

    def __init__(
        self,
        structure: Structure,
        graph: Graph,
        order: list[int],
        floor: int,
        chance: np.random.Generator,
        *,
        is_timed: bool = True,
    ):
        self._is_timed = is_timed
        self._structure, self._graph, self.floor, self._chance = structure, graph, floor, chance
        self._length = SHORTEST
        self._failures = 0
        self.adopt(order)

    def adopt(self, order: list[int]) -> None:
        """Go on from an order."""
        self.order = normalize(self._graph, order)
        self.peak = self._structure.peak(self.order)

    def step(self, should_stop: Callable[[], bool]) -> bool:
        """Search one stretch; returns whether the order got better: a lower peak, or fewer moments at it."""
        profile = self._structure.profile(self.order)
        n = len(profile)
        highest = np.flatnonzero(profile == self.peak)
        at = int(self._chance.choice(highest))
        length = min(n, int(self._length * self._chance.uniform(0.6, 1.6)))
        first = int(np.clip(at - self._chance.integers(0, length + 1), 0, n - length))
        found = self._best_within(first, first + length, should_stop)
        if found is None:
            self._failures += 1
            if self._failures >= 6:
                self._failures = 0
                self._length = min(LONGEST, n, int(1.5 * self._length)) if self._length < min(LONGEST, n) else SHORTEST
            return False
        self._failures = 0
        self.order = found
        self.peak = self._structure.peak(found)
        return True

    def _best_within(self, first: int, last: int, should_stop: Callable[[], bool]) -> list[int] | None:
        """The order with a stretch of it at its best; None where it is already, or that took too long."""
        before, inside, after = self.order[:first], self.order[first:last], self.order[last:]
        members = set(inside)
        lazy = [op for op in inside if self._graph.is_lazy[op] and not self._is_read(op, members)]
        among = [op for op in inside if op not in set(lazy)]
        if len(among) < 3:
            return None
        top = int(self._structure.profile(self.order)[first:last].max())
        search = SetSearch(self._graph, min(self.floor, top), top, before, among, _MEMORY)
        outcome = search.run(should_stop, SETS)
        if outcome == kernel.FOUND:
            return [*before, *search.order(), *lazy, *after]
        if outcome == kernel.EXHAUSTED or len(inside) > MOST_CPSAT or should_stop():
            return None
        return self._by_cpsat(before, inside, after, top, should_stop)

    def _by_cpsat(
        self, before: list[int], inside: list[int], after: list[int], top: int, should_stop: Callable[[], bool]
    ) -> list[int] | None:
        """Where a search over sets takes too long, another way may not."""
        from stowplan.models.operator_order.cpsat import order_stretch

        order, _ = order_stretch(
            self._structure,
            before,
            inside,
            top - 1,
            time_limit=CPSAT_SECONDS if self._is_timed else NET_SECONDS,
            deterministic_limit=CPSAT_SECONDS,
            seed=int(self._chance.integers(1 << 30)),
            should_stop=should_stop,
        )
        return None if order is None else [*before, *order, *after]

    def _is_read(self, op: int, members: set[int]) -> bool:
        after = self._graph.succ[self._graph.succ_start[op] : self._graph.succ_start[op + 1]]
        return any(int(each) in members for each in after)
