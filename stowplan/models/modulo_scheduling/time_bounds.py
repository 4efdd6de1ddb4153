"""How far apart times may be at an II, and which instructions share a tile, before any search.

Where bounds on differences of two times lead around a cycle, longest paths bound the difference of any two times on it from
both sides. So it is on recurrences; and with a limit on delays, which bounds every value's way from both sides, in whole flows.

At an II, a cycle of values has slack: the clocks of its distances less the latencies of its instructions. Links on the way
use it up. So two instructions stand on different tiles only where every cycle through both has slack for the way there and
back.
"""

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stowplan.models.modulo_scheduling.differences import hop_span
from stowplan.models.modulo_scheduling.structure import Structure

#: Sets of more instructions are left alone: longest paths between all pairs take the cube of their number.
MOST_MEMBERS = 1000

#: Clocks between what no path links.
_NEVER = -(1 << 40)


class TimeBounds(NamedTuple):
    """Two or more instructions, the difference of any two of whose times is bounded from both sides."""

    members: tuple[int, ...]
    """Their numbers, ascending."""
    least: NDArray[np.int64]
    """[K, K], clocks: time of the member of a column less that of the member of a row, at least. Positive on the diagonal
    where no times fit at the II."""

    @property
    def is_refuted(self) -> bool:
        """Whether bounds contradict each other."""
        return bool((np.diagonal(self.least) > 0).any())

    @property
    def anchor(self) -> int:
        """Index of the member that leaves the others the fewest times, once its own is fixed."""
        return int((-self.least - self.least.T).sum(axis=0).argmin())

    def windows(self, anchor: int, most: int) -> list[tuple[int, int]]:
        """For each member the least and the most clocks that its time is after that of ``anchor``, an index.

        ``most`` is what two times need not be further apart.
        """
        ends = zip(self.least[anchor], -self.least[:, anchor], strict=True)
        return [(max(int(low), -most), min(int(high), most)) for low, high in ends]


def time_bounds(structure: Structure, ii: int, *, whole: bool = False) -> list[TimeBounds]:
    """Bounds at an II, largest set first: of recurrences; or, where ``whole`` and delays are limited, of flows."""
    return [
        TimeBounds(members, _longest_paths(_differences(structure, ii, members)))
        for members in _sets(structure, flows=whole and structure.problem.rules.max_delay is not None)
    ]


def longest_span(structure: Structure, ii: int) -> int | None:
    """Clocks between the issues of two instructions that values link, at most, at an II that is not refuted.

    None where delays are free, or some values are sent over the asynchronous fabric, or a flow is too large.
    """
    problem = structure.problem
    if problem.rules.max_delay is None or not problem.is_synchronous or structure.count > MOST_MEMBERS:
        return None
    return max((int(-each.least.min()) for each in time_bounds(structure, ii, whole=True)), default=0)


def sharing_tiles(structure: Structure, ii: int) -> list[tuple[int, ...]]:
    """Sets of two or more instructions that stand on one tile in any plan at an II that recurrences allow, ascending.

    By the slack of cycles of values that take links, two instructions at a time.
    """
    trip = _least_trip(structure)
    found: list[tuple[int, ...]] = []
    if trip is None:
        return found
    for members in _sets(structure, flows=False):
        paths = _longest_paths(_over_links(structure, ii, members))
        # A cycle through two whose slack does not pay the way there and back; none where no path leads one of the ways.
        near = (paths + paths.T > -trip) & (paths > _NEVER // 2) & (paths.T > _NEVER // 2)
        left = set(range(len(members)))
        while left:
            together, waiting = set[int](), [min(left)]
            while waiting:
                at = waiting.pop()
                if at in left:
                    left.remove(at)
                    together.add(at)
                    waiting += map(int, np.flatnonzero(near[at]))
            if len(together) > 1:
                found.append(tuple(members[at] for at in sorted(together)))
    return sorted(found)


def _sets(structure: Structure, *, flows: bool) -> list[tuple[int, ...]]:
    """Members of flows, or of recurrences, of two or more instructions and not too many; the largest set first."""
    members: dict[int, list[int]] = defaultdict(list)
    for number in range(structure.count) if flows else structure.recurrent:
        members[structure.flow[number] if flows else structure.component[number]].append(number)
    kept = (tuple(each) for each in members.values() if 2 <= len(each) <= MOST_MEMBERS)
    return sorted(kept, key=lambda each: (-len(each), each))


def _least_trip(structure: Structure) -> int | None:
    """Clocks from a tile to another and back, at least; None where no tiles reach each other both ways."""
    ways = structure.problem.machine.any_links
    there_and_back = [
        there + back
        for one, row in enumerate(ways)
        for two, there in enumerate(row)
        if one != two and there is not None and (back := ways[two][one]) is not None
    ]
    return min(there_and_back, default=None)


def _differences(structure: Structure, ii: int, members: tuple[int, ...]) -> NDArray[np.int64]:
    """[K, K], clocks from issue to issue that values ask for, and limits on delays, with the links they must take."""
    table, index = _empty(len(members)), {number: at for at, number in enumerate(members)}
    limit, latency = structure.problem.rules.max_delay, structure.problem.latencies
    for each in structure.precedences:
        source, target = index.get(each.source), index.get(each.target)
        if source is None or target is None:
            continue
        clocks = latency[each.source] - ii * each.distance
        table[source, target] = max(table[source, target], clocks + structure.least_hops(each))
        if limit is not None and each.clocks is None:
            span = hop_span(structure, structure.group[each.source], structure.group[each.target])
            if span is not None:
                table[target, source] = max(table[target, source], -clocks - span[1] - limit)
    return table


def _over_links(structure: Structure, ii: int, members: tuple[int, ...]) -> NDArray[np.int64]:
    """[K, K], clocks from issue to issue that values over links ask for, without those of the links."""
    table, index = _empty(len(members)), {number: at for at, number in enumerate(members)}
    for each in structure.precedences:
        source, target = index.get(each.source), index.get(each.target)
        if source is not None and target is not None and each.clocks is None:
            clocks = structure.problem.latencies[each.source] - ii * each.distance
            table[source, target] = max(table[source, target], clocks)
    return table


def _empty(count: int) -> NDArray[np.int64]:
    table = np.full((count, count), _NEVER, np.int64)
    np.fill_diagonal(table, 0)
    return table


def _longest_paths(table: NDArray[np.int64]) -> NDArray[np.int64]:
    """Longest paths between all pairs (Floyd and Warshall), in place."""
    for middle in range(len(table)):
        np.maximum(table, table[:, middle, None] + table[None, middle], out=table)
    return table
