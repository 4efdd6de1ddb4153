"""From tiles to a whole plan: times by list scheduling, then routes, delays and starts."""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TypeVar

from stowplan.models.modulo_scheduling.plan import Plan, encode_objective
from stowplan.models.modulo_scheduling.problem import Problem
from stowplan.models.modulo_scheduling.structure import Structure, longest_ways


def list_schedule(structure: Structure, ii: int, tiles: Sequence[int], known: Mapping[int, int]) -> list[int] | None:
    """Times for a placement, with unlimited delays: most clocks to the end first, each in the first free slot.

    ``known`` has times of the instructions on cycles, valid among themselves and in different slots of their tiles. They
    move by multiples of the II, a cycle at a time, which changes neither; and so do others that it has times of. No tile has
    more than ``ii`` instructions. None where an instruction finds no slot, which cannot be where ``known`` has all of
    :attr:`Structure.slotted`.
    """
    problem = structure.problem
    latency, hops = problem.latencies, problem.hops
    component = structure.component
    members: dict[int, list[int]] = defaultdict(list)
    for number, label in enumerate(component):
        members[label].append(number)
    incoming: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
    outgoing: dict[int, set[int]] = defaultdict(set)
    for source, target, distance, sent in structure.precedences:
        one, two = component[source], component[target]
        if one != two:
            way = (hops[tiles[source]][tiles[target]] or 0) if sent is None else sent
            incoming[two].append((source, target, latency[source] + way - ii * distance))
            outgoing[one].add(two)
    waiting = {own: len({component[source] for source, _, _ in incoming[own]}) for own in members}
    # Clocks from the start of a component to the end of the loop body, roughly: cycles count by where values leave them.
    lag: dict[tuple[int, int], int] = defaultdict(int)
    for two, values in incoming.items():
        for source, target, clocks in values:
            pair = component[source], two
            lag[pair] = max(lag[pair], clocks - (known[target] if len(members[two]) > 1 else 0))
    height = longest_ways(((two, one, clocks) for (one, two), clocks in lag.items()), [0] * len(members))
    slots = _Slots(structure, ii, tiles)
    for number, time in known.items():
        slots.take(number, time)
    times = [0] * structure.count
    ready = [(-height[label], label) for label, count in waiting.items() if count == 0]
    heapq.heapify(ready)
    while ready:
        label = heapq.heappop(ready)[1]
        group = members[label]
        if len(group) == 1:
            number = group[0]
            time = max([0, *(times[source] + clocks for source, _, clocks in incoming[label])])
            if number in known:
                times[number] = time + (known[number] - time) % ii
            else:
                free = next((clock for clock in range(time, time + ii) if slots.is_free(number, clock)), None)
                if free is None:
                    return None
                slots.take(number, free)
                times[number] = free
        else:
            # The least shift that no time is negative and every value from outside is there.
            late = max(-known[number] for number in group)
            late = max([late, *(times[source] + clocks - known[target] for source, target, clocks in incoming[label])])
            for number in group:
                times[number] = known[number] + ii * -(-late // ii)
        for two in sorted(outgoing[label]):
            waiting[two] -= 1
            if waiting[two] == 0:
                heapq.heappush(ready, (-height[two], two))
    return times


class _Slots:
    """What of the machine is taken, modulo the II."""

    def __init__(self, structure: Structure, ii: int, tiles: Sequence[int]):
        self._latency, self._ii, self._tiles = structure.problem.latencies, ii, tiles
        self._issues: set[tuple[int, int]] = set()
        self._results: set[tuple[int, int]] = set()
        self._limits, self._accesses = structure.port_limits, set(structure.problem.accesses)
        self._requests: Counter[tuple[int, int]] = Counter()

    def take(self, number: int, time: int) -> None:
        """An instruction issues at this time."""
        done = (time + self._latency[number]) % self._ii
        self._issues.add((self._tiles[number], time % self._ii))
        self._results.add((self._tiles[number], done))
        self._requests.update((which, done) for which in self._limited(number))

    def is_free(self, number: int, time: int) -> bool:
        """Whether it may."""
        tile, done = self._tiles[number], (time + self._latency[number]) % self._ii
        if (tile, time % self._ii) in self._issues or (tile, done) in self._results:
            return False
        return all(self._requests[which, done] < self._limits[which].most for which in self._limited(number))

    def _limited(self, number: int) -> list[int]:
        """Port limits that count an instruction."""
        if number not in self._accesses:
            return []
        return [which for which, limit in enumerate(self._limits) if self._tiles[number] in limit.tiles]


_Place = TypeVar("_Place", bound=Hashable)


def _assigned(choices: Sequence[Sequence[_Place]], most: Callable[[_Place], int]) -> dict[_Place, list[int]] | None:
    """Who is at each place: each at one of its choices, so many at most at one (augmenting paths); None: it cannot be."""
    taken: dict[_Place, list[int]] = defaultdict(list)

    def assign(who: int, seen: set[_Place]) -> bool:
        for place in choices[who]:
            if place in seen:
                continue
            seen.add(place)
            users = taken[place]
            if len(users) < most(place):
                users.append(who)
                return True
            for at, other in enumerate(users):
                if assign(other, seen):
                    users[at] = who
                    return True
        return False

    return taken if all(assign(who, set()) for who in range(len(choices))) else None


def choose_starts(structure: Structure, tiles: Sequence[int]) -> tuple[int, ...] | None:
    """One start of each set of choices, on different tiles; None where there are none."""
    choices = structure.start_choices
    taken = _assigned([[tiles[number] for number in numbers] for numbers in choices], lambda tile: 1)
    if taken is None:
        return None
    return tuple(sorted(next(n for n in choices[users[0]] if tiles[n] == tile) for tile, users in taken.items()))


def choose_interfaces(
    structure: Structure, ii: int, tiles: Sequence[int], times: Sequence[int]
) -> tuple[int | None, ...] | None:
    """An interface with a free port for each memory access; None where there are none."""
    problem, choices = structure.problem, []
    if not problem.accesses:
        return ()
    for number in problem.accesses:
        slot = (times[number] + problem.latencies[number]) % ii
        tile, interfaces = tiles[number], enumerate(problem.machine.interfaces)
        choices.append([(at, slot) for at, interface in interfaces if interface.tiles is None or tile in interface.tiles])
    taken = _assigned(choices, lambda place: problem.machine.interfaces[place[0]].ports)
    if taken is None:
        return None
    chosen: list[int | None] = [None] * structure.count
    for (interface, _), users in taken.items():
        for user in users:
            chosen[problem.accesses[user]] = interface
    return tuple(chosen)


def _has_room(structure: Structure, ii: int, tiles: Sequence[int], times: Sequence[int]) -> bool:
    """Whether variables and values from the asynchronous fabric fit the memory of each tile."""
    if not structure.buffers:
        return True
    machine = structure.problem.machine
    words: Counter[int] = Counter()
    for members, size in zip(structure.members, structure.words, strict=True):
        words[tiles[members[0]]] += size
    for buffer in structure.buffers:
        words[tiles[buffer.readers[0][0]]] += structure.words_of(buffer, ii, times)
    return all(used <= machine.memories * machine.memory_depth for used in words.values())


def make_plan(
    structure: Structure,
    ii: int,
    tiles: Sequence[int],
    times: Sequence[int],
    routes: Sequence[tuple[int, ...]] | None = None,
) -> Plan | None:
    """Plan from tiles and times, over single links unless routes are given.

    None where starts would share a tile, requests find no port, or values sent to a tile do not fit its memory.
    """
    problem = structure.problem
    starts = choose_starts(structure, tiles)
    interfaces = choose_interfaces(structure, ii, tiles, times)
    if starts is None or interfaces is None or not _has_room(structure, ii, tiles, times):
        return None
    latency = problem.latencies
    ways = (
        list(routes)
        if routes is not None
        else [() if e.asynchronous else link_between(problem, tiles[e.source], tiles[e.target]) for e in problem.edges]
    )
    clocks = [
        problem.nominal(edge.source) if edge.asynchronous else sum(problem.machine.links[link].clocks for link in way)
        for edge, way in zip(problem.edges, ways, strict=True)
    ]
    delays = tuple(
        times[edge.target] + ii * edge.distance - times[edge.source] - latency[edge.source] - taken
        for edge, taken in zip(problem.edges, clocks, strict=True)
    )
    makespan = max(map(sum, zip(times, latency, strict=True)), default=0)
    return Plan(
        problem=problem.digest,
        objective=encode_objective(ii, makespan),
        ii=ii,
        makespan=makespan,
        tiles=tuple(tiles),
        times=tuple(times),
        slots=tuple(time % ii for time in times),
        routes=tuple(ways),
        delays=delays,
        starts=starts,
        interfaces=interfaces,
        instructions=tuple(instruction.id for instruction in problem.instructions),
        name=problem.name,
        target=problem.target,
    )


def link_between(problem: Problem, one: int, two: int) -> tuple[int, ...]:
    """The quickest single link from a tile to another; empty for feedback.

    Raises
    ------
    ValueError
        If there is no link.
    """
    if one == two:
        return ()
    links = [number for number in range(len(problem.machine.links)) if problem.machine.end(one, number) == two]
    return (min(links, key=lambda number: problem.machine.links[number].clocks),)
