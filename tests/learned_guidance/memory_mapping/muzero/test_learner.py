"""Batches hold the targets they should, and the learner goes down its losses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

from stowplan.learned_guidance.mcts.search import search
from stowplan.learned_guidance.memory_mapping.muzero.config import TrainingConfig
from stowplan.learned_guidance.memory_mapping.muzero.learner import Batch, Learner, make_batch
from stowplan.learned_guidance.memory_mapping.muzero.network import TorchModel
from stowplan.learned_guidance.memory_mapping.muzero.replay import Replay, Sample, Trajectory
from stowplan.learned_guidance.memory_mapping.muzero.self_play import ProgramGame, replay_actions
from stowplan.learned_guidance.memory_mapping.observation.layout import empty_observations
from tests.learned_guidance.memory_mapping.muzero.programs import small_config, small_program


def random_game(program_game: ProgramGame, seed: int, *, is_demonstration: bool = False) -> Trajectory:
    rng = np.random.default_rng(seed)
    state, actions = program_game.game.reset(), []
    while not state.is_over:
        actions.append(int(rng.choice(np.flatnonzero(state.legal))))
        state.step(actions[-1])
    game = replay_actions(program_game, 0, np.array(actions, np.int8), 0.9)
    if is_demonstration:
        return game
    policy = np.where(game.legal, rng.random(game.legal.shape) + 0.1, 0).astype(np.float32)
    return Trajectory(
        program=0,
        actions=game.actions,
        policy=policy / policy.sum(axis=1, keepdims=True),
        value=rng.random(len(game)).astype(np.float32),
        legal=game.legal,
        rewards=game.rewards,
        return_ps=game.return_ps,
        discount=0.9,
    )


def sample_of(game: Trajectory, positions: list[int], slot: int = 0) -> Sample:
    count = len(positions)
    return Sample([game] * count, np.array(positions), np.full(count, slot), np.ones(count, np.float32))


def setting(**changes: Any) -> tuple[TrainingConfig, ProgramGame, Learner, TorchModel]:
    config = small_config(
        **{"reanalyse_fraction": 0.0, "full_return_fraction": 0.0, "td_steps": 2, "imitation": 0.0, "discount": 0.9, **changes}
    )
    learner = Learner(config, seed=0)
    return config, ProgramGame(small_program(), config), learner, TorchModel(learner.target)


def test_targets_of_a_played_game_are_its_own_and_the_end_absorbs() -> None:
    config, program_game, _, model = setting(unroll_steps=4)
    game = random_game(program_game, 1)
    length = len(game)
    positions = [0, length - 2]
    batch = make_batch(sample_of(game, positions), [program_game], config, model, np.random.default_rng(0))
    values = game.values(2)
    assert batch.values[0].tolist() == values[:5].tolist()
    assert batch.rewards[0].tolist() == game.rewards[:4].tolist()
    assert batch.policy[0].tolist() == game.policy[:5].tolist()
    assert batch.actions[0].tolist() == game.actions[:4].tolist()
    # Two moves before the end.
    assert batch.values[1].tolist() == [*values[-3:].tolist(), 0.0, 0.0]
    assert batch.rewards[1].tolist() == [*game.rewards[-2:].tolist(), 0.0, 0.0]
    assert batch.played[1].tolist() == [*game.actions[-2:].tolist(), -1, -1, -1]
    assert not batch.policy[1, 2:].any()
    observed = empty_observations(config.network.observation, 1)
    state = program_game.game.reset()
    state.play(game.actions[: length - 2])
    program_game.observer.observe(state, observed, 0)
    for found, expected in zip(batch.observations, observed, strict=True):
        assert np.array_equal(found[1], expected[0])


def test_reanalysed_positions_get_the_targets_of_fresh_searches() -> None:
    config, program_game, _, model = setting(reanalyse_fraction=1.0, unroll_steps=3)
    game = random_game(program_game, 2, is_demonstration=True)
    length = len(game)
    batch = make_batch(sample_of(game, [4, length - 1]), [program_game], config, model, np.random.default_rng(0))
    for row, position, step in ((0, 4, 0), (0, 4, 2), (1, length - 1, 0)):
        state = program_game.game.reset()
        state.play(game.actions[: position + step])
        observed = empty_observations(config.network.observation, 1)
        program_game.observer.observe(state, observed, 0)
        legal = np.array([state.legal])
        found = search(model, observed, legal, config.reanalyse_search(), np.random.default_rng(0), explore=False)
        assert batch.policy[row, step] == pytest.approx(found.policy[0], abs=1e-3)
        assert batch.values[row, step] == pytest.approx(found.value[0], abs=1e-3)
    assert batch.values[1, 1:].tolist() == [0, 0, 0]


def test_a_demonstration_teaches_its_policy_only_by_imitation() -> None:
    config, program_game, _, model = setting()
    game = random_game(program_game, 3, is_demonstration=True)
    sample = sample_of(game, [2], slot=-1)
    assert not make_batch(sample, [program_game], config, model, np.random.default_rng(0)).policy.any()
    config = config.changed(imitation=0.5)
    batch = make_batch(sample, [program_game], config, model, np.random.default_rng(0))
    assert batch.policy[0, 0].tolist() == (0.5 * np.eye(3)[game.actions[2]]).tolist()
    # What is not a kept game is not imitated.
    own = make_batch(sample_of(random_game(program_game, 4), [2]), [program_game], config, model, np.random.default_rng(0))
    assert own.policy[0, 0].sum() == pytest.approx(1.0)


def batch_of_games(config: TrainingConfig, program_game: ProgramGame, model: TorchModel) -> Batch:
    replay = Replay(config, 1)
    for seed in range(4):
        replay.add(random_game(program_game, seed))
    return make_batch(replay.sample(32, np.random.default_rng(0)), [program_game], config, model, np.random.default_rng(0))


@pytest.mark.slow
def test_training_on_one_batch_learns_it() -> None:
    config, program_game, learner, model = setting(learning_rate=3e-3)
    batch = batch_of_games(config, program_game, model)
    first, errors = learner.update(batch)
    assert errors.shape == (32,)
    for _ in range(150):
        last, errors = learner.update(batch)
    assert last.reward < 0.5 * first.reward
    assert last.value < 0.6 * first.value
    assert last.value_error < 0.4 * first.value_error
    assert last.policy < first.policy
    assert errors.mean() == pytest.approx(last.value_error, rel=1e-4)


def test_gradient_through_the_dynamics_is_halved_at_each_step() -> None:
    """The losses, written a second time without any scaling, have twice the gradient after one step of the dynamics."""
    config, program_game, learner, model = setting(unroll_steps=1, value_weight=0.0, policy_weight=0.0, weight_decay=0.0)
    batch = batch_of_games(config, program_game, model)
    config_gradient = gradient_of_encoder(learner, batch)
    learner.network.zero_grad()
    from stowplan.learned_guidance.memory_mapping.muzero.network import to_tensors

    hidden = learner.network.initial(to_tensors(batch.observations)).hidden
    logits = learner.network.recurrent(hidden, torch.from_numpy(batch.actions[:, 0])).reward_logits
    target = learner.network.reward_support.two_hot(torch.from_numpy(batch.rewards[:, 0]))
    loss = -(target * torch.log_softmax(logits, dim=1)).sum(dim=1) * torch.from_numpy(batch.weights)
    loss.mean().backward()
    plain = learner.network.encoder.join[-1].weight.grad
    assert plain.abs().max() > 0
    assert torch.allclose(config_gradient, 0.5 * plain, atol=1e-7)


def gradient_of_encoder(learner: Learner, batch: Batch) -> Any:
    """Gradient that an update uses, read off with a learning rate of 0 and no clipping."""
    learner.config = learner.config.changed(gradient_clip=1e9)
    for group in learner.optimizer.param_groups:
        group["lr"] = 0.0
    learner.update(batch)
    return learner.network.encoder.join[-1].weight.grad.clone()


def test_the_target_network_follows_at_its_interval() -> None:
    config, program_game, learner, model = setting(target_network_interval=3)
    batch = batch_of_games(config, program_game, model)
    same = []
    for _ in range(6):
        learner.update(batch)
        pairs = zip(learner.network.parameters(), learner.target.parameters(), strict=True)
        same.append(all(torch.equal(one, other) for one, other in pairs))
    assert same == [False, False, True, False, False, True]


def test_equal_seeds_give_equal_weights_and_leave_the_global_generator_alone() -> None:
    torch.manual_seed(5)
    before = torch.random.get_rng_state()
    one, other, third = (Learner(small_config(), seed).network.state_dict() for seed in (1, 1, 2))
    assert torch.equal(before, torch.random.get_rng_state())
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert not all(torch.equal(one[name], third[name]) for name in one)
