"""Components of graphs, held against SciPy's."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from stowplan.models.modulo_scheduling.problem import strong_components


def renumbered(labels: list[int]) -> list[int]:
    order: dict[int, int] = {}
    return [order.setdefault(int(label), len(order)) for label in labels]


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=30))
def test_strong_components(pairs: list[tuple[int, int]]) -> None:
    rows, columns = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    table = coo_array((np.ones(len(pairs)), (rows, columns)), shape=(10, 10))
    expected = connected_components(table, directed=True, connection="strong")[1]
    assert renumbered(strong_components(10, pairs)) == renumbered(expected)


def test_long_ways_and_nothing() -> None:
    """Deeper than Python may call."""
    count = 5000
    ring = [(at, (at + 1) % count) for at in range(count)]
    assert len({*strong_components(count, ring)}) == 1
    assert len({*strong_components(count, ring[:-1])}) == count
    assert strong_components(0, []) == []
