"""All plans of tiny problems, one by one: the judge of verifier and models. Written from docs/modulo-scheduling.md."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from stowplan.models.modulo_scheduling.problem import Problem

Place = tuple[int, int]
"""Tile and time."""


def ways(problem: Problem, start: int, end: int) -> list[list[tuple[int, int]]]:
    """All quickest ways between two tiles, each as (tile, link) steps."""
    machine = problem.machine
    longest = 1 if not problem.rules.pass_through else machine.rows * machine.columns
    found: list[tuple[int, list[tuple[int, int]]]] = []

    def go(at: int, clocks: int, steps: list[tuple[int, int]], seen: set[int]) -> None:
        if at == end:
            found.append((clocks, steps))
            return
        if len(steps) == longest:
            return
        for number, link in enumerate(machine.links):
            row, column = at // machine.columns + link.rows, at % machine.columns + link.columns
            if machine.wraps:
                row, column = row % machine.rows, column % machine.columns
            if 0 <= row < machine.rows and 0 <= column < machine.columns:
                after = row * machine.columns + column
                if after not in seen:
                    go(after, clocks + link.clocks, [*steps, (at, number)], {*seen, after})

    go(start, 0, [], {start})
    least = min((clocks for clocks, _ in found), default=0)
    return [steps for clocks, steps in found if clocks == least]


class Judge:
    """Validity of tiles and times, by the rules."""

    def __init__(self, problem: Problem):
        self.problem = problem
        ids = [instruction.id for instruction in problem.instructions]
        self.edges = [
            (ids.index(operand.instruction), target, operand.distance)
            for target, instruction in enumerate(problem.instructions)
            for operand in instruction.operands
            if operand.instruction is not None
        ]
        count = problem.machine.rows * problem.machine.columns
        self.tiles = range(count)
        self.ways = {pair: ways(problem, *pair) for pair in product(self.tiles, repeat=2)}
        links = problem.machine.links
        self.hops = {
            pair: sum(links[link].clocks for _, link in found[0]) if found else None for pair, found in self.ways.items()
        }
        self.uses = [
            {operand.variable for operand in instruction.operands if operand.variable} | set(instruction.writes)
            for instruction in problem.instructions
        ]
        self.ids = ids

    def pair_ok(self, one: int, two: int, first: Place, second: Place, ii: int) -> bool:
        """Whether two instructions may be where they are, as far as they alone are concerned."""
        if first[0] == second[0]:
            if first[1] % ii == second[1] % ii:
                return False
            rule = self.problem.rules.siblings
            for source, target, _ in self.edges:
                for other_source, other_target, _ in self.edges:
                    if rule != "none" and source == other_source and {target, other_target} == {one, two}:
                        return False
                    if rule == "consumers_and_producers" and target == other_target and {source, other_source} == {one, two}:
                        return False
        elif self.uses[one] & self.uses[two]:
            return False
        return True

    def edges_ok(self, places: list[Place], ii: int) -> bool:
        """Edges between the first instructions, as many as have places."""
        limit = self.problem.rules.max_delay
        for source, target, distance in self.edges:
            if max(source, target) < len(places):
                hops = self.hops[places[source][0], places[target][0]]
                if hops is None:
                    return False
                delay = places[target][1] + ii * distance - places[source][1] - self.problem.machine.latency - hops
                if delay < 0 or (limit is not None and delay > limit):
                    return False
        return True

    def alone_ok(self, number: int, place: Place, ii: int) -> bool:
        for pin in self.problem.pins:
            if pin.instruction == self.ids[number]:
                wanted = (pin.tile, pin.time, pin.slot)
                if any(want is not None and want != has for want, has in zip(wanted, (*place, place[1] % ii), strict=True)):
                    return False
        bound = [variable.tile for variable in self.problem.variables if variable.id in self.uses[number]]
        return all(tile in (None, place[0]) for tile in bound)

    def whole_ok(self, places: list[Place], ii: int) -> bool:
        """What concerns more than two instructions: RAM, memory, starts, links."""
        machine = self.problem.machine
        for tile in self.tiles:
            here = [number for number, place in enumerate(places) if place[0] == tile]
            if len(here) > machine.instruction_depth:
                return False
            names = set().union(*(self.uses[number] for number in here)) if here else set()
            words = sum(variable.words for variable in self.problem.variables if variable.id in names)
            if words > machine.memories * machine.memory_depth:
                return False
        return self.starts(places) is not None and self.routes(places, ii) is not None

    def starts(self, places: list[Place]) -> tuple[int, ...] | None:
        sources = [n for n in range(len(places)) if not any(t == n and d == 0 for _, t, d in self.edges)]
        if self.problem.rules.starts == "source":
            choices = [[number] for number in sources]
        else:
            flow = {n: {n} for n in range(len(places))}
            for source, target, _ in self.edges:
                joined = flow[source] | flow[target]
                for number in joined:
                    flow[number] = joined
            choices = [[n for n in sources if n in each] for each in {frozenset(each) for each in flow.values()}]
        for chosen in product(*choices):
            if len({places[number][0] for number in chosen}) == len(chosen):
                return tuple(sorted(chosen))
        return None

    def routes(self, places: list[Place], ii: int) -> list[tuple[int, ...]] | None:
        """Ways on which no link carries two values at once; None where there are none."""
        links, latency = self.problem.machine.links, self.problem.machine.latency
        for chosen in product(*(self.ways[places[s][0], places[t][0]] for s, t, _ in self.edges)):
            carried: dict[tuple[int, int, int], tuple[int, int]] = {}
            free = True
            for (source, _, _), steps in zip(self.edges, chosen, strict=True):
                clock = places[source][1] + latency
                for tile, link in steps:
                    free = free and carried.setdefault((tile, link, clock % ii), (source, clock)) == (source, clock)
                    clock += links[link].clocks
            if free:
                return [tuple(link for _, link in steps) for steps in chosen]
        return None

    def plans(self, ii: int, last: int) -> Iterator[list[Place]]:
        """All valid places at an interval, with no time after ``last``."""
        count = len(self.ids)

        def go(places: list[Place]) -> Iterator[list[Place]]:
            number = len(places)
            if number == count:
                if self.whole_ok(places, ii):
                    yield list(places)
                return
            for place in product(self.tiles, range(last + 1)):
                if not self.alone_ok(number, place, ii):
                    continue
                if all(self.pair_ok(other, number, places[other], place, ii) for other in range(number)):
                    places.append(place)
                    if self.edges_ok(places, ii):
                        yield from go(places)
                    places.pop()

        yield from go([])


def best(problem: Problem) -> tuple[int, int] | None:
    """(interval, makespan) of the best plan; None where there is none."""
    judge = Judge(problem)
    latency = problem.machine.latency
    farthest = max(hops for hops in judge.hops.values() if hops is not None)
    for ii in range(1, problem.machine.spoke_depth + 1):
        # Times need not be further apart than every instruction waiting for the one before, in another round each.
        step = -(-(latency + farthest + ii - 1) // ii) + 3
        last = 3 + ii * (step * (len(problem.instructions) - 1) + 2)
        if next(judge.plans(ii, last), None) is not None:
            for makespan in range(latency, last + latency + 1):
                if next(judge.plans(ii, makespan - latency), None) is not None:
                    return ii, makespan
    return None
