"""Ruin and recreate."""

from __future__ import annotations

import random

import pytest

from stowplan.models.memory_mapping.problem import Piece, Problem, Step, Table, Tensor, Use
from stowplan.models.memory_mapping.verify import verify
from stowplan.portfolio.memory_mapping import arrays
from stowplan.portfolio.memory_mapping.convert import export_best, export_plan
from stowplan.portfolio.memory_mapping.machine import restart
from stowplan.portfolio.memory_mapping.search import ruin_and_recreate
from tests.models.memory_mapping.cases import random_problem, with_in_flight
from tests.portfolio.memory_mapping.states import assert_sound, searched, wide_problem


@pytest.mark.parametrize("seed", range(60))
def test_every_round_leaves_a_sound_state(seed: int) -> None:
    problem = random_problem(random.Random(seed)) if seed % 2 else wide_problem(seed)
    data = arrays.build(problem)
    # Half of the searches accept much that is worse, the others take most of it back.
    state, search = searched(data, seed=seed, rounds=0, allowed=0.0)
    for _ in range(8 if problem.use_count else 0):
        ruin_and_recreate(data, state, search, 3, 50.0 if seed % 4 < 2 else 0.0)
        assert_sound(problem, data, state)
        assert search.status[0].best <= state.totals[0].total


@pytest.mark.parametrize("seed", range(60))
def test_every_round_keeps_what_is_in_flight(seed: int) -> None:
    rng = random.Random(seed)
    problem = with_in_flight(random_problem(rng, steps=rng.randint(4, 20), tensors=rng.randint(2, 8)), rng)
    data = arrays.build(problem)
    state, search = searched(data, seed=seed, rounds=0, allowed=0.0)
    for _ in range(6 if problem.use_count else 0):
        ruin_and_recreate(data, state, search, 10, 20.0)
        assert_sound(problem, data, state)


@pytest.mark.parametrize("seed", range(20))
def test_the_best_plan_is_kept(seed: int) -> None:
    problem = wide_problem(seed)
    data = arrays.build(problem)
    state, search = searched(data, seed=seed, rounds=60, allowed=100.0)
    status = search.status[0]
    best = export_best(problem, data, search)
    found = verify(problem, best)
    assert found.ok
    assert found.objective == best.objective == status.best
    assert status.rounds == 60
    restart(data, state, search.best, int(status.best_count))
    assert state.totals[0].total == status.best
    assert export_plan(problem, data, state) == best
    assert_sound(problem, data, state)


def test_losses_are_bounded() -> None:
    for seed in range(10):
        data = arrays.build(wide_problem(seed))
        state, search = searched(data, seed=seed, rounds=0, allowed=0.0)
        for _ in range(20):
            before = int(state.totals[0].total)
            ruin_and_recreate(data, state, search, 1, 0.0)
            assert state.totals[0].total <= before


@pytest.mark.parametrize("alone", [100_000, 100_300])
def test_tensors_that_save_only_together_are_found(alone: int) -> None:
    """One of the two in fast memory saves nothing, or costs a little; both together halve the step."""
    uses = (Use(0, False, 1), Use(1, False, 1))
    together = Step("together", "test", 1, uses, table=Table((0, 1), (100_000, alone, alone, 50_000)))
    waits = Step("waits", "test", 1, (), (Piece(400_000, (), ()),))
    problem = Problem(
        name="together",
        target="none",
        cost_model="test",
        capacity=2,
        steps=(waits, together, waits, together),
        tensors=tuple(Tensor(f"t{number}", 1, 10, 10, is_input=True) for number in range(2)),
    )
    data = arrays.build(problem)
    _, search = searched(data, seed=0, rounds=400, allowed=0.0)
    assert int(search.status[0].best) == 900_000


def test_a_seed_decides_everything() -> None:
    problem = wide_problem(3)
    data = arrays.build(problem)
    plans = []
    for seed, pieces in ((5, (40,)), (5, (1, 9, 30)), (6, (40,))):
        state, search = searched(data, seed=seed, rounds=0, allowed=0.0)
        for rounds in pieces:
            ruin_and_recreate(data, state, search, rounds, 10.0)
        plans.append((export_plan(problem, data, state), int(search.status[0].random)))
    assert plans[0] == plans[1]
    assert plans[0] != plans[2]
