"""Forms ``recurrence``, ``resource`` and ``search``: why the initiation interval (II) of a loop body is not smaller.

Read from docs/reference/modulo-scheduling.md. No iteration is shorter than the instructions in it that wait for each other
(Rau, "Iterative modulo scheduling", 1994).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import permutations, product

from stowplan.certificates.checker.reading import Fields, need, numbers, walk, whole

#: Of the objective, II x SCALE + clocks of an iteration.
SCALE = 1_000_000

#: Tiles of a machine at most, lest looking at all pairs take long.
MOST_TILES = 4096


class Body:
    """A loop body: who waits for whom, who shares a tile, who may not, and on which tiles each may be."""

    def __init__(self, problem: Fields):
        self.machine, self.instructions, rules = problem["machine"], problem["instructions"], problem["rules"]
        need(self.machine["rows"] * self.machine["columns"] <= MOST_TILES, "machine", "it has too many tiles")
        self.tiles, every = {*range(self.machine["rows"] * self.machine["columns"])}, range(len(self.instructions))
        self.passes = rules["pass_through"]
        number = {each["id"]: at for at, each in enumerate(self.instructions)}
        self.pins = {number[pin["instruction"]]: pin for pin in problem["pins"]}
        self.latency = [each.get("latency") or self.machine["latency"] for each in self.instructions]
        fabric = self.machine["asynchronous"] or {"interfaces": []}
        self.asks = [each.get("memory") is not None for each in self.instructions]
        self.interfaces = [({*(each.get("tiles") or self.tiles)}, each.get("ports", 1)) for each in fabric["interfaces"]]
        """Tiles that each interface to memory serves, and its requests in a clock."""
        linked, sent = list[tuple[int, int, int]](), list[tuple[int, int, int]]()
        used = defaultdict[object, list[int]](list)
        """Who shares a tile: what has a variable in common, and readers of a value that is sent, which is written there."""
        for target, each in enumerate(self.instructions):
            for name in each.get("writes", ()):
                used[name].append(target)
            for operand in each.get("operands", ()):
                source = number.get(operand.get("instruction"))
                is_sent = source is not None and (operand.get("asynchronous", False) or self.asks[source])
                used[(source,) if is_sent else operand.get("variable")].append(target)
                if source is not None:
                    (sent if is_sent else linked).append((source, target, operand.get("distance", 0)))
        used.pop(None, None)
        self.group = _joined(every, [(users[0], each) for users in used.values() for each in users])
        own = [{*(each.get("tiles") or self.tiles)} for each in self.instructions]
        tied = [(user, each.get("tile")) for each in problem["variables"] for user in used.get(each["id"], ())]
        for at, tile in (*tied, *((at, pin.get("tile")) for at, pin in self.pins.items())):
            own[at] &= own[at] if tile is None else {tile}
        self.allowed = [self.tiles.intersection(*(own[at] for at in every if self.group[at] == group)) for group in self.group]
        """Tiles that each instruction may stand on, with all that must share one with it."""
        self.linked, self.back = ([(each[at], each[1 - at]) for each in linked] for at in (0, 1))
        flow = _joined(every, self.linked)
        sources = {*every}.difference(target for _, target, distance in linked if distance == 0)
        # Who may not share a tile: siblings, and starts of flows where it is known who they are.
        sides = {"none": [], "consumers": [self.linked], "consumers_and_producers": [self.linked, self.back]}[rules["siblings"]]
        alike = [{other for hub, other in side if hub == each} for side in sides for each in every]
        starts = Counter(flow[each] for each in sources)
        alike.append({each for each in sources if rules["starts"] == "source" or starts[flow[each]] == 1})
        self.apart = {(self.group[one], self.group[other]) for each in alike for one, other in permutations(each, 2)}
        self.waits = list[tuple[int, int, int, int]]()
        """(source, target, distance, clocks from issue to issue at least)"""
        quickest = min((link["clocks"] for link in self.machine["links"]), default=0)
        for source, target, distance in linked:
            pair = self.group[source], self.group[target]
            may_meet = self.allowed[source] & self.allowed[target] and pair not in self.apart
            self.waits.append((source, target, distance, self.latency[source] + (0 if may_meet else quickest)))
        for source, target, distance in sent:
            clocks = self.latency[source] + fabric["memory_latency" if self.asks[source] else "latency"]
            self.waits += [(source, start, distance, clocks) for start in sources if flow[start] == flow[target]]

    def times(self, interval: int) -> list[int] | None:
        """The first clock of each instruction at an II; None where some wait for each other without end (Bellman and Ford)."""
        late = [self.pins.get(at, {}).get("time") or 0 for at in range(len(self.latency))]
        for _ in range(len(late) + 1):
            before = [*late]
            for source, target, distance, clocks in self.waits:
                late[target] = max(late[target], late[source] + clocks - interval * distance)
            if late == before:
                return late
        return None

    def reach(self) -> list[set[int]]:
        """Of each tile those that its values get to: where they may pass through tiles, any."""
        height, width = self.machine["rows"], self.machine["columns"]
        found = [{*self.tiles} if self.passes else {tile} for tile in sorted(self.tiles)]
        for tile, link in product(self.tiles, self.machine["links"]):
            row, column = tile // width + link["rows"], tile % width + link["columns"]
            if self.machine["wraps"] or (0 <= row < height and 0 <= column < width):
                found[tile].add(row % height * width + column % width)
        return found


def _joined(every: range, pairs: list[tuple[int, int]]) -> list[int]:
    """Group of each; both of a pair have the same."""
    group = list(every)
    for one, other in pairs:
        group = [group[one] if each == group[other] else each for each in group]
    return group


def recurrence(body: Body, proof: Fields) -> int:
    """The II ``least``, for at one clock less instructions wait for each other without end."""
    least = whole(proof, "least", 1)
    need(body.times(least - 1) is None, "proof.least", "what waits for each other has time enough")
    return least


def resource(body: Body, proof: Fields) -> int:
    """II by a count: of what must be on some tiles, or of their requests to the interfaces that serve them."""
    tiles, of_requests = {*numbers(proof, "tiles")}, "requests" in proof
    ports = sum(ports for served, ports in body.interfaces if served & tiles)
    count = sum(allowed <= tiles and (asks or not of_requests) for allowed, asks in zip(body.allowed, body.asks, strict=True))
    return max(1, -(-count // (ports if of_requests else len(tiles))))


def search(body: Body, proof: Fields) -> int:
    """The II ``least``, for no smaller one has enough slots: what shares a tile is placed in every way, and nothing fits.

    Who places a group keeps the tiles that others may still have: within reach, apart, and with slots that are free.
    """
    least, reach, every = whole(proof, "least", 1), body.reach(), sorted(body.tiles)
    most = min(least - 1, body.machine["instruction_depth"])
    back = [{tile for tile in every if end in reach[tile]} for end in every]
    others = [body.tiles - {tile} for tile in every]
    pairs = (body.linked, reach), (body.back, back), (body.apart, others)
    rules = [(body.group[one], body.group[other], tiles) for links, tiles in pairs for one, other in links]
    near = {group: [(other, tiles) for one, other, tiles in rules if one == group] for group in body.group}
    size = Counter(body.group)
    fits = {group: size[group] <= most and (group, group) not in body.apart for group in size}
    waiting = [({group: body.allowed[group] if fits[group] else set[int]() for group in size}, Counter[int]())]
    for open_, full in walk(waiting, lambda state: 1 + sum(map(len, state[0].values()))):
        need(bool(open_), "proof.least", "everything has a place")
        here = min(open_, key=lambda group: (len(open_[group]), -len(near[group])))
        for tile in sorted(open_.pop(here)):
            left = most - full[tile] - size[here]
            rest = {other: each if size[other] <= left else each - {tile} for other, each in open_.items()}
            for other, tiles in near[here]:
                if other in rest:
                    rest[other] = rest[other] & tiles[tile]
            if all(rest.values()):
                waiting.append((rest, full + Counter({tile: size[here]})))
    return least


#: Forms, and what they show of the II.
FORMS = {"recurrence": recurrence, "resource": resource, "search": search}


def schedule(problem: Fields, proof: Fields) -> int | None:
    """Least objective, or None where the proof shows that no II will do. A larger II alone costs SCALE more."""
    body = Body(problem)
    least = FORMS[proof["form"]](body, proof)
    ends = map(int.__add__, body.times(least) or [], body.latency)
    return None if least > body.machine["spoke_depth"] else least * SCALE + min(SCALE, max(ends, default=0))
