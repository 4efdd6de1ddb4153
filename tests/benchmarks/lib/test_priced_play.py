"""Priced play whose prices evolve."""

from __future__ import annotations

import numpy as np

from benchmarks.lib.memory_mapping.priced_play import evolve_prices, priced
from benchmarks.lib.memory_mapping.rollouts import Rollouts
from benchmarks.lib.memory_mapping.synthetic import synthetic
from stowplan.learned_guidance.memory_mapping.game.kernel.state import CompiledGame
from stowplan.learned_guidance.memory_mapping.game.programs import as_played


def test_evolution_is_the_same_for_a_seed_and_no_worse_than_where_it_begins() -> None:
    better = 0
    for seed in range(6):
        game = CompiledGame(as_played(synthetic(np.random.default_rng(seed), moves=80)))
        first = priced(game)
        assert first.return_ps == Rollouts(game).completion(game.reset())
        one, two = (evolve_prices(game, seed=seed, rounds=60) for _ in range(2))
        assert one.return_ps == two.return_ps
        assert one.games == 60
        assert one.actions is not None
        state = game.reset()
        state.play(one.actions)
        assert state.return_ps == one.return_ps
        assert first.return_ps is not None
        assert one.return_ps is not None
        assert one.return_ps >= first.return_ps
        better += one.return_ps > first.return_ps
    assert better > 0
