"""Forms ``recurrence`` and ``resource``: why the initiation interval (II) of a loop body is not smaller.

Read from docs/reference/modulo-scheduling.md. Both also have a ``path``, instructions of one iteration that wait for each
other: no iteration is shorter (Rau, "Iterative modulo scheduling", 1994).
"""

from __future__ import annotations

from typing import Any

from stowplan.certificates.checker.reading import Part, need, pick

#: Of the objective, II x SCALE + clocks of an iteration.
SCALE = 1_000_000


class Body:
    """A loop body: who waits for whom, who shares a tile, and on which tiles it may be."""

    def __init__(self, problem: dict[str, Any]):
        self.machine, self.rules = problem["machine"], problem["rules"]
        self.instructions = problem["instructions"]
        self.tiles = self.machine["rows"] * self.machine["columns"]
        number = {each["id"]: at for at, each in enumerate(self.instructions)}
        self.pins = {number[pin["instruction"]]: pin for pin in problem.get("pins", ())}
        self.latency = [each.get("latency") or self.machine["latency"] for each in self.instructions]
        self.fabric = self.machine["asynchronous"] or {"latency": 0, "memory_latency": 0, "interfaces": []}
        self.group = list(range(len(self.instructions)))
        edges = []
        users: dict[object, int] = {}
        for target, each in enumerate(self.instructions):
            for operand in each.get("operands", ()):
                source = number.get(operand.get("instruction"))
                if source is not None:
                    is_sent = operand.get("asynchronous", False) or self.instructions[source].get("memory") is not None
                    edges.append((source, target, operand.get("distance", 0), is_sent))
                    if is_sent:
                        # Its readers share the variable that it is written to.
                        self._join(self.group, target, users.setdefault(source, target))
                elif operand.get("variable") is not None:
                    self._join(self.group, target, users.setdefault(operand["variable"], target))
            for name in each.get("writes", ()):
                self._join(self.group, target, users.setdefault(name, target))
        flow = list(range(len(self.instructions)))
        for source, target, _, is_sent in edges:
            if not is_sent:
                self._join(flow, source, target)
        woken = {target for _, target, distance, is_sent in edges if distance == 0 and not is_sent}
        self.sources = [each for each in range(len(self.instructions)) if each not in woken]
        self.producers: list[set[int]] = [set() for _ in self.instructions]
        self.consumers: list[set[int]] = [set() for _ in self.instructions]
        for source, target, _, is_sent in edges:
            if not is_sent:
                self.producers[target].add(source)
                self.consumers[source].add(target)
        self.allowed = self._allowed(problem)
        self.waits: dict[tuple[int, int, int], int] = {}
        """Clocks from issue to issue, at least, by (source, target, distance)."""
        for source, target, distance, is_sent in edges:
            if not is_sent:
                self._wait(source, target, distance, self.latency[source] + self._link(source, target))
                continue
            kind = "latency" if self.instructions[source].get("memory") is None else "memory_latency"
            for start in self.sources:
                if flow[start] == flow[target]:
                    self._wait(source, start, distance, self.latency[source] + self.fabric[kind])

    @staticmethod
    def _join(group: list[int], one: int, other: int) -> None:
        low, high = sorted((group[one], group[other]))
        group[:] = [low if each == high else each for each in group]

    def _wait(self, source: int, target: int, distance: int, clocks: int) -> None:
        key = source, target, distance
        self.waits[key] = max(clocks, self.waits.get(key, 0))

    def _allowed(self, problem: dict[str, Any]) -> dict[int, set[int]]:
        """Tiles that each group may stand on."""
        every = set(range(self.tiles))
        bound = {each["id"]: each.get("tile") for each in problem.get("variables", ())}
        served = set().union(*(self.serves(each) for each in self.fabric["interfaces"]), set())
        found: dict[int, set[int]] = {}
        for number, each in enumerate(self.instructions):
            tiles = every if each.get("tiles") is None else set(each["tiles"])
            if each.get("memory") is not None:
                tiles = tiles & served
            read = [operand.get("variable") for operand in each.get("operands", ())]
            fixed = [bound.get(name) for name in (*read, *each.get("writes", ()))]
            fixed.append(self.pins.get(number, {}).get("tile"))
            for tile in fixed:
                tiles = tiles if tile is None else tiles & {tile}
            found[self.group[number]] = found.get(self.group[number], every) & tiles
        return found

    def serves(self, interface: dict[str, Any]) -> set[int]:
        """Tiles that an interface to memory serves."""
        return set(range(self.tiles)) if interface.get("tiles") is None else set(interface["tiles"])

    def _link(self, source: int, target: int) -> int:
        """Clocks of the quickest link where two may not share a tile."""
        one, other = self.group[source], self.group[target]
        if one == other:
            return 0
        pairs = [(a, b) for a in self._members(one) for b in self._members(other)]
        rule = self.rules["siblings"]
        apart = not self.allowed[one] & self.allowed[other]
        apart |= rule != "none" and any(self.producers[a] & self.producers[b] for a, b in pairs)
        apart |= rule == "consumers_and_producers" and any(self.consumers[a] & self.consumers[b] for a, b in pairs)
        apart |= self.rules["starts"] == "source" and any({a, b} <= {*self.sources} for a, b in pairs)
        return min((link["clocks"] for link in self.machine["links"]), default=0) if apart else 0

    def _members(self, group: int) -> list[int]:
        return [number for number, each in enumerate(self.group) if each == group]

    def chain(self, rows: list[list[int]], place: str) -> tuple[int, int]:
        """Clocks and iterations of a chain of waits, each of which begins where the one before ends."""
        clocks = iterations = 0
        for at, (source, target, distance) in enumerate(rows):
            need((source, target, distance) in self.waits, f"{place}[{at}]", f"{target} does not wait for {source}")
            need(at == 0 or rows[at - 1][1] == source, f"{place}[{at}]", "it does not go on where the one before ends")
            clocks, iterations = clocks + self.waits[source, target, distance], iterations + distance
        return clocks, iterations


def schedule(problem: dict[str, Any], proof: Part, form: str, bound: int | None) -> int | None:
    """Least objective, or None where the proof shows that no II will do."""
    body = Body(problem)
    least = recurrence(body, proof) if form == "recurrence" else resource(body, proof)
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
        group = pick(body.group, proof.whole("member"), "proof.member")
        return max(1, body.group.count(group))
    inside = [body.allowed[group] for group in body.group]
    if over == "ports":
        places = set(proof.list("interfaces"))
        interfaces = body.fabric["interfaces"]
        others = [body.serves(each) for number, each in enumerate(interfaces) if number not in places]
        tiles = set(range(body.tiles)).difference(*others)
        asking = [each.get("memory") is not None for each in body.instructions]
        count = sum(each <= tiles for each, asks in zip(inside, asking, strict=True) if asks)
        slots = sum(pick(interfaces, number, "proof.interfaces").get("ports", 1) for number in places)
    else:
        tiles = set(proof.list("tiles"))
        count, slots = sum(each <= tiles for each in inside), len(tiles)
    need(slots > 0, "proof", "it names no tile and no interface")
    return int(max(1, -(-count // slots)))
