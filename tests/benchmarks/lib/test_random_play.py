"""Random play of MMapGame."""

from __future__ import annotations

import random

import pytest

from benchmarks.lib.memory_mapping.optimum import game_optimum
from benchmarks.lib.memory_mapping.random_play import play_at_random, play_random
from stowplan.errors import UsageError
from stowplan.learned_guidance.memory_mapping.game.compiled.state import CompiledGame
from stowplan.models.memory_mapping.problem import Problem
from stowplan.models.memory_mapping.verify import verify
from tests.models.memory_mapping.cases import random_problem


def problem_of(seed: str, steps: int, tensors: int) -> Problem:
    return random_problem(random.Random(seed), steps=steps, tensors=tensors)


def test_many_games_of_a_tiny_program_find_its_best():
    for seed in range(15):
        problem = problem_of(f"tiny {seed}", 6, 3)
        assert play_at_random(CompiledGame(problem), games=5_000).return_ps == game_optimum(problem).return_ps


def test_the_best_game_is_a_valid_plan_with_its_return():
    for seed in range(30):
        game = CompiledGame(problem_of(f"random play {seed}", 12, 6))
        best = play_at_random(game, games=20, seed=seed)
        assert best.games == 20
        state = game.reset()
        assert state.play(best.actions) == best.return_ps
        assert state.is_over
        assert verify(game.problem, state.plan()).ok


def test_keeps_the_best_of_all_its_games():
    """Seen from outside: with more games of the same seed it never gets worse, and it is no game of its own making."""
    game = CompiledGame(problem_of("longer", 30, 10))
    found = [play_at_random(game, games=count, seed=1).return_ps for count in (1, 10, 100, 1000)]
    assert found == sorted(found)
    assert found[0] < found[-1]
    some = [play_random(game.tables, game.reset().data, seed) for seed in range(200)]
    assert min(some) < found[-1]
    assert len(set(some)) > 20


def test_a_seed_gives_the_same_games_again():
    game = CompiledGame(problem_of("seeds", 20, 8))
    runs = [play_at_random(game, games=50, seed=seed) for seed in (3, 3, 4)]
    assert runs[0].actions.tolist() == runs[1].actions.tolist()
    assert runs[0].actions.tolist() != runs[2].actions.tolist()


@pytest.mark.parametrize("limit", [{"time_limit": 0.0}, {"should_stop": lambda: True}, {"games": 0}])
def test_something_is_played_whatever_the_limit(limit):
    assert play_at_random(CompiledGame(problem_of("limits", 12, 5)), **limit).games >= 1


def test_refuses_to_play_for_ever():
    with pytest.raises(UsageError, match="no limit"):
        play_at_random(CompiledGame(problem_of("limits", 12, 5)))
