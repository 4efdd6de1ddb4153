"""Searches and baselines: their maps are valid, their latencies those of the verifier, and small ones the optimum."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.lib.tier_placement import baselines
from stowplan.models.tier_placement.problem import Problem
from stowplan.models.tier_placement.structure import floor_bound
from stowplan.models.tier_placement.verify import verify
from stowplan.portfolio.tier_placement import arrays, engine, heuristics
from stowplan.portfolio.tier_placement.arrays import Exporter
from tests.models.tier_placement.brute_force import optimum
from tests.models.tier_placement.cases import chain, random_problem


def never() -> bool:
    return False


def latency(data: arrays.Data, tier: arrays.Ints) -> int:
    """Latency of a map, ps, all at once."""
    moved = data.external.copy()
    owner = np.repeat(np.arange(len(data.size)), np.diff(data.touch))
    np.add.at(moved, data.touched, data.cost[np.arange(len(owner)), tier[owner]])
    return int(np.maximum(moved, data.compute).sum()) + data.fixed


def judged(problem: Problem, data: arrays.Data, walk: heuristics.Walk) -> int:
    """Latency by the verifier, which must agree and find nothing wrong."""
    plan = Exporter(problem, data).plan(walk.tier)
    assert plan is not None
    found = verify(problem, plan)
    assert found.ok, found.violations
    assert found.objective == walk.latency == plan.objective
    return walk.latency


@pytest.mark.parametrize("block", range(6))
def test_small_ones_are_solved(block: int) -> None:
    """The search finds the optimum of every small network that begins with any map; none of the others goes below it."""
    solved = 0
    for seed in range(40 * block, 40 * block + 40):
        problem = random_problem(seed, layers=3)
        data = arrays.build(problem)
        begin = heuristics.any_map(data, seed)
        best = optimum(problem)
        if begin is None:
            continue
        assert best is not None
        search = heuristics.Search(data, begin, seed)
        search.cool(2_000, search.scale(), never)
        assert judged(problem, data, search.walk) == best, seed
        others = [heuristics.greedy_dp(data, begin, never), baselines.annealing(data, begin, seed, 300, never)]
        random = baselines.random_maps(data, seed, 20, never)
        assert random is not None
        assert all(judged(problem, data, walk) >= best for walk in (*others, random))
        solved += 1
    assert solved >= 15


@given(seed=st.integers(0, 10**6), moves=st.integers(1, 400), temperature=st.floats(0.1, 1e4))
@settings(max_examples=60)
def test_state_after_many_moves(seed: int, moves: int, temperature: float) -> None:
    """What is kept up to date move by move is what a fresh start has."""
    problem = random_problem(seed, layers=9)
    data = arrays.build(problem)
    begin = heuristics.any_map(data, seed)
    if begin is None:
        return
    state = engine.start(data, begin, seed)
    best = begin.copy()
    now, least = engine.anneal(
        data, state, moves, engine.EJECTIONS, temperature, engine.latency(data, state), engine.latency(data, state), best
    )
    fresh = engine.start(data, state.tier.copy(), 0)
    assert now == engine.latency(data, state) == engine.latency(data, fresh) == latency(data, state.tier)
    assert least == latency(data, best)
    assert floor_bound(problem) <= least <= now
    assert heuristics.is_valid(data, state.tier)
    assert heuristics.is_valid(data, best)
    for name in ("moved", "top", "every", "stored", "many"):
        assert np.array_equal(getattr(state, name), getattr(fresh, name)), name
    for tier in range(len(data.capacity)):
        assert sorted(state.listed[tier, : state.many[tier]]) == sorted(fresh.listed[tier, : fresh.many[tier]])


@given(seed=st.integers(0, 10**6))
@settings(max_examples=60)
def test_capacities_are_those_of_the_verifier(seed: int) -> None:
    """Any map at all: the engine finds it valid exactly where the verifier does."""
    problem = random_problem(seed, layers=7)
    data = arrays.build(problem)
    tier = np.random.default_rng(seed).integers(0, len(problem.tiers), len(data.size))
    plan = Exporter(problem, data).plan(tier)
    assert plan is not None
    found = verify(problem, plan)
    assert found.objective == latency(data, tier)
    assert found.ok == heuristics.is_valid(data, tier)
    repaired = engine.start(data, tier, seed)
    if engine.repair(data, repaired):
        assert heuristics.is_valid(data, repaired.tier)


def test_greedy_dp_counts_nine_evaluations_a_layer() -> None:
    """The paper's setting: three tiers, weights in every layer; each pass tries all choices of every layer once."""
    problem = next(
        each
        for each in (random_problem(seed, layers=6) for seed in range(10**4))
        if len(each.tiers) == 3 and len(each.layers) == 6 and all(layer.weight_bytes for layer in each.layers)
    )
    data = arrays.build(problem)
    begin = heuristics.any_map(data)
    assert begin is not None
    assert heuristics.greedy_dp(data, begin, never, passes=1).evaluations == 9 * 6
    assert heuristics.greedy_dp(data, begin, never).evaluations % (9 * 6) == 0


def test_greedy_dp_stands_still_in_the_end() -> None:
    """No other choice for any one layer is better: tried one by one."""
    problem = chain(6)
    data = arrays.build(problem)
    walk = heuristics.greedy_dp(data, np.zeros(len(data.size), np.int64), never)
    for layer in range(6):
        own = np.flatnonzero(data.layer == layer)
        for weights in range(2):
            for output in range(2):
                tier = walk.tier.copy()
                tier[own] = (weights, output)
                assert not heuristics.is_valid(data, tier) or latency(data, tier) >= walk.latency


def test_same_seed_same_walk() -> None:
    data = arrays.build(chain(12))
    begin = np.zeros(len(data.size), np.int64)

    def walk(seed: int) -> tuple[list[int], list[tuple[int, int]]]:
        search = heuristics.Search(data, begin, seed)
        search.cool(500, 50.0, never)
        return search.walk.tier.tolist(), search.walk.progress

    assert walk(3) == walk(3)
    assert walk(3)[1] != walk(4)[1]


def test_where_the_slowest_tier_is_too_small() -> None:
    """A map to begin with is found all the same, where one is easy to find."""
    found = missed = 0
    for seed in range(400):
        problem = random_problem(seed, layers=3)
        data = arrays.build(problem)
        if heuristics.is_valid(data, np.zeros(len(data.size), np.int64)) or optimum(problem) is None:
            continue
        begin = heuristics.any_map(data)
        found, missed = found + (begin is not None), missed + (begin is None)
        assert begin is None or heuristics.is_valid(data, begin)
    assert found >= 5 * missed
    assert found >= 10


def test_evaluations_are_counted() -> None:
    data = arrays.build(chain(8))
    begin = np.zeros(len(data.size), np.int64)
    assert baselines.annealing(data, begin, 0, 777, never).evaluations == 777
    random = baselines.random_maps(data, 0, 30, never)
    assert random is not None
    assert random.evaluations == 30
    search = heuristics.Search(data, begin, 0)
    search.cool(100, 10.0, never)
    search.cool(50, 10.0, never)
    assert search.walk.evaluations == 150
    counts, latencies = zip(*search.walk.progress, strict=True)
    assert sorted(counts) == list(counts)
    assert sorted(latencies, reverse=True) == list(latencies)
