"""Learning from data sets: positions are those of the games, and what is imitated is played afterwards."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

from benchmarks.lib.memory_mapping.imitation import DataSet, imitate, joined, judged, positions_of
from stowplan.learned_guidance.memory_mapping.game.kernel.state import CompiledGame
from stowplan.learned_guidance.memory_mapping.muzero.network import MMapNetwork
from stowplan.learned_guidance.memory_mapping.observation.observer import Observer
from tests.learned_guidance.memory_mapping.muzero.programs import SMALL_NETWORK, other_program, small_program


def game_and_actions(seed: int, other: bool = False) -> tuple[CompiledGame, list[int]]:
    game = CompiledGame(other_program() if other else small_program())
    state, rng, actions = game.reset(), np.random.default_rng(seed), []
    while not state.is_over:
        actions.append(int(rng.choice(np.flatnonzero(state.legal))))
        state.step(actions[-1])
    return game, actions


@pytest.mark.slow
def test_positions_are_those_of_the_game() -> None:
    game, actions = game_and_actions(0)
    observer = Observer(game, SMALL_NETWORK.observation)
    found = positions_of(game, observer, actions)
    state = game.reset()
    state.play(actions)
    assert found.rewards.sum() == pytest.approx(state.return_ps / game.unit_ps)
    assert found.returns[0] == pytest.approx(found.rewards.sum())
    assert found.left.tolist() == list(range(len(actions), 0, -1))
    assert found.legal[np.arange(len(actions)), actions].all()
    assert found.policy.argmax(1).tolist() == actions


def test_the_rows_of_several_games_lie_one_after_the_other() -> None:
    parts = []
    for seed, other in ((0, False), (1, True)):
        game, actions = game_and_actions(seed, other)
        parts.append(positions_of(game, Observer(game, SMALL_NETWORK.observation), actions, np.zeros((len(actions), 3))))
    whole = joined(parts)
    assert len(whole.played) == sum(len(part.played) for part in parts)
    data = DataSet([joined(parts[:1]), joined(parts[1:])])
    assert len(data) == len(whole.played)
    seen = data.observations(torch.tensor([len(parts[0].played)]))
    assert seen.globals[0].tolist() == pytest.approx(parts[1].observations.globals[0].tolist())
    assert not data.policy.any()


@pytest.mark.slow
def test_what_is_imitated_is_preferred_and_forced_moves_teach_nothing() -> None:
    torch.manual_seed(0)
    parts = []
    for other in (False, True):
        game, actions = game_and_actions(3, other)
        parts.append(positions_of(game, Observer(game, SMALL_NETWORK.observation), actions))
    data, network = DataSet(parts), MMapNetwork(SMALL_NETWORK)
    before = judged(network, data, 2)
    reports: list[int] = []
    done = imitate(
        network, data, steps=300, batch=32, learning_rate=3e-3, on_report=lambda at, *_: reports.append(at), report_every=150
    )
    after = judged(network, data, 2)
    assert (done, reports) == (300, [150, 300])
    assert after["agreement"] > 0.9 > before["agreement"]
    assert after["reward"] < before["reward"]
    assert after["value_error"] < before["value_error"]


def test_nothing_to_imitate_leaves_the_policy_to_values_and_rewards() -> None:
    game, actions = game_and_actions(0)
    data = DataSet([positions_of(game, Observer(game, SMALL_NETWORK.observation), actions, np.zeros((len(actions), 3)))])
    assert judged(MMapNetwork(SMALL_NETWORK), data, 2)["policy"] == 0.0
