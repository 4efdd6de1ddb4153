"""Bounds on modulo schedules that need no search: the least initiation interval (II), critical path, times, and obstacles.

*Initiation intervals.* A *value* goes from the instruction that produces it to one that consumes it, and its *distance* is the
number of iterations in between. Both resources and recurrences (cycles of values over several iterations) give a lower bound on
the II (Rau, "Iterative modulo scheduling", 1994). The larger of the two is called MII. The *spoke RAM* of a tile has one entry
for each clock of an interval, so its depth is the largest possible II. An II is *refuted* if it is proven that no plan has it.
A *slot* is a clock modulo the II.

*Times at an II.* If bounds on differences of two times lead around a cycle, longest paths bound the difference of any two times
on it from both sides (:func:`time_bounds`). This is the case on recurrences. The *delay* of a value is the time that it waits
for its consumer. Values go over links between tiles, or over a second network, the *asynchronous fabric*. If delays are
limited, the transport and waiting of every value over links are bounded from both sides. The differences of times are then
bounded for all instructions that values over links connect; these instructions are a *flow*.

*Shared tiles.* A cycle of values has slack: II times the sum of its distances, minus the latencies of its instructions.
Transport over links uses up the slack. Two instructions can be on different tiles only if every cycle through both has enough
slack for the way from one tile to the other and back (:func:`sharing_tiles`).

The parameter ``structure`` of functions is the :class:`~stowplan.models.modulo_scheduling.structure.Structure` of the problem:
tables of it that are computed once. If it is None, it is computed. A *group* in it is a set of instructions that must share a
tile, and *siblings* are instructions that must be on different tiles. Nothing here raises an error for a valid problem.
"""

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stowplan.models.modulo_scheduling.differences import OpenIIs, hop_span, open_iis
from stowplan.models.modulo_scheduling.plan import encode_objective
from stowplan.models.modulo_scheduling.problem import Problem
from stowplan.models.modulo_scheduling.structure import Structure, longest_paths


