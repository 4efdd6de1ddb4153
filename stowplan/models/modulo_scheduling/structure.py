"""What the models need to know of a problem beside its data: groups, families, flows, recurrences, symmetries of the machine.

Not for the verifier.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import cached_property
from itertools import combinations, product
from typing import NamedTuple

from stowplan.models.modulo_scheduling.problem import Edge, Problem, components


class Precedence(NamedTuple):
    """One instruction waits for another: time(target) + II · distance >= time(source) + latency + clocks on the way."""

    source: int
    target: int
    distance: int
    clocks: int | None
    """Nominal clocks over the asynchronous fabric; None over links, between the tiles of both."""


class Buffer(NamedTuple):
    """A value that comes over the asynchronous fabric, in the tile memory of those that read it."""

    source: int
    readers: tuple[tuple[int, int], ...]
    """(instruction, distance) of each."""


class PortLimit(NamedTuple):
    """In each slot, no more requests to memory from these tiles than their interfaces take."""

    tiles: frozenset[int]
    most: int


class Structure:
    """Derived facts, each computed once. Instructions by number."""

    def __init__(self, problem: Problem):
        self.problem = problem
        self.count = len(problem.instructions)

    @cached_property
    def between(self) -> list[Edge]:
        """Synchronous edges between two different instructions."""
        return [edge for edge in self.problem.edges if edge.source != edge.target and not edge.asynchronous]

    @cached_property
    def precedences(self) -> list[Precedence]:
        """Who waits for whom: consumers over links; and all sources of a flow for each value that is sent to it."""
        problem = self.problem
        precedences = [Precedence(e.source, e.target, e.distance, None) for e in problem.edges if not e.asynchronous]
        sources: dict[int, list[int]] = defaultdict(list)
        for number in self.sources:
            sources[self.flow[number]].append(number)
        sent = {
            (edge.source, start, edge.distance)
            for edge in problem.edges
            if edge.asynchronous
            for start in sources[self.flow[edge.target]]
        }
        return precedences + [Precedence(*ends, problem.nominal(ends[0])) for ends in sorted(sent)]

    @cached_property
    def buffers(self) -> list[Buffer]:
        """Values that come over the asynchronous fabric, in the order of their producers."""
        readers: dict[int, set[tuple[int, int]]] = defaultdict(set)
        for edge in self.problem.edges:
            if edge.asynchronous:
                readers[edge.source].add((edge.target, edge.distance))
        return [Buffer(source, tuple(sorted(readers[source]))) for source in sorted(readers)]

    def least_words(self, buffer: Buffer, ii: int) -> int:
        """Words that a buffer takes in any plan."""
        problem = self.problem
        return (problem.latencies[buffer.source] + problem.nominal(buffer.source)) // ii + 1

    def words_at(self, ii: int) -> list[int]:
        """For each group the words that its variables take, and at least those that are sent to it."""
        words = list(self.words)
        for buffer in self.buffers:
            words[self.group[buffer.readers[0][0]]] += self.least_words(buffer, ii)
        return words

    def words_of(self, buffer: Buffer, ii: int, times: Sequence[int]) -> int:
        """Words that a buffer takes in a plan."""
        launch = min(times[number] for number in self.sources if self.flow[number] == self.flow[buffer.source])
        return (max(times[reader] + ii * distance for reader, distance in buffer.readers) - launch) // ii + 1

    @cached_property
    def port_limits(self) -> list[PortLimit]:
        """Limits that say together whether the requests of a slot find ports (Hall's condition), each for some interfaces."""
        machine, accesses = self.problem.machine, len(self.problem.accesses)
        tiles = range(machine.tiles)
        served_by = [interface.tiles for interface in machine.interfaces]
        served = {
            tile: frozenset(number for number, own in enumerate(served_by) if own is None or tile in own) for tile in tiles
        }
        kinds = sorted({frozenset(own) for own in served.values() if own}, key=sorted)
        limits: dict[frozenset[int], int] = {}
        for count in range(1, len(kinds) + 1):
            for chosen in combinations(kinds, count):
                used = frozenset().union(*chosen)
                inside = frozenset(tile for tile in tiles if served[tile] and served[tile] <= used)
                most = sum(machine.interfaces[number].ports for number in used)
                # A tile makes one request a clock.
                if most < min(len(inside), accesses):
                    limits[inside] = min(most, limits.get(inside, most))
        return [PortLimit(inside, most) for inside, most in sorted(limits.items(), key=lambda limit: sorted(limit[0]))]

    @cached_property
    def group(self) -> list[int]:
        """Group of each instruction: those that must share a tile because of variables have the same."""
        users: dict[str, list[int]] = defaultdict(list)
        for number, instruction in enumerate(self.problem.instructions):
            for name in instruction.variables:
                users[name].append(number)
        shared = [*users.values(), *([reader for reader, _ in buffer.readers] for buffer in self.buffers)]
        return self._together([(numbers[0], number) for numbers in shared for number in numbers[1:]])

    @cached_property
    def members(self) -> list[list[int]]:
        """Instructions of each group."""
        members: list[list[int]] = [[] for _ in range(max(self.group, default=-1) + 1)]
        for number, group in enumerate(self.group):
            members[group].append(number)
        return members

    @cached_property
    def words(self) -> list[int]:
        """Words of tile memory that each group's variables take."""
        size = {variable.id: variable.words for variable in self.problem.variables}
        return [
            sum(size[name] for name in {name for member in members for name in self.problem.instructions[member].variables})
            for members in self.members
        ]

    @cached_property
    def demands(self) -> list[dict[int, str]]:
        """For each group the tiles it must be on, each with its reason; more than one cannot be."""
        demands: list[dict[int, str]] = [{} for _ in self.members]
        bound = {variable.id: variable.tile for variable in self.problem.variables}
        for number, instruction in enumerate(self.problem.instructions):
            for name in instruction.variables:
                tile = bound[name]
                if tile is not None:
                    demands[self.group[number]].setdefault(tile, f"{instruction.id} uses {name}, in the memory of tile {tile}")
        for pin in self.problem.pins:
            if pin.tile is not None:
                reason = f"{pin.instruction} is fixed on tile {pin.tile}"
                demands[self.group[self.problem.number[pin.instruction]]].setdefault(pin.tile, reason)
        return demands

    @cached_property
    def allowed(self) -> list[tuple[int, ...]]:
        """For each group the tiles it may stand on, ascending; none where demands contradict each other."""
        allowed = []
        for members, demands in zip(self.members, self.demands, strict=True):
            tiles = set(range(self.problem.machine.tiles))
            for tile in demands:
                tiles &= {tile}
            for number in members:
                instruction = self.problem.instructions[number]
                tiles &= tiles if instruction.tiles is None else set(instruction.tiles)
                tiles &= tiles if instruction.memory is None else self._served
            allowed.append(tuple(sorted(tiles)))
        return allowed

    @cached_property
    def _served(self) -> set[int]:
        """Tiles that an interface to memory serves."""
        every = range(self.problem.machine.tiles)
        served = (interface.tiles for interface in self.problem.machine.interfaces)
        return {tile for tiles in served for tile in (every if tiles is None else tiles)}

    @cached_property
    def has_one_latency(self) -> bool:
        """Whether all instructions take equally long: then results are apart where issues are."""
        return len(set(self.problem.latencies)) <= 1

    @cached_property
    def slotted(self) -> list[int]:
        """Instructions whose slots decide more than their own times: the rest can wait for any free slot of its tile.

        Those on cycles; memory accesses, where ports are scarce; and all where results of different latencies may meet.
        """
        if not self.has_one_latency:
            return list(range(self.count))
        return sorted({*self.recurrent, *(self.problem.accesses if self.port_limits else ())})

    @cached_property
    def families(self) -> list[list[int]]:
        """Sets of two or more instructions that stand on different tiles, as siblings."""
        rule = self.problem.rules.siblings
        families: dict[tuple[int, int], set[int]] = defaultdict(set)
        for edge in self.problem.edges:
            if edge.asynchronous:
                continue
            if rule != "none":
                families[0, edge.source].add(edge.target)
            if rule == "consumers_and_producers":
                families[1, edge.target].add(edge.source)
        return sorted({tuple(sorted(group)): sorted(group) for group in families.values() if len(group) > 1}.values())

    @cached_property
    def sources(self) -> list[int]:
        """Instructions that nothing within their iteration wakes."""
        woken = {edge.target for edge in self.problem.edges if edge.distance == 0 and not edge.asynchronous}
        return [number for number in range(self.count) if number not in woken]

    @property
    def flow(self) -> tuple[int, ...]:
        """Flow of each instruction."""
        return self.problem.flows

    @cached_property
    def linked(self) -> list[int]:
        """For each instruction which others it is bound to in time, over one flow or more."""
        return self._together([(edge.source, edge.target) for edge in self.problem.edges])

    def _together(self, pairs: list[tuple[int, int]]) -> list[int]:
        """Component of each instruction, whichever way the pairs are."""
        return components(self.count, [*pairs, *((target, source) for source, target in pairs)])

    @cached_property
    def start_choices(self) -> list[list[int]]:
        """Sets of instructions; one of each is a start."""
        if self.problem.rules.starts == "source":
            return [[number] for number in self.sources]
        choices: dict[int, list[int]] = defaultdict(list)
        for number in self.sources:
            choices[self.flow[number]].append(number)
        return [choices[flow] for flow in sorted(choices)]

    @cached_property
    def component(self) -> list[int]:
        """Strongly connected component of each instruction."""
        pairs = [(source, target) for source, target, _, _ in self.precedences if source != target]
        return components(self.count, pairs)

    @cached_property
    def recurrent(self) -> list[int]:
        """Instructions on a cycle of two or more."""
        size: dict[int, int] = defaultdict(int)
        for label in self.component:
            size[label] += 1
        return [number for number, label in enumerate(self.component) if size[label] > 1]

    @cached_property
    def apart(self) -> set[tuple[int, int]]:
        """Pairs of groups, smaller first, that stand on different tiles in any plan."""
        pairs: set[tuple[int, int]] = set()
        for family in self.families:
            pairs |= self._pairs(family)
        if self.problem.rules.starts == "source":
            pairs |= self._pairs(self.sources)
        bound = [(group, set(tiles)) for group, tiles in enumerate(self.allowed) if len(tiles) < self.problem.machine.tiles]
        for group, tiles in bound:
            pairs |= {(group, other) for other, there in bound if group < other and not tiles & there}
        return pairs

    def _pairs(self, numbers: list[int]) -> set[tuple[int, int]]:
        groups = sorted({self.group[number] for number in numbers})
        return {(one, two) for at, one in enumerate(groups) for two in groups[at + 1 :]}

    def least_hops(self, edge: Edge | Precedence) -> int:
        """Clocks that any plan needs between the tiles of an edge, or over the asynchronous fabric."""
        if isinstance(edge, Precedence) and edge.clocks is not None:
            return edge.clocks
        one, two = sorted((self.group[edge.source], self.group[edge.target]))
        if (one, two) not in self.apart:
            return 0
        return min((link.clocks for link in self.problem.machine.links), default=0)


def longest_ways(edges: Iterable[tuple[int, int, int]], begin: Sequence[int]) -> list[int]:
    """How late each node is, at least: ``begin``, and after the nodes before it, by the edges (from, to, length).

    Nodes on cycles, and behind them, are as late as what comes before the cycles makes them.
    """
    late, waiting = list(begin), [0] * len(begin)
    after: list[list[tuple[int, int]]] = [[] for _ in begin]
    for source, target, length in edges:
        waiting[target] += 1
        after[source].append((target, length))
    ready = [node for node, count in enumerate(waiting) if count == 0]
    while ready:
        source = ready.pop()
        for target, length in after[source]:
            late[target] = max(late[target], late[source] + length)
            waiting[target] -= 1
            if waiting[target] == 0:
                ready.append(target)
    return late


def symmetries(problem: Problem) -> list[tuple[int, ...]]:
    """Renumberings of the tiles that turn every valid plan into another, the identity first.

    Found among reflections, transpositions and, in a torus, shifts. Bound tiles and pins leave the identity only.
    """
    machine = problem.machine
    identity = tuple(range(machine.tiles))
    kept = {frozenset(instruction.tiles) for instruction in problem.instructions if instruction.tiles is not None}
    kept |= {frozenset(interface.tiles) for interface in machine.interfaces if interface.tiles is not None}
    tied = [*(pin.tile for pin in problem.pins), *(variable.tile for variable in problem.variables)]
    bound = any(tile is not None for tile in tied)
    if bound or problem.rules.pass_through:
        return [identity]
    rows, columns = machine.rows, machine.columns
    hops = machine.one_link
    renumberings = {identity: None}
    shifts = product(range(rows), range(columns)) if machine.wraps else [(0, 0)]
    for (down, right), flip, mirror, turn in product(shifts, (1, -1), (1, -1), (False, True)):
        if turn and rows != columns:
            continue
        moved = []
        for tile in identity:
            row, column = divmod(tile, columns)
            row = (row if flip == 1 else rows - 1 - row) + down
            column = (column if mirror == 1 else columns - 1 - column) + right
            row, column = row % rows, column % columns
            moved.append(column * columns + row if turn else row * columns + column)
        same = all(hops[moved[one]][moved[two]] == hops[one][two] for one in identity for two in identity)
        if same and all({moved[tile] for tile in tiles} == tiles for tiles in kept):
            renumberings[tuple(moved)] = None
    return list(renumberings)


def representatives(renumberings: list[tuple[int, ...]]) -> dict[int, tuple[int, ...]]:
    """For each tile the renumbering that takes it to the least tile that can stand for it."""
    return {tile: min(renumberings, key=lambda renumbering: renumbering[tile]) for tile in range(len(renumberings[0]))}
