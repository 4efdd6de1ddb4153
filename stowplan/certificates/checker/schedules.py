"""Forms ``recurrence``, ``resource`` and ``search``: why the initiation interval (II) of a loop body is not smaller.

Read from docs/reference/modulo-scheduling.md. All have a ``path`` as well, instructions of one iteration that wait for each
other: no iteration is shorter (Rau, "Iterative modulo scheduling", 1994).
"""

from __future__ import annotations

from collections import Counter
from itertools import combinations, product
from typing import Any

from stowplan.certificates.checker.reading import LOOKS, Fields, need, numbers, pick, rows, whole
from stowplan.certificates.checker.tree import Splits

#: Of the objective, II x SCALE + clocks of an iteration.
SCALE = 1_000_000

MOST_TILES = 1 << 12


class Body:
    """A loop body: who waits for whom, who shares a tile, who may not, and on which tiles each may be."""

    def __init__(self, problem: Fields):
        self.machine, self.instructions = problem["machine"], problem["instructions"]
        need(self.machine["rows"] * self.machine["columns"] <= MOST_TILES, "machine", "it has too many tiles")
        self.tiles = set(range(self.machine["rows"] * self.machine["columns"]))
        every = range(len(self.instructions))
        number = {each["id"]: at for at, each in enumerate(self.instructions)}
        self.pins = {number[pin["instruction"]]: pin for pin in problem["pins"]}
        self.latency = [each.get("latency") or self.machine["latency"] for each in self.instructions]
        self.fabric = self.machine["asynchronous"] or {"interfaces": []}
        self.asks = [each.get("memory") is not None for each in self.instructions]
        linked, sent = list[tuple[int, int, int]](), list[tuple[int, int, int]]()
        used: dict[object, list[int]] = {}
        """Who shares a tile: what has a variable in common, and readers of a value that is sent, which is written there."""
        for target, each in enumerate(self.instructions):
            for operand in each.get("operands", ()):
                source = number.get(operand.get("instruction"))
                if source is not None:
                    is_sent = operand.get("asynchronous", False) or self.asks[source]
                    (sent if is_sent else linked).append((source, target, operand.get("distance", 0)))
                    used.setdefault((source,) if is_sent else None, []).append(target)
                used.setdefault(operand.get("variable"), []).append(target)
            for name in each.get("writes", ()):
                used.setdefault(name, []).append(target)
        used.pop(None, None)
        self.group = _joined(every, [(users[0], each) for users in used.values() for each in users])
        self.members = {group: [each for each in every if self.group[each] == group] for group in self.group}
        self.allowed = self._allowed(problem["variables"], used)
        flow = _joined(every, [(source, target) for source, target, _ in linked])
        woken = {target for _, target, distance in linked if distance == 0}
        sources = [each for each in every if each not in woken]
        self.linked = [(source, target) for source, target, _ in linked]
        self.apart = set(self._apart(problem["rules"], sources, flow))
        self.passes = problem["rules"]["pass_through"]
        self.waits: dict[tuple[int, int, int], int] = {}
        """Clocks from issue to issue, at least, by (source, target, distance)."""
        quickest = min((link["clocks"] for link in self.machine["links"]), default=0)
        for source, target, distance in linked:
            pair = self.group[source], self.group[target]
            may_meet = self.allowed[source] & self.allowed[target] and pair not in self.apart
            self.waits[source, target, distance] = self.latency[source] + (0 if may_meet else quickest)
        for source, target, distance in sent:
            clocks = self.latency[source] + self.fabric["memory_latency" if self.asks[source] else "latency"]
            for key in ((source, start, distance) for start in sources if flow[start] == flow[target]):
                self.waits[key] = max(clocks, self.waits.get(key, 0))

    def serves(self, interface: dict[str, Any]) -> set[int]:
        """Tiles that an interface to memory serves."""
        return self.tiles if interface.get("tiles") is None else set(interface["tiles"])

    def _allowed(self, variables: list[dict[str, Any]], used: dict[object, list[int]]) -> list[set[int]]:
        """Tiles that each instruction may stand on, with all that must share one with it."""
        own = [self.tiles if each.get("tiles") is None else set(each["tiles"]) for each in self.instructions]
        bound = [(user, each.get("tile")) for each in variables for user in used.get(each["id"], ())]
        for number, tile in (*bound, *((number, pin.get("tile")) for number, pin in self.pins.items())):
            own[number] = own[number] if tile is None else own[number] & {tile}
        served = set[int]().union(*map(self.serves, self.fabric["interfaces"]))
        own = [each & served if asks else each for each, asks in zip(own, self.asks, strict=True)]
        return [self.tiles.intersection(*(own[at] for at in self.members[group])) for group in self.group]

    def _apart(self, rules: dict[str, Any], sources: list[int], flow: list[int]) -> list[tuple[int, int]]:
        """Groups that may not share a tile, both ways: siblings, and starts of flows where it is known who they are."""
        alike = [{target for source, target in self.linked if source == each} for each in range(len(flow))]
        if rules["siblings"] == "consumers_and_producers":
            alike += [{source for source, target in self.linked if target == each} for each in range(len(flow))]
        alike = [] if rules["siblings"] == "none" else alike
        starts = Counter(flow[each] for each in sources)
        alike.append({each for each in sources if rules["starts"] == "source" or starts[flow[each]] == 1})
        pairs = [(self.group[one], self.group[other]) for each in alike for one, other in combinations(each, 2)]
        return [*pairs, *((other, one) for one, other in pairs)]

    def chain(self, chained: list[list[int]], place: str) -> tuple[int, int]:
        """Clocks and iterations of a chain of waits, each of which begins where the one before ends."""
        clocks = 0
        for at, (source, target, distance) in enumerate(chained):
            need((source, target, distance) in self.waits, f"{place}[{at}]", f"{target} does not wait for {source}")
            need(at == 0 or chained[at - 1][1] == source, f"{place}[{at}]", "it does not go on where the one before ends")
            clocks += self.waits[source, target, distance]
        return clocks, sum(distance for *_, distance in chained)

    def reach(self) -> list[set[int]]:
        """Of each tile those that its values get to."""
        height, width = self.machine["rows"], self.machine["columns"]
        found = [{tile} for tile in sorted(self.tiles)]
        for tile, link in product(self.tiles, self.machine["links"]):
            row, column = tile // width + link["rows"], tile % width + link["columns"]
            if self.machine["wraps"] or (0 <= row < height and 0 <= column < width):
                found[tile].add(row % height * width + column % width)
        for via in self.tiles if self.passes else ():
            found = [each | found[via] if via in each else each for each in found]
        return found


