"""Evolution strategies on MMapGame."""

from __future__ import annotations

import random
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.lib.memory_mapping.evolution import EvolutionConfig, evolve, ranks
from benchmarks.lib.memory_mapping.optimum import game_optimum
from benchmarks.lib.memory_mapping.random_play import play_at_random
from stowplan.errors import UsageError
from stowplan.learned_guidance.memory_mapping.game.compiled.state import CompiledGame
from stowplan.models.memory_mapping.verify import verify
from tests.models.memory_mapping.cases import random_problem


def game_of(seed: str, steps: int, tensors: int) -> CompiledGame:
    return CompiledGame(random_problem(random.Random(seed), steps=steps, tensors=tensors))


@given(st.lists(st.integers(-5, 5), min_size=1, max_size=40))
def test_ranks_are_centred_and_in_order(values):
    found = ranks(np.array(values))
    assert found.sum() == pytest.approx(0)
    assert np.all(np.abs(found) <= 0.5)
    for one, two in pairwise(values):
        a, b = found[values.index(one)], found[values.index(two)]
        assert (a < b) == (one < two)
        assert (a == b) == (one == two)


def test_ranks_by_hand():
    assert ranks(np.array([[30, 10], [20, 20]])).tolist() == [[0.5, -0.5], [0.0, 0.0]]


def test_a_single_return_has_no_rank():
    assert ranks(np.array([7])).tolist() == [0.0]


def test_the_best_game_is_a_valid_plan_with_its_return():
    for seed in range(20):
        game = game_of(f"evolution {seed}", 10, 5)
        best = evolve(game, EvolutionConfig(pairs=4), generations=3, seed=seed)
        assert best.games == 3 * (2 * 4 + 1)
        state = game.reset()
        assert state.play(best.actions) == best.return_ps
        assert state.is_over
        assert verify(game.problem, state.plan()).ok


def test_finds_the_best_game_of_small_programs():
    for seed in range(12):
        game = game_of(f"optimum {seed}", 9, 4)
        optimum = game_optimum(game.problem)
        best = evolve(game, EvolutionConfig(pairs=16), generations=40, seed=0)
        assert best.return_ps <= optimum.return_ps
        assert best.return_ps >= 0.95 * optimum.return_ps


def test_is_better_than_as_many_random_games():
    """On a program too long for luck: what makes it a search is that it learns from the games."""
    ahead = 0
    for seed in range(6):
        game = game_of(f"long {seed}", 60, 20)
        best = evolve(game, EvolutionConfig(pairs=16), generations=60, seed=0)
        ahead += best.return_ps > play_at_random(game, games=best.games, seed=0).return_ps
    assert ahead == 6


def test_a_seed_gives_the_same_games_again():
    game = game_of("seeds", 20, 8)
    runs = [evolve(game, EvolutionConfig(pairs=4), generations=5, seed=seed) for seed in (3, 3, 4)]
    points = [[(point.games, point.return_ps) for point in run.points] for run in runs]
    assert points[0] == points[1]
    assert runs[0].actions.tolist() == runs[1].actions.tolist()
    assert runs[0].actions.tolist() != runs[2].actions.tolist() or points[0] != points[2]


@pytest.mark.parametrize("limit", [{"time_limit": 0.0}, {"should_stop": lambda: True}, {"generations": 0}])
def test_something_is_played_whatever_the_limit(limit):
    best = evolve(game_of("limits", 12, 5), EvolutionConfig(pairs=2), **limit)
    assert best.games >= 1
    assert best.actions is not None


def test_stops_within_a_generation():
    looks = iter([False] * 3)
    best = evolve(game_of("stop", 12, 5), EvolutionConfig(pairs=10_000), should_stop=lambda: next(looks, True))
    assert 0 < best.games < 20_000


def test_refuses_what_makes_no_sense():
    game = game_of("limits", 12, 5)
    with pytest.raises(UsageError, match="no limit"):
        evolve(game)
    for wrong in ({"pairs": 0}, {"sigma": 0.0}, {"learning_rate": float("nan")}, {"beta1": 1.0}):
        with pytest.raises(UsageError, match="evolution"):
            EvolutionConfig(**wrong)


def test_longer_programs_decay_less_unless_it_is_given():
    decay = [EvolutionConfig().decay_for(moves) for moves in (0, 30, 300, 3000, 30000)]
    assert decay == sorted(decay, reverse=True)
    assert decay[0] == decay[1] > decay[3] > decay[4] > 0
    assert EvolutionConfig(weight_decay=0.0).decay_for(300) == 0.0
