"""Forms ``recurrence`` and ``resource``: why the initiation interval (II) of a loop body is not smaller.

Read from docs/reference/modulo-scheduling.md. Both also have a ``path``, instructions of one iteration that wait for each
other: no iteration is shorter (Rau, "Iterative modulo scheduling", 1994).
"""

from __future__ import annotations

from itertools import product
from typing import Any

from stowplan.certificates.checker.reading import Part, need, pick, whole

#: Of the objective, II x SCALE + clocks of an iteration.
SCALE = 1_000_000


class Body:
    """A loop body: who waits for whom, who shares a tile, and on which tiles it may be."""

    def __init__(self, problem: dict[str, Any]):
        self.machine, self.rules = problem["machine"], problem["rules"]
        self.instructions: list[dict[str, Any]] = problem["instructions"]
        self.tiles = set(range(whole(self.machine["rows"] * self.machine["columns"], "machine", 1, 1 << 16)))
        every = range(len(self.instructions))
        number = {each["id"]: at for at, each in enumerate(self.instructions)}
        self.pins = {number[pin["instruction"]]: pin for pin in problem["pins"]}
        self.latency = [each.get("latency") or self.machine["latency"] for each in self.instructions]
        self.fabric = self.machine["asynchronous"] or {"interfaces": []}
        self.asks = [each.get("memory") is not None for each in self.instructions]
        edges = [
            (number[operand["instruction"]], target, operand.get("distance", 0), operand.get("asynchronous", False))
            for target, each in enumerate(self.instructions)
            for operand in each.get("operands", ())
            if operand.get("instruction") is not None
        ]
        linked = [(source, target, distance) for source, target, distance, sent in edges if not (sent or self.asks[source])]
        sent = [(source, target, distance) for source, target, distance, sent in edges if sent or self.asks[source]]
        # What has a variable in common shares a tile; readers of a value that is sent share that which it is written to.
        used: dict[object, list[int]] = {}
        for target, each in enumerate(self.instructions):
            for name in (*each.get("writes", ()), *(operand.get("variable") for operand in each.get("operands", ()))):
                used.setdefault(name, []).append(target)
        used.pop(None, None)
        for source, target, _ in sent:
            used.setdefault((source,), []).append(target)
        self.group = _joined(every, [(users[0], each) for users in used.values() for each in users])
        flow = _joined(every, [(source, target) for source, target, _ in linked])
        woken = {target for _, target, distance in linked if distance == 0}
        self.sources = [each for each in every if each not in woken]
        self.producers, self.consumers = ([set[int]() for _ in every] for _ in range(2))
        for source, target, _ in linked:
            self.producers[target].add(source)
            self.consumers[source].add(target)
        self.allowed = self._allowed(problem["variables"], used)
        self.waits: dict[tuple[int, int, int], int] = {}
        """Clocks from issue to issue, at least, by (source, target, distance)."""
        for source, target, distance in linked:
            self.waits[source, target, distance] = self.latency[source] + self._link(source, target)
        for source, target, distance in sent:
            clocks = self.latency[source] + self.fabric["memory_latency" if self.asks[source] else "latency"]
            for key in ((source, start, distance) for start in self.sources if flow[start] == flow[target]):
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
        return [self.tiles.intersection(*(own[at] for at in self.members(group))) for group in self.group]

    def members(self, group: int) -> list[int]:
        """Instructions of a group, which share a tile."""
        return [number for number, each in enumerate(self.group) if each == group]

    def _link(self, source: int, target: int) -> int:
        """Clocks of the quickest link where two may not share a tile."""
        rule = self.rules["siblings"]
        apart = not self.allowed[source] & self.allowed[target]
        if self.group[source] != self.group[target]:
            for one, other in product(self.members(self.group[source]), self.members(self.group[target])):
                apart |= rule != "none" and bool(self.producers[one] & self.producers[other])
                apart |= rule == "consumers_and_producers" and bool(self.consumers[one] & self.consumers[other])
                apart |= self.rules["starts"] == "source" and {one, other} <= {*self.sources}
        return min((link["clocks"] for link in self.machine["links"]), default=0) if apart else 0

    def chain(self, rows: list[list[int]], place: str) -> tuple[int, int]:
        """Clocks and iterations of a chain of waits, each of which begins where the one before ends."""
        clocks = 0
        for at, (source, target, distance) in enumerate(rows):
            need((source, target, distance) in self.waits, f"{place}[{at}]", f"{target} does not wait for {source}")
            need(at == 0 or rows[at - 1][1] == source, f"{place}[{at}]", "it does not go on where the one before ends")
            clocks += self.waits[source, target, distance]
        return clocks, sum(distance for *_, distance in rows)


def _joined(every: range, pairs: list[tuple[int, int]]) -> list[int]:
    """Group of each; both of a pair have the same."""
    group = list(every)
    for one, other in pairs:
        low, high = sorted((group[one], group[other]))
        group = [low if each == high else each for each in group] if low < high else group
    return group


def schedule(problem: dict[str, Any], proof: Part, bound: int | None) -> int | None:
    """Least objective, or None where the proof shows that no II will do."""
    body = Body(problem)
    least = recurrence(body, proof) if proof.get("form") == "recurrence" else resource(body, proof)
    path = proof.rows("path", 3)
    length, iterations = body.chain(path, "proof.path")
    need(iterations == 0, "proof.path", "it is of more than one iteration")
    first = path[0][0] if path else proof.whole("first", default=0)
    if body.instructions:
        pick(body.instructions, first, "proof.first")
        length += (body.pins.get(first, {}).get("time") or 0) + body.latency[path[-1][1] if path else first]
    if bound is None:
        depth = body.machine["spoke_depth"]
        need(least > depth, "proof", f"an interval of {least} fits the {depth} entries of the spoke RAM")
        return None
    return least * SCALE + length


def recurrence(body: Body, proof: Part) -> int:
    """II by a cycle: its clocks over its iterations."""
    cycle = proof.rows("cycle", 3)
    clocks, iterations = body.chain(cycle, "proof.cycle")
    need(bool(cycle) and cycle[-1][1] == cycle[0][0], "proof.cycle", "it does not come back to where it begins")
    need(iterations > 0, "proof.cycle", "it is of no iteration")
    return max(1, -(-clocks // iterations))


def resource(body: Body, proof: Part) -> int:
    """II by a count: of what must be on some tiles, of what must share one, or of requests to some interfaces."""
    over = proof.get("over")
    if over == "tile":
        return body.group.count(pick(body.group, proof.whole("member"), "proof.member"))
    if over == "ports":
        chosen = set(proof.list("interfaces"))
        interfaces = body.fabric["interfaces"]
        tiles = body.tiles.difference(*(body.serves(each) for at, each in enumerate(interfaces) if at not in chosen))
        slots = sum(pick(interfaces, number, "proof.interfaces").get("ports", 1) for number in chosen)
    else:
        tiles = set(proof.list("tiles"))
        slots = len(tiles)
    count = sum(allowed <= tiles and (asks or over != "ports") for allowed, asks in zip(body.allowed, body.asks, strict=True))
    need(slots > 0, "proof", "it names no tile and no interface")
    return int(max(1, -(-count // slots)))
