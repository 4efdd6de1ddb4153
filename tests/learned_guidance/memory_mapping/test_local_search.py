"""Local search over games: never worse than what it begins with, and mostly the best game of a small problem."""

from __future__ import annotations

import random

import numpy as np
import pytest

from benchmarks.lib.memory_mapping.optimum import game_optimum
from benchmarks.lib.memory_mapping.plain_game import reset
from benchmarks.lib.memory_mapping.synthetic import synthetic
from stowplan.learned_guidance.memory_mapping.game.compiled.state import CompiledGame
from stowplan.learned_guidance.memory_mapping.game.demonstrations import actions_of
from stowplan.learned_guidance.memory_mapping.game.game import Action
from stowplan.learned_guidance.memory_mapping.game.local_search import improve
from stowplan.models.memory_mapping.verify import verify
from tests.learned_guidance.memory_mapping.programs import play_on, program
from tests.models.memory_mapping.cases import random_plan, random_problem


def test_finds_the_best_game_of_small_problems() -> None:
    rng = random.Random("climbing")
    found = best = 0
    for _ in range(50):
        problem = random_problem(rng, steps=rng.randint(5, 9), tensors=rng.randint(2, 5))
        game = CompiledGame(problem)
        climbed = improve(game, [Action.DROP] * len(game.moves), rounds=1500, seed=1)
        optimum = game_optimum(problem, node_limit=3000)
        if optimum.is_proven:
            assert climbed.return_ps is not None
            assert climbed.return_ps <= optimum.return_ps
            best += climbed.return_ps == optimum.return_ps
            found += 1
    assert found > 35
    assert best > 0.9 * found


@pytest.mark.parametrize("strict", [False, True])
def test_never_worse_and_always_a_game(strict: bool) -> None:
    rng = random.Random(f"never worse {strict}")
    better = 0
    for _ in range(80):
        problem = random_problem(rng, steps=rng.randint(6, 16), tensors=rng.randint(3, 7))
        game = CompiledGame(problem, strict_copy_windows=strict)
        state = reset(problem, strict_copy_windows=strict)
        # Resets make the list of actions longer than the game: what is wanted comes from the plan.
        play_on(state, rng, "random")
        begin = actions_of(problem, state.plan(), game)
        climbed = improve(game, begin.actions, rounds=300, seed=rng.randrange(1000))
        assert climbed.actions is not None
        assert climbed.return_ps is not None
        assert climbed.return_ps >= begin.return_ps
        better += climbed.return_ps > begin.return_ps
        # All legal, also without Drop-backup, by the plain rules.
        state = reset(problem, strict_copy_windows=strict, drop_backup=False)
        assert sum(state.step(Action(action)) for action in climbed.actions) == climbed.return_ps
        assert verify(problem, state.plan()).ok
    assert better > 40


def test_any_list_of_wishes_is_a_beginning() -> None:
    rng = random.Random("wishes")
    for _ in range(40):
        problem = random_problem(rng, steps=rng.randint(6, 12), tensors=rng.randint(3, 6))
        game = CompiledGame(problem)
        wishes = [rng.randrange(3) for _ in game.moves]
        climbed = improve(game, wishes, rounds=1)
        assert climbed.actions is not None
        assert game.reset().play(climbed.actions) == climbed.return_ps


def test_equal_seeds_give_equal_games() -> None:
    problem = synthetic(np.random.default_rng(7), moves=150)
    game = CompiledGame(problem)
    begin = [Action.DROP] * len(game.moves)
    runs = [improve(game, begin, rounds=400, seed=seed) for seed in (1, 1, 2)]
    assert runs[0].return_ps == runs[1].return_ps
    assert np.array_equal(runs[0].actions, runs[1].actions)  # type: ignore[arg-type]
    assert not np.array_equal(runs[0].actions, runs[2].actions)  # type: ignore[arg-type]
    assert runs[0].return_ps > game.unit_ps


def test_stops_when_told_and_after_its_rounds() -> None:
    problem = synthetic(np.random.default_rng(8), moves=100)
    game = CompiledGame(problem)
    begin = [Action.DROP] * len(game.moves)
    looks = iter([False, False, True])
    assert improve(game, begin, rounds=1000, should_stop=lambda: next(looks)).games == 1 + 2 * 10
    assert improve(game, begin, rounds=123).games == 1 + 123
    assert improve(game, begin, time_limit=1e-9).games == 1
    with pytest.raises(ValueError, match="neither rounds nor a time limit"):
        improve(game, begin)


def test_a_program_without_moves() -> None:
    climbed = improve(CompiledGame(program(["", ""], {})), [], rounds=5)
    assert (climbed.return_ps, len(climbed.points)) == (0, 1)


def test_improves_the_game_of_a_random_plan() -> None:
    rng = random.Random("random plan")
    problem = random_problem(rng, steps=14, tensors=7)
    game = CompiledGame(problem)
    begin = actions_of(problem, random_plan(problem, rng), game)
    climbed = improve(game, begin.actions, time_limit=0.2)
    assert climbed.return_ps is not None
    assert climbed.return_ps >= begin.return_ps
