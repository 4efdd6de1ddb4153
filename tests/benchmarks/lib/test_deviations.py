"""Deviations of a game: by playing them; and plain games."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.lib.memory_mapping.deviations import ILLEGAL, deviations
from benchmarks.lib.memory_mapping.synthetic import synthetic
from stowplan.learned_guidance.memory_mapping.game.kernel.state import CompiledGame
from stowplan.learned_guidance.memory_mapping.game.programs import as_played

NEAREST = {0: (0, 1, 2), 1: (1, 0, 2), 2: (2, 1, 0)}


def random_game(seed: int) -> tuple[CompiledGame, list[int], int]:
    rng = np.random.default_rng(seed)
    game = CompiledGame(as_played(synthetic(rng, moves=40)))
    state = game.reset()
    while not state.is_over:
        state.step(int(rng.choice(np.flatnonzero(state.legal))))
    return game, [int(action) for action in state.actions], state.return_ps


@pytest.mark.parametrize("seed", range(4))
def test_each_is_the_game_with_another_action(seed: int) -> None:
    game, actions, return_ps = random_game(seed)
    same, returns = deviations(game, actions)
    assert same.tolist() == actions
    for position in range(len(actions)):
        state = game.reset()
        state.play(actions[:position])
        legal = state.legal.copy()
        assert ((returns[position] > ILLEGAL) == legal).all()
        assert returns[position, actions[position]] == return_ps
        for action in np.flatnonzero(legal).tolist():
            other = game.reset()
            other.play([*actions[:position], action])
            while not other.is_over:
                wanted = NEAREST[actions[other.position]]
                other.step(next(each for each in wanted if other.legal[each]))
            assert returns[position, action] == other.return_ps


@pytest.mark.parametrize("seed", range(4))
def test_a_plain_game_is_legal_and_loses_no_more_than_it_may(seed: int) -> None:
    game, actions, return_ps = random_game(seed)
    slack = abs(return_ps) // 100
    plain, _ = deviations(game, actions, slack_ps=slack)
    state = game.reset()
    state.play(plain)
    assert state.is_over
    assert state.return_ps >= return_ps - slack


def test_after_a_deviation_another_game_may_be_followed() -> None:
    game, actions, _ = random_game(0)
    _, better, _ = random_game(0)
    better = [min(action + 1, 2) for action in better]
    path, returns = deviations(game, actions, following=better)
    assert path.tolist() == actions
    position = len(actions) // 2
    state = game.reset()
    state.play(actions[:position])
    for action in np.flatnonzero(state.legal).tolist():
        other = game.reset()
        other.play([*actions[:position], action])
        while not other.is_over:
            other.step(next(each for each in NEAREST[better[other.position]] if other.legal[each]))
        assert returns[position, action] == other.return_ps
