"""Proofs of modulo scheduling: a critical cycle, or a count over tiles or ports."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from itertools import combinations

from stowplan.certificates.checker.reading import UnprovenError
from stowplan.certificates.checker.schedules import SCALE, Body, resource, search
from stowplan.certificates.maker import Proof, Wish
from stowplan.models.modulo_scheduling.bounds import recurrence_mii


def schedule(wish: Wish) -> Iterator[Proof]:
    """The best count, then a cycle, then searches from the interval that is claimed on down."""
    body = Body(wish.rules)
    best = max(_resources(body), key=lambda each: resource(body, each), default=None)
    if best is not None:
        yield {"form": "resource"} | best
    ii = recurrence_mii(wish.problem)
    while ii > 1 and not (cycle := _cycle(body, ii - 1)):
        ii -= 1
    if ii > 1:
        yield {"form": "recurrence", "cycle": cycle}
    known = max(ii, 0 if best is None else resource(body, best))
    depth = wish.problem.machine.spoke_depth
    for least in range(depth + 1 if wish.infeasible else (wish.bound or 0) // SCALE, depth if wish.infeasible else known, -1):
        with suppress(UnprovenError):
            if not wish.is_over() and search(body, {"least": least}):
                yield {"form": "search", "least": least}
                return


def _resources(body: Body) -> Iterator[Proof]:
    for tiles in {frozenset(body.tiles), *map(frozenset, body.allowed)}:
        if tiles:
            yield {"tiles": sorted(tiles)}
    interfaces = range(len(body.serves))
    for count in range(1, len(interfaces) + 1 if len(interfaces) <= 8 else 2):
        for chosen in combinations(interfaces, count):
            yield {"interfaces": [*chosen]}


def _cycle(body: Body, ii: int) -> list[list[int]]:
    """A cycle that needs more than ``ii`` clocks for each of its iterations, by the method of Bellman and Ford."""
    links = [(source, target, distance, clocks - ii * distance) for (source, target, distance), clocks in body.waits.items()]
    late = [0] * len(body.instructions)
    came: dict[int, tuple[int, int]] = {}
    changed = -1
    for _ in range(len(late) + 1):
        changed = -1
        for source, target, distance, clocks in links:
            if late[source] + clocks > late[target]:
                late[target], came[target], changed = late[source] + clocks, (source, distance), target
        if changed < 0:
            return []
    for _ in late:
        changed = came[changed][0]
    cycle, at = list[list[int]](), changed
    while not cycle or at != changed:
        source, distance = came[at]
        cycle.append([source, at, distance])
        at = source
    return cycle[::-1]
