"""First weights of graph networks, and those that a mutation draws anew."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch")

from stowplan.learned_guidance.tier_placement.egrl.learner import Learner
from stowplan.learned_guidance.tier_placement.graph import graph_of
from tests.learned_guidance.tier_placement.egrl.networks import small_config, small_network


def test_weights_drawn_anew_are_as_first_weights_are() -> None:
    config = small_config()
    learner = Learner(config, [graph_of(small_network(), config.features)], seed=0)
    low, high = learner.actor.first_ranges()
    first = learner.weights()
    rows = np.stack([learner.fresh_weights(np.random.default_rng(seed)) for seed in range(200)])
    for row in (first, *rows):
        assert ((low <= row) & (row <= high)).all()
    assert (first[low == high] == low[low == high]).all()
    moves = low < high
    assert np.abs(rows.mean(0)[moves]).max() < 0.5 * high[moves].max()
    # Uniform on [-a, a] has variance a^2 / 3.
    assert np.mean(rows.var(0)[moves] / high[moves] ** 2) == pytest.approx(1 / 3, rel=0.05)
    assert np.mean(first[moves] ** 2 / high[moves] ** 2) == pytest.approx(1 / 3, rel=0.2)


def test_weights_can_be_drawn_for_some_places_alone() -> None:
    config = small_config()
    learner = Learner(config, [graph_of(small_network(), config.features)], seed=0)
    low, high = learner.actor.first_ranges()
    places = np.flatnonzero(low < high)[[0, 5, -1]]
    drawn = learner.fresh_weights(np.random.default_rng(1), places)
    assert drawn.shape == (3,)
    assert ((low[places] <= drawn) & (drawn <= high[places])).all()
    assert not learner.fresh_weights(np.random.default_rng(1), places[:0]).size
