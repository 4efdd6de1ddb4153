"""Generated loop bodies."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from benchmarks.lib.modulo_scheduling.generated_graphs import generated, random_graph
from stowplan.errors import InputError
from stowplan.hardware.se import grid
from stowplan.models.modulo_scheduling.bounds import find_obstacle
from stowplan.models.modulo_scheduling.structure import Structure


def test_generated_graphs_are_like_real_ones() -> None:
    """Edges, sources, fan-out and cycles are within the range of the suites; no graph has an obstacle."""
    chance = np.random.default_rng(0)
    problems = [generated(chance) for _ in range(150)]
    assert all(find_obstacle(problem) is None for problem in problems)
    counts = np.array([len(problem.instructions) for problem in problems])
    assert counts.min() < 10 < 40 < counts.max()
    assert 1.0 < np.mean([len(problem.edges) / len(problem.instructions) for problem in problems]) < 1.3
    structures = [Structure(problem) for problem in problems]
    assert 0.1 < np.mean([len(each.sources) / each.count for each in structures]) < 0.35
    assert 0.2 < np.mean([bool(each.recurrent) for each in structures]) < 0.5
    assert 0.3 < np.mean([bool(problem.variables) for problem in problems]) < 0.7
    assert len({problem.digest for problem in problems}) == len(problems)


def test_generated_graphs_are_the_same_for_the_same_generator() -> None:
    one, two = (generated(np.random.default_rng(7), grid(3, 3), instructions=20) for _ in range(2))
    assert one.digest == two.digest
    assert one.machine.tiles == 9
    assert len(random_graph(np.random.default_rng(1), 30).instructions) == 30


def test_what_cannot_be_mapped_is_refused() -> None:
    with pytest.raises(InputError, match="found no graph of 60 to 60 instructions that can be mapped; of the last one"):
        generated(np.random.default_rng(0), msgspec.structs.replace(grid(2, 2), spoke_depth=2), instructions=60)
