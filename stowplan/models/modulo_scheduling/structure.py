"""Derived facts about a problem that models, bounds and heuristics use; the verifier does not use them.

* A *variable* is data of the loop in the memory of a tile.
* An *edge* is a value that one instruction produces and another one consumes. It is *synchronous* if it goes over links between
  tiles, and asynchronous if it goes over a second network, the *asynchronous fabric*. The latency of the fabric is not fixed;
  *nominal* clocks are those that plans assume. A *buffer* holds a value that arrives over the fabric.
* A *group* is a set of instructions that must share a tile because they use the same variables or read the same buffer.
* A *family* is a set of siblings, which must be on different tiles: the consumers of one producer or, by another rule, also the
  producers of one consumer.
* A *flow* is a set of instructions that synchronous edges connect. A *source* is an instruction that no synchronous value from
  the same iteration triggers. A *start* is a source that the hardware starts at a set time; no tile may have two starts.
* A *recurrence* is a cycle of values over several iterations. *Recurrent* instructions are on such a cycle.
* The *II* is the initiation interval, and a *slot* is a clock modulo the II.

:func:`symmetries` returns the symmetries of the machine.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import cached_property
from itertools import combinations, product
from typing import NamedTuple

from stowplan.models.modulo_scheduling.problem import Edge, Problem, components


class Precedence(NamedTuple):
    """An instruction that waits for another: time(target) + II · distance >= time(source) + latency(source) + transport."""

    source: int
    """Number of the instruction that produces the value."""
    target: int
    """Number of the instruction that waits."""
    distance: int
    """Number of iterations from source to target."""
    clocks: int | None
    """Transport time in nominal clocks over the asynchronous fabric; None if the value takes links, whose transport time
    depends on the two tiles."""


class Buffer(NamedTuple):
    """A value that arrives over the asynchronous fabric and is buffered in the memory of the tile that reads it."""

    source: int
    """Number of the producer."""
    readers: tuple[tuple[int, int], ...]
    """(instruction, distance) of each reader."""


class PortLimit(NamedTuple):
    """A limit on the memory requests from some tiles in each slot."""

    tiles: frozenset[int]
    """The tiles."""
    most: int
    """Largest number of requests that the interfaces of these tiles accept in one slot."""


class Structure:
    """Derived facts of a problem, each computed once on demand. Instructions are identified by their numbers."""

    def __init__(self, problem: Problem):
        self.problem = problem
        self.count = len(problem.instructions)

    @cached_property
    def between(self) -> list[Edge]:
        """Synchronous edges between two different instructions."""
        return [edge for edge in self.problem.edges if edge.source != edge.target and not edge.asynchronous]

    @cached_property
    def precedences(self) -> list[Precedence]:
        """All precedences. Consumers wait for values over links, and every source of a flow waits for each value that is sent
        to the flow over the asynchronous fabric."""
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
        """Values that arrive over the asynchronous fabric, in the order of their producers."""
        readers: dict[int, set[tuple[int, int]]] = defaultdict(set)
        for edge in self.problem.edges:
            if edge.asynchronous:
                readers[edge.source].add((edge.target, edge.distance))
        return [Buffer(source, tuple(sorted(readers[source]))) for source in sorted(readers)]

    def least_words(self, buffer: Buffer, ii: int) -> int:
        """Lower bound on the number of words that a buffer needs in any plan at an II."""
        problem = self.problem
        return (problem.latencies[buffer.source] + problem.nominal(buffer.source)) // ii + 1

    def words_at(self, ii: int) -> list[int]:
        """[groups] lower bound on the words that a group's variables, and buffers of values that are sent to it, need at an
        II."""
        words = list(self.words)
        for buffer in self.buffers:
            words[self.group[buffer.readers[0][0]]] += self.least_words(buffer, ii)
        return words

    def words_of(self, buffer: Buffer, ii: int, times: Sequence[int]) -> int:
        """Number of words that a buffer needs with these times of the instructions."""
        launch = min(times[number] for number in self.sources if self.flow[number] == self.flow[buffer.source])
        return (max(times[reader] + ii * distance for reader, distance in buffer.readers) - launch) // ii + 1

    @cached_property
    def port_limits(self) -> list[PortLimit]:
        """Limits which together guarantee that all requests of a slot find a port (Hall's condition)."""
        machine, accesses = self.problem.machine, len(self.problem.accesses)
        tiles = range(machine.tiles)
        served_by = [interface.tiles for interface in machine.interfaces]
        served = {
            tile: frozenset(number for number, allowed in enumerate(served_by) if allowed is None or tile in allowed)
            for tile in tiles
        }
        kinds = sorted({frozenset(allowed) for allowed in served.values() if allowed}, key=sorted)
        limits: dict[frozenset[int], int] = {}
        for count in range(1, len(kinds) + 1):
            for chosen in combinations(kinds, count):
                used = frozenset().union(*chosen)
                inside = frozenset(tile for tile in tiles if served[tile] and served[tile] <= used)
                most = sum(machine.interfaces[number].ports for number in used)
                # A tile makes at most one request in each clock.
                if most < min(len(inside), accesses):
                    limits[inside] = min(most, limits.get(inside, most))
        return [PortLimit(inside, most) for inside, most in sorted(limits.items(), key=lambda limit: sorted(limit[0]))]

    @cached_property
    def group(self) -> list[int]:
        """[instructions] number of the instruction's group.

        Instructions of a group must share a tile because they use the same variables or read the same buffer.
        """
        users: dict[str, list[int]] = defaultdict(list)
        for number, instruction in enumerate(self.problem.instructions):
            for name in instruction.variables:
                users[name].append(number)
        shared = [*users.values(), *([reader for reader, _ in buffer.readers] for buffer in self.buffers)]
        return self._weak_components([(numbers[0], number) for numbers in shared for number in numbers[1:]])

    @cached_property
    def members(self) -> list[list[int]]:
        """[groups] numbers of the group's instructions."""
        members: list[list[int]] = [[] for _ in range(max(self.group, default=-1) + 1)]
        for number, group in enumerate(self.group):
            members[group].append(number)
        return members

    @cached_property
    def words(self) -> list[int]:
        """[groups] words of tile memory that the group's variables need."""
        size = {variable.id: variable.words for variable in self.problem.variables}
        return [
            sum(size[name] for name in {name for member in members for name in self.problem.instructions[member].variables})
            for members in self.members
        ]

    @cached_property
    def demands(self) -> list[dict[int, str]]:
        """[groups] tiles that the group must be on, each with the reason. Two different tiles are a contradiction."""
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
        """[groups] tiles that the group may be on, ascending; empty if no tile is possible."""
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
        """The tiles that some interface to memory serves."""
        every = range(self.problem.machine.tiles)
        served = (interface.tiles for interface in self.problem.machine.interfaces)
        return {tile for tiles in served for tile in (every if tiles is None else tiles)}

    @cached_property
    def has_one_latency(self) -> bool:
        """Whether all instructions have the same latency. Results are then in different slots if issues are."""
        return len(set(self.problem.latencies)) <= 1

    @cached_property
    def slotted(self) -> list[int]:
        """The instructions whose slots a model must decide. All other instructions can wait for any free slot of their tile.

        The slots of instructions on recurrences must be decided, and those of memory accesses if ports are scarce. If latencies
        differ, the slots of all instructions must be, since results of different latencies may leave a tile at the same clock.
        """
        if not self.has_one_latency:
            return list(range(self.count))
        return sorted({*self.recurrent, *(self.problem.accesses if self.port_limits else ())})

    @cached_property
    def families(self) -> list[list[int]]:
        """Sets of two or more siblings, which must be on different tiles."""
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
        """Instructions that receive no synchronous value from the same iteration."""
        triggered = {edge.target for edge in self.problem.edges if edge.distance == 0 and not edge.asynchronous}
        return [number for number in range(self.count) if number not in triggered]

    @property
    def flow(self) -> tuple[int, ...]:
        """[instructions] number of the instruction's flow."""
        return self.problem.flows

    @cached_property
    def linked(self) -> list[int]:
        """[instructions] number of the component that edges connect, including asynchronous edges."""
        return self._weak_components([(edge.source, edge.target) for edge in self.problem.edges])

    def _weak_components(self, pairs: list[tuple[int, int]]) -> list[int]:
        """[instructions] number of the component that pairs of instructions connect, whatever the order in a pair."""
        return components(self.count, [*pairs, *((target, source) for source, target in pairs)])

    @cached_property
    def start_choices(self) -> list[list[int]]:
        """Sets of instructions; exactly one instruction of each set is a start."""
        if self.problem.rules.starts == "source":
            return [[number] for number in self.sources]
        choices: dict[int, list[int]] = defaultdict(list)
        for number in self.sources:
            choices[self.flow[number]].append(number)
        return [choices[flow] for flow in sorted(choices)]

    @cached_property
    def component(self) -> list[int]:
        """[instructions] number of the instruction's strongly connected component in the graph of precedences."""
        pairs = [(source, target) for source, target, _, _ in self.precedences if source != target]
        return components(self.count, pairs)

    @cached_property
    def recurrent(self) -> list[int]:
        """The instructions on a cycle of precedences with two or more instructions."""
        size: dict[int, int] = defaultdict(int)
        for label in self.component:
            size[label] += 1
        return [number for number, label in enumerate(self.component) if size[label] > 1]

    @cached_property
    def apart(self) -> set[tuple[int, int]]:
        """Pairs of groups, the smaller number first, that are on different tiles in any plan."""
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
        """The pairs of different groups of these instructions, the smaller number first."""
        groups = sorted({self.group[number] for number in numbers})
        return {(one, two) for at, one in enumerate(groups) for two in groups[at + 1 :]}

    def least_hops(self, edge: Edge | Precedence) -> int:
        """Lower bound on the transport time of an edge or precedence in any plan, in clocks."""
        if isinstance(edge, Precedence) and edge.clocks is not None:
            return edge.clocks
        one, two = sorted((self.group[edge.source], self.group[edge.target]))
        if (one, two) not in self.apart:
            return 0
        return min((link.clocks for link in self.problem.machine.links), default=0)


def longest_paths(edges: Iterable[tuple[int, int, int]], begin: Sequence[int]) -> list[int]:
    """Longest paths in a graph: the earliest time of each node that satisfies ``begin`` and the edges.

    Edges that leave a node on a cycle, or a node that can be reached from a cycle, are ignored.

    Parameters
    ----------
    edges
        (from, to, length).
    begin
        Earliest time of each node by itself.
    """
    earliest, waiting = list(begin), [0] * len(begin)
    after: list[list[tuple[int, int]]] = [[] for _ in begin]
    for source, target, length in edges:
        waiting[target] += 1
        after[source].append((target, length))
    ready = [node for node, count in enumerate(waiting) if count == 0]
    while ready:
        source = ready.pop()
        for target, length in after[source]:
            earliest[target] = max(earliest[target], earliest[source] + length)
            waiting[target] -= 1
            if waiting[target] == 0:
                ready.append(target)
    return earliest


def symmetries(problem: Problem) -> list[tuple[int, ...]]:
    """Symmetries of the machine: renumberings of the tiles that map every valid plan to a valid plan.

    They are found among reflections, transpositions and, in a torus, shifts. The identity comes first. If pins or variables fix
    tiles, or if values may pass through tiles, only the identity is returned.
    """
    machine = problem.machine
    identity = tuple(range(machine.tiles))
    restrictions = {frozenset(instruction.tiles) for instruction in problem.instructions if instruction.tiles is not None}
    restrictions |= {frozenset(interface.tiles) for interface in machine.interfaces if interface.tiles is not None}
    fixed_tiles = [*(pin.tile for pin in problem.pins), *(variable.tile for variable in problem.variables)]
    is_fixed = any(tile is not None for tile in fixed_tiles)
    if is_fixed or problem.rules.pass_through:
        return [identity]
    rows, columns = machine.rows, machine.columns
    hops = machine.one_link
    renumberings = {identity: None}
    shifts = product(range(rows), range(columns)) if machine.wraps else [(0, 0)]
    for (down, right), flip, mirror, turn in product(shifts, (1, -1), (1, -1), (False, True)):
        if turn and rows != columns:
            continue
        renumbered = []
        for tile in identity:
            row, column = divmod(tile, columns)
            row = (row if flip == 1 else rows - 1 - row) + down
            column = (column if mirror == 1 else columns - 1 - column) + right
            row, column = row % rows, column % columns
            renumbered.append(column * columns + row if turn else row * columns + column)
        same = all(hops[renumbered[one]][renumbered[two]] == hops[one][two] for one in identity for two in identity)
        if same and all({renumbered[tile] for tile in tiles} == tiles for tiles in restrictions):
            renumberings[tuple(renumbered)] = None
    return list(renumberings)


def representatives(renumberings: list[tuple[int, ...]]) -> dict[int, tuple[int, ...]]:
    """For each tile, the symmetry that maps it to the smallest equivalent tile. ``renumberings`` is the result of
    :func:`symmetries`, or another list that is not empty."""
    return {tile: min(renumberings, key=lambda renumbering: renumbering[tile]) for tile in range(len(renumberings[0]))}
