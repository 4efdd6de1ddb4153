"""Modulo scheduling: a loop body, and why its initiation interval (II) is no smaller: ``recurrence``, ``resource``, ``search``.

Who waits for whom, and who may stand where, are as the rules of docs/reference/modulo-scheduling.md have it. No iteration is
shorter than the instructions in it that wait for each other (Rau, "Iterative modulo scheduling", 1994).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import permutations, product
from typing import NamedTuple

from stowplan.certificates.checker.reading import Fields, need, numbers, walk, whole

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


#: Of the objective, II x SCALE + clocks of an iteration.
SCALE = 1_000_000


def schedule(problem: Fields, proof: Fields) -> int | None:
    """Least objective, or None where the proof shows that no II will do.

    objective >= II * SCALE + min(SCALE, clocks of the longest path of waits at this II), for a larger II costs SCALE more
    """
    body = Body(problem)
    least = FORMS[proof["form"]](body, proof)
    ends = map(int.__add__, body.times(least) or [], body.latency)
    return None if least > body.machine["spoke_depth"] else least * SCALE + min(SCALE, max(ends, default=0))


def recurrence(body: Body, proof: Fields) -> int:
    """The II ``least``, for at one clock less instructions wait for each other without end.

    Around a circle of waits: II * sum of distances >= sum of clocks
    """
    least = whole(proof, "least", 1)
    need(body.times(least - 1) is None, "proof.least", "what waits for each other has time enough")
    return least


def resource(body: Body, proof: Fields) -> int:
    """II by a count: of what must be on some ``tiles``, or of their ``requests`` to the interfaces that serve these.

    II * number of tiles >= instructions that may stand on these tiles only, as each tile has one slot a clock;
    II * ports >= those of them that send a request
    """
    tiles, of_requests = {*numbers(proof, "tiles")}, "requests" in proof
    ports = sum(ports for served, ports in body.interfaces if served & tiles)
    count = sum(allowed <= tiles and (asks or not of_requests) for allowed, asks in zip(body.allowed, body.asks, strict=True))
    return max(1, -(-count // (ports if of_requests else len(tiles))))


def search(body: Body, proof: Fields) -> int:
    """The II ``least``, for no smaller one will do: groups get a tile in every way, and one always has none left.

    The group with the fewest tiles left comes first.
    """
    least = whole(proof, "least", 1)
    tiling = Tiling(body, least - 1)
    waiting = [tiling.start]
    for state in walk(waiting, lambda state: 1 + sum(map(len, state.left.values()))):
        need(bool(state.left), "proof.least", "everything has a place")
        group = min(state.left, key=lambda group: (len(state.left[group]), -len(tiling.near[group])))
        for tile in sorted(state.left[group]):
            placed = tiling.placed(state, group, tile)
            if all(placed.left.values()):
                waiting.append(placed)
    return least


class Placing(NamedTuple):
    """Some groups of instructions have a tile."""

    left: dict[int, set[int]]
    """Tiles that each of the others may still have."""
    taken: Counter[int]
    """Slots of each tile that are taken."""


class Tiling:
    """What groups leave to each other at an II."""

    def __init__(self, body: Body, interval: int):
        self.slots = min(interval, body.machine["instruction_depth"])
        """Of each tile."""
        self.size = Counter(body.group)
        """Instructions of each group, each of which takes a slot. A group has the number of an instruction in it."""
        self.near = self._near(body)
        """Of each group others, and by tile of the group the tiles that these may have then."""
        fits = {group: size <= self.slots and (group, group) not in body.apart for group, size in self.size.items()}
        self.start = Placing({group: body.allowed[group] if fits[group] else set() for group in self.size}, Counter())

    def _near(self, body: Body) -> dict[int, list[tuple[int, list[set[int]]]]]:
        """Values over links stay within reach, both ways; groups that are apart have different tiles."""
        tiles, forth = sorted(body.tiles), body.reach()
        back = [{start for start in tiles if end in forth[start]} for end in tiles]
        others = [body.tiles - {tile} for tile in tiles]
        near: dict[int, list[tuple[int, list[set[int]]]]] = {group: [] for group in self.size}
        for pairs, tiles_then in ((body.linked, forth), (body.back, back), (body.apart, others)):
            for one, other in pairs:
                near[body.group[one]].append((body.group[other], tiles_then))
        return near

    def placed(self, state: Placing, group: int, tile: int) -> Placing:
        """The group stands on a tile: what is left to the others.

        Sizes of all groups on a tile add up to its slots at most.
        """
        free = self.slots - state.taken[tile] - self.size[group]
        others = (other for other in state.left if other != group)
        left = {other: state.left[other] - (set() if self.size[other] <= free else {tile}) for other in others}
        for other, tiles_then in self.near[group]:
            if other in left:
                left[other] = left[other] & tiles_then[tile]
        return Placing(left, state.taken + Counter({tile: self.size[group]}))


#: Forms, and what they show of the II.
FORMS = {"recurrence": recurrence, "resource": resource, "search": search}
