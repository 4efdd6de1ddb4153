"""The relaxation's bound against brute force, against plans, and against duals that mean nothing."""

from __future__ import annotations

import random

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stowplan.models.memory_mapping.latency import affine_lower_bounds
from stowplan.models.memory_mapping.milp.model import RelaxationModel
from stowplan.models.memory_mapping.plan import Plan
from stowplan.models.memory_mapping.problem import Piece, Problem, Stalls, Step, Tensor, Use
from stowplan.models.mip.matrix import proven_bound
from tests.models.memory_mapping.brute_force import optimum
from tests.models.memory_mapping.cases import planned_problems, problems, random_problem
from tests.models.memory_mapping.relaxations import fast_shares, relaxation, relaxation_bound

BOTH: list[Stalls] = ["forbidden", "allowed"]


def reads(stalls: Stalls, *, copy_ps: int, first_ps: int, count: int = 2, channels: int = 1, capacity: int = 10) -> Problem:
    """A step of ``first_ps``, then a step that reads ``count`` program inputs of one byte: each 100 ps slow, 0 ps fast."""
    return Problem(
        name="reads",
        target="none",
        cost_model="test",
        capacity=capacity,
        channels=channels,
        stalls=stalls,
        steps=(
            Step("a", "test", 1, (), (Piece(first_ps, (), ()),)),
            Step("b", "test", 1, tuple(Use(t, False, 1) for t in range(count)), (Piece(0, (100,) * count, (0,) * count),)),
        ),
        tensors=tuple(Tensor(f"t{t}", 1, copy_ps, copy_ps, is_input=True) for t in range(count)),
    )


@pytest.mark.parametrize("stalls", BOTH)
@pytest.mark.parametrize("seed", range(60))
def test_linear_bound_at_most_integer_bound_at_most_optimum(stalls: Stalls, seed: int) -> None:
    problem = random_problem(random.Random(seed), steps=5, tensors=3, stalls=stalls)
    linear, integer = relaxation(problem), relaxation(problem, integer=True)
    assert linear.bound <= integer.bound <= optimum(problem)
    assert integer.optimal


@settings(max_examples=80)
@given(planned_problems())
def test_no_valid_plan_is_better_than_the_bound(case: tuple[Problem, Plan]) -> None:
    problem, plan = case
    assert relaxation_bound(problem, integer=True) <= plan.objective


@settings(max_examples=60)
@given(problems(steps=5, tensors=3), st.integers(0, 2**32 - 1))
def test_any_duals_prove_a_bound(problem: Problem, seed: int) -> None:
    model = RelaxationModel(problem)
    if not model.cost:
        return
    rng = np.random.default_rng(seed)
    duals = rng.normal(size=len(model.rows.lower)) * 10.0 ** rng.integers(-3, 12)
    duals[rng.random(len(duals)) < 0.1] = np.nan
    numbers = [np.array(values, dtype=np.int64) for values in (model.rows.lower, model.rows.upper, model.lower, model.upper)]
    bound = proven_bound(model.rows.matrix(len(model.cost)), *numbers, np.array(model.cost, dtype=np.int64), duals)
    assert bound + model.offset_ps <= optimum(problem)


def test_huge_duals_are_not_cut_off() -> None:
    """Picoseconds of long programs give duals that do not fit into 64 bits once they are scaled."""
    problem = reads("forbidden", copy_ps=1, first_ps=100, count=3, capacity=1)
    scale = 10**10
    steps = []
    for step in problem.steps:
        piece = step.pieces[0]
        scaled = Piece(piece.base_ps * scale, tuple(term * scale for term in piece.slow_ps), piece.fast_ps)
        steps.append(msgspec.structs.replace(step, pieces=(scaled,)))
    assert relaxation_bound(msgspec.structs.replace(problem, steps=tuple(steps))) == 300 * scale


def test_forbidden_stalls_leave_time_for_one_copy() -> None:
    assert relaxation_bound(reads("forbidden", copy_ps=10, first_ps=10)) == 10 + 100
    assert relaxation_bound(reads("forbidden", copy_ps=10, first_ps=10, channels=2)) == 10
    assert relaxation_bound(reads("forbidden", copy_ps=10, first_ps=9)) == 9 + 200


def test_allowed_stalls_are_paid_for() -> None:
    found = relaxation(reads("allowed", copy_ps=10, first_ps=15))
    assert found.bound == 20
    assert found.rounds > 1
    assert relaxation_bound(reads("allowed", copy_ps=10, first_ps=15, channels=2)) == 15


def test_memory_is_shared() -> None:
    found = relaxation(reads("allowed", copy_ps=1, first_ps=50, count=3, capacity=2))
    assert found.bound == 50 + 100
    assert sum(fast_shares(found)) == pytest.approx(2)


def test_values_are_fractions_and_integers_where_asked_for() -> None:
    for seed in range(15):
        problem = random_problem(random.Random(seed))
        for integer in (False, True):
            values = np.array(fast_shares(relaxation(problem, integer=integer)))
            assert np.all((values >= -1e-9) & (values <= 1 + 1e-9))
            assert not integer or np.allclose(values, np.rint(values), atol=1e-5)
            assert len(values) == problem.use_count


@pytest.mark.parametrize("stalls", BOTH)
def test_equal_calls_give_equal_results(stalls: Stalls) -> None:
    problem = random_problem(random.Random(7), steps=10, tensors=6, stalls=stalls)

    one, two = (relaxation(problem, integer=True, iteration_limit=1000, seed=3) for _ in range(2))
    assert one.bound == two.bound
    assert fast_shares(one) == fast_shares(two)


def test_bounds_are_reported_as_they_rise() -> None:
    bounds: list[int] = []
    found = relaxation(reads("allowed", copy_ps=10, first_ps=15), on_bound=bounds.append)
    assert bounds == sorted(set(bounds))
    assert bounds[-1] == found.bound


def test_stopped_at_once_it_still_has_a_bound() -> None:
    problem = reads("allowed", copy_ps=10, first_ps=15)
    for found in (relaxation(problem, should_stop=lambda: True), relaxation(problem, seconds=0.0)):
        assert found.bound == 15
        assert not found.optimal


@given(st.integers(1, 5).flatmap(lambda k: st.lists(st.integers(0, 1000), min_size=1 << k, max_size=1 << k)))
def test_affine_bounds_lie_under_the_table(table: list[int]) -> None:
    for piece in affine_lower_bounds(table):
        for mask, latency in enumerate(table):
            assert piece.constant + sum(gain for bit, gain in enumerate(piece.gain) if mask >> bit & 1) <= latency
