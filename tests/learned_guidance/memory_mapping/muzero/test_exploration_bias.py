"""Exploration bias: the compiled game is the one that its preferences say, and only biased episodes are changed."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch")

from benchmarks.lib.memory_mapping.synthetic import synthetic
from stowplan.learned_guidance.memory_mapping.game.game import Action
from stowplan.learned_guidance.memory_mapping.muzero.exploration import (
    NO_BIAS,
    EpisodeStart,
    bias_preferences,
    draw_bias,
    play_biased,
    play_warm_start,
    with_bias,
)
from stowplan.learned_guidance.memory_mapping.muzero.self_play import ProgramGame
from stowplan.learned_guidance.memory_mapping.observation.layout import empty_observations
from tests.learned_guidance.memory_mapping.muzero.programs import small_config


def program_game_of(seed: int) -> ProgramGame:
    return ProgramGame(synthetic(np.random.default_rng(seed), moves=60), small_config())


@pytest.mark.parametrize("seed", range(6))
def test_the_compiled_game_is_what_the_preferences_say(seed: int) -> None:
    program_game, rng = program_game_of(seed), np.random.default_rng(seed)
    bias = draw_bias(rng)
    noise = rng.gumbel(size=(len(program_game.game.moves), 3)).astype(np.float32)
    state = program_game.game.reset()
    observations = empty_observations(program_game.observer.config, 1)
    while not state.is_over:
        program_game.observer.observe(state, observations, 0)
        liked = bias_preferences(bias[None], observations.actions)[0].astype(np.float64) + noise[state.position]
        state.step(int(np.where(state.legal, liked, -np.inf).argmax()))

    compiled = program_game.game.reset()
    found = play_biased(program_game.game.tables, compiled.data, bias, noise, *program_game.observer.scales)
    assert compiled.actions == state.actions
    assert found == compiled.return_ps == state.return_ps


def test_a_high_threshold_keeps_fast_memory_for_what_earns_most() -> None:
    program_game = program_game_of(1)
    bias = np.array([30.0, 0.0, 30.0 * 0.3, 0.0], np.float32)
    state = play_warm_start(program_game, EpisodeStart(0, np.empty(0, np.int8), bias), np.random.default_rng(0))
    mean, _ = program_game.observer.scales
    replay, placed, dropped = program_game.game.reset(), [], []
    for action in state.actions:
        benefit = replay.benefit_ps / mean
        (dropped if action == Action.DROP else placed).append(benefit)
        replay.step(action)
    assert placed
    # The threshold of 0.3 is log2(1 + x) / 4, so that x is 1.3 mean benefits; noise moves it little.
    assert np.median(placed) > 1.0
    assert np.median(dropped) < 1.0


def test_a_warm_start_episode_begins_with_its_prefix() -> None:
    program_game, rng = program_game_of(2), np.random.default_rng(2)
    first = play_warm_start(program_game, EpisodeStart(0, np.empty(0, np.int8), draw_bias(rng)), rng)
    prefix = np.array(first.actions[:20], np.int8)
    state = play_warm_start(program_game, EpisodeStart(0, prefix, draw_bias(rng)), rng)
    assert state.is_over
    assert list(state.actions[:20]) == prefix.tolist()


def test_only_biased_episodes_are_changed() -> None:
    program_game, rng = program_game_of(3), np.random.default_rng(3)
    observations = empty_observations(program_game.observer.config, 3)
    state = program_game.game.reset()
    for row in range(3):
        program_game.observer.observe(state, observations, row)
    legal = np.repeat(state.legal[None], 3, axis=0)
    found = np.full(3, 2)
    # An overwhelming preference for copies, in the second game alone.
    biases = np.array([NO_BIAS, [0, 0, -1000, 500], NO_BIAS], np.float32)
    actions = with_bias(found, np.full((3, 3), 1 / 3, np.float32), biases, observations, legal, rng)
    wanted = next(action for action in (Action.COPY, Action.NOCOPY, Action.DROP) if legal[1, action])
    assert actions.tolist() == [2, wanted, 2]
    assert found.tolist() == [2, 2, 2]
