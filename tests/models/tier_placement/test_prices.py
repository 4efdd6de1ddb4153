"""Bounds by prices against every map of small random networks, and with numbers at the limit."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

import stowplan
from benchmarks.lib.places import EXAMPLES
from stowplan.models.tier_placement import prices
from stowplan.models.tier_placement.milp import relaxation
from stowplan.models.tier_placement.prices import first_bounds
from stowplan.models.tier_placement.problem import Layer, Problem, Tier
from stowplan.models.tier_placement.structure import floor_bound
from tests.models.tier_placement import brute_force
from tests.models.tier_placement.cases import chain, random_problem


@pytest.mark.parametrize("block", range(10))
def test_no_bound_exceeds_the_optimum(block: int) -> None:
    for seed in range(40 * block, 40 * block + 40):
        problem = random_problem(seed, layers=3 if seed % 3 else 4, address_spaces=seed % 5 == 0)
        best = brute_force.optimum(problem)
        assert best is None or all(bound <= best for bound in first_bounds(problem)), seed


@pytest.mark.parametrize("seed", range(40))
def test_nor_with_prices_that_mean_nothing(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prices, "STEPS", (1, 2, 3, 5, 8))
    monkeypatch.setattr(prices, "STEP", float(np.random.default_rng(seed).choice([0.0, 1e-3, 10.0, 1e9, -1.0])))
    problem = random_problem(seed)
    best = brute_force.optimum(problem)
    assert best is None or all(bound <= best for bound in first_bounds(problem))


def test_of_a_chain_it_is_as_good_as_the_relaxation() -> None:
    problem = chain(40)
    linear = relaxation(problem, time_limit=20)[1]
    assert floor_bound(problem) < 0.98 * linear < max(first_bounds(problem)) <= linear


def test_networks_without_weights_have_none() -> None:
    layers = tuple(msgspec.structs.replace(layer, weight_bytes=0) for layer in chain(5).layers)
    assert not [*first_bounds(msgspec.structs.replace(chain(5), layers=layers))]


def test_numbers_at_the_limit() -> None:
    tiers = (Tier(name="slow", capacity=1 << 60, bandwidth=1), Tier(name="fast", capacity=1 << 60, bandwidth=1 << 60))
    problem = Problem(tiers=tiers, layers=(Layer(name="l", output_bytes=0, weight_bytes=10**6, compute_ps=5),))
    assert max(first_bounds(problem)) <= 5


def test_most_of_what_the_floor_leaves_open_is_closed() -> None:
    problem = stowplan.read(EXAMPLES / "bert_base_s128.layers.json", "nnp-i")
    assert max(first_bounds(problem)) > 0.98 * 1_054_737_339
