"""All plans of tiny problems, one by one: the reference of verifier and models.

Written from docs/reference/modulo-scheduling.md.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import product

from stowplan.models.modulo_scheduling.problem import Problem


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


class Reference:
    """Validity of tiles and times, by the rules."""

    def __init__(self, problem: Problem):
        self.problem = problem
        ids = [instruction.id for instruction in problem.instructions]
        every = [
            (ids.index(operand.instruction), target, operand.distance, operand.asynchronous)
            for target, instruction in enumerate(problem.instructions)
            for operand in instruction.operands
            if operand.instruction is not None
        ]
        accesses = [number for number, each in enumerate(problem.instructions) if each.memory]
        self.accesses = accesses
        self.sent = [(s, t, d) for s, t, d, marked in every if marked or s in accesses]
        self.edges = [(s, t, d) for s, t, d, marked in every if not marked and s not in accesses]
        self.is_sent = [marked or s in accesses for s, _, _, marked in every]
        fabric = problem.machine.asynchronous
        self.interfaces = fabric.interfaces if fabric else ()
        self.nominal = [
            (fabric.memory_latency if number in accesses else fabric.latency) if fabric else 0 for number in range(len(ids))
        ]
        flow = {n: {n} for n in range(len(ids))}
        for source, target, _ in self.edges:
            joined = flow[source] | flow[target]
            for number in joined:
                flow[number] = joined
        self.flow = {number: frozenset(members) for number, members in flow.items()}
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
        default = problem.machine.latency
        self.latency = [default if each.latency is None else each.latency for each in problem.instructions]

    def tiles_ok(self, tiles: tuple[int, ...]) -> bool:
        """Whether tiles alone break no rule."""
        for source, target, _ in self.edges:
            if self.hops[tiles[source], tiles[target]] is None:
                return False
        rule = self.problem.rules.siblings
        for one, (source, target, _) in enumerate(self.edges):
            for other_source, other_target, _ in self.edges[:one]:
                if (
                    source == other_source
                    and target != other_target
                    and rule != "none"
                    and tiles[target] == tiles[other_target]
                ):
                    return False
                producers = rule == "consumers_and_producers" and target == other_target and source != other_source
                if producers and tiles[source] == tiles[other_source]:
                    return False
        for one, uses in enumerate(self.uses):
            for two in range(one):
                if uses & self.uses[two] and tiles[one] != tiles[two]:
                    return False
            bound = [variable.tile for variable in self.problem.variables if variable.id in uses]
            if any(tile not in (None, tiles[one]) for tile in bound):
                return False
        for tile, instruction in zip(tiles, self.problem.instructions, strict=True):
            if instruction.tiles is not None and tile not in instruction.tiles:
                return False
            if instruction.memory and not any(each.tiles is None or tile in each.tiles for each in self.interfaces):
                return False
        for source, target, _ in self.sent:
            if any(tiles[other] != tiles[target] for who, other, _ in self.sent if who == source):
                return False
        for pin in self.problem.pins:
            if pin.tile not in (None, tiles[self.ids.index(pin.instruction)]):
                return False
        return self.room(tiles) and self.starts(tiles) is not None

    def room(self, tiles: tuple[int, ...]) -> bool:
        """Instruction RAM and memory."""
        machine = self.problem.machine
        for tile in self.tiles:
            here = [number for number, each in enumerate(tiles) if each == tile]
            if len(here) > machine.instruction_depth:
                return False
            names = set().union(*(self.uses[number] for number in here)) if here else set()
            words = sum(variable.words for variable in self.problem.variables if variable.id in names)
            if words > machine.memories * machine.memory_depth:
                return False
        return True

    def starts(self, tiles: tuple[int, ...]) -> tuple[int, ...] | None:
        """Starts on different tiles."""
        sources = [n for n in range(len(tiles)) if not any(t == n and d == 0 for _, t, d in self.edges)]
        if self.problem.rules.starts == "source":
            choices = [[number] for number in sources]
        else:
            choices = [[n for n in sources if n in each] for each in set(self.flow.values())]
        for chosen in product(*choices):
            if len({tiles[number] for number in chosen}) == len(chosen):
                return tuple(sorted(chosen))
        return None

    def messages_ok(self, tiles: tuple[int, ...], times: list[int], ii: int) -> bool:
        """Launches, ports and words of complete places."""
        launch = {number: min(times[other] for other in members) for number, members in self.flow.items()}
        words = [0 for _ in self.tiles]
        for tile in self.tiles:
            names = set().union(*(self.uses[number] for number, each in enumerate(tiles) if each == tile))
            words[tile] = sum(variable.words for variable in self.problem.variables if variable.id in names)
        for source in {source for source, _, _ in self.sent}:
            reads = [(times[t] + ii * d, tiles[t]) for s, t, d in self.sent if s == source]
            ready = times[source] + self.latency[source] + self.nominal[source]
            if any(launch[t] + ii * d < ready for s, t, d in self.sent if s == source):
                return False
            words[reads[0][1]] += (max(read for read, _ in reads) - launch[source]) // ii + 1
        machine = self.problem.machine
        if any(each > machine.memories * machine.memory_depth for each in words):
            return False
        return self.ask(tiles, times, ii) is not None

    def ask(self, tiles: tuple[int, ...], times: list[int], ii: int) -> tuple[int | None, ...] | None:
        """Interfaces with ports for all accesses, by trying all."""
        choices = [
            [n for n, each in enumerate(self.interfaces) if each.tiles is None or tiles[number] in each.tiles]
            for number in self.accesses
        ]
        for chosen in product(*choices):
            asked = Counter((which, (times[n] + self.latency[n]) % ii) for n, which in zip(self.accesses, chosen, strict=True))
            if all(count <= self.interfaces[which].ports for (which, _), count in asked.items()):
                found: list[int | None] = [None] * len(tiles)
                for number, which in zip(self.accesses, chosen, strict=True):
                    found[number] = which
                return tuple(found) if self.accesses else ()
        return None

    def times_ok(self, tiles: tuple[int, ...], times: list[int], ii: int) -> bool:
        """Whether the last of the times goes with those before it."""
        last = len(times) - 1
        for other in range(last):
            same_result = (times[other] + self.latency[other] - times[last] - self.latency[last]) % ii == 0
            if tiles[other] == tiles[last] and (times[other] % ii == times[last] % ii or same_result):
                return False
        for pin in self.problem.pins:
            holds = pin.time in (None, times[last]) and pin.slot in (None, times[last] % ii)
            if pin.instruction == self.ids[last] and not holds:
                return False
        limit = self.problem.rules.max_delay
        if self.problem.machine.registers:
            limit = ii - 1 if limit is None else min(limit, ii - 1)
        for source, target, distance in self.edges:
            if max(source, target) == last:
                hops = self.hops[tiles[source], tiles[target]] or 0
                delay = times[target] + ii * distance - times[source] - self.latency[source] - hops
                if delay < 0 or (limit is not None and delay > limit):
                    return False
        for source, target, distance in self.sent:
            # Part of what messages_ok asks, early.
            ready = self.latency[source] + self.nominal[source]
            if max(source, target) == last and times[target] + ii * distance < times[source] + ready:
                return False
        return True

    def registers_ok(self, tiles: tuple[int, ...], times: list[int], ii: int) -> bool:
        """Whether values that wait find registers: simulated over so many intervals that all iterations overlap."""
        registers = self.problem.machine.registers
        if not registers:
            return True
        rounds = 2 + (max(times) + max(self.latency)) // ii + max((d for _, _, d in self.edges), default=0)
        written: dict[tuple[int, int], tuple[int, int]] = {}
        for iteration in range(2 * rounds):
            for number, tile in enumerate(tiles):
                written[tile, times[number] + self.latency[number] + ii * iteration] = (number, iteration)
        for iteration in range(rounds):
            for source, target, distance in self.edges:
                ready = times[source] + self.latency[source] + ii * iteration
                read = times[target] + ii * (iteration + distance)
                elsewhere = registers.output and tiles[source] != tiles[target]
                if elsewhere and any((tiles[source], clock) in written for clock in range(ready + 1, read + 1)):
                    return False
        if registers.count is None:
            return True
        # In a clock late enough, what waits is what waits in every interval.
        for clock in range(ii * rounds, ii * rounds + ii):
            for tile in self.tiles:
                waiting = set()
                for iteration in range(2 * rounds):
                    for source, target, distance in self.edges:
                        ready = times[source] + self.latency[source] + ii * iteration
                        read = times[target] + ii * (iteration + distance)
                        here = tiles[target] == tile and not (registers.output and tiles[source] != tile)
                        if here and ready < clock <= read:
                            waiting.add((source, iteration))
                if len(waiting) > registers.count:
                    return False
        return True

    def routes(self, tiles: tuple[int, ...], times: list[int], ii: int) -> list[tuple[int, ...]] | None:
        """Ways on which no link carries two values at once; None where there are none."""
        clocks_of = self.problem.machine.links
        for chosen in product(*(self.ways[tiles[s], tiles[t]] for s, t, _ in self.edges)):
            carried: dict[tuple[int, int, int], tuple[int, int]] = {}
            free = True
            for (source, _, _), steps in zip(self.edges, chosen, strict=True):
                clock = times[source] + self.latency[source]
                for tile, link in steps:
                    free = free and carried.setdefault((tile, link, clock % ii), (source, clock)) == (source, clock)
                    clock += clocks_of[link].clocks
            if free:
                links = iter([tuple(link for _, link in steps) for steps in chosen])
                return [() if is_sent else next(links) for is_sent in self.is_sent]
        return None

    def plans(self, ii: int, last: int) -> Iterator[tuple[tuple[int, ...], list[int]]]:
        """Tiles and times of all valid plans at an II, with no result after ``last``."""
        count = len(self.ids)

        def go(tiles: tuple[int, ...], times: list[int]) -> Iterator[tuple[tuple[int, ...], list[int]]]:
            if len(times) == count:
                fits = self.messages_ok(tiles, times, ii) and self.registers_ok(tiles, times, ii)
                if fits and self.routes(tiles, times, ii) is not None:
                    yield tiles, list(times)
                return
            for time in range(last + 1 - self.latency[len(times)]):
                times.append(time)
                if self.times_ok(tiles, times, ii):
                    yield from go(tiles, times)
                times.pop()

        for tiles in product(self.tiles, repeat=count):
            if self.tiles_ok(tiles):
                yield from go(tiles, [])


def best(problem: Problem) -> tuple[int, int] | None:
    """(II, makespan) of the best plan; None where there is none."""
    reference = Reference(problem)
    latency = max(reference.latency, default=0)
    farthest = max(0, *reference.nominal, *(hops for hops in reference.hops.values() if hops is not None))
    for ii in range(1, problem.machine.spoke_depth + 1):
        # Rounds need be no further apart than along a path of all instructions: each a value's way, or the distance of an edge.
        is_bounded = problem.rules.max_delay is not None or problem.machine.registers or reference.sent
        longest = max((distance for _, _, distance in (*reference.edges, *reference.sent)), default=0)
        back = 1 + longest if is_bounded else 0
        step = max(-(-(latency + farthest + ii - 1) // ii), back)
        last = max((pin.time or 0 for pin in problem.pins), default=0) + ii * (step * (len(problem.instructions) - 1) + 2)
        if next(reference.plans(ii, last + latency), None) is not None:
            for makespan in range(latency, last + latency + 1):
                if next(reference.plans(ii, makespan), None) is not None:
                    return ii, makespan
    return None
