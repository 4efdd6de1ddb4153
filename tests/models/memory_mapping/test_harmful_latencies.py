"""Latencies that fast memory makes worse: every model, bound and search against brute force."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stowplan.hardware.simulator import simulate
from stowplan.models.memory_mapping import latency
from stowplan.models.memory_mapping.cpsat import solve
from stowplan.models.memory_mapping.latency import least_over
from stowplan.models.memory_mapping.milp import hint, segments
from stowplan.models.memory_mapping.milp.segments import SegmentBounds
from stowplan.models.memory_mapping.milp.solve import Effort
from stowplan.models.memory_mapping.problem import Problem, Stalls
from stowplan.models.memory_mapping.verify import verify
from stowplan.portfolio.memory_mapping import arrays, heuristics
from stowplan.portfolio.memory_mapping.convert import export_plan
from tests.models.memory_mapping.brute_force import best_plan
from tests.models.memory_mapping.cases import random_plan, random_problem, with_harmful_tables
from tests.models.memory_mapping.relaxations import assert_point, relaxation

BOTH: list[Stalls] = ["forbidden", "allowed"]


def harmful(seed: int, stalls: Stalls | None = None, **options: int) -> Problem:
    rng = random.Random(seed)
    return with_harmful_tables(random_problem(rng, stalls=stalls, channels=1, **options), rng)


@pytest.mark.parametrize("stalls", BOTH)
@pytest.mark.parametrize("seed", range(40))
def test_exact_models_prove_what_brute_force_finds(stalls: Stalls, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    check_exact(harmful(seed, stalls, steps=5, tensors=4), monkeypatch)


def check_exact(problem: Problem, monkeypatch: pytest.MonkeyPatch) -> None:
    best = best_plan(problem).objective
    outcome = solve(problem, time_limit=60)
    assert verify(problem, outcome.plan).ok
    assert outcome.status == "optimal"
    assert outcome.plan.objective == outcome.bound == best
    linear, integer = relaxation(problem), relaxation(problem, integer=True)
    assert linear.bound <= integer.bound <= best
    monkeypatch.setattr(segments, "SHORT_USES", 3)
    monkeypatch.setattr(segments, "LONG_USES", 6)
    bounds = SegmentBounds(problem, Effort(math.inf, iteration_limit=10_000, node_limit=200))
    bounds.run()
    assert problem.floor_ps <= bounds.bound <= best


@pytest.mark.parametrize("stalls", BOTH)
@pytest.mark.parametrize("seed", range(25))
def test_long_tables_are_bounded_by_the_hull_of_some_uses(stalls: Stalls, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = harmful(seed, stalls, steps=4, tensors=4)
    best = best_plan(problem)
    exact = relaxation(problem, integer=True).bound
    # As if tables of more than two uses were long.
    monkeypatch.setattr(latency, "MAX_HULL_USES", 2)
    monkeypatch.setattr(hint, "MAX_HULL_USES", 2)
    linear, integer = relaxation(problem), relaxation(problem, integer=True)
    assert linear.bound <= integer.bound <= exact <= best.objective
    assert_point(problem, best)


@pytest.mark.parametrize("most", [1, 3])
@pytest.mark.parametrize("seed", [2065, 2096])
def test_copies_have_the_time_that_steps_take_not_that_of_their_bounds(
    seed: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = harmful(seed, "allowed", steps=4, tensors=5)
    monkeypatch.setattr(latency, "MAX_HULL_USES", most)
    monkeypatch.setattr(hint, "MAX_HULL_USES", most)
    assert_point(problem, best_plan(problem))


@settings(max_examples=100)
@given(st.integers(0, 4), st.data())
def test_entries_over_some_uses_are_the_least_of_the_others(bits: int, data: st.DataObject) -> None:
    table = data.draw(st.lists(st.integers(0, 50), min_size=1 << bits, max_size=1 << bits))
    chosen = sorted(data.draw(st.sets(st.integers(0, bits - 1)))) if bits else []
    found = least_over(table, chosen)
    for mask, value in enumerate(table):
        at = sum(1 << place for place, bit in enumerate(chosen) if mask >> bit & 1)
        assert found[at] <= value
    assert all(value in table for value in found)
    assert min(found) == min(table)


@pytest.mark.parametrize("seed", range(30))
def test_all_judges_agree_and_heuristics_stay_valid(seed: int) -> None:
    problem = harmful(seed, steps=8, tensors=5)
    plan = random_plan(problem, random.Random(seed))
    assert verify(problem, plan).ok
    assert simulate(problem, plan).total_ps == plan.objective
    data = arrays.build(problem)
    for _, built in heuristics.constructive(data):
        state, _ = heuristics.run(built, lambda: False)
        found = export_plan(problem, data, state)
        assert verify(problem, found).ok
        assert found.objective <= problem.all_slow_ps


@pytest.mark.parametrize("seed", range(20))
def test_the_return_is_between_0_and_1_for_every_plan_that_gains(seed: int) -> None:
    problem = harmful(seed, steps=5, tensors=3)
    best = best_plan(problem).objective
    assert 0.0 <= problem.normalised_return(best) <= 1.0
    assert problem.normalised_return(problem.all_slow_ps) == (0.0 if problem.all_slow_ps > problem.floor_ps else 1.0)
    assert problem.normalised_return(problem.floor_ps) == 1.0
