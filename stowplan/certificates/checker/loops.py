"""Modulo scheduling: a loop body, and lower bounds on its initiation interval (II) in the forms ``recurrence``, ``resource``,
``search``.

Which instructions wait for each other, and on which tiles they may be placed, follows the rules of
docs/reference/modulo-scheduling.md. An iteration takes at least as long as the longest path of instructions that wait for each
other (Rau, "Iterative modulo scheduling", 1994).

A value goes over a link to a neighbouring tile, or is *sent* over the asynchronous fabric, a network that reaches all tiles and
memory. A *variable* is data in the memory of one tile, so that all instructions that use it are on this tile. A *pin* fixes the
tile, the time or the slot of an instruction. A *flow* is a set of instructions that values over links connect.

If a proof does not show its claim, functions raise ``UnprovenError`` of ``reading``; if a number in it is not valid, they raise
``MalformedError``.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import permutations, product
from typing import NamedTuple

from stowplan.certificates.checker.reading import Fields, need, numbers, walk, whole

#: Maximum number of tiles of a machine, so that examining all pairs does not take too long.
MAX_TILES = 4096


class Edge(NamedTuple):
    """A value that the instruction ``target`` reads from the instruction ``source``, ``distance`` iterations later."""

    source: int
    target: int
    distance: int


class Wait(NamedTuple):
    """The target is issued at least ``clocks`` after the source, ``distance`` iterations later."""

    source: int
    target: int
    distance: int
    clocks: int


class Body:
    """The instructions of a loop body, by number, and the tiles of a machine."""

    def __init__(self, problem: Fields):
        self.machine, self.instructions, self.rules = problem["machine"], problem["instructions"], problem["rules"]
        tiles = self.machine["rows"] * self.machine["columns"]
        need(tiles <= MAX_TILES, "machine", "it has too many tiles")
        self.tiles = {*range(tiles)}
        self.may_pass_through: bool = self.rules["pass_through"]
        """Whether values may pass through other tiles."""
        self.number = {instruction["id"]: number for number, instruction in enumerate(self.instructions)}
        self.pins = {self.number[pin["instruction"]]: pin for pin in problem["pins"]}
        self.latency = [instruction.get("latency") or self.machine["latency"] for instruction in self.instructions]
        self.sends = [instruction.get("memory") is not None for instruction in self.instructions]
        """Whether each instruction sends requests to memory."""
        network = self.machine["asynchronous"] or {"interfaces": []}
        self.interfaces = [({*(part.get("tiles") or self.tiles)}, part.get("ports", 1)) for part in network["interfaces"]]
        """Tiles that each interface to memory serves, and the requests that it accepts in a clock."""
        linked, sent, sharing = self._edges()
        self.group = _groups(len(self.instructions), [(users[0], user) for users in sharing.values() for user in users])
        """Group of each instruction; the instructions of a group must be on the same tile."""
        self.allowed = self._allowed(problem["variables"], sharing)
        """Tiles that each instruction may be placed on, together with all others of its group."""
        self.linked = [(edge.source, edge.target) for edge in linked]
        self.back = [(edge.target, edge.source) for edge in linked]
        self.flow = _groups(len(self.instructions), self.linked)
        """Number of the flow of each instruction."""
        self.sources = {*range(len(self.instructions))}.difference(edge.target for edge in linked if edge.distance == 0)
        """Instructions that read no value of the same iteration over a link."""
        self.apart = self._siblings_apart() | self._starts_apart()
        """Pairs of groups that must be on different tiles."""
        self.waits = [self._wait_for_link(edge) for edge in linked]
        for edge in sent:
            self.waits += self._waits_for_network(edge, network)

    def _edges(self) -> tuple[list[Edge], list[Edge], dict[object, list[int]]]:
        """Values over links, sent values, and instructions that must share a tile.

        Instructions share a tile if they have a variable in common, or if they read the same sent value, which is written to
        their tile.
        """
        linked, sent = list[Edge](), list[Edge]()
        sharing = defaultdict[object, list[int]](list)
        for target, instruction in enumerate(self.instructions):
            for variable in instruction.get("writes", ()):
                sharing[variable].append(target)
            for operand in instruction.get("operands", ()):
                source = self.number.get(operand.get("instruction"))
                is_sent = source is not None and (operand.get("asynchronous", False) or self.sends[source])
                sharing[(source,) if is_sent else operand.get("variable")].append(target)
                if source is not None:
                    (sent if is_sent else linked).append(Edge(source, target, operand.get("distance", 0)))
        # Remove the entry of operands that are neither a variable nor sent.
        sharing.pop(None, None)
        return linked, sent, sharing

    def _allowed(self, variables: list[Fields], sharing: dict[object, list[int]]) -> list[set[int]]:
        """Tiles that each instruction may be placed on: those that its list of tiles, its variables and its pin allow, and that
        the other instructions of its group allow as well."""
        own = [{*(instruction.get("tiles") or self.tiles)} for instruction in self.instructions]
        tied = [(user, variable.get("tile")) for variable in variables for user in sharing.get(variable["id"], ())]
        tied += [(number, pin.get("tile")) for number, pin in self.pins.items()]
        for number, tile in tied:
            own[number] &= own[number] if tile is None else {tile}
        numbers = range(len(own))
        return [self.tiles.intersection(*(own[at] for at in numbers if self.group[at] == group)) for group in self.group]

    def _siblings_apart(self) -> set[tuple[int, int]]:
        """Pairs of groups that must be on different tiles because they have siblings: consumers of one value, or producers for
        one consumer. The rule ``siblings`` says which of these may not share a tile."""
        links = {"none": [], "consumers": [self.linked], "consumers_and_producers": [self.linked, self.back]}
        pairs = set[tuple[int, int]]()
        for edges in links[self.rules["siblings"]]:
            siblings = defaultdict[int, set[int]](set)
            for hub, sibling in edges:
                siblings[hub].add(sibling)
            pairs.update(*map(self._pairs, siblings.values()))
        return pairs

    def _starts_apart(self) -> set[tuple[int, int]]:
        """Pairs of groups that must be on different tiles because two starts may not share a tile.

        By the rule ``starts``, every source is a start, or one source of each flow is. In the second case it is open which
        source of a flow is its start, so only flows with a single source count.
        """
        count = Counter(self.flow[source] for source in self.sources)
        is_each = self.rules["starts"] == "source"
        return self._pairs({source for source in self.sources if is_each or count[self.flow[source]] == 1})

    def _pairs(self, instructions: set[int]) -> set[tuple[int, int]]:
        """Pairs of the groups of these instructions."""
        return {(self.group[one], self.group[other]) for one, other in permutations(instructions, 2)}

    def _wait_for_link(self, edge: Edge) -> Wait:
        """``time[target] + II * distance >= time[source] + latency``, plus the clocks of the quickest link if the two must be
        on different tiles."""
        source, target, distance = edge
        groups = self.group[source], self.group[target]
        may_meet = self.allowed[source] & self.allowed[target] and groups not in self.apart
        quickest = min((link["clocks"] for link in self.machine["links"]), default=0)
        return Wait(source, target, distance, self.latency[source] + (0 if may_meet else quickest))

    def _waits_for_network(self, edge: Edge, network: Fields) -> list[Wait]:
        """A sent value must arrive before the flow of its reader starts, so each source of the flow waits for it."""
        clocks = self.latency[edge.source] + network["memory_latency" if self.sends[edge.source] else "latency"]
        flow = self.flow[edge.target]
        return [Wait(edge.source, start, edge.distance, clocks) for start in self.sources if self.flow[start] == flow]

    def times(self, interval: int) -> list[int] | None:
        """The earliest clock of each instruction at an II; None if some instructions wait for each other endlessly (Bellman and
        Ford).

        ``time[target] >= time[source] + clocks - interval * distance`` for each wait, and no instruction is issued before the
        time of its pin.
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
        """For each tile, the tiles that its values can reach. If values may pass through tiles, they reach all tiles."""
        height, width = self.machine["rows"], self.machine["columns"]
        reached = [{*self.tiles} if self.may_pass_through else {tile} for tile in sorted(self.tiles)]
        for tile, link in product(self.tiles, self.machine["links"]):
            row, column = tile // width + link["rows"], tile % width + link["columns"]
            if self.machine["wraps"] or (0 <= row < height and 0 <= column < width):
                reached[tile].add(row % height * width + column % width)
        return reached