def _joined(every: range, pairs: list[tuple[int, int]]) -> list[int]:
    """Group of each; both of a pair have the same."""
    group = list(every)
    for one, other in pairs:
        low, high = sorted((group[one], group[other]))
        group = [low if each == high else each for each in group] if low < high else group
    return group


def schedule(problem: Fields, proof: Fields, splits: Splits) -> int | None:
    """Least objective, or None where the proof shows that no II will do."""
    body = Body(problem)
    least = {"recurrence": recurrence, "resource": resource, "search": search}[proof["form"]](body, proof)
    if least > body.machine["spoke_depth"]:
        return None
    path = rows(proof, "path", 3)
    length, iterations = body.chain(path, "proof.path")
    need(iterations == 0, "proof.path", "it is of more than one iteration")
    first = path[0][0] if path else whole(proof, "first", default=0)
    if body.instructions:
        pick(body.instructions, first, "proof.first")
        length += (body.pins.get(first, {}).get("time") or 0) + body.latency[path[-1][1] if path else first]
    return least * SCALE + length


def recurrence(body: Body, proof: Fields) -> int:
    """II by a cycle: its clocks over its iterations."""
    cycle = rows(proof, "cycle", 3)
    clocks, iterations = body.chain(cycle, "proof.cycle")
    need(bool(cycle) and cycle[-1][1] == cycle[0][0], "proof.cycle", "it does not come back to where it begins")
    need(iterations > 0, "proof.cycle", "it is of no iteration")
    return max(1, -(-clocks // iterations))


def resource(body: Body, proof: Fields) -> int:
    """II by a count: of what must be on some tiles, or of requests to some interfaces."""
    tiles = set(numbers(proof, "tiles"))
    slots, counted = len(tiles), [True for _ in body.asks]
    if "interfaces" in proof:
        chosen, interfaces = set(numbers(proof, "interfaces")), body.fabric["interfaces"]
        tiles = body.tiles.difference(*(body.serves(each) for at, each in enumerate(interfaces) if at not in chosen))
        slots, counted = sum(pick(interfaces, number, "interfaces").get("ports", 1) for number in chosen), body.asks
    need(slots > 0, "proof", "it names no tile and no interface")
    count = sum(allowed <= tiles and each for allowed, each in zip(body.allowed, counted, strict=True))
    return int(max(1, -(-count // slots)))


def search(body: Body, proof: Fields) -> int:
    """The II ``least``, for no smaller one has enough slots: what shares a tile is placed in every way, and nothing fits.

    Who places a group keeps the tiles that others may still have: within reach, apart, and with slots that are free.
    """
    least = whole(proof, "least", 1)
    most = min(least - 1, body.machine["instruction_depth"])
    reach, every = body.reach(), sorted(body.tiles)
    back = [{tile for tile in every if end in reach[tile]} for end in every]
    narrow = [(body.group[one], body.group[other], reach) for one, other in body.linked]
    narrow += [(other, one, back) for one, other, _ in narrow]
    narrow += [(one, other, [body.tiles - {tile} for tile in every]) for one, other in body.apart]
    near: dict[int, list[tuple[int, list[set[int]]]]] = {group: [] for group in body.members}
    for one, other, tiles in narrow:
        near[one].append((other, tiles))
    begun = {group: body.allowed[group] if len(each) <= most else set[int]() for group, each in body.members.items()}
    waiting = [(begun, Counter[int]())]
    left = LOOKS
    while waiting and left > 0:
        open_, full = waiting.pop()
        need(bool(open_), "proof.least", "everything has a place")
        here = min(open_, key=lambda group: (len(open_[group]), -len(near[group])))
        for tile in sorted(open_[here]):
            load = full + Counter({tile: len(body.members[here])})
            rest = {**open_, here: {tile}}
            for other, tiles in near[here]:
                if other in rest:
                    rest[other] = rest[other] & tiles[tile]
            for other in rest:
                if tile in rest[other] and load[tile] + (len(body.members[other]) if other != here else 0) > most:
                    rest[other] = rest[other] - {tile}
            left -= len(rest) + len(near[here])
            if all(rest.values()):
                del rest[here]
                waiting.append((rest, load))
    need(not waiting, "proof", "the search takes too long")
    return least
