"""Bounds by prices against brute force, against plans, and with prices that mean nothing."""

from __future__ import annotations

import random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stowplan.models.memory_mapping.plan import Plan
from stowplan.models.memory_mapping.problem import Evictions, Prefetches, Problem, Stalls
from stowplan.portfolio.memory_mapping import arrays
from stowplan.portfolio.memory_mapping.priced import ascend, first_bounds, new_priced
from tests.models.memory_mapping.brute_force import optimum
from tests.models.memory_mapping.cases import planned_problems, problems, random_problem, with_in_flight
from tests.models.memory_mapping.relaxations import relaxation

BOTH: list[Stalls] = ["forbidden", "allowed"]


def last_bound(problem: Problem) -> int:
    return max(first_bounds(problem), default=problem.floor_ps)


@pytest.mark.parametrize("stalls", BOTH)
@pytest.mark.parametrize("seed", range(100))
def test_no_bound_exceeds_the_optimum(stalls: Stalls, seed: int) -> None:
    problem = random_problem(random.Random(seed), steps=5, tensors=3, stalls=stalls)
    assert problem.floor_ps <= last_bound(problem) <= optimum(problem)


@pytest.mark.parametrize(
    ("evictions", "prefetches"), [("between_steps", "whole"), ("whole_steps", "sliced"), ("between_steps", "sliced")]
)
@pytest.mark.parametrize("seed", range(40))
def test_nor_under_the_freedoms_of_compilers(evictions: Evictions, prefetches: Prefetches, seed: int) -> None:
    problem = random_problem(random.Random(seed), steps=5, tensors=3, channels=1, evictions=evictions, prefetches=prefetches)
    assert last_bound(problem) <= optimum(problem)


@pytest.mark.parametrize("seed", range(60))
def test_nor_with_asynchronous_operations(seed: int) -> None:
    rng = random.Random(seed)
    problem = with_in_flight(random_problem(rng, steps=5, tensors=3), rng)
    assert last_bound(problem) <= optimum(problem)


@settings(max_examples=150)
@given(planned_problems())
def test_no_valid_plan_is_better(case: tuple[Problem, Plan]) -> None:
    problem, plan = case
    assert last_bound(problem) <= plan.objective


@settings(max_examples=100)
@given(problems(steps=5, tensors=3), st.integers(0, 2**32 - 1))
def test_any_prices_prove_a_bound(problem: Problem, seed: int) -> None:
    rng, data = random.Random(seed), arrays.build(problem)
    priced = new_priced(problem, data)
    assert priced is not None
    for prices in (priced.memory, priced.channel, priced.share):
        prices[:] = [rng.choice([0.0, rng.random(), 10 * rng.random(), -1.0, 1e30]) for _ in prices]
    assert ascend(data, priced, 3, False) <= optimum(problem)


def test_copies_that_take_time_and_memory_that_is_scarce_are_priced() -> None:
    """Without tables and loops, bounds are mostly as good as the linear relaxation's, and in places better."""
    worse, better = 0, 0
    for seed in range(60):
        problem = random_problem(random.Random(seed), steps=8, tensors=5, tables=False, loops=0, max_preloads=0)
        found, linear = last_bound(problem), relaxation(problem).bound
        worse += found < linear - 1
        better += found > linear
    assert worse <= 30 <= better + 30, (worse, better)


def test_numbers_too_large_for_sums_give_no_bound() -> None:
    problem = random_problem(random.Random(3), steps=5, tensors=3, tables=False)
    tensors = [msgspec.structs.replace(each, copy_in_ps=1 << 55) for each in problem.tensors]
    assert not [*first_bounds(msgspec.structs.replace(problem, tensors=tuple(tensors)))]


def test_a_capacity_beyond_all_numbers_is_as_good_as_enough() -> None:
    problem = random_problem(random.Random(3), steps=12, tensors=8)
    enough = msgspec.structs.replace(problem, capacity=1 << 40)
    assert last_bound(msgspec.structs.replace(problem, capacity=10**19)) == last_bound(enough)