def _groups(count: int, pairs: list[tuple[int, int]]) -> list[int]:
    """The group of each of ``count`` elements such that both elements of every pair have the same group."""
    group = list(range(count))
    for one, other in pairs:
        group = [group[one] if current == group[other] else current for current in group]
    return group


#: Factor of the II in the objective, II x SCALE + clocks of an iteration.
SCALE = 1_000_000


def schedule(problem: Fields, proof: Fields) -> int | None:
    """The minimum objective, or None if the proof shows that no II is possible, since the II is at most ``spoke_depth``.

    objective >= II * SCALE + min(SCALE, clocks of the longest path of waits at this II), because a larger II costs SCALE more
    """
    body = Body(problem)
    least = FORMS[proof["form"]](body, proof)
    ends = map(int.__add__, body.times(least) or [], body.latency)
    return None if least > body.machine["spoke_depth"] else least * SCALE + min(SCALE, max(ends, default=0))


def recurrence(body: Body, proof: Fields) -> int:
    """Returns the II ``least`` if at an II of one clock less some instructions wait for each other endlessly.

    Around a cycle of waits: II * sum of distances >= sum of clocks
    """
    least = whole(proof, "least", 1)
    need(body.times(least - 1) is None, "proof.least", "what waits for each other has time enough")
    return least


