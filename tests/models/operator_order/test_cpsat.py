"""The model of a stretch, over whole small graphs and within orders of larger ones."""

from __future__ import annotations

import pytest

from stowplan.models.operator_order.cpsat import order_stretch
from stowplan.models.operator_order.structure import build, stable_order
from tests.models.operator_order.cases import least_peak, random_problem
from tests.patience import HANG


@pytest.mark.parametrize("seed", range(0, 120, 3))
def test_whole_graphs(seed: int) -> None:
    problem = random_problem(seed, 6)
    structure = build(problem)
    least = least_peak(problem)
    order, bound = order_stretch(structure, [], stable_order(structure), 1000, time_limit=HANG)
    assert order is not None
    assert structure.peak(order) == least
    assert bound is not None
    assert bound <= least
    if least:
        order, bound = order_stretch(structure, [], stable_order(structure), least - 1, time_limit=HANG)
        assert (order, bound) == (None, least)


@pytest.mark.parametrize("seed", range(20))
def test_stretches(seed: int) -> None:
    problem = random_problem(seed, 12)
    structure = build(problem)
    order = stable_order(structure)
    first, last = len(order) // 4, max(len(order) // 4 + 1, len(order) * 3 // 4)
    top = structure.peak(order)
    found, _ = order_stretch(structure, order[:first], order[first:last], top, time_limit=HANG)
    assert found is not None
    changed = [*order[:first], *found, *order[last:]]
    assert structure.peak(changed) <= top
    assert structure.profile(changed)[first:last].max() <= structure.profile(order)[first:last].max()
