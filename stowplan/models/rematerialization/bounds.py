"""Lower bounds on the peak and on the added cost of every plan, from minimum cuts (``cuts``) and from the channel to a host.

The *host* is a second memory; a plan can send values to it over a channel and fetch them back. A *reservation* is memory that
something outside the graph occupies during a part of a plan (:class:`~.problem.Reservation`), and the *load* of a step is its
live bytes plus the largest reservation in force. Without a host, each operator gives a bound on the added cost by the minimum
cut at its first run. The largest of these bounds is the bound of the problem.

With a host, a value that is read after an operator's first run is live at that run, is recomputed later, or is fetched later.
Let ``F`` be the number of bytes that are fetched later. While the operator runs, these bytes are on the host and not on the
device. Their copies to the host have therefore ended before it, and the copies back begin after it. For every plan with this
``F``:

- The recomputations cost at least as much as without a host but with ``F`` more bytes on the device. Call this cost ``R(F)``; a
  cut bounds it from below.
- Before the operator runs, all its predecessors run, and ``F`` bytes pass the channel; the longer of the two durations counts.
  After it, all its successors and the recomputations run, and ``F`` bytes pass the channel; again the longer one counts.

``R(F)`` falls with ``F``, and the time on the channel grows. The time on the channel at the lower end of a range of values of
``F``, and ``R`` at its upper end, therefore give a lower bound for all ``F`` in the range. The search begins with one range for
all values of ``F`` and repeatedly halves the range with the smallest bound. The smallest bound of all ranges holds for every
plan.

The argument ``structure`` has the problem as lists (:class:`~.structure.Structure`). Nothing here raises an error for a valid
problem.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from fractions import Fraction
from math import ceil

import numpy as np

from stowplan.models.rematerialization.cuts import Moments, Proof, bits
from stowplan.models.rematerialization.structure import Structure

#: How often a range of fetched bytes is halved for one operator.
HALVINGS = 24


class Bounds:
    """Computes the bound on the added cost at the first run of an operator, with a host or without.

    When ``should_stop`` returns True, no further ranges of fetched bytes are halved. The bound is then valid but smaller.
    """

    def __init__(self, structure: Structure, should_stop: Callable[[], bool] = lambda: False):
        channel = structure.problem.channel
        self.structure, self.should_stop = structure, should_stop
        self.moments = Moments(structure)
        self.bandwidth = Fraction(1 if channel is None else channel.bandwidth)
        self.most_bytes = 0 if channel is None else min(channel.limit, sum(structure.size))
        """Largest number of bytes that can be fetched after one moment."""
        self._proofs: dict[int, Proof] = {}

    @property
    def proofs(self) -> dict[int, Proof]:
        """The cuts that prove the last result of :meth:`added_cost`.

        Keys are the upper ends of the ranges of fetched bytes, ascending. Before the first result there is a single cut, which
        proves only the bytes of the operator itself.
        """
        return self._proofs or {self.most_bytes: self.moments.proof}

    def added_cost(self, op: int, limit: int) -> int | None:
        """Lower bound on the added cost of plans within the limit in bytes, from this operator's first run; None if no plan
        fits."""
        if not self.most_bytes:
            return self.moments.added_cost(op, limit)
        cost = self.structure.cost
        once = sum(cost)
        before = sum(cost[other] for other in bits(self.moments.before[op]))
        cost_after = sum(cost[other] for other in bits(self.moments.after[op]))
        recomputation: dict[int, int | None] = {}
        proofs: dict[int, Proof] = {}

        def range_bound(low: int, high: int) -> float:
            """Bound for all plans that fetch from ``low`` to ``high`` bytes; infinite if none of them fits."""
            if high not in recomputation:
                recomputation[high] = self.moments.added_cost(op, limit + high)
                proofs[high] = self.moments.proof
            runs = recomputation[high]
            if runs is None:
                return float("inf")
            copies = ceil(low / self.bandwidth)
            return max(runs, max(copies, before) + cost[op] + max(copies, cost_after + runs) - once)

        # The range with the smallest bound is halved repeatedly.
        ranges = [(range_bound(0, self.most_bytes), 0, self.most_bytes)]
        for _ in range(HALVINGS):
            _, low, high = ranges[0]
            if recomputation[self.most_bytes] is None or high - low < 2 or self.should_stop():
                break
            heapq.heappop(ranges)
            middle = (low + high) // 2
            for begin, end in ((low, middle), (middle, high)):
                heapq.heappush(ranges, (range_bound(begin, end), begin, end))
        bound = ranges[0][0]
        # Select few ranges that prove the bound together: each is as long as possible.
        self._proofs, begin = {}, 0
        while begin <= self.most_bytes:
            end = max(high for high in proofs if high >= begin and range_bound(begin, high) >= bound)
            self._proofs[end], begin = proofs[end], end + 1
        return None if recomputation[self.most_bytes] is None else int(bound)


def always_live(structure: Structure) -> set[int]:
    """Storages that are live at every step: inputs that stay to the end and that may not be sent to a host."""
    may_be_sent = structure.problem.channel is not None and structure.problem.free_inputs
    return {value for value, kept in enumerate(structure.kept) if kept and structure.writer[value] < 0 and not may_be_sent}


def load_bound(structure: Structure) -> int:
    """Lower bound in bytes on the peak of any plan, without minimum cuts. It is the largest of these numbers:

    * for each operator, the bytes that it reads and writes, plus those that are always live;
    * the bytes that are live at the end;
    * without a host, the bytes that are live at the end, plus the other bytes that are live when the last of the values that
      stay to the end is written. It is not known which operator writes this value, so the operator that needs the fewest other
      bytes counts.
    """
    moments = Moments(structure)
    loads = [end_load(structure), *moments.least_loads(always_live(structure))]
    if structure.problem.channel is None:
        kept = [value for value, stays in enumerate(structure.kept) if stays]
        ends = {structure.root[value] for value in kept}
        last = [
            {*moments.retained(op), *structure.writes[op]} - ends for op in {structure.writer[value] for value in kept} - {-1}
        ]
        besides = min((sum(structure.size[value] for value in storages) for storages in last), default=0)
        loads.append(sum(structure.size[value] for value in ends) + besides)
    return max(loads)


def end_load(structure: Structure) -> int:
    """Lower bound in bytes on the load of a plan's last step: all values that stay to the end, and bytes reserved at the
    end."""
    ends = {structure.root[value] for value, kept in enumerate(structure.kept) if kept}
    moments, rows = Moments(structure), structure.reservations
    last = [row for row in rows if row.until is None] if structure.ops else []
    reserved = [row.size + (0 if row.of is None else row.times * moments.own_bytes(row.of)) for row in last]
    return sum(structure.size[value] for value in ends) + max([0, *reserved])


def least_peak(structure: Structure, should_stop: Callable[[], bool] = lambda: False, enough: int | None = None) -> int:
    """Lower bound in bytes on the peak of any plan, from minimum cuts if there is no host.

    The search for a better bound ends when ``should_stop`` returns True or the bound reaches ``enough``.
    """
    moments, best = Moments(structure), load_bound(structure)
    for op in fullest_first(structure) if structure.problem.channel is None else ():
        if should_stop() or (enough is not None and best >= enough):
            break
        best = max(best, moments.least_bytes(op))
    return best


def added_cost(
    structure: Structure,
    limit: int,
    should_stop: Callable[[], bool] = lambda: False,
    on_bound: Callable[[int], None] = lambda bound: None,
    most: int | None = None,
) -> int | None:
    """Lower bound on the added cost of every plan within a limit.

    Parameters
    ----------
    limit
        Limit in bytes.
    should_stop
        The function returns the bound so far when this returns True.
    on_bound
        Called with every better bound.
    most
        Largest number of operators to consider; None for all operators.

    Returns
    -------
    int or None
        The bound; None if it is proven that no plan is within the limit.
    """
    if load_bound(structure) > limit:
        return None
    bounds, best = Bounds(structure, should_stop), 0
    for op in fullest_first(structure)[:most]:
        if should_stop():
            break
        cost = bounds.added_cost(op, limit)
        if cost is None:
            return None
        if cost > best:
            best = cost
            on_bound(best)
    return best


def fullest_first(structure: Structure) -> list[int]:
    """Operators in descending order of the bytes that are live at them in the order of the input."""
    profile = structure.ordering.profile(structure.order)
    return [structure.order[at] for at in np.argsort(-profile[: structure.ops], kind="stable")]
