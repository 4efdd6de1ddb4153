"""Worths under prices, priced play, and rollouts of it."""

from __future__ import annotations

import random

import numpy as np
import pytest

from benchmarks.lib.memory_mapping.deviations import ILLEGAL
from benchmarks.lib.memory_mapping.optimum import game_optimum
from benchmarks.lib.memory_mapping.prices import HELD_ONLY, HELD_TWICE, NOT_HELD, estimate, find_worths
from benchmarks.lib.memory_mapping.rollouts import Rollouts
from stowplan.learned_guidance.memory_mapping.game.kernel.state import CompiledGame
from stowplan.models.memory_mapping.verify import verify
from tests.learned_guidance.memory_mapping.programs import program
from tests.models.memory_mapping.cases import random_problem


def test_worths_of_one_tensor_by_hand() -> None:
    """Read three times: held, each read saves 1 more than slow; to come in takes the channel."""
    game = CompiledGame(program(["", "a", "a", "a"], {"a": 1}, inputs="a", capacity=4))
    found = estimate(game)
    saved = found.shared[0]
    assert found.shared.tolist() == [saved] * 3
    worths = np.zeros((4, 3))
    for copies in (0.0, 0.5 * saved / game.tables.moves[0].demand):
        memory = np.zeros(game.problem.horizon + 1)
        find_worths(game.tables, found.shared, found.held_from, found.copy_bound, memory, copies, worths)
        assert worths[:, HELD_TWICE] == pytest.approx([3 * saved, 2 * saved, saved, 0])
        assert worths[0, NOT_HELD] == pytest.approx(3 * saved - copies * game.tables.moves[0].demand)
    # Where a byte for a step costs more than a read saves, nothing is worth holding.
    dear = 2.0 * saved * np.arange(game.problem.horizon + 1)
    find_worths(game.tables, found.shared, found.held_from, found.copy_bound, dear, 0.0, worths)
    assert worths[:, NOT_HELD].tolist() == [0, 0, 0, 0]
    assert (worths[:3, HELD_TWICE] == 0).all()
    assert worths[0, HELD_ONLY] == pytest.approx(3 * saved)


def test_memory_has_the_price_of_what_finds_no_room() -> None:
    steps = ["", "a b", "a b"]
    roomy = estimate(CompiledGame(program(steps, {"a": 2, "b": 2}, inputs="ab", capacity=4)))
    assert not roomy.density.any()
    scarce = estimate(CompiledGame(program(steps, {"a": 2, "b": 2}, inputs="ab", capacity=3)))
    assert scarce.density[1:].all()
    assert (np.diff(scarce.memory()) > 0).all()


def test_rollouts_are_valid_games_and_no_worse_than_priced_play() -> None:
    rng = random.Random("lowest")
    better = optimal = 0
    for _ in range(60):
        problem = random_problem(rng, steps=rng.randint(2, 12), tensors=rng.randint(1, 5))
        game = CompiledGame(problem)
        rollouts, state = Rollouts(game), game.reset()
        priced = rollouts.completion(state)
        assert rollouts.return_ps == ILLEGAL
        if not game.moves:
            continue
        before = state.data.copy()
        returns = rollouts.look(state)
        assert (state.data == before).all()
        assert ((returns > ILLEGAL) == state.legal).all()
        rollouts.play(state, len(game.moves) + 100)
        while not state.is_over:
            rollouts.play(state, 1)
        assert rollouts.return_ps >= max(priced, state.return_ps)
        again = game.reset()
        again.play(rollouts.actions)
        assert again.return_ps == rollouts.return_ps
        found = verify(problem, again.plan())
        assert found.ok
        assert found.objective == problem.all_slow_ps - rollouts.return_ps
        better += rollouts.return_ps > priced
        # A known game is followed as well.
        other = game.reset()
        while not other.is_over:
            other.step(rng.choice(np.flatnonzero(other.legal).tolist()))
        both = Rollouts(game, other.actions)
        both.look(game.reset())
        assert both.return_ps >= max(priced, other.return_ps)
        optimum = game_optimum(problem).return_ps
        assert rollouts.return_ps <= optimum
        optimal += rollouts.return_ps == optimum
    assert better > 5
    assert optimal > 30
