"""From tiles to a whole plan: times by list scheduling, then routes, delays and starts."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Mapping, Sequence

from stowplan.models.modulo_scheduling.plan import Plan, encode_objective
from stowplan.models.modulo_scheduling.problem import Problem
from stowplan.models.modulo_scheduling.structure import Structure


def list_schedule(structure: Structure, ii: int, tiles: Sequence[int], recurrent: Mapping[int, int]) -> list[int]:
    """Times for a placement, with unlimited delays: most clocks to the end first, each in the first free slot.

    ``recurrent`` has times of the instructions on cycles, valid among themselves and in different slots of their tiles. They
    move by multiples of the II, a cycle at a time, which changes neither. No tile has more than ``ii`` instructions.
    """
    problem = structure.problem
    latency, hops = problem.machine.latency, problem.hops
    component = structure.component
    members: dict[int, list[int]] = defaultdict(list)
    for number, each in enumerate(component):
        members[each].append(number)
    incoming: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
    outgoing: dict[int, set[int]] = defaultdict(set)
    for edge in structure.between:
        one, two = component[edge.source], component[edge.target]
        if one != two:
            clocks = latency + (hops[tiles[edge.source]][tiles[edge.target]] or 0) - ii * edge.distance
            incoming[two].append((edge.source, edge.target, clocks))
            outgoing[one].add(two)
    waiting = {each: len({component[source] for source, _, _ in incoming[each]}) for each in members}
    order = _topological(waiting, outgoing)
    # Clocks from the start of a component to the end of the loop body, roughly: cycles count by where values leave them.
    lag: dict[tuple[int, int], int] = defaultdict(int)
    for two, values in incoming.items():
        for source, target, clocks in values:
            pair = component[source], two
            lag[pair] = max(lag[pair], clocks - recurrent.get(target, 0))
    height: dict[int, int] = {}
    for each in reversed(order):
        height[each] = max((height[two] + lag[each, two] for two in outgoing[each]), default=0)
    taken: dict[int, set[int]] = defaultdict(set)
    for number, time in recurrent.items():
        taken[tiles[number]].add(time % ii)
    times = [0] * structure.count
    ready = [(-height[each], each) for each in order if waiting[each] == 0]
    heapq.heapify(ready)
    left = dict(waiting)
    while ready:
        each = heapq.heappop(ready)[1]
        group = members[each]
        if len(group) == 1:
            number = group[0]
            time = max((times[source] + clocks for source, _, clocks in incoming[each]), default=0)
            time = max(time, 0)
            while time % ii in taken[tiles[number]]:
                time += 1
            taken[tiles[number]].add(time % ii)
            times[number] = time
        else:
            # The least shift that no time is negative and every value from outside is there.
            late = max(-recurrent[number] for number in group)
            late = max([late, *(times[source] + clocks - recurrent[target] for source, target, clocks in incoming[each])])
            for number in group:
                times[number] = recurrent[number] + ii * -(-late // ii)
        for two in sorted(outgoing[each]):
            left[two] -= 1
            if left[two] == 0:
                heapq.heappush(ready, (-height[two], two))
    return times


def _topological(waiting: Mapping[int, int], outgoing: Mapping[int, set[int]]) -> list[int]:
    left = dict(waiting)
    order = [each for each, count in left.items() if count == 0]
    for each in order:
        for two in sorted(outgoing.get(each, ())):
            left[two] -= 1
            if left[two] == 0:
                order.append(two)
    return order


def choose_starts(structure: Structure, tiles: Sequence[int]) -> tuple[int, ...] | None:
    """One start of each set of choices, on different tiles (augmenting paths); None where there are none."""
    chosen: dict[int, tuple[int, int]] = {}

    def place(which: int, seen: set[int]) -> bool:
        for number in structure.start_choices[which]:
            tile = tiles[number]
            if tile not in seen:
                seen.add(tile)
                if tile not in chosen or place(chosen[tile][0], seen):
                    chosen[tile] = (which, number)
                    return True
        return False

    if not all(place(which, set()) for which in range(len(structure.start_choices))):
        return None
    return tuple(sorted(number for _, number in chosen.values()))


def make_plan(
    structure: Structure,
    ii: int,
    tiles: Sequence[int],
    times: Sequence[int],
    routes: Sequence[tuple[int, ...]] | None = None,
) -> Plan | None:
    """Plan from tiles and times, over single links unless routes are given; None where starts would share a tile."""
    problem = structure.problem
    starts = choose_starts(structure, tiles)
    if starts is None:
        return None
    latency = problem.machine.latency
    ways = (
        list(routes) if routes is not None else [link_between(problem, tiles[e.source], tiles[e.target]) for e in problem.edges]
    )
    clocks = [sum(problem.machine.links[link].clocks for link in way) for way in ways]
    delays = tuple(
        times[edge.target] + ii * edge.distance - times[edge.source] - latency - taken
        for edge, taken in zip(problem.edges, clocks, strict=True)
    )
    makespan = max((time + latency for time in times), default=0)
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
