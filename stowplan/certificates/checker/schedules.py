"""Forms ``recurrence``, ``resource`` and ``search``: why the initiation interval (II) of a loop body is not smaller.

Read from docs/reference/modulo-scheduling.md. No iteration is shorter than the instructions in it that wait for each other
(Rau, "Iterative modulo scheduling", 1994).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from itertools import combinations, product

from stowplan.certificates.checker.reading import Fields, need, numbers, pick, rows, walk, whole

#: Of the objective, II x SCALE + clocks of an iteration.
SCALE = 1_000_000

MOST_TILES = 1 << 12


class Body:
    """A loop body: who waits for whom, who shares a tile, who may not, and on which tiles each may be."""

    def __init__(self, problem: Fields):
        self.machine, self.instructions, rules = problem["machine"], problem["instructions"], problem["rules"]
        need(self.machine["rows"] * self.machine["columns"] <= MOST_TILES, "machine", "it has too many tiles")
        self.tiles, self.passes = {*range(self.machine["rows"] * self.machine["columns"])}, rules["pass_through"]
        every = range(len(self.instructions))
        number = {each["id"]: at for at, each in enumerate(self.instructions)}
        self.pins = {number[pin["instruction"]]: pin for pin in problem["pins"]}
        self.latency = [each.get("latency") or self.machine["latency"] for each in self.instructions]
        fabric = self.machine["asynchronous"] or {"interfaces": []}
        self.asks = [each.get("memory") is not None for each in self.instructions]
        self.serves = [{*(self.tiles if each.get("tiles") is None else each["tiles"])} for each in fabric["interfaces"]]
        """Tiles that each interface to memory serves."""
        self.ports = [each.get("ports", 1) for each in fabric["interfaces"]]
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
        served = set[int]().union(*self.serves)
        own = [{*(self.tiles if each.get("tiles") is None else each["tiles"])} for each in self.instructions]
        tied = [(user, each.get("tile")) for each in problem["variables"] for user in used.get(each["id"], ())]
        for at, tile in (*tied, *((at, pin.get("tile")) for at, pin in self.pins.items())):
            own[at] &= own[at] if tile is None else {tile}
        own = [each & served if asks else each for each, asks in zip(own, self.asks, strict=True)]
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
        pairs = {(self.group[one], self.group[other]) for each in alike for one, other in combinations(each, 2)}
        self.apart = pairs | {(other, one) for one, other in pairs}
        self.waits: dict[tuple[int, int, int], int] = {}
        """Clocks from issue to issue, at least, by (source, target, distance)."""
        quickest = min((link["clocks"] for link in self.machine["links"]), default=0)
        for source, target, distance in linked:
            pair = self.group[source], self.group[target]
            may_meet = self.allowed[source] & self.allowed[target] and pair not in self.apart
            self.waits[source, target, distance] = self.latency[source] + (0 if may_meet else quickest)
        for source, target, distance in sent:
            clocks = self.latency[source] + fabric["memory_latency" if self.asks[source] else "latency"]
            for key in ((source, start, distance) for start in sources if flow[start] == flow[target]):
                self.waits[key] = max(clocks, self.waits.get(key, 0))

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


def recurrence(body: Body, proof: Fields) -> int:
    """II by a cycle: its clocks over its iterations."""
    cycle, clocks = rows(proof, "cycle", 3), 0
    for at, (source, target, distance) in enumerate(cycle):
        need((source, target, distance) in body.waits, f"proof.cycle[{at}]", f"{target} does not wait for {source}")
        need(cycle[at - 1][1] == source, f"proof.cycle[{at}]", "it does not go on where the one before ends")
        clocks += body.waits[source, target, distance]
    iterations = sum(distance for *_, distance in cycle)
    need(iterations > 0, "proof.cycle", "it is of no iteration")
    return max(1, -(-clocks // iterations))


def resource(body: Body, proof: Fields) -> int:
    """II by a count: of what must be on some tiles, or of requests to some interfaces."""
    of_ports, chosen = "interfaces" in proof, {*numbers(proof, "interfaces")}
    others = (served for at, served in enumerate(body.serves) if at not in chosen)
    tiles = body.tiles.difference(*others) if of_ports else {*numbers(proof, "tiles")}
    slots = sum(pick(body.ports, number, "interfaces") for number in chosen) if of_ports else len(tiles)
    need(slots > 0, "proof", "it names no tile and no interface")
    count = sum(allowed <= tiles and (asks or not of_ports) for allowed, asks in zip(body.allowed, body.asks, strict=True))
    return max(1, -(-count // slots))


def search(body: Body, proof: Fields) -> int:
    """The II ``least``, for no smaller one has enough slots: what shares a tile is placed in every way, and nothing fits.

    Who places a group keeps the tiles that others may still have: within reach, apart, and with slots that are free.
    """
    least, reach, every = whole(proof, "least", 1), body.reach(), sorted(body.tiles)
    most = min(least - 1, body.machine["instruction_depth"])
    back = [{tile for tile in every if end in reach[tile]} for end in every]
    others = [body.tiles - {tile} for tile in every]
    near: dict[int, list[tuple[int, list[set[int]]]]] = {group: [] for group in body.group}
    for pairs, tiles in ((body.linked, reach), (body.back, back), (body.apart, others)):
        for one, other in pairs:
            near[body.group[one]].append((body.group[other], tiles))
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
    """Least objective, or None where the proof shows that no II will do."""
    body = Body(problem)
    least = FORMS[proof["form"]](body, proof)
    if least > body.machine["spoke_depth"]:
        return None
    late = [body.pins.get(at, {}).get("time") or 0 for at in range(len(body.latency))]
    for _ in late:
        for (source, target, distance), clocks in body.waits.items():
            late[target] = late[target] if distance else max(late[target], late[source] + clocks)
    return least * SCALE + max(map(int.__add__, late, body.latency), default=0)
