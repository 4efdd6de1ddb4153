"""A loop body, as the rules of docs/reference/modulo-scheduling.md have it: who waits for whom, and who may stand where."""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import permutations, product
from typing import NamedTuple

from stowplan.certificates.checker.reading import Fields, need

#: Tiles of a machine at most, lest looking at all pairs take long.
MOST_TILES = 4096


class Edge(NamedTuple):
    """A value goes from one instruction to another, ``distance`` iterations later."""

    source: int
    target: int
    distance: int


class Wait(NamedTuple):
    """The target is issued ``clocks`` after the source at least, ``distance`` iterations later."""

    source: int
    target: int
    distance: int
    clocks: int


class Body:
    """Instructions, by their numbers, on the tiles of a machine."""

    def __init__(self, problem: Fields):
        self.machine, self.instructions, self.rules = problem["machine"], problem["instructions"], problem["rules"]
        tiles = self.machine["rows"] * self.machine["columns"]
        need(tiles <= MOST_TILES, "machine", "it has too many tiles")
        self.tiles = {*range(tiles)}
        self.passes: bool = self.rules["pass_through"]
        """Whether values may pass through tiles on their way."""
        self.number = {instruction["id"]: number for number, instruction in enumerate(self.instructions)}
        self.pins = {self.number[pin["instruction"]]: pin for pin in problem["pins"]}
        self.latency = [instruction.get("latency") or self.machine["latency"] for instruction in self.instructions]
        self.asks = [instruction.get("memory") is not None for instruction in self.instructions]
        """Which instructions send requests to memory."""
        network = self.machine["asynchronous"] or {"interfaces": []}
        self.interfaces = [({*(part.get("tiles") or self.tiles)}, part.get("ports", 1)) for part in network["interfaces"]]
        """Tiles that each interface to memory serves, and its requests in a clock."""
        linked, sent, sharing = self._edges()
        self.group = _joined(len(self.instructions), [(users[0], user) for users in sharing.values() for user in users])
        """Group of each instruction; all of a group share a tile."""
        self.allowed = self._allowed(problem["variables"], sharing)
        """Tiles that each instruction may stand on, with all that must share one with it."""
        self.linked = [(edge.source, edge.target) for edge in linked]
        self.back = [(edge.target, edge.source) for edge in linked]
        self.flow = _joined(len(self.instructions), self.linked)
        """Flow of each instruction: what values over links join."""
        self.sources = {*range(len(self.instructions))}.difference(edge.target for edge in linked if edge.distance == 0)
        """Instructions that no value of the same iteration reaches over a link."""
        self.apart = self._siblings_apart() | self._starts_apart()
        """Pairs of groups that may not share a tile."""
        self.waits = [self._wait_for_link(edge) for edge in linked]
        for edge in sent:
            self.waits += self._waits_for_network(edge, network)

    def _edges(self) -> tuple[list[Edge], list[Edge], dict[object, list[int]]]:
        """Values over links, values over the network, and who shares a tile.

        A tile is shared by those that have a variable in common, and by the readers of a value that is sent, which is written
        there.
        """
        linked, sent = list[Edge](), list[Edge]()
        sharing = defaultdict[object, list[int]](list)
        for target, instruction in enumerate(self.instructions):
            for variable in instruction.get("writes", ()):
                sharing[variable].append(target)
            for operand in instruction.get("operands", ()):
                source = self.number.get(operand.get("instruction"))
                is_sent = source is not None and (operand.get("asynchronous", False) or self.asks[source])
                sharing[(source,) if is_sent else operand.get("variable")].append(target)
                if source is not None:
                    (sent if is_sent else linked).append(Edge(source, target, operand.get("distance", 0)))
        # Operands that are neither a variable nor sent.
        sharing.pop(None, None)
        return linked, sent, sharing

    def _allowed(self, variables: list[Fields], sharing: dict[object, list[int]]) -> list[set[int]]:
        """By the tiles of an operation, of a variable and of a pin; a group stands where all of it may."""
        own = [{*(instruction.get("tiles") or self.tiles)} for instruction in self.instructions]
        tied = [(user, variable.get("tile")) for variable in variables for user in sharing.get(variable["id"], ())]
        tied += [(number, pin.get("tile")) for number, pin in self.pins.items()]
        for number, tile in tied:
            own[number] &= own[number] if tile is None else {tile}
        numbers = range(len(own))
        return [self.tiles.intersection(*(own[at] for at in numbers if self.group[at] == group)) for group in self.group]

    def _siblings_apart(self) -> set[tuple[int, int]]:
        """Consumers of one value, and where the rules say so producers for one consumer, stand on different tiles."""
        links = {"none": [], "consumers": [self.linked], "consumers_and_producers": [self.linked, self.back]}
        pairs = set[tuple[int, int]]()
        for edges in links[self.rules["siblings"]]:
            siblings = defaultdict[int, set[int]](set)
            for hub, sibling in edges:
                siblings[hub].add(sibling)
            pairs.update(*map(self._pairs, siblings.values()))
        return pairs

    def _starts_apart(self) -> set[tuple[int, int]]:
        """Flows start on different tiles: every source does, or the only source of a flow, which is its start for certain."""
        count = Counter(self.flow[source] for source in self.sources)
        is_each = self.rules["starts"] == "source"
        return self._pairs({source for source in self.sources if is_each or count[self.flow[source]] == 1})

    def _pairs(self, instructions: set[int]) -> set[tuple[int, int]]:
        """Groups of each two of some instructions."""
        return {(self.group[one], self.group[other]) for one, other in permutations(instructions, 2)}

    def _wait_for_link(self, edge: Edge) -> Wait:
        """``time[target] + II * distance >= time[source] + latency``, and the quickest link more where tiles must differ."""
        source, target, distance = edge
        groups = self.group[source], self.group[target]
        may_meet = self.allowed[source] & self.allowed[target] and groups not in self.apart
        quickest = min((link["clocks"] for link in self.machine["links"]), default=0)
        return Wait(source, target, distance, self.latency[source] + (0 if may_meet else quickest))

    def _waits_for_network(self, edge: Edge, network: Fields) -> list[Wait]:
        """What is sent is there before the flow of its reader starts: each source of the flow waits."""
        clocks = self.latency[edge.source] + network["memory_latency" if self.asks[edge.source] else "latency"]
        flow = self.flow[edge.target]
        return [Wait(edge.source, start, edge.distance, clocks) for start in self.sources if self.flow[start] == flow]

    def times(self, interval: int) -> list[int] | None:
        """The first clock of each instruction at an II; None where some wait for each other without end (Bellman and Ford).

        ``time[target] >= time[source] + clocks - interval * distance`` for each wait, and no time before that of a pin.
        """
        earliest = [self.pins.get(number, {}).get("time") or 0 for number in range(len(self.latency))]
        for _ in range(len(earliest) + 1):
            before = [*earliest]
            for source, target, distance, clocks in self.waits:
                earliest[target] = max(earliest[target], earliest[source] + clocks - interval * distance)
            if earliest == before:
                return earliest
        return None

    def reach(self) -> list[set[int]]:
        """Of each tile those that its values get to: where they may pass through tiles, any."""
        height, width = self.machine["rows"], self.machine["columns"]
        reached = [{*self.tiles} if self.passes else {tile} for tile in sorted(self.tiles)]
        for tile, link in product(self.tiles, self.machine["links"]):
            row, column = tile // width + link["rows"], tile % width + link["columns"]
            if self.machine["wraps"] or (0 <= row < height and 0 <= column < width):
                reached[tile].add(row % height * width + column % width)
        return reached


def _joined(count: int, pairs: list[tuple[int, int]]) -> list[int]:
    """Group of each of so many; both of a pair have the same."""
    group = list(range(count))
    for one, other in pairs:
        group = [group[one] if own == group[other] else own for own in group]
    return group
