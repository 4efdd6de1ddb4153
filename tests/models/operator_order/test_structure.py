"""The arrays of a problem say what the verifier says; bounds are bounds."""

from __future__ import annotations

import pytest

from stowplan.models.operator_order.bounds import load_bound
from stowplan.models.operator_order.structure import build, stable_order
from tests.models.operator_order.cases import least_peak, orders, peak_of, random_problem


@pytest.mark.parametrize("seed", range(60))
def test_peaks_are_those_of_the_verifier(seed: int) -> None:
    problem = random_problem(seed, 6)
    structure = build(problem)
    every = list(orders(problem))
    for order in every[:40]:
        assert structure.peak(order) == peak_of(problem, order)
    assert stable_order(structure) in every


@pytest.mark.parametrize("seed", range(150))
def test_no_order_is_below_the_bound(seed: int) -> None:
    problem = random_problem(seed, 6)
    assert load_bound(problem) <= least_peak(problem)
