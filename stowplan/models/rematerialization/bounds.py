"""Bounds on the peak and on the added cost of every plan, from minimum cuts (``cuts``) and from the channel to a host.

Without a host the bound on the added cost is that of the cut at the first run of an operator: the largest of all. With a
host, what runs afterwards reads what is live at that moment, what is computed again, or what is fetched. Say that ``F`` bytes
are fetched. They stand on the host while the operator runs, and not on the device: their copies to the host have ended before
it, and those back begin behind it. Of plans with that ``F``

- what runs again costs at least as much as with ``F`` bytes more on the device and no host: ``R(F)``, which a cut bounds;
- before the operator take place all that it needs, and ``F`` bytes on the channel; behind it all that needs it, with ``R(F)``,
  and ``F`` bytes on the channel; the longer of two counts on either side.

``R`` falls with ``F``, and times on the channel grow, so that one of them is large for every ``F`` between two others. The
least over all of them is what no plan is below.
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
    """The bound on the added cost at the first run of every operator."""

    def __init__(self, structure: Structure, should_stop: Callable[[], bool] = lambda: False):
        channel = structure.problem.channel
        self.structure, self.should_stop = structure, should_stop
        self.moments = Moments(structure)
        self.bandwidth = Fraction(1 if channel is None else channel.bandwidth)
        self.most_bytes = 0 if channel is None else min(channel.limit, sum(structure.size))
        """That can be fetched behind one moment."""
        self._proofs: dict[int, Proof] = {}

    @property
    def proofs(self) -> dict[int, Proof]:
        """What proves the last result of :meth:`added_cost`: by the most fetched bytes of each range, ascending, a cut.

        Before there is a result it proves nothing but what the operator itself takes.
        """
        return self._proofs or {self.most_bytes: self.moments.proof}

    def added_cost(self, op: int, limit: int) -> int | None:
        """Cost that a plan within the limit adds, at least, by this operator's first run; None where nothing fits."""
        if not self.most_bytes:
            return self.moments.added_cost(op, limit)
        cost = self.structure.cost
        once = sum(cost)
        before = sum(cost[other] for other in bits(self.moments.before[op]))
        behind = sum(cost[other] for other in bits(self.moments.after[op]))
        again: dict[int, int | None] = {}
        proofs: dict[int, Proof] = {}

        def least(low: int, high: int) -> float:
            """Over all from ``low`` to ``high`` bytes that are fetched; infinite where nothing fits."""
            if high not in again:
                again[high] = self.moments.added_cost(op, limit + high)
                proofs[high] = self.moments.proof
            runs = again[high]
            if runs is None:
                return float("inf")
            copies = ceil(low / self.bandwidth)
            return max(runs, max(copies, before) + cost[op] + max(copies, behind + runs) - once)

        # The range with the least bound is halved repeatedly.
        ranges = [(least(0, self.most_bytes), 0, self.most_bytes)]
        for _ in range(HALVINGS):
            _, low, high = ranges[0]
            if again[self.most_bytes] is None or high - low < 2 or self.should_stop():
                break
            heapq.heappop(ranges)
            middle = (low + high) // 2
            for begin, end in ((low, middle), (middle, high)):
                heapq.heappush(ranges, (least(begin, end), begin, end))
        bound = ranges[0][0]
        # As few ranges as show it.
        self._proofs, begin = {}, 0
        while begin <= self.most_bytes:
            end = max(high for high in proofs if high >= begin and least(begin, high) >= bound)
            self._proofs[end], begin = proofs[end], end + 1
        return None if again[self.most_bytes] is None else int(bound)


def always_live(structure: Structure) -> set[int]:
    """Storages that are live at every step: inputs that stay; with a host only those that may not be sent there."""
    may_be_sent = structure.problem.channel is not None and structure.problem.free_inputs
    return {value for value, kept in enumerate(structure.kept) if kept and structure.writer[value] < 0 and not may_be_sent}


def load_bound(structure: Structure) -> int:
    """Bytes that no peak is below.

    What an operator itself reads and writes, beside what is always live; and all that is there at the end, without a host with
    what the last operator to write some of it takes besides.
    """
    moments = Moments(structure)
    loads = [end_load(structure), *moments.least_loads(always_live(structure))]
    if structure.problem.channel is None:
        kept = [value for value, stays in enumerate(structure.kept) if stays]
        ends = {structure.root[value] for value in kept}
        last = [{*moments.held(op), *structure.writes[op]} - ends for op in {structure.writer[value] for value in kept} - {-1}]
        besides = min((sum(structure.size[value] for value in storages) for storages in last), default=0)
        loads.append(sum(structure.size[value] for value in ends) + besides)
    return max(loads)


def end_load(structure: Structure) -> int:
    """The load of a plan's last step, at least: all that is there at the end, and what is reserved then."""
    ends = {structure.root[value] for value, kept in enumerate(structure.kept) if kept}
    moments, rows = Moments(structure), structure.reservations
    last = [row for row in rows if row.until is None] if structure.ops else []
    reserved = [row.size + (0 if row.of is None else row.times * moments.own_bytes(row.of)) for row in last]
    return sum(structure.size[value] for value in ends) + max([0, *reserved])


def least_peak(structure: Structure, should_stop: Callable[[], bool] = lambda: False, enough: int | None = None) -> int:
    """Bytes that no plan's peak is below, as far as there was time; no more is proven than ``enough``.

    Cuts count where nothing may go to a host.
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
    """Cost that no plan within a limit adds less than, as far as there was time.

    Parameters
    ----------
    limit
        Bytes.
    on_bound
        Called with every better bound.
    most
        Operators looked at, at most.

    Returns
    -------
    int or None
        None where it is proven that no plan is within the limit.
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
    """Operators by the bytes that are live at them in the order given, most first."""
    profile = structure.ordering.profile(structure.order)
    return [structure.order[at] for at in np.argsort(-profile[: structure.ops], kind="stable")]
