"""Makes proofs of modulo scheduling by a count over tiles or requests, by a cycle of instructions that wait for each other, and
by a search.

An *interface* serves the requests to memory of some tiles, of which it accepts only a few in each clock. The *spoke depth* of
the machine is the largest initiation interval (II) that it allows.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from itertools import combinations

from stowplan.certificates.checker.loops import SCALE, Body, resource, search
from stowplan.certificates.checker.reading import UnprovenError
from stowplan.certificates.maker import Proof, Wish
from stowplan.models.modulo_scheduling.bounds import recurrence_mii


def schedule(wish: Wish) -> Iterator[Proof]:
    """Yields proofs for modulo scheduling: a count over tiles, a cycle of instructions, and a search.

    The count is the best one of :func:`_resources`. The cycle follows only if it proves a larger initiation interval (II). The
    search is tried for the claimed II and for smaller ones, until one succeeds.
    """
    body = Body(wish.rules)
    best = max(_resources(body), key=lambda tiles: resource(body, tiles))
    yield {"form": "resource"} | best
    ii, proven_ii = recurrence_mii(wish.problem), resource(body, best)
    while ii > proven_ii and body.times(ii - 1) is not None:
        ii -= 1
    if ii > proven_ii:
        yield {"form": "recurrence", "least": ii}
    proven_ii = max(ii, proven_ii)
    depth = wish.problem.machine.spoke_depth
    for least in range(
        depth + 1 if wish.infeasible else (wish.bound or 0) // SCALE, depth if wish.infeasible else proven_ii, -1
    ):
        with suppress(UnprovenError):
            if not wish.is_over() and search(body, {"least": least}):
                yield {"form": "search", "least": least}
                return


def _resources(body: Body) -> Iterator[Proof]:
    """Yields sets of tiles to count instructions or requests for: all tiles, the tiles that an instruction may be on, and the
    tiles that only some interfaces serve."""
    for some in {frozenset(body.tiles), *map(frozenset, filter(None, body.allowed))}:
        yield {"tiles": sorted(some)}
    interfaces = range(len(body.interfaces))
    for count in range(1, len(interfaces) + 1 if len(interfaces) <= 8 else 2):
        for chosen in combinations(interfaces, count):
            others = (served for at, (served, _) in enumerate(body.interfaces) if at not in chosen)
            tiles = body.tiles.difference(*others)
            if any(body.interfaces[interface][0] & tiles for interface in chosen):
                yield {"tiles": sorted(tiles), "requests": True}