def resource(body: Body, proof: Fields) -> int:
    """The smallest II at which some tiles have enough slots for all instructions that may only be on these tiles.

    The tiles are the field ``tiles`` of the proof. If the proof has a field ``requests``, the result is the smallest II at
    which the interfaces that serve these tiles can accept the requests to memory that these instructions send.

    II * number of tiles >= number of instructions that may only be on these tiles, because a tile has one slot in each clock;
    II * ports >= number of these instructions that send a request
    """
    tiles, of_requests = {*numbers(proof, "tiles")}, "requests" in proof
    ports = sum(ports for served, ports in body.interfaces if served & tiles)
    count = sum(allowed <= tiles and (asks or not of_requests) for allowed, asks in zip(body.allowed, body.sends, strict=True))
    slots = ports if of_requests else len(tiles)
    need(slots > 0, "proof.tiles", "no interface to memory serves any of them" if of_requests else "there are none")
    return max(1, -(-count // slots))


def search(body: Body, proof: Fields) -> int:
    """Returns the II ``least`` if a search over all assignments of groups to tiles finds none for a smaller II.

    The group with the fewest remaining tiles comes first.
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
    """A partial assignment of groups to tiles."""

    left: dict[int, set[int]]
    """Remaining tiles of each group that has none yet."""
    taken: Counter[int]
    """Number of occupied slots of each tile."""


class Tiling:
    """The constraints on an assignment of groups to tiles at an II."""

    def __init__(self, body: Body, interval: int):
        self.slots = min(interval, body.machine["instruction_depth"])
        """Number of slots of each tile."""
        self.size = Counter(body.group)
        """Instructions of each group, each of which occupies a slot. A group has the number of one of its instructions."""
        self.near = self._near(body)
        """For each group, the groups whose tiles depend on its tile, each with a list. Entry ``t`` of the list has the tiles
        that the other group may be on if this group is on tile ``t``."""
        fits = {group: size <= self.slots and (group, group) not in body.apart for group, size in self.size.items()}
        self.start = Placing({group: body.allowed[group] if fits[group] else set() for group in self.size}, Counter())

    def _near(self, body: Body) -> dict[int, list[tuple[int, list[set[int]]]]]:
        """Computes :attr:`near`. The reader of a value over a link must be on a tile that the value reaches, and groups that
        are apart have different tiles."""
        tiles, forth = sorted(body.tiles), body.reach()
        back = [{start for start in tiles if end in forth[start]} for end in tiles]
        others = [body.tiles - {tile} for tile in tiles]
        near: dict[int, list[tuple[int, list[set[int]]]]] = {group: [] for group in self.size}
        for pairs, tiles_then in ((body.linked, forth), (body.back, back), (body.apart, others)):
            for one, other in pairs:
                near[body.group[one]].append((body.group[other], tiles_then))
        return near

    def placed(self, state: Placing, group: int, tile: int) -> Placing:
        """The assignment with another group on a tile, and the remaining tiles of the others.

        The sizes of all groups on a tile add up to at most its slots.
        """
        free = self.slots - state.taken[tile] - self.size[group]
        others = (other for other in state.left if other != group)
        left = {other: state.left[other] - (set() if self.size[other] <= free else {tile}) for other in others}
        for other, tiles_then in self.near[group]:
            if other in left:
                left[other] = left[other] & tiles_then[tile]
        return Placing(left, state.taken + Counter({tile: self.size[group]}))


#: Forms of proof, with functions that return the II that they show.
FORMS = {"recurrence": recurrence, "resource": resource, "search": search}
