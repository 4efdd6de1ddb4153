"""Bounds on the added cost where values may go to a host: at the first run of an operator, as in ``bounds``.

What runs afterwards reads what is live at that moment, what is computed again, or what is fetched. Say that ``F`` bytes are.
They stand on the host while the operator runs, and not on the device: their copies to the host have ended before it, and those
back begin behind it. Of plans with that ``F``

- what runs again costs at least as much as with ``F`` bytes more on the device and no host (``bounds``): ``R(F)``;
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

from stowplan.models.rematerialization.bounds import Moments, Proof, bits, end_load, fullest_first, largest
from stowplan.models.rematerialization.structure import Structure

#: Ranges of bytes that are looked at for one operator.
RANGES = 24


class HostMoments:
    """The bound of every operator of a problem with a channel."""

    def __init__(self, structure: Structure, should_stop: Callable[[], bool] = lambda: False):
        channel = structure.problem.channel
        assert channel is not None
        self.structure, self.should_stop = structure, should_stop
        self.moments = Moments(structure)
        self.bandwidth = Fraction(channel.bandwidth)
        self.most_bytes = min(channel.limit, sum(structure.size))
        self.once = sum(structure.cost)
        self.proofs: dict[int, Proof] = {self.most_bytes: (1, 0, [])}
        """Of the last result of :meth:`added_cost`: by the most bytes of each range, ascending, what proves ``R`` of them."""

    def added_cost(self, op: int, limit: int) -> int | None:
        """Cost that a plan within the limit adds, at least, by this operator's first run; None where nothing fits."""
        cost = self.structure.cost
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
            return max(runs, max(copies, before) + cost[op] + max(copies, behind + runs) - self.once)

        # The range with the least bound is halved, again and again.
        ranges = [(least(0, self.most_bytes), 0, self.most_bytes)]
        for _ in range(RANGES):
            _, low, high = ranges[0]
            if again[self.most_bytes] is None or high - low < 2 or self.should_stop():
                break
            heapq.heappop(ranges)
            middle = (low + high) // 2
            for begin, end in ((low, middle), (middle, high)):
                heapq.heappush(ranges, (least(begin, end), begin, end))
        bound = ranges[0][0]
        # As few ranges as show it.
        self.proofs, begin = {}, 0
        while begin <= self.most_bytes:
            end = max(high for high in proofs if high >= begin and least(begin, high) >= bound)
            self.proofs[end], begin = proofs[end], end + 1
        return None if again[self.most_bytes] is None else int(bound)


def least_loads(structure: Structure) -> list[int]:
    """[operators] load of each, at least: of what it reads and writes, beside inputs that stay."""
    stays = {value for value, writer in enumerate(structure.writer) if writer < 0 and not structure.problem.free_inputs}
    return Moments(structure).least_loads(stays)


def least_peak(structure: Structure) -> int:
    """Bytes that no peak is below: of an operator, beside inputs that stay; and of all that is there at the end."""
    return max([end_load(structure), *least_loads(structure)])


def added_cost(
    structure: Structure,
    limit: int,
    should_stop: Callable[[], bool] = lambda: False,
    on_bound: Callable[[int], None] = lambda bound: None,
    most: int | None = None,
) -> int | None:
    """Cost that no plan within the limits adds less than, as far as there was time; as ``bounds.added_cost`` has it."""
    if least_peak(structure) > limit:
        return None
    moments = HostMoments(structure, should_stop)
    return largest(fullest_first(structure)[:most], lambda op: moments.added_cost(op, limit), should_stop, on_bound)
