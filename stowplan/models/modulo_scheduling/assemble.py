"""Builds complete plans from tiles and times: routes, delays, starts and memory interfaces.

If a model gives only tiles and some of the times, the other times are found by list scheduling. Models, heuristics and policies
build their plans here.

The *II* is the initiation interval, and a *slot* is a clock modulo the II. The *delay* of a value is the time that it waits for
its consumer. A *start* is an instruction that the hardware starts at a set time; no tile may have two
(:class:`~.problem.Rules`). A *recurrence* is a cycle of values over several iterations. A *variable* is data of the loop in the
memory of a tile. An *asynchronous* value does not go over links between tiles, but over a second network, and is buffered in
the memory of the tile that reads it. Requests to memory go through *interfaces*, each of which has a number of *ports*, the
requests that it accepts in one clock. A *port limit* is the largest number of requests that a set of tiles may make in a slot.
"""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import TypeVar

from stowplan.models.modulo_scheduling.plan import Plan, encode_objective
from stowplan.models.modulo_scheduling.problem import Problem
from stowplan.models.modulo_scheduling.structure import Structure, longest_paths


def list_schedule(structure: Structure, ii: int, tiles: Sequence[int], given_times: Mapping[int, int]) -> list[int] | None:
    """Find times for given tiles, with unlimited delays, by list scheduling.

    Instructions with the longest way to the end of the iteration are scheduled first, and each gets the first free slot.

    Parameters
    ----------
    tiles
        Tile of each instruction. No tile may have more than ``ii`` instructions.
    given_times
        Times of the instructions on recurrences, and possibly of others. Within a recurrence they must be valid, and they must
        be in different slots of their tiles. They are only shifted by multiples of the II, and all times of a recurrence by the
        same one, so that both conditions remain true.

    Returns
    -------
    list of int or None
        Time of each instruction. None if an instruction finds no free slot, which cannot happen if ``given_times`` has all
        instructions of :attr:`Structure.slotted`.
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
            transport = (hops[tiles[source]][tiles[target]] or 0) if sent is None else sent
            incoming[two].append((source, target, latency[source] + transport - ii * distance))
            outgoing[one].add(two)
    waiting = {member: len({component[source] for source, _, _ in incoming[member]}) for member in members}
    # Approximate number of clocks from each component to the end of the iteration, as longest paths.
    lag: dict[tuple[int, int], int] = defaultdict(int)
    for two, values in incoming.items():
        for source, target, clocks in values:
            pair = component[source], two
            lag[pair] = max(lag[pair], clocks - (given_times[target] if len(members[two]) > 1 else 0))
    height = longest_paths(((two, one, clocks) for (one, two), clocks in lag.items()), [0] * len(members))
    slots = _ReservationTable(structure, ii, tiles)
    for number, time in given_times.items():
        slots.reserve(number, time)
    times = [0] * structure.count
    ready = [(-height[label], label) for label, count in waiting.items() if count == 0]
    heapq.heapify(ready)
    while ready:
        label = heapq.heappop(ready)[1]
        group = members[label]
        if len(group) == 1:
            number = group[0]
            time = max([0, *(times[source] + clocks for source, _, clocks in incoming[label])])
            if number in given_times:
                times[number] = time + (given_times[number] - time) % ii
            else:
                free = next((clock for clock in range(time, time + ii) if slots.is_free(number, clock)), None)
                if free is None:
                    return None
                slots.reserve(number, free)
                times[number] = free
        else:
            # The smallest shift with which no time is negative and every value from outside has arrived.
            shift = max(-given_times[number] for number in group)
            shift = max([shift, *(times[source] + clocks - given_times[target] for source, target, clocks in incoming[label])])
            for number in group:
                times[number] = given_times[number] + ii * -(-shift // ii)
        for two in sorted(outgoing[label]):
            waiting[two] -= 1
            if waiting[two] == 0:
                heapq.heappush(ready, (-height[two], two))
    return times


class _ReservationTable:
    """The modulo reservation table: slots of issues, of results, and of memory requests."""

    def __init__(self, structure: Structure, ii: int, tiles: Sequence[int]):
        self._latency, self._ii, self._tiles = structure.problem.latencies, ii, tiles
        self._issues: set[tuple[int, int]] = set()
        self._results: set[tuple[int, int]] = set()
        self._limits, self._accesses = structure.port_limits, set(structure.problem.accesses)
        self._requests: Counter[tuple[int, int]] = Counter()

    def reserve(self, number: int, time: int) -> None:
        """Reserve the resources of an instruction that is issued at this time."""
        done = (time + self._latency[number]) % self._ii
        self._issues.add((self._tiles[number], time % self._ii))
        self._results.add((self._tiles[number], done))
        self._requests.update((which, done) for which in self._limited(number))

    def is_free(self, number: int, time: int) -> bool:
        """Whether the resources of an instruction that is issued at this time are free."""
        tile, done = self._tiles[number], (time + self._latency[number]) % self._ii
        if (tile, time % self._ii) in self._issues or (tile, done) in self._results:
            return False
        return all(self._requests[which, done] < self._limits[which].most for which in self._limited(number))

    def _limited(self, number: int) -> list[int]:
        """The indices of the port limits that apply to an instruction on its tile."""
        if number not in self._accesses:
            return []
        return [which for which, limit in enumerate(self._limits) if self._tiles[number] in limit.tiles]


_Place = TypeVar("_Place", bound=Hashable)


def _assigned(choices: Sequence[Sequence[_Place]], most: Callable[[_Place], int]) -> dict[_Place, list[int]] | None:
    """Assign each user to one of its places (bipartite matching by augmenting paths).

    Parameters
    ----------
    choices
        Possible places of each user.
    most
        Largest number of users at a place.

    Returns
    -------
    dict or None
        Users at each place; None if there is no assignment.
    """
    users_at: dict[_Place, list[int]] = defaultdict(list)

    def assign(who: int, seen: set[_Place]) -> bool:
        """Give a user a place, and other users other places if necessary; returns whether that was possible."""
        for place in choices[who]:
            if place in seen:
                continue
            seen.add(place)
            users = users_at[place]
            if len(users) < most(place):
                users.append(who)
                return True
            for at, other in enumerate(users):
                if assign(other, seen):
                    users[at] = who
                    return True
        return False

    return users_at if all(assign(who, set()) for who in range(len(choices))) else None


def choose_starts(structure: Structure, tiles: Sequence[int]) -> tuple[int, ...] | None:
    """Choose one start from each set of :attr:`Structure.start_choices` such that all are on different tiles; None if that is
    impossible. ``tiles`` has the tile of each instruction."""
    choices = structure.start_choices
    users_at = _assigned([[tiles[number] for number in numbers] for numbers in choices], lambda tile: 1)
    if users_at is None:
        return None
    return tuple(sorted(next(n for n in choices[users[0]] if tiles[n] == tile) for tile, users in users_at.items()))


def choose_interfaces(
    structure: Structure, ii: int, tiles: Sequence[int], times: Sequence[int]
) -> tuple[int | None, ...] | None:
    """Choose an interface with a free port for each memory access; None if that is impossible.

    The result has the number of an interface for each instruction, and None for an instruction that is no memory access. It is
    empty if the problem has no memory accesses.
    """
    problem, choices = structure.problem, []
    if not problem.accesses:
        return ()
    for number in problem.accesses:
        slot = (times[number] + problem.latencies[number]) % ii
        tile, interfaces = tiles[number], enumerate(problem.machine.interfaces)
        choices.append([(at, slot) for at, interface in interfaces if interface.tiles is None or tile in interface.tiles])
    users_at = _assigned(choices, lambda place: problem.machine.interfaces[place[0]].ports)
    if users_at is None:
        return None
    chosen: list[int | None] = [None] * structure.count
    for (interface, _), users in users_at.items():
        for user in users:
            chosen[problem.accesses[user]] = interface
    return tuple(chosen)


def _fits_memory(structure: Structure, ii: int, tiles: Sequence[int], times: Sequence[int]) -> bool:
    """Whether variables and buffers of asynchronous values fit into the memory of each tile."""
    if not structure.buffers:
        return True
    machine = structure.problem.machine
    words: Counter[int] = Counter()
    for members, size in zip(structure.members, structure.words, strict=True):
        words[tiles[members[0]]] += size
    for buffer in structure.buffers:
        words[tiles[buffer.readers[0][0]]] += structure.words_of(buffer, ii, times)
    return all(used <= machine.memories * machine.memory_depth for used in words.values())


def _fits_registers(problem: Problem, plan: Plan) -> bool:
    """Whether there are registers for all values that wait, and all of them are read before they are overwritten."""
    registers, ii = problem.machine.registers, plan.ii
    if not registers:
        return True
    done = [time + latency for time, latency in zip(plan.times, problem.latencies, strict=True)]
    results = {(tile, clock % ii) for tile, clock in zip(plan.tiles, done, strict=True)}
    waiting: dict[tuple[int, int], set[int]] = defaultdict(set)
    for edge, delay in zip(problem.edges, plan.delays, strict=True):
        if edge.asynchronous:
            continue
        if delay >= ii:
            return False
        one, two = plan.tiles[edge.source], plan.tiles[edge.target]
        for clock in range(done[edge.source] + 1, done[edge.source] + delay + 1):
            if registers.output and one != two:
                if (one, clock % ii) in results:
                    return False
            else:
                waiting[two, clock % ii].add(edge.source)
    return registers.count is None or all(len(values) <= registers.count for values in waiting.values())


def make_plan(
    structure: Structure,
    ii: int,
    tiles: Sequence[int],
    times: Sequence[int],
    routes: Sequence[tuple[int, ...]] | None = None,
) -> Plan | None:
    """Build a plan from tiles and times. Values take single links unless routes are given.

    Parameters
    ----------
    ii
        Initiation interval.
    tiles, times
        Tile, and time in clocks, of each instruction.
    routes
        For each edge of the problem, the links that its value takes, as indices into ``Machine.links``.

    Returns
    -------
    Plan or None
        An unverified plan; None if starts would share a tile, memory requests find no port, or values do not fit into memory or
        registers.

    Raises
    ------
    ValueError
        ``routes`` is None, and a value that is not asynchronous is consumed on a tile to which no single link leads from its
        producer's tile.
    """
    problem = structure.problem
    starts = choose_starts(structure, tiles)
    interfaces = choose_interfaces(structure, ii, tiles, times)
    if starts is None or interfaces is None or not _fits_memory(structure, ii, tiles, times):
        return None
    latency = problem.latencies
    routed = (
        list(routes)
        if routes is not None
        else [() if e.asynchronous else link_between(problem, tiles[e.source], tiles[e.target]) for e in problem.edges]
    )
    clocks = [
        problem.nominal(edge.source) if edge.asynchronous else sum(problem.machine.links[link].clocks for link in way)
        for edge, way in zip(problem.edges, routed, strict=True)
    ]
    delays = tuple(
        times[edge.target] + ii * edge.distance - times[edge.source] - latency[edge.source] - transport
        for edge, transport in zip(problem.edges, clocks, strict=True)
    )
    makespan = max(map(sum, zip(times, latency, strict=True)), default=0)
    plan = Plan(
        problem=problem.digest,
        objective=encode_objective(ii, makespan),
        ii=ii,
        makespan=makespan,
        tiles=tuple(tiles),
        times=tuple(times),
        slots=tuple(time % ii for time in times),
        routes=tuple(routed),
        delays=delays,
        starts=starts,
        interfaces=interfaces,
        instructions=tuple(instruction.id for instruction in problem.instructions),
        name=problem.name,
        target=problem.target,
    )
    return plan if _fits_registers(problem, plan) else None


def link_between(problem: Problem, one: int, two: int) -> tuple[int, ...]:
    """The fastest single link from a tile to another, as a route. The route is empty if both are the same tile, which needs no
    link to use its own results.

    Raises
    ------
    ValueError
        There is no link from the one tile to the other.
    """
    if one == two:
        return ()
    links = [number for number in range(len(problem.machine.links)) if problem.machine.end(one, number) == two]
    return (min(links, key=lambda number: problem.machine.links[number].clocks),)
