"""Forms ``recurrence``, ``resource`` and ``search``: why the initiation interval (II) of a loop body is not smaller.

No iteration is shorter than the instructions in it that wait for each other (Rau, "Iterative modulo scheduling", 1994).
"""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from stowplan.certificates.checker.loops import Body
from stowplan.certificates.checker.reading import Fields, need, numbers, walk, whole

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
