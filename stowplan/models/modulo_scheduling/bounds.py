"""What can be proven of modulo schedules at once: least initiation intervals (II), critical path, bounds of times, obstacles.

Rau, "Iterative modulo scheduling" (1994): the II is at least what resources and what recurrences need.

Times at an II are bounded before any search. Where bounds on differences of two times lead around a cycle, longest paths bound
the difference of any two times on it from both sides. So it is on recurrences; and with a limit on delays, which bounds every
value's way from both sides, in whole flows. A cycle of values has slack: the clocks of its distances less the latencies of its
instructions. Links on the way use it up. So two instructions stand on different tiles only where every cycle through both has
slack for the way there and back.
"""

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stowplan.models.modulo_scheduling.differences import OpenIIs, hop_span, open_iis
from stowplan.models.modulo_scheduling.plan import encode_objective
from stowplan.models.modulo_scheduling.problem import Problem
from stowplan.models.modulo_scheduling.structure import Structure, longest_ways


def resource_mii(problem: Problem, structure: Structure | None = None) -> int:
    """Least II for which there are slots enough: all on all tiles, what must share a tile on one, and ports of memory."""
    known = structure or Structure(problem)
    least = max(1, -(-known.count // problem.machine.tiles), max(map(len, known.members), default=0))
    for tiles in {frozenset(allowed) for allowed in known.allowed if allowed}:
        # All that may stand nowhere but on these.
        inside = sum(len(known.members[group]) for group, allowed in enumerate(known.allowed) if tiles.issuperset(allowed))
        least = max(least, -(-inside // len(tiles)))
    for limit in known.port_limits:
        inside = sum(limit.tiles.issuperset(known.allowed[known.group[number]]) for number in problem.accesses)
        least = max(least, -(-inside // limit.most))
    return least


def recurrence_mii(problem: Problem, structure: Structure | None = None) -> int:
    """Least II at which every cycle of edges has time enough; clocks of links count where tiles must differ."""
    known = structure or Structure(problem)
    least = [problem.latencies[precedence.source] + known.least_hops(precedence) for precedence in known.precedences]
    low, high = 1, max(1, sum(least))
    while low < high:
        middle = (low + high) // 2
        if _keeps_up(known, least, middle):
            high = middle
        else:
            low = middle + 1
    return low


def _keeps_up(known: Structure, least: list[int], ii: int) -> bool:
    """Whether no cycle of values needs more clocks than its distance gives."""
    if not known.precedences:
        return True
    times = np.zeros(known.count, np.int64)
    source = np.array([precedence.source for precedence in known.precedences])
    target = np.array([precedence.target for precedence in known.precedences])
    weight = np.array(least) - ii * np.array([precedence.distance for precedence in known.precedences])
    for _ in range(len(times) + 1):
        after = times.copy()
        np.maximum.at(after, target, times[source] + weight)
        if (after == times).all():
            return True
        times = after
    return False


def least_ii(problem: Problem, structure: Structure | None = None) -> int:
    """MII: the larger of what resources and what recurrences need."""
    known = structure or Structure(problem)
    return max(resource_mii(problem, known), recurrence_mii(problem, known))


def unrefuted_iis(problem: Problem, structure: Structure | None = None) -> OpenIIs:
    """IIs up to the depth of the spoke RAM that neither :func:`least_ii` nor limits on delays refute, and why these do."""
    known = structure or Structure(problem)
    # With limits, differences of time say of recurrences what least_ii does, and more.
    from_slots = problem.rules.max_delay is not None
    return open_iis(problem, known, resource_mii(problem, known) if from_slots else least_ii(problem, known))


def critical_path(problem: Problem, structure: Structure | None = None) -> int:
    """Clocks that an iteration takes in any plan, at any II: its longest chain within one iteration, and pins."""
    known = structure or Structure(problem)
    latency = problem.latencies
    begin = [0] * known.count
    for pin in problem.pins:
        begin[problem.number[pin.instruction]] = pin.time or 0
    values = (precedence for precedence in known.precedences if precedence.distance == 0)
    times = longest_ways(((e.source, e.target, latency[e.source] + known.least_hops(e)) for e in values), begin)
    return max(map(sum, zip(times, latency, strict=True)), default=0)


def objective_bound(problem: Problem) -> int:
    """A bound on the objective that costs nothing."""
    known = Structure(problem)
    least = next(iter(unrefuted_iis(problem, known).iis), least_ii(problem, known))
    return encode_objective(least, critical_path(problem, known))


def find_obstacle(problem: Problem, structure: Structure | None = None) -> str | None:
    """Why there is no plan, where that shows without a search, in one sentence; None where it does not."""
    known = structure or Structure(problem)
    machine = problem.machine
    ids = [instruction.id for instruction in problem.instructions]
    for demands in known.demands:
        if len(demands) > 1:
            return f"no tile is in two places: {' and '.join(reason for _, reason in sorted(demands.items())[:2])}"
    for group, allowed in enumerate(known.allowed):
        if not allowed:
            return f"no tile will do for {_some(ids, known.members[group])}, by the tiles they may stand on"
    room = machine.memories * machine.memory_depth
    fewest = list(known.words)
    for buffer in known.buffers:
        fewest[known.group[buffer.readers[0][0]]] += known.least_words(buffer, machine.spoke_depth)
    for group, words in enumerate(fewest):
        if words > room:
            return f"{_some(ids, known.members[group])} need {words} words on one tile, its memories hold {room}"
    for family in known.families:
        groups: dict[int, int] = {}
        for number in family:
            other = groups.setdefault(known.group[number], number)
            if other != number:
                return f"{ids[other]} and {ids[number]} must share a tile for their variables, and must not, as siblings"
    return _crowd(problem, known, ids) or _reach(problem, known, ids) or _slow(problem, known) or _late(problem, known)


def _crowd(problem: Problem, known: Structure, ids: list[str]) -> str | None:
    """Too many instructions or starts."""
    machine = problem.machine
    slots = min(machine.spoke_depth, machine.instruction_depth)
    if known.count > slots * machine.tiles:
        return f"{known.count} instructions, but {machine.tiles} tiles have {slots} slots each, {slots * machine.tiles} in all"
    for members in known.members:
        if len(members) > slots:
            named = _some(ids, members)
            return f"{named} must share a tile for their variables: {len(members)} instructions, it has {slots} slots"
    if len(known.start_choices) > machine.tiles:
        what = "sources" if problem.rules.starts == "source" else "flows"
        return f"{len(known.start_choices)} {what} need starts on different tiles, there are {machine.tiles}"
    return None


def _reach(problem: Problem, known: Structure, ids: list[str]) -> str | None:
    """A family of siblings that does not fit the tiles around one."""
    if problem.rules.siblings == "none":
        return None
    hops = problem.hops
    near = max(sum(hops[one][two] is not None for two in range(problem.machine.tiles)) for one in range(problem.machine.tiles))
    consumers: dict[int, set[int]] = {}
    for edge in known.between:
        consumers.setdefault(edge.source, set()).add(edge.target)
    for source, targets in consumers.items():
        if len(targets) > near:
            return f"{ids[source]} has {len(targets)} consumers that need different tiles, a tile reaches {near}"
    return None


def _slow(problem: Problem, known: Structure) -> str | None:
    """A recurrence that needs a larger II than there is."""
    depth = problem.machine.spoke_depth
    needs = recurrence_mii(problem, known)
    if needs > depth:
        return f"the recurrences need an initiation interval of {needs}, the spoke RAM has {depth} entries"
    return None


def _late(problem: Problem, known: Structure) -> str | None:
    """Values that cannot all come in time and wait no longer than they may."""
    iis = unrefuted_iis(problem, known)
    if iis.iis:
        return None
    if not iis.reasons:
        least, depth = least_ii(problem, known), problem.machine.spoke_depth
        return f"an initiation interval of {least} is needed, the spoke RAM has {depth} entries"
    return "no times fit, at any initiation interval: " + "; ".join(iis.reasons)


def _some(ids: list[str], numbers: list[int]) -> str:
    return ", ".join(ids[number] for number in numbers[:4]) + (", ..." if len(numbers) > 4 else "")


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
    return max((int(-bound.least.min()) for bound in time_bounds(structure, ii, whole=True)), default=0)


def sharing_tiles(structure: Structure, ii: int) -> list[tuple[int, ...]]:
    """Sets of two or more instructions that stand on one tile in any plan at an II that recurrences allow, ascending.

    By the slack of cycles of values that take links, two instructions at a time.
    """
    trip = _least_trip(structure)
    groups: list[tuple[int, ...]] = []
    if trip is None:
        return groups
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
                groups.append(tuple(members[at] for at in sorted(together)))
    return sorted(groups)


def _sets(structure: Structure, *, flows: bool) -> list[tuple[int, ...]]:
    """Members of flows, or of recurrences, of two or more instructions and not too many; the largest set first."""
    members: dict[int, list[int]] = defaultdict(list)
    for number in range(structure.count) if flows else structure.recurrent:
        members[structure.flow[number] if flows else structure.component[number]].append(number)
    kept = (tuple(numbers) for numbers in members.values() if 2 <= len(numbers) <= MOST_MEMBERS)
    return sorted(kept, key=lambda members: (-len(members), members))


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
    for precedence in structure.precedences:
        source, target = index.get(precedence.source), index.get(precedence.target)
        if source is None or target is None:
            continue
        clocks = latency[precedence.source] - ii * precedence.distance
        table[source, target] = max(table[source, target], clocks + structure.least_hops(precedence))
        if limit is not None and precedence.clocks is None:
            span = hop_span(structure, structure.group[precedence.source], structure.group[precedence.target])
            if span is not None:
                table[target, source] = max(table[target, source], -clocks - span[1] - limit)
    return table


def _over_links(structure: Structure, ii: int, members: tuple[int, ...]) -> NDArray[np.int64]:
    """[K, K], clocks from issue to issue that values over links ask for, without those of the links."""
    table, index = _empty(len(members)), {number: at for at, number in enumerate(members)}
    for precedence in structure.precedences:
        source, target = index.get(precedence.source), index.get(precedence.target)
        if source is not None and target is not None and precedence.clocks is None:
            clocks = structure.problem.latencies[precedence.source] - ii * precedence.distance
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
