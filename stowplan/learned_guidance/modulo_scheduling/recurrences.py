"""How many clocks instructions of one recurrence keep from each other, whatever stands between them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from stowplan.models.modulo_scheduling.structure import Structure

Ints = npt.NDArray[np.int64]

#: Clocks between tiles that no links connect.
MOST_CLOCKS = 1 << 20

#: Weight of a path that there is none of.
NO_PATH = -(1 << 40)


def recurrence_paths(structure: Structure, ii: int) -> tuple[Ints, Ints]:
    """[N, N] Clocks from issue to issue that paths need at an initiation interval, within recurrences.

    Once with the least clocks of links, once without any; :data:`NO_PATH` where two are not of one recurrence. No cycle may
    need more than the interval gives it (``recurrence_mii``).
    """
    problem, component = structure.problem, structure.component
    within = [edge for edge in structure.between if component[edge.source] == component[edge.target]]
    found = []
    for counts in (True, False):
        paths = np.full((structure.count, structure.count), NO_PATH, np.int64)
        for edge in within:
            clocks = problem.latencies[edge.source] - ii * edge.distance + (structure.least_hops(edge) if counts else 0)
            paths[edge.source, edge.target] = max(paths[edge.source, edge.target], clocks)
        for middle in structure.recurrent:
            np.maximum(paths, paths[:, middle, None] + paths[None, middle], out=paths)
        found.append(np.where(paths < NO_PATH // 2, NO_PATH, paths))
    return found[0], found[1]


def least_clocks(structure: Structure) -> Ints:
    """[T, T] Clocks between tiles over any number of links."""
    ways = structure.problem.machine.any_links
    return np.array([[MOST_CLOCKS if clocks is None else clocks for clocks in row] for row in ways], np.int64)
