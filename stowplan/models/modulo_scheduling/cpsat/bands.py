"""A first plan for large graphs on a row of tiles: the loop body laid along the row, step by step, each in a narrow band.

It leaves out most places, so that it proves nothing; but what is left is quickly searched. Butterflies fit so: a stage on two
tiles, the next one tile further.
"""

from __future__ import annotations

from stowplan.models.modulo_scheduling.structure import Structure

#: Tiles of a band.
WIDTH = 3


def bands(structure: Structure, width: int = WIDTH) -> list[range] | None:
    """For each instruction the tiles of its band; None where the machine is no row, or has no room for bands."""
    machine = structure.problem.machine
    if machine.columns != 1 or machine.tiles <= width:
        return None
    depth = _depths(structure)
    deepest = max(depth, default=0)
    # One tile further for each step; slower where the graph is deeper than the row is long.
    slope = min(1.0, (machine.tiles - width) / max(deepest, 1))
    first = (machine.tiles - width - slope * deepest) / 2
    starts = [int(first + slope * each) for each in depth]
    return [range(start, start + width) for start in starts]


def _depths(structure: Structure) -> list[int]:
    """Edges of this iteration on the longest way to each instruction."""
    waiting = [0] * structure.count
    after: list[list[int]] = [[] for _ in waiting]
    for edge in structure.problem.edges:
        if edge.distance == 0:
            waiting[edge.target] += 1
            after[edge.source].append(edge.target)
    depth = [0] * structure.count
    ready = [number for number, count in enumerate(waiting) if count == 0]
    while ready:
        source = ready.pop()
        for target in after[source]:
            depth[target] = max(depth[target], depth[source] + 1)
            waiting[target] -= 1
            if waiting[target] == 0:
                ready.append(target)
    return depth
