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

from stowplan.models.rematerialization.bounds import Moments, fullest_first, largest
from stowplan.models.rematerialization.structure import Structure

#: Ranges of bytes that are looked at for one operator.
RANGES = 24


class HostMoments:
    """The bound of every operator of a problem with a channel and a limit."""

    def __init__(self, structure: Structure, limit: int):
        channel = structure.problem.channel
        assert channel is not None
        self.structure, self.limit = structure, limit
        self.moments = Moments(structure)
        self.bandwidth = Fraction(channel.bandwidth)
        self.most_bytes = min(channel.limit, sum(structure.size))
        self.once = sum(structure.cost)

    def added_cost(self, op: int) -> int | None:
        """Added cost that no plan is below, by this operator's first run; None where nothing fits."""
        cost = self.structure.cost
        before = sum(cost[other] for other in range(len(cost)) if self.moments.before[op] >> other & 1)
        behind = sum(cost[other] for other in range(len(cost)) if self.moments.after[op] >> other & 1)
        again: dict[int, int | None] = {}

        def least(low: int, high: int) -> int | None:
            """Over all from ``low`` to ``high`` bytes that are fetched."""
            if high not in again:
                again[high] = self.moments.added_cost(op, self.limit + high)
            runs = again[high]
            if runs is None:
                return None
            copies = ceil(low / self.bandwidth)
            longest = max(copies + max(copies, before), copies + behind + runs) + cost[op]
            return max(runs, longest - self.once)

        first = least(0, self.most_bytes)
        if first is None:
            return None
        # The range with the least bound is halved, again and again.
        ranges = [(first, 0, self.most_bytes)]
        for _ in range(RANGES):
            bound, low, high = heapq.heappop(ranges)
            if high - low < 2:
                return bound
            middle = (low + high) // 2
            for begin, end in ((low, middle), (middle, high)):
                half = least(begin, end)
                if half is not None:
                    heapq.heappush(ranges, (half, begin, end))
        return ranges[0][0]


def least_peak(structure: Structure) -> int:
    """Bytes that no peak is below: of an operator, beside inputs that stay; and of all that is there at the end."""
    moments = Moments(structure)
    given = {value for value, writer in enumerate(structure.writer) if writer < 0 and not structure.problem.free_inputs}
    ends = {structure.root[value] for value, kept in enumerate(structure.kept) if kept}
    least = sum(structure.size[value] for value in ends)
    for op in range(structure.ops):
        others = given - {*moments.read[op]}
        least = max(least, moments.own_bytes(op) + sum(structure.size[value] for value in others))
    return least


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
    return largest(fullest_first(structure)[:most], HostMoments(structure, limit).added_cost, should_stop, on_bound)
