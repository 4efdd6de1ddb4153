"""What cycles of values say before any search: how far apart times may be, and which instructions share a tile.

At an II, a cycle of values has slack: the clocks of its distances less the latencies of its instructions. Links on the way
use it up. Longest paths within a strongly connected component therefore bound the difference of any two of its times from
both sides; and two instructions stand on different tiles only where every cycle through both has slack for the way there and
back.
"""

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stowplan.models.modulo_scheduling.structure import Structure

#: Components with more instructions are left alone: longest paths between all pairs take the cube of their number.
MOST_MEMBERS = 1000

#: Clocks between what no path links.
_NEVER = -(1 << 40)


class Recurrence(NamedTuple):
    """A strongly connected component of two or more instructions."""

    members: tuple[int, ...]
    """Numbers of its instructions, ascending."""
    least: NDArray[np.int64]
    """[K, K], clocks: time of the member of a column less that of the member of a row, at least. Positive on the diagonal
    where the II is too small."""

    @property
    def is_refuted(self) -> bool:
        """Whether a cycle needs more clocks than its distance gives."""
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


def recurrences(structure: Structure, ii: int) -> list[Recurrence]:
    """Recurrences at an II, the longest first."""
    members: dict[int, list[int]] = defaultdict(list)
    for number in structure.recurrent:
        members[structure.component[number]].append(number)
    kept = sorted((each for each in members.values() if len(each) <= MOST_MEMBERS), key=lambda each: (-len(each), each))
    return [Recurrence(tuple(each), _longest_paths(structure, ii, each, hops=True)) for each in kept]


def sharing_tiles(structure: Structure, ii: int) -> list[tuple[int, ...]]:
    """Sets of two or more instructions that stand on one tile in any plan at an II that recurrences allow, ascending.

    By the slack of cycles of values that take links, two instructions at a time.
    """
    trip = _least_trip(structure)
    found: list[tuple[int, ...]] = []
    if trip is None:
        return found
    for each in recurrences(structure, ii):
        paths = _longest_paths(structure, ii, list(each.members), hops=False)
        # A cycle through two whose slack does not pay the way there and back; none where no path leads one of the ways.
        near = (paths + paths.T > -trip) & (paths > _NEVER // 2) & (paths.T > _NEVER // 2)
        left = set(range(len(each.members)))
        while left:
            together, waiting = set[int](), [min(left)]
            while waiting:
                at = waiting.pop()
                if at in left:
                    left.remove(at)
                    together.add(at)
                    waiting += map(int, np.flatnonzero(near[at]))
            if len(together) > 1:
                found.append(tuple(each.members[at] for at in sorted(together)))
    return sorted(found)


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


def _longest_paths(structure: Structure, ii: int, members: list[int], *, hops: bool) -> NDArray[np.int64]:
    """[K, K], clocks from issue to issue: over all values with the links they must take, or over links alone without them."""
    index = {number: at for at, number in enumerate(members)}
    paths = np.full((len(members), len(members)), _NEVER, np.int64)
    np.fill_diagonal(paths, 0)
    latency = structure.problem.latencies
    for each in structure.precedences:
        if each.source not in index or each.target not in index or not (hops or each.clocks is None):
            continue
        clocks = latency[each.source] - ii * each.distance + (structure.least_hops(each) if hops else 0)
        source, target = index[each.source], index[each.target]
        paths[source, target] = max(paths[source, target], clocks)
    for middle in range(len(members)):
        np.maximum(paths, paths[:, middle, None] + paths[None, middle], out=paths)
    return paths
