"""One training step: a batch with its targets, and the losses of MuZero, unrolled over several moves.

See Schrittwieser et al. 2020, appendix G. *Unrolled* means that the network predicts several moves one after the other, each
from the hidden state that it predicted for the move before. The targets of a reanalysed position, and of the positions it is
unrolled to, come from new searches (Schrittwieser et al. 2021).
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from stowplan.learned_guidance.mcts.search import Model, search
from stowplan.learned_guidance.memory_mapping.muzero.config import TrainingConfig
from stowplan.learned_guidance.memory_mapping.muzero.network import MMapNetwork, TorchModel, to_tensors
from stowplan.learned_guidance.memory_mapping.muzero.replay import F32, Replay, Sample
from stowplan.learned_guidance.memory_mapping.muzero.self_play import ProgramGame, first_rows
from stowplan.learned_guidance.memory_mapping.observation.layout import Observations, empty_observations
from stowplan.learned_guidance.nn import Support


class Batch(NamedTuple):
    """S samples, each unrolled for K steps. Beyond the end of a game, rewards and values are 0 and no policy target is set."""

    observations: Observations
    """S rows: the positions at which the unrolling begins."""
    actions: NDArray[np.int64]
    """(S, K) played actions; random ones beyond the end."""
    rewards: F32
    """(S, K) rewards, in units."""
    values: F32
    """(S, K + 1) value targets, in units."""
    policy: F32
    """(S, K + 1, 3) policy targets; each row sums to its weight in the loss."""
    played: NDArray[np.int64]
    """(S, K + 1) played actions; -1 beyond the end."""
    weights: F32
    """(S,) importance weights."""


def make_batch(
    sample: Sample, programs: Sequence[ProgramGame], config: TrainingConfig, model: Model, rng: np.random.Generator
) -> Batch:
    """The batch for a sample: its observations and targets. A random part of the positions (``config.reanalyse_fraction``) is
    reanalysed, that is, searched anew with ``model``. Raises the ValueError of the search if the model returns a value that is
    not a number."""
    size, unroll = len(sample.positions), config.unroll_steps
    batch = Batch(
        observations=empty_observations(config.network.observation, size),
        actions=rng.integers(3, size=(size, unroll)),
        rewards=np.zeros((size, unroll), np.float32),
        values=np.zeros((size, unroll + 1), np.float32),
        policy=np.zeros((size, unroll + 1, 3), np.float32),
        played=np.full((size, unroll + 1), -1, np.int64),
        weights=sample.weights,
    )
    full = rng.random(size) < config.full_return_fraction
    # Reanalysed positions are drawn from the whole batch, because its order is not random: positions of the newest games come
    # first, and then those of the *kept* games, which are demonstrations and the best games of each program.
    is_reanalysed = rng.random(size) < config.reanalyse_fraction
    observations = empty_observations(config.network.observation, (unroll + 1) * int(is_reanalysed.sum()))
    # All positions to reanalyse are searched at once; these are their legal actions, rows and steps.
    legal: list[NDArray[np.bool_]] = []
    places: list[tuple[int, int]] = []
    for row, (game, position) in enumerate(zip(sample.trajectories, sample.positions.tolist(), strict=True)):
        _fill(batch, row, sample, config, bool(full[row]))
        program_game = programs[game.program]
        state = program_game.game.reset()
        state.play(game.actions[:position])
        program_game.observer.observe(state, batch.observations, row)
        if is_reanalysed[row]:
            for step in range(min(unroll + 1, len(game) - position)):
                if step:
                    state.step(int(game.actions[position + step - 1]))
                program_game.observer.observe(state, observations, len(places))
                legal.append(state.legal)
                places.append((row, step))
    if places:
        seen = first_rows(observations, len(places))
        searched = search(model, seen, np.array(legal), config.reanalyse_search(), rng, explore=False)
        rows, steps = np.array(places).T
        batch.policy[rows, steps], batch.values[rows, steps] = searched.policy, searched.value
    _imitate(batch, sample, config)
    return batch


def _fill(batch: Batch, row: int, sample: Sample, config: TrainingConfig, full_return: bool) -> None:
    """Fill one row of a batch with the stored data of a sample."""
    game, position = sample.trajectories[row], int(sample.positions[row])
    unroll = config.unroll_steps
    left = min(unroll, len(game) - position)
    batch.actions[row, :left] = game.actions[position : position + left]
    batch.rewards[row, :left] = game.rewards[position : position + left]
    values = game.values(None if full_return else config.td_steps)[position : position + unroll + 1]
    batch.values[row, : len(values)] = values
    seen = slice(position, min(len(game), position + unroll + 1))
    count = seen.stop - position
    batch.played[row, :count] = game.actions[seen]
    if not game.is_demonstration:
        batch.policy[row, :count] = game.policy[seen]


def _imitate(batch: Batch, sample: Sample, config: TrainingConfig) -> None:
    """Add ``config.imitation`` to the policy target of each action that was played in a kept game, so that the policy imitates
    these games. A position of a sample is from a kept game if its slot is -1; other slots are places in the ring buffer of the
    newest games."""
    if config.imitation == 0.0:
        return
    rows, steps = np.nonzero((sample.slots < 0)[:, None] & (batch.played >= 0))
    batch.policy[rows, steps, batch.played[rows, steps]] += np.float32(config.imitation)


class Losses(NamedTuple):
    """Mean losses over a batch."""

    total: float
    """Weighted sum of the following three."""
    policy: float
    """Cross-entropy of the policy, in nats."""
    value: float
    """Cross-entropy of the distribution over values."""
    reward: float
    """Cross-entropy of the distribution over rewards."""
    gradient_norm: float
    """Norm of the gradient before clipping."""
    entropy: float
    """Entropy of the policy at the first positions of the samples, in nats."""
    value_error: float
    """|value - target| at these positions, in units."""


class Learner:
    """The network with its optimizer, and the target network, an older copy.

    Parameters
    ----------
    config
        Sizes of the network, and settings of the training step.
    seed
        Seed of the initial weights.
    device
        Device of the networks: ``"cpu"`` or ``"cuda"``.
    """

    def __init__(self, config: TrainingConfig, seed: int, device: str = "cpu"):
        self.config = config
        self.device = torch.device(device)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.network = MMapNetwork(config.network).to(self.device)
        self.target = copy.deepcopy(self.network).requires_grad_(False).eval()
        self.optimizer = torch.optim.Adam(self.network.parameters(), lr=config.learning_rate, weight_decay=config.weight_decay)
        self.model, self.target_model = TorchModel(self.network), TorchModel(self.target)
        """The networks as models for tree search."""
        self.steps = 0

    def load(self, weights: dict[str, Tensor]) -> None:
        """Start from the weights of another network; raises RuntimeError if its sizes differ."""
        self.network.load_state_dict(weights)
        self.target.load_state_dict(weights)

    def learn(self, replay: Replay, programs: Sequence[ProgramGame], rng: np.random.Generator) -> Losses:
        """Train on a batch of positions from a replay buffer, and set their priorities to the errors. Raises ValueError if the
        buffer has no games."""
        sample = replay.sample(self.config.batch_size, rng)
        losses, errors = self.update(make_batch(sample, programs, self.config, self.target_model, rng))
        replay.update(sample, errors)
        return losses

    def state_dict(self) -> dict[str, Any]:
        """Everything that the next training step depends on, except for the number of steps."""
        return {
            "network": self.network.state_dict(),
            "target": self.target.state_dict(),
            "optimizer": self.optimizer.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a state that :meth:`state_dict` returned; raises KeyError, ValueError or RuntimeError if it does not
        fit."""
        self.network.load_state_dict(state["network"])
        self.target.load_state_dict(state["target"])
        self.optimizer.load_state_dict(state["optimizer"])

    def update(self, batch: Batch) -> tuple[Losses, F32]:
        """Train on a batch; returns the losses, and |value - target| of each sample."""
        config = self.config
        self.network.train()
        actions, rewards, values, policy, weights = (
            torch.from_numpy(array).to(self.device)
            for array in (batch.actions, batch.rewards, batch.values, batch.policy, batch.weights)
        )
        unroll = actions.shape[1]
        hidden, policy_logits, value_logits = self.network.initial(to_tensors(batch.observations, self.device))
        value_support, reward_support = self.network.value_support, self.network.reward_support
        errors = (value_support.mean(value_logits.detach()) - values[:, 0]).abs()
        log_policy = functional.log_softmax(policy_logits.detach(), dim=1)
        entropy = -(log_policy.exp() * log_policy).sum(dim=1).mean()
        policy_loss = _cross_entropy(policy[:, 0], policy_logits)
        value_loss = _categorical(value_support, value_logits, values[:, 0])
        reward_loss = torch.zeros_like(value_loss)
        for step in range(unroll):
            # The gradient is halved at each step of the dynamics, so that the gradient of the first state does not grow with
            # the number of steps.
            hidden = _halve_gradient(hidden)
            hidden, reward_logits, policy_logits, value_logits = self.network.recurrent(hidden, actions[:, step])
            share = 1.0 / unroll
            policy_loss = policy_loss + share * _cross_entropy(policy[:, step + 1], policy_logits)
            value_loss = value_loss + share * _categorical(value_support, value_logits, values[:, step + 1])
            reward_loss = reward_loss + share * _categorical(reward_support, reward_logits, rewards[:, step])
        policy_mean, value_mean, reward_mean = ((weights * loss).mean() for loss in (policy_loss, value_loss, reward_loss))
        total = config.policy_weight * policy_mean + config.value_weight * value_mean + config.reward_weight * reward_mean
        self.optimizer.zero_grad(set_to_none=True)
        torch.autograd.backward(total)
        norm = torch.nn.utils.clip_grad_norm_(self.network.parameters(), config.gradient_clip)
        self.optimizer.step()
        self.steps += 1
        if self.steps % config.target_network_interval == 0:
            self.target.load_state_dict(self.network.state_dict())
        means = torch.stack([total.detach(), policy_mean, value_mean, reward_mean, norm, entropy, errors.mean()])
        return Losses(*means.tolist()), np.asarray(errors.cpu().numpy(), np.float32)


def _cross_entropy(targets: Tensor, logits: Tensor) -> Tensor:
    """(S,) cross-entropy losses for targets (S, C) whose rows sum to their weights; 0 for a row of zeros."""
    return -(targets * functional.log_softmax(logits, dim=1)).sum(dim=1)


def _categorical(support: Support, logits: Tensor, targets: Tensor) -> Tensor:
    """(S,) cross-entropy losses of distributions over a support for targets (S,), which are numbers."""
    return _cross_entropy(support.two_hot(targets), logits)


def _halve_gradient(x: Tensor) -> Tensor:
    """The same tensor, but with half of the gradient."""
    return 0.5 * x + 0.5 * x.detach()