def resource_mii(problem: Problem, structure: Structure | None = None) -> int:
    """Returns a lower bound on the II from resources. These are the slots of all tiles together, of single tiles and of sets of
    tiles, and the memory ports. The bound may be larger than the depth of the spoke RAM."""
    facts = structure or Structure(problem)
    least = max(1, -(-facts.count // problem.machine.tiles), max(map(len, facts.members), default=0))
    for tiles in {frozenset(allowed) for allowed in facts.allowed if allowed}:
        # Instructions that can only be on these tiles.
        inside = sum(len(facts.members[group]) for group, allowed in enumerate(facts.allowed) if tiles.issuperset(allowed))
        least = max(least, -(-inside // len(tiles)))
    for limit in facts.port_limits:
        inside = sum(limit.tiles.issuperset(facts.allowed[facts.group[number]]) for number in problem.accesses)
        least = max(least, -(-inside // limit.most))
    return least


def recurrence_mii(problem: Problem, structure: Structure | None = None) -> int:
    """Lower bound on the II from recurrences. Transport over links counts between instructions that must be on different
    tiles."""
    facts = structure or Structure(problem)
    least = [problem.latencies[precedence.source] + facts.least_hops(precedence) for precedence in facts.precedences]
    low, high = 1, max(1, sum(least))
    while low < high:
        middle = (low + high) // 2
        if _keeps_up(facts, least, middle):
            high = middle
        else:
            low = middle + 1
    return low


def _keeps_up(facts: Structure, least: list[int], ii: int) -> bool:
    """Whether no cycle of values needs more clocks than II times the sum of its distances. ``least`` has the least number of
    clocks from each producer to its consumer, in the order of ``facts.precedences``."""
    if not facts.precedences:
        return True
    times = np.zeros(facts.count, np.int64)
    source = np.array([precedence.source for precedence in facts.precedences])
    target = np.array([precedence.target for precedence in facts.precedences])
    weight = np.array(least) - ii * np.array([precedence.distance for precedence in facts.precedences])
    for _ in range(len(times) + 1):
        after = times.copy()
        np.maximum.at(after, target, times[source] + weight)
        if (after == times).all():
            return True
        times = after
    return False


def least_ii(problem: Problem, structure: Structure | None = None) -> int:
    """The MII: the larger one of the bounds from resources and from recurrences."""
    facts = structure or Structure(problem)
    return max(resource_mii(problem, facts), recurrence_mii(problem, facts))


def unrefuted_iis(problem: Problem, structure: Structure | None = None) -> OpenIIs:
    """Returns the IIs that may have a plan, with reasons why other IIs have none. The IIs are at most the depth of the spoke
    RAM, and neither :func:`least_ii` nor limits on delays refute them. The reasons are about limits on delays."""
    facts = structure or Structure(problem)
    # With limits on delays, the bounds on differences of times include those of recurrences.
    from_slots = problem.limits_waits
    return open_iis(problem, facts, resource_mii(problem, facts) if from_slots else least_ii(problem, facts))


def critical_path(problem: Problem, structure: Structure | None = None) -> int:
    """Returns a lower bound on the makespan, the clocks of one iteration, at any II. It is the longest chain of values within
    one iteration, which cannot begin before the times to which the problem pins instructions."""
    facts = structure or Structure(problem)
    latency = problem.latencies
    begin = [0] * facts.count
    for pin in problem.pins:
        begin[problem.number[pin.instruction]] = pin.time or 0
    values = (precedence for precedence in facts.precedences if precedence.distance == 0)
    times = longest_paths(((e.source, e.target, latency[e.source] + facts.least_hops(e)) for e in values), begin)
    return max(map(sum, zip(times, latency, strict=True)), default=0)


def objective_bound(problem: Problem) -> int:
    """A lower bound on the objective, computed without search, from the smallest II that is not refuted. If all IIs are
    refuted, the MII is used instead."""
    facts = Structure(problem)
    least = next(iter(unrefuted_iis(problem, facts).iis), least_ii(problem, facts))
    return encode_objective(least, critical_path(problem, facts))


def find_obstacle(problem: Problem, structure: Structure | None = None) -> str | None:
    """The reason why no plan exists, as one sentence, if one can be found without a search; otherwise None, which does not
    prove that a plan exists."""
    facts = structure or Structure(problem)
    machine = problem.machine
    ids = [instruction.id for instruction in problem.instructions]
    for demands in facts.demands:
        if len(demands) > 1:
            return f"no tile is in two places: {' and '.join(reason for _, reason in sorted(demands.items())[:2])}"
    for group, allowed in enumerate(facts.allowed):
        if not allowed:
            return f"no tile will do for {_names(ids, facts.members[group])}, by the tiles they may stand on"
    capacity = machine.memories * machine.memory_depth
    fewest = list(facts.words)
    for buffer in facts.buffers:
        fewest[facts.group[buffer.readers[0][0]]] += facts.least_words(buffer, machine.spoke_depth)
    for group, words in enumerate(fewest):
        if words > capacity:
            return f"{_names(ids, facts.members[group])} need {words} words on one tile, its memories hold {capacity}"
    for family in facts.families:
        groups: dict[int, int] = {}
        for number in family:
            other = groups.setdefault(facts.group[number], number)
            if other != number:
                return f"{ids[other]} and {ids[number]} must share a tile for their variables, and must not, as siblings"
    return (
        _too_many_instructions(problem, facts, ids)
        or _too_many_consumers(problem, facts, ids)
        or _recurrence_too_slow(problem, facts)
        or _delays_too_short(problem, facts)
    )


def _too_many_instructions(problem: Problem, facts: Structure, ids: list[str]) -> str | None:
    """The reason if there are too many instructions or starts for the tiles; otherwise None."""
    machine = problem.machine
    slots = min(machine.spoke_depth, machine.instruction_depth)
    if facts.count > slots * machine.tiles:
        return f"{facts.count} instructions, but {machine.tiles} tiles have {slots} slots each, {slots * machine.tiles} in all"
    for members in facts.members:
        if len(members) > slots:
            named = _names(ids, members)
            return f"{named} must share a tile for their variables: {len(members)} instructions, it has {slots} slots"
    if len(facts.start_choices) > machine.tiles:
        what = "sources" if problem.rules.starts == "source" else "flows"
        return f"{len(facts.start_choices)} {what} need starts on different tiles, there are {machine.tiles}"
    return None


def _too_many_consumers(problem: Problem, facts: Structure, ids: list[str]) -> str | None:
    """The reason if a producer has more consumers, on different tiles, than a tile reaches; otherwise None."""
    if problem.rules.siblings == "none":
        return None
    hops = problem.hops
    near = max(sum(hops[one][two] is not None for two in range(problem.machine.tiles)) for one in range(problem.machine.tiles))
    consumers: dict[int, set[int]] = {}
    for edge in facts.between:
        consumers.setdefault(edge.source, set()).add(edge.target)
    for source, targets in consumers.items():
        if len(targets) > near:
            return f"{ids[source]} has {len(targets)} consumers that need different tiles, a tile reaches {near}"
    return None


def _recurrence_too_slow(problem: Problem, facts: Structure) -> str | None:
    """The reason if recurrences need a larger II than the spoke RAM allows; otherwise None."""
    depth = problem.machine.spoke_depth
    needs = recurrence_mii(problem, facts)
    if needs > depth:
        return f"the recurrences need an initiation interval of {needs}, the spoke RAM has {depth} entries"
    return None


def _delays_too_short(problem: Problem, facts: Structure) -> str | None:
    """The reason if no II lets all values arrive in time and wait no longer than allowed; otherwise None."""
    iis = unrefuted_iis(problem, facts)
    if iis.iis:
        return None
    if not iis.reasons:
        least, depth = least_ii(problem, facts), problem.machine.spoke_depth
        return f"an initiation interval of {least} is needed, the spoke RAM has {depth} entries"
    return "no times fit, at any initiation interval: " + "; ".join(iis.reasons)


def _names(ids: list[str], numbers: list[int]) -> str:
    """The ids of at most four of these instructions, as text."""
    return ", ".join(ids[number] for number in numbers[:4]) + (", ..." if len(numbers) > 4 else "")


#: Largest number of instructions in a set for which longest paths between all pairs are computed, which takes cubic time.
MOST_MEMBERS = 1000

#: Length, in clocks, that stands for "no path" between two instructions.
_NEVER = -(1 << 40)


class TimeBounds(NamedTuple):
    """A set of K instructions such that the difference of any two of their times is bounded from both sides. Brackets contain
    shapes."""

    members: tuple[int, ...]
    """Numbers of the instructions, ascending."""
    least: NDArray[np.int64]
    """[K, K] lower bound, in clocks, on the time of the column's member minus that of the row's member. An entry on the
    diagonal is positive if no times exist at the II."""

    @property
    def is_refuted(self) -> bool:
        """Whether the bounds contradict each other, so that no times exist."""
        return bool((np.diagonal(self.least) > 0).any())

    @property
    def anchor(self) -> int:
        """Index of the member that leaves the fewest possible times for the other members if its own time is fixed."""
        return int((-self.least - self.least.T).sum(axis=0).argmin())

    def windows(self, anchor: int, most: int) -> list[tuple[int, int]]:
        """[K] bounds (least, largest), in clocks, on the time of each member minus that of member ``anchor``, an index.

        ``most`` is a number of clocks beyond which no two times need to be apart.
        """
        ends = zip(self.least[anchor], -self.least[:, anchor], strict=True)
        return [(max(int(low), -most), min(int(high), most)) for low, high in ends]


def time_bounds(structure: Structure, ii: int, *, whole: bool = False) -> list[TimeBounds]:
    """Bounds on times at an II, for the instructions of each recurrence; the largest set comes first.

    If ``whole`` is true and delays are limited, they are for the instructions of each flow instead. Sets of more than
    :data:`MOST_MEMBERS` instructions are left out.
    """
    return [
        TimeBounds(members, _longest_paths(_differences(structure, ii, members)))
        for members in _sets(structure, flows=whole and structure.problem.limits_waits)
    ]


def longest_span(structure: Structure, ii: int) -> int | None:
    """Upper bound on the clocks between two instructions of the same flow, at an II that is not refuted.

    None if delays are unlimited, values are sent over the asynchronous fabric, or there are too many instructions.
    """
    problem = structure.problem
    if not problem.limits_waits or not problem.is_synchronous or structure.count > MOST_MEMBERS:
        return None
    return max((int(-bound.least.min()) for bound in time_bounds(structure, ii, whole=True)), default=0)


def sharing_tiles(structure: Structure, ii: int) -> list[tuple[int, ...]]:
    """Sets of two or more instructions that share a tile in every plan at an II. Recurrences must allow the II.

    They are found from the slack of cycles of values over links, for two instructions at a time. The list is empty if no two
    tiles reach each other both ways.
    """
    trip = _least_trip(structure)
    groups: list[tuple[int, ...]] = []
    if trip is None:
        return groups
    for members in _sets(structure, flows=False):
        paths = _longest_paths(_value_differences(structure, ii, members))
        # Two instructions are near if some cycle through both has too little slack for the way to another tile and back. They
        # are on no common cycle if there is no path in one of the directions.
        near = (paths + paths.T > -trip) & (paths > _NEVER // 2) & (paths.T > _NEVER // 2)
        remaining = set(range(len(members)))
        while remaining:
            together, waiting = set[int](), [min(remaining)]
            while waiting:
                at = waiting.pop()
                if at in remaining:
                    remaining.remove(at)
                    together.add(at)
                    waiting += map(int, np.flatnonzero(near[at]))
            if len(together) > 1:
                groups.append(tuple(members[at] for at in sorted(together)))
    return sorted(groups)


def _sets(structure: Structure, *, flows: bool) -> list[tuple[int, ...]]:
    """Members of each flow, or of each recurrence, with 2 to :data:`MOST_MEMBERS` instructions; the largest set first."""
    members: dict[int, list[int]] = defaultdict(list)
    for number in range(structure.count) if flows else structure.recurrent:
        members[structure.flow[number] if flows else structure.component[number]].append(number)
    small_sets = (tuple(numbers) for numbers in members.values() if 2 <= len(numbers) <= MOST_MEMBERS)
    return sorted(small_sets, key=lambda members: (-len(members), members))


def _least_trip(structure: Structure) -> int | None:
    """Smallest number of clocks from a tile to another one and back; None if no two tiles reach each other both ways."""
    distances = structure.problem.machine.any_links
    there_and_back = [
        there + back
        for one, row in enumerate(distances)
        for two, there in enumerate(row)
        if one != two and there is not None and (back := distances[two][one]) is not None
    ]
    return min(there_and_back, default=None)


def _differences(structure: Structure, ii: int, members: tuple[int, ...]) -> NDArray[np.int64]:
    """[K, K] lower bounds on differences of times of ``members``, each from one value or one limit on delays.

    Unavoidable transport counts.
    """
    table, index = _empty(len(members)), {number: at for at, number in enumerate(members)}
    limit, latency = structure.problem.longest_wait(ii), structure.problem.latencies
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


def _value_differences(structure: Structure, ii: int, members: tuple[int, ...]) -> NDArray[np.int64]:
    """[K, K] lower bounds on differences of times of ``members``, each from one value over links, without transport."""
    table, index = _empty(len(members)), {number: at for at, number in enumerate(members)}
    for precedence in structure.precedences:
        source, target = index.get(precedence.source), index.get(precedence.target)
        if source is not None and target is not None and precedence.clocks is None:
            clocks = structure.problem.latencies[precedence.source] - ii * precedence.distance
            table[source, target] = max(table[source, target], clocks)
    return table


def _empty(count: int) -> NDArray[np.int64]:
    """A table [count, count] without bounds between different instructions."""
    table = np.full((count, count), _NEVER, np.int64)
    np.fill_diagonal(table, 0)
    return table


def _longest_paths(table: NDArray[np.int64]) -> NDArray[np.int64]:
    """Longest paths between all pairs (Floyd and Warshall), in place."""
    for middle in range(len(table)):
        np.maximum(table, table[:, middle, None] + table[None, middle], out=table)
    return table
