"""Local search around the peak of an order: by minimum cuts, and by exact search within windows.

The *cut* of an operator (:mod:`stowplan.models.operator_order.bounds`) is, of all sets of operators that may have run before
it, one with the fewest live bytes while it runs. Beam search looks only a few steps ahead, while the cut depends on the whole
graph: it shows which branches to finish before the peak and which not to begin. :class:`Dividing` therefore splits a *stretch*,
a range of the order around the peak, into the operators of the cut and the others, and orders each part by a beam in each
direction of time. At first, the stretch is the whole order. A *window* is a short stretch; :class:`Windows` puts its operators
into their best order.

The *peak* of an order is the largest number of bytes that are live while an operator runs. The *profile* of an order is an
array with the live bytes while each operator runs, by position. An order is a list of the numbers of all operators.
:mod:`.graph` explains graphs backwards in time and lazy operators, which need nothing and can wait until they are needed. The
methods raise no errors.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from stowplan.models.operator_order.bounds import Cuts
from stowplan.models.operator_order.structure import Structure
from stowplan.parameters import Parameters, parameters
from stowplan.portfolio.operator_order import beam
from stowplan.portfolio.operator_order.beam import complete_lazy, normalize
from stowplan.portfolio.operator_order.graph import Graph
from stowplan.portfolio.operator_order.set_search import EXHAUSTED, FOUND, SetSearch


class LocalSearchParameters(Parameters, frozen=True):
    """Parameters of local search."""

    widths: tuple[int, ...] = (2, 8, 32, 64)
    """Beam widths, in sets of operators, which splits use one after the other."""
    shortest: int = 24
    """Number of operators in the shortest stretch that is split."""
    looked_at: int = 60
    """Number of operators of a stretch, those with the most live bytes, among which the operator of the cut is chosen."""
    most: int = 600_000
    """Largest product of the number of operators and the beam width; the width is reduced to stay within it."""
    first: int = 16
    """Number of operators in the first windows, on average."""
    longest: int = 400
    """Number of operators in the longest windows, on average."""
    sets: int = 4000
    """Largest number of sets of operators that the exact search of a window examines."""
    most_cpsat: int = 60
    """Number of operators in a window up to which CP-SAT is tried if the exact search does not finish."""
    cpsat_seconds: float = 1.0
    """Limit for CP-SAT on a window, both in seconds and in the deterministic seconds with which CP-SAT counts its work. In a
    deterministic run, only the second limit counts."""
    memory: int = 60_000_000
    """Largest number of bytes of the tables of the exact search of a window."""


PARAMS = parameters(LocalSearchParameters, __name__)


class Dividing:
    """Improves an order by splitting stretches of it at minimum cuts and ordering the parts anew.

    Its attributes ``order`` and ``peak`` are the best order so far and its peak in bytes.

    Parameters
    ----------
    structure
        The problem as arrays.
    forwards, backwards
        Graphs of ``structure`` in both directions of time.
    order
        An order in which the operators can run.
    floor
        A lower bound of the peak, in bytes.
    chance
        Source of random numbers.
    """

    def __init__(
        self,
        structure: Structure,
        forwards: Graph,
        backwards: Graph,
        order: list[int],
        floor: int,
        chance: np.random.Generator,
    ):
        self._structure, self._forwards, self._backwards = structure, forwards, backwards
        self.floor, self._chance = floor, chance
        self._cuts = Cuts(structure)
        self._turn = 0
        self._least: dict[int, int] = {}
        """Live bytes at the cut of each operator whose cut was computed, which are a lower bound of the peak."""
        self.adopt(order)

    def adopt(self, order: list[int]) -> None:
        """Continue from an order, in which lazy operators are first moved to where they are needed."""
        self.order = normalize(self._forwards, order)
        self.peak = self._structure.peak(self.order)

    def step(self, should_stop: Callable[[], bool]) -> bool:
        """Split one stretch; returns whether the peak is now lower, or fewer operators reach it.

        If not, the order stays as it was. ``should_stop`` is asked in every beam; if it returns True, the step ends without a
        result.
        """
        profile = self._structure.profile(self.order)
        n = len(self.order)
        at = int(self._chance.choice(np.flatnonzero(profile == self.peak)))
        # The whole order is split with each beam width first, then ever shorter stretches, then the whole order again.
        width = PARAMS.widths[self._turn % len(PARAMS.widths)]
        halvings = self._turn // len(PARAMS.widths)
        length = n >> halvings
        self._turn += 1
        if length < PARAMS.shortest:
            self._turn, length = 0, n
        first = int(np.clip(at - self._chance.integers(0, length), 0, n - length))
        # The cut is that of an operator at the peak, or (in 40 % of the steps) of one whose cut is likely to be tight.
        by = self.order[at] if self._chance.random() < 0.6 else self._tightest(profile, first, first + length)
        split = self._split(first, first + length, by, max(1, min(width, PARAMS.most // n)), should_stop)
        if split is None or not self._is_better(split, profile):
            return False
        self._turn = 0
        self.order, self.peak = split, self._structure.peak(split)
        return True

    def _tightest(self, profile: np.ndarray, first: int, last: int) -> int:
        """Of the operators with the most live bytes in a stretch, the one with the largest bound by its cut.

        The *bound by the cut* of an operator is the number of live bytes at its cut: in every order, at least so many bytes are
        live while it runs. Cuts take time, so each call computes those of a random number of operators, and all that are known
        are compared. ``profile`` is the profile of the order, and the stretch is ``[first, last)``.
        """
        highest = np.argsort(-profile[first:last], kind="stable")[: PARAMS.looked_at]
        fullest = [self.order[first + int(i)] for i in highest]
        for op in fullest[: 1 + int(self._chance.integers(len(fullest)))]:
            if op not in self._least:
                self._least[op] = self._cuts.least(op)
        return max((op for op in fullest if op in self._least), key=lambda op: (self._least[op], -op))

    def _is_better(self, order: list[int], before: np.ndarray) -> bool:
        """Whether an order has a lower peak, or reaches it at fewer operators, than the current one, whose profile is
        ``before``."""
        profile = self._structure.profile(order)
        return (int(profile.max()), int((profile == self.peak).sum())) < (self.peak, int((before == self.peak).sum()))

    def _split(self, first: int, last: int, by: int, width: int, should_stop: Callable[[], bool]) -> list[int] | None:
        """The order in which the stretch ``[first, last)`` is split at the cut of operator ``by``.

        Each part is ordered by a beam of ``width`` sets. The result is None if no order is found for one of them.
        """
        before, inside, after = self.order[:first], self.order[first:last], self.order[last:]
        _, ran = self._cuts.cut(by, want_set=True)
        members = set(ran)
        in_cut = [op for op in inside if op in members]
        rest = [op for op in inside if op not in members]
        parts = [(before, in_cut, [*rest, *after]), ([*before, *in_cut], rest, after)]
        ordered: list[int] = []
        for earlier, among, later in parts:
            part = self._best(earlier, among, later, width, should_stop)
            if part is None:
                return None
            ordered += part
        return complete_lazy(self._forwards, [*before, *ordered, *after])

    def _best(
        self, earlier: list[int], among: list[int], later: list[int], width: int, should_stop: Callable[[], bool]
    ) -> list[int] | None:
        """The best order of the operators ``among`` that a beam finds in either direction of time.

        ``earlier`` and ``later`` are the operators before and after them. The result is None if no order is found that stays
        within the peak.
        """
        if not any(not self._forwards.is_lazy[op] for op in among):
            return among
        # The beam ranks sets by the sum of peak and live bytes, or nearly by the peak alone. The whole order is split without
        # noise, and shorter stretches with noise.
        weight = float(self._chance.choice([1.0, 1000.0]))
        noise = self._chance if self._turn > len(PARAMS.widths) else None
        best: tuple[int, list[int]] | None = None
        for graph, start in ((self._forwards, earlier), (self._backwards, later)):
            upper = self.peak + 1 if best is None else best[0]
            result = beam.search(graph, self.floor, upper, width, noise, should_stop, weight, start, among)
            if result is not None and (best is None or result[0] < best[0]):
                best = result
            if best is not None and best[0] <= self.floor:
                break
        return None if best is None else best[1]


class Windows:
    """Improves an order by exact search within windows of it, around its peak.

    Its attributes ``order`` and ``peak`` are the best order so far and its peak in bytes.

    Parameters
    ----------
    structure
        The problem as arrays.
    graph
        The graph of ``structure``, forwards in time.
    order
        An order in which the operators can run.
    floor
        A lower bound of the peak, in bytes.
    chance
        Source of random numbers.
    limits
        Function that turns seconds and work into the limits of a solver: :meth:`~stowplan.kernel.context.Context.limits`.
    """

    def __init__(
        self,
        structure: Structure,
        graph: Graph,
        order: list[int],
        floor: int,
        chance: np.random.Generator,
        limits: Callable[[float, float], tuple[float, float | None]],
    ):
        self._limits = limits
        self._structure, self._graph, self.floor, self._chance = structure, graph, floor, chance
        self._length = PARAMS.first
        self._failures = 0
        self.adopt(order)

    def adopt(self, order: list[int]) -> None:
        """Continue from an order, in which lazy operators are first moved to where they are needed."""
        self.order = normalize(self._graph, order)
        self.peak = self._structure.peak(self.order)

    def step(self, should_stop: Callable[[], bool]) -> bool:
        """Search one window; returns whether an order was found whose peak within the window is lower.

        If not, the order stays as it was. After six windows in a row without success, windows become 1.5 times as long. After
        the longest, they have their first length again.
        """
        profile = self._structure.profile(self.order)
        n = len(profile)
        highest = np.flatnonzero(profile == self.peak)
        at = int(self._chance.choice(highest))
        length = min(n, int(self._length * self._chance.uniform(0.6, 1.6)))
        first = int(np.clip(at - self._chance.integers(0, length + 1), 0, n - length))
        better = self._best_within(first, first + length, should_stop)
        if better is None:
            self._failures += 1
            if self._failures >= 6:
                self._failures = 0
                self._length = (
                    min(PARAMS.longest, n, int(1.5 * self._length)) if self._length < min(PARAMS.longest, n) else PARAMS.first
                )
            return False
        self._failures = 0
        self.order = better
        self.peak = self._structure.peak(better)
        return True

    def _best_within(self, first: int, last: int, should_stop: Callable[[], bool]) -> list[int] | None:
        """An order of all operators whose peak within the window ``[first, last)`` is lower.

        The result is None if there is no such order, if the search takes too long, or if the window has fewer than three
        operators besides lazy ones.
        """
        before, inside, after = self.order[:first], self.order[first:last], self.order[last:]
        members = set(inside)
        lazy = [op for op in inside if self._graph.is_lazy[op] and not self._is_read(op, members)]
        among = [op for op in inside if op not in set(lazy)]
        if len(among) < 3:
            return None
        top = int(self._structure.profile(self.order)[first:last].max())
        search = SetSearch(self._graph, min(self.floor, top), top, before, among, PARAMS.memory)
        outcome = search.run(should_stop, PARAMS.sets)
        if outcome == FOUND:
            return [*before, *search.order(), *lazy, *after]
        if outcome == EXHAUSTED or len(inside) > PARAMS.most_cpsat or should_stop():
            return None
        return self._by_cpsat(before, inside, after, top, should_stop)

    def _by_cpsat(
        self, before: list[int], inside: list[int], after: list[int], top: int, should_stop: Callable[[], bool]
    ) -> list[int] | None:
        """The order with the window improved by CP-SAT, which may succeed if the search over sets takes too long.

        ``before``, ``inside`` and ``after`` are the operators before, in and after the window. ``top`` is the largest number of
        live bytes within the window. The result is None if CP-SAT finds no order with fewer.
        """
        from stowplan.models.operator_order.cpsat import order_stretch

        seconds, _ = self._limits(PARAMS.cpsat_seconds, PARAMS.cpsat_seconds)
        order, _ = order_stretch(
            self._structure,
            before,
            inside,
            top - 1,
            time_limit=seconds,
            deterministic_limit=PARAMS.cpsat_seconds,
            seed=int(self._chance.integers(1 << 30)),
            should_stop=should_stop,
        )
        return None if order is None else [*before, *order, *after]

    def _is_read(self, op: int, members: set[int]) -> bool:
        """Whether one of the operators ``members`` depends on the operator ``op``."""
        after = self._graph.succ[self._graph.succ_start[op] : self._graph.succ_start[op + 1]]
        return any(int(op) in members for op in after)
