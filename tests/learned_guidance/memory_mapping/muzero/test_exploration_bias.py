"""Leanings: the compiled game by a leaning is the one that its preferences say, and only leaning games lean."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch")

from stowplan.learned_guidance.memory_mapping.game.game import Action
from stowplan.learned_guidance.memory_mapping.game.synthetic import synthetic
from stowplan.learned_guidance.memory_mapping.muzero import exploration_bias as leaning
from stowplan.learned_guidance.memory_mapping.muzero.self_play import Arena, Decision, Opening, lean, opened
from stowplan.learned_guidance.memory_mapping.observation.layout import empty_observations
from tests.learned_guidance.memory_mapping.muzero.programs import small_config


def arena_of(seed: int) -> Arena:
    return Arena(synthetic(np.random.default_rng(seed), moves=60), small_config())


@pytest.mark.parametrize("seed", range(6))
def test_the_compiled_game_is_what_the_preferences_say(seed: int) -> None:
    arena, rng = arena_of(seed), np.random.default_rng(seed)
    taste = leaning.draw(rng)
    noise = rng.gumbel(size=(len(arena.game.moves), 3)).astype(np.float32)
    state = arena.game.reset()
    observations = empty_observations(arena.observer.config, 1)
    while not state.is_over:
        arena.observer.observe(state, observations, 0)
        liked = leaning.preferences(taste[None], observations.actions)[0].astype(np.float64) + noise[state.position]
        state.step(int(np.where(state.legal, liked, -np.inf).argmax()))

    compiled = arena.game.reset()
    found = leaning.play_leaning(arena.game.tables, compiled.data, taste, noise, *arena.observer.scales)
    assert compiled.actions == state.actions
    assert found == compiled.return_ps == state.return_ps


def test_a_high_threshold_keeps_fast_memory_for_what_earns_most() -> None:
    arena = arena_of(1)
    taste = np.array([30.0, 0.0, 30.0 * 0.3, 0.0], np.float32)
    state = opened(arena, Opening(0, np.empty(0, np.int8), taste), np.random.default_rng(0))
    mean, _ = arena.observer.scales
    replay, placed, dropped = arena.game.reset(), [], []
    for action in state.actions:
        benefit = replay.benefit_ps / mean
        (dropped if action == Action.DROP else placed).append(benefit)
        replay.step(action)
    assert placed
    # The threshold of 0.3 is log2(1 + x) / 4, so that x is 1.3 mean benefits; noise moves it little.
    assert np.median(placed) > 1.0
    assert np.median(dropped) < 1.0


def test_an_opening_begins_with_its_prefix() -> None:
    arena, rng = arena_of(2), np.random.default_rng(2)
    first = opened(arena, Opening(0, np.empty(0, np.int8), leaning.draw(rng)), rng)
    prefix = np.array(first.actions[:20], np.int8)
    state = opened(arena, Opening(0, prefix, leaning.draw(rng)), rng)
    assert state.is_over
    assert list(state.actions[:20]) == prefix.tolist()


def test_only_leaning_games_lean() -> None:
    arena, rng = arena_of(3), np.random.default_rng(3)
    observations = empty_observations(arena.observer.config, 3)
    state = arena.game.reset()
    for row in range(3):
        arena.observer.observe(state, observations, row)
    legal = np.repeat(state.legal[None], 3, axis=0)
    decision = Decision(np.full(3, 2), np.full((3, 3), 1 / 3, np.float32), np.zeros(3, np.float32))
    # An overwhelming taste for copies, in the second game alone.
    leanings = np.array([leaning.NONE, [0, 0, -1000, 500], leaning.NONE], np.float32)
    actions = lean(decision, leanings, observations, legal, rng).actions
    wanted = next(action for action in (Action.COPY, Action.NOCOPY, Action.DROP) if legal[1, action])
    assert actions.tolist() == [2, wanted, 2]
    assert decision.actions.tolist() == [2, 2, 2]
