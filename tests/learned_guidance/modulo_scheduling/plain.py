"""Which places are legal beside what is placed, in plain Python: the reference of the compiled form.

Written from docs/reference/modulo-scheduling.md. Instructions that variables tie to one tile take it together, with all their
words and slots; so do those that a pin or a bound variable ties to a tile, from the start.
"""

from __future__ import annotations

from itertools import product

from stowplan.models.modulo_scheduling.problem import TIME_LIMIT, Problem


class Rules:
    """The rules of a problem, looked up anew each time."""

    def __init__(self, problem: Problem):
        self.problem = problem
        self.machine = problem.machine
        instructions = problem.instructions
        self.count = len(instructions)
        self.edges = [(edge.source, edge.target, edge.distance) for edge in problem.edges]
        self.hops = problem.machine.one_link
        tied = [{number} for number in range(self.count)]
        for one, two in product(range(self.count), repeat=2):
            if set(instructions[one].variables) & set(instructions[two].variables) and tied[one] is not tied[two]:
                joined = tied[one] | tied[two]
                for each in joined:
                    tied[each] = joined
        self.tied = tied
        self.pins = {problem.number[pin.instruction]: pin for pin in problem.pins}
        bound = {variable.id: variable.tile for variable in problem.variables}
        self.allowed: list[set[int]] = []
        for number in range(self.count):
            found = {bound[name] for each in tied[number] for name in instructions[each].variables}
            found |= {self.pins[each].tile for each in tied[number] if each in self.pins}
            tiles = set(range(self.machine.tiles))
            for tile in found - {None}:
                tiles &= {tile}
            for each in tied[number]:
                tiles &= set(tiles if instructions[each].tiles is None else instructions[each].tiles)
            self.allowed.append(tiles)
        woken = {target for _, target, distance in self.edges if distance == 0}
        self.sources = [number for number in range(self.count) if number not in woken]

    def words(self, members: set[int]) -> int:
        names = {name for each in members for name in self.problem.instructions[each].variables}
        return sum(variable.words for variable in self.problem.variables if variable.id in names)

    def tiles(self, placed: dict[int, tuple[int, int]]) -> dict[int, int]:
        """Tile of every instruction whose tile is known."""
        found = {number: next(iter(tiles)) for number, tiles in enumerate(self.allowed) if len(tiles) == 1}
        for number, (tile, _) in placed.items():
            found |= dict.fromkeys(self.tied[number], tile)
        return found

    def legal(self, placed: dict[int, tuple[int, int]], number: int, ii: int) -> set[tuple[int, int]]:
        """(tile, slot) pairs."""
        return {
            place
            for place in product(range(self.machine.tiles), range(ii))
            if self.space(placed, number, *place, ii) and self.times({**placed, number: place}, ii) is not None
        }

    def space(self, placed: dict[int, tuple[int, int]], number: int, tile: int, slot: int, ii: int) -> bool:
        if (tile, slot) in placed.values() or tile not in self.allowed[number]:
            return False
        latency = self.problem.latencies
        results = {(at, (when + latency[each]) % ii) for each, (at, when) in placed.items()}
        if (tile, (slot + latency[number]) % ii) in results:
            return False
        known = self.tiles(placed)
        if known.get(number, tile) != tile:
            return False
        known |= dict.fromkeys(self.tied[number], tile)
        mine = self.tied[number]
        here = {each for each, at in known.items() if at == tile}
        if len(here) > min(ii, self.machine.instruction_depth):
            return False
        if self.words(here) > self.machine.memories * self.machine.memory_depth:
            return False
        for source, target, _ in self.edges:
            touches = source in mine or target in mine
            if touches and source in known and target in known and self.hops[known[source]][known[target]] is None:
                return False
        for one, two in self.apart():
            if (one in mine or two in mine) and one in known and two in known and known[one] == known[two]:
                return False
        if self.problem.rules.starts == "source":
            return True
        choices = [[known[each] for each in flow] for flow in self.flows() if all(each in known for each in flow)]
        return any(len(set(chosen)) == len(chosen) for chosen in product(*choices))

    def apart(self) -> set[tuple[int, int]]:
        rule = self.problem.rules.siblings
        found = set()
        for (source, target, _), (other_source, other_target, _) in product(self.edges, repeat=2):
            if rule != "none" and source == other_source and target != other_target:
                found.add((target, other_target))
            if rule == "consumers_and_producers" and target == other_target and source != other_source:
                found.add((source, other_source))
        if self.problem.rules.starts == "source":
            found |= {(one, two) for one, two in product(self.sources, repeat=2) if one != two}
        return found

    def flows(self) -> list[list[int]]:
        """Sources of each flow."""
        flow = list(range(self.count))
        for _ in range(self.count):
            for source, target, _ in self.edges:
                flow[source] = flow[target] = min(flow[source], flow[target])
        return [[each for each in self.sources if flow[each] == label] for label in sorted(set(flow))]

    def times(self, placed: dict[int, tuple[int, int]], ii: int) -> dict[int, int] | None:
        """The earliest times in these slots; None where there are none."""
        latency = self.problem.latencies
        most = {number: TIME_LIMIT - 1 - latency[number] for number in placed}
        times = {number: slot for number, (_, slot) in placed.items()}
        for number, pin in self.pins.items():
            if number in placed:
                if pin.slot not in (None, placed[number][1]):
                    return None
                if pin.time is not None:
                    most[number] = min(most[number], pin.time)
                    times[number] = max(times[number], pin.time)
        changed = True
        while changed:
            changed = False
            wanted = []
            for source, target, distance in self.edges:
                if source in placed and target in placed:
                    clocks = latency[source] + (self.hops[placed[source][0]][placed[target][0]] or 0) - ii * distance
                    wanted.append((target, times[source] + clocks))
                    if self.problem.rules.max_delay is not None:
                        wanted.append((source, times[target] - clocks - self.problem.rules.max_delay))
            for number, time in [*wanted, *times.items()]:
                time += (placed[number][1] - time) % ii
                if time > times[number]:
                    times[number], changed = time, True
            # Times that only a cycle without an end drives come to no rest before this.
            if any(times[number] > min(most[number], 5000) for number in placed):
                return None
        return times
