"""Drafts of plans from the two cuts about a limit: no program is solved, so that deep graphs have one soon.

The best price of a byte at a moment (:mod:`stowplan.models.rematerialization.bounds`) lies between two cuts: one above the
limit, one within it that costs more. Each says what runs again afterwards, and every such set makes a plan: what these
operators read is kept. Layers that repeat change all at one price, which puts the cuts far apart. In between is a plan whose
operators up to some place of the order are those of the dearer cut, and behind it those of the cheaper. The first layers, whose
backward passes come last, then run most again, when those behind them are gone. The place is found by bisection.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import numpy as np

from stowplan.models.rematerialization.bounds import Moments
from stowplan.models.rematerialization.moments import in_stages
from stowplan.portfolio.rematerialization.engine import profile
from stowplan.portfolio.rematerialization.insertion import Insertion

#: Graphs of so many operators have such a draft before all else.
LARGE = 1000

#: Pairs of cuts that are tried, each for less than the one before.
PAIRS = 6


class TwoCuts:
    """Drafts with one moment.

    Parameters
    ----------
    moment
        Operator at whose first run the cuts are.
    """

    def __init__(self, insertion: Insertion, moments: Moments, moment: int):
        self.insertion, self.structure, self.moments, self.moment = insertion, insertion.structure, moments, moment
        past = moments.before[moment] | 1 << moment
        self.before = [op for op in self.structure.order if moments.before[moment] >> op & 1]
        # What must not run behind something that has run.
        self._barred = {first for first, second in self.structure.problem.precedences if past >> second & 1}
        place = self.structure.order.index(moment)
        self._first, self._behind = self.structure.order[:place], self.structure.order[place + 1 :]

    def sequence(self, again: Collection[int]) -> list[int]:
        """The order given, and what runs again after the moment right before it is needed."""
        return in_stages(self.structure, [self.moment], [self._first, {*self._behind, *again} - self._barred])

    def peak(self, sequence: Sequence[int]) -> int:
        """Bytes; more than any limit where something is read that is not there."""
        runs, live, count = np.array(sequence, np.int64), self.insertion.desk.live, len(sequence)
        if count > self.insertion.room or not profile(self.insertion.graph, self.insertion.work, runs, count, live):
            return 1 << 62
        return int(live[:count].max())

    def draft(self, limit: int, should_stop: Callable[[], bool] = lambda: False) -> list[int] | None:
        """A sequence within the limit; None where no pair of cuts has one."""
        aim, lowest = limit, 1 << 62
        for _ in range(PAIRS):
            if should_stop() or not self.moments.added_cost(self.moment, aim) or self.moments.around is None:
                return None
            low, high = self.moments.around
            sequence = self.sequence(high.again)
            peak = self.peak(sequence)
            if peak <= limit:
                return self._between(low.again, high.again, limit, should_stop) or sequence
            if peak >= lowest:
                return None
            lowest = peak
            aim = min(aim - (peak - limit), high.bytes + self.moments.own_bytes(self.moment) - 1)
        return None

    def _between(
        self, low: Collection[int], high: Collection[int], limit: int, should_stop: Callable[[], bool]
    ) -> list[int] | None:
        """The sequence of the first place of the order up to which operators go by the dearer cut, that is within the limit."""
        best, begin, end = None, 0, len(self.before)
        while end - begin > 1 and not should_stop():
            middle = (begin + end) // 2
            head = {*self.before[:middle]}
            sequence = self.sequence(({*low} - head) | ({*high} & head))
            if self.peak(sequence) <= limit:
                best, end = sequence, middle
            else:
                begin = middle
        return best
