"""The soft actor-critic for one-step episodes of many discrete actions: Khadka et al., ICLR 2021, appendices C and D."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional

from stowplan.learned_guidance.tier_placement.egrl.config import EgrlConfig
from stowplan.learned_guidance.tier_placement.egrl.network import Actor, Critic, Shape, Structure
from stowplan.learned_guidance.tier_placement.graph import Graph

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]

#: Columns of a state besides the features: the previously proposed tiers of weights and output.
PREVIOUS = 2

#: Gradients are clipped to this norm.
CLIP = 5.0


class Losses(NamedTuple):
    """Losses of one step."""

    critic: float
    """Mean squared error of the critic's values."""
    actor: float
    """Loss of the actor: minus the value of its policy, minus the weighted entropy, plus the weighted imitation loss."""
    entropy: float
    """Entropy of the policy in nats, averaged over tensors."""
    value_error: float
    """|value - reward|, averaged over the batch."""


class Inputs:
    """A network of layers as tensors; ``depth`` is the number of levels of the Graph U-Net."""

    def __init__(self, graph: Graph, depth: int):
        features = torch.from_numpy(graph.features)
        # Every episode begins with all tensors in the slowest tier.
        self.state = torch.cat([features, torch.zeros(len(features), PREVIOUS)], 1)[None]
        """[1, N, F] features of the layers, and the tiers of the previous proposal."""
        self.tiers = graph.tiers
        self.structure = Structure(len(features), graph.edges, depth)
        self.placed = torch.from_numpy(np.stack([graph.has_weights, np.ones(len(features), np.bool_)], axis=1))
        """[N, 2] Whether the tensor exists."""


class Learner:
    """Actor, critic, their target networks (older copies of them), and their optimisers.

    Parameters
    ----------
    config
        Sizes of the networks, and settings of the step.
    graphs
        Graphs of the networks to learn on, at least one, for chips with the same number of tiers.
    seed
        Seed of the initial weights.
    """

    def __init__(self, config: EgrlConfig, graphs: Sequence[Graph], seed: int):
        self.config = config
        self.inputs = [Inputs(graph, config.depth) for graph in graphs]
        first = graphs[0]
        self.shape = Shape(first.features.shape[1] + PREVIOUS, config.hidden, config.heads, config.depth, first.tiers)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.actor, self.critic = Actor(self.shape), Critic(self.shape, config.critic_pooling)
        self._first_ranges = self.actor.first_ranges()
        self.target_actor = copy.deepcopy(self.actor).requires_grad_(False)
        self.target_critic = copy.deepcopy(self.critic).requires_grad_(False)
        self.actor_optimizer = torch.optim.Adam(self.actor.parameters(), lr=config.actor_rate)
        self.critic_optimizer = torch.optim.Adam(self.critic.parameters(), lr=config.critic_rate)
        self.steps = 0

    def update(self, network: int, maps: Ints, rewards: Floats, shown: Ints | None, rng: np.random.Generator) -> Losses:
        """Make one step of actor and critic.

        Parameters
        ----------
        network
            Index of the network of layers in ``graphs``; the same in the methods below.
        maps
            [B, N, 2] proposed tiers for the network with index ``network``.
        rewards
            [B] their rewards.
        shown
            [N, 2] a map to imitate, or None.
        rng
            Source of the noise on actions.
        """
        config, inputs = self.config, self.inputs[network]
        states = inputs.state.expand(len(maps), -1, -1)
        encoded = functional.one_hot(torch.from_numpy(maps), inputs.tiers).float()
        noise = torch.from_numpy(rng.normal(0.0, 1.0, tuple(encoded.shape)).astype(np.float32))
        actions = (encoded + (config.action_noise * noise).clamp(-0.5, 0.5)).clamp(0.0, 1.0)
        targets = torch.from_numpy(rewards)
        if config.bootstrap:
            targets = targets + config.discount * self._next_values(inputs, maps)
        values = self.critic(states, actions, inputs.structure)
        critic_loss = functional.mse_loss(values, targets[:, None].expand_as(values))
        _step(self.critic_optimizer, critic_loss, self.critic)
        actor_loss, entropy = self._actor_loss(inputs, shown)
        _step(self.actor_optimizer, actor_loss, self.actor)
        if config.bootstrap:
            _follow(self.target_actor, self.actor, config.target_rate)
            _follow(self.target_critic, self.critic, config.target_rate)
        self.steps += 1
        error = (values.detach().mean(1) - targets).abs().mean()
        return Losses(critic_loss.item(), actor_loss.item(), float(entropy), float(error))

    def _actor_loss(self, inputs: Inputs, shown: Ints | None) -> tuple[Tensor, Tensor]:
        """Return the loss of the actor, and the entropy of its policy in nats."""
        # The state is the same at the beginning of every episode, so a batch of one is enough.
        logits = self.actor(inputs.state, inputs.structure)[0]
        log_policy = functional.log_softmax(logits, dim=-1)
        policy = log_policy.exp()
        entropy = -(policy * log_policy).sum(-1)[inputs.placed].mean()
        self.critic.requires_grad_(False)
        value = self.critic(inputs.state, self._as_actions(policy)[None], inputs.structure).min()
        self.critic.requires_grad_(True)
        loss = -value - self.config.entropy * entropy
        if shown is not None and self.config.imitation:
            chosen = log_policy.gather(-1, torch.from_numpy(shown)[..., None])[..., 0]
            loss = loss - self.config.imitation * chosen[inputs.placed].mean()
        return loss, entropy.detach()

    def _as_actions(self, policy: Tensor) -> Tensor:
        """Return a policy ``[..., T]`` as input of the critic; see ``EgrlConfig.actor_actions``."""
        if self.config.actor_actions == "soft":
            return policy
        return policy * functional.one_hot(policy.argmax(-1), policy.shape[-1])

    @torch.no_grad()
    def _next_values(self, inputs: Inputs, maps: Ints) -> Tensor:
        """Return the values ``[B]`` of the states after these maps, including entropy."""
        states = inputs.state.repeat(len(maps), 1, 1)
        states[..., -PREVIOUS:] = torch.from_numpy(maps).float() / max(1, inputs.tiers - 1)
        log_policy = functional.log_softmax(self.target_actor(states, inputs.structure), dim=-1)
        policy = log_policy.exp()
        entropy = -(policy * log_policy).sum(-1).flatten(1).mean(1)
        values: Tensor = self.target_critic(states, self._as_actions(policy), inputs.structure).amin(1)
        return values + self.config.entropy * entropy

    @torch.no_grad()
    def posterior(self, network: int) -> Floats:
        """Return the probabilities ``[N, 2, T]`` of the actor."""
        inputs = self.inputs[network]
        probabilities: Floats = functional.softmax(self.actor(inputs.state, inputs.structure), dim=-1)[0].numpy()
        return probabilities

    @torch.no_grad()
    def posteriors(self, network: int, rows: Sequence[Floats]) -> Floats:
        """Return the probabilities ``[M, N, 2, T]`` of M actors, each with its weights in one row of ``rows``."""
        inputs = self.inputs[network]
        states = inputs.state.expand(len(rows), -1, -1)
        logits = self.actor(states, inputs.structure, torch.from_numpy(np.stack(rows)))
        probabilities: Floats = functional.softmax(logits, dim=-1).numpy()
        return probabilities

    def weights(self) -> Floats:
        """Return the weights of the actor in one row."""
        return self.actor.row.detach().numpy().copy()

    def fresh_weights(self, rng: np.random.Generator, places: Ints | None = None) -> Floats:
        """Draw initial weights of an actor, in one row; if ``places`` are given, only these weights."""
        low, high = self._first_ranges if places is None else [limits[places] for limits in self._first_ranges]
        weights: Floats = rng.uniform(low, high).astype(np.float32)
        return weights

    def load_weights(self, weights: Floats) -> None:
        """Set the weights of the actor; raise RuntimeError if their number is wrong."""
        with torch.no_grad():
            self.actor.row.copy_(torch.from_numpy(weights))

    def state_dict(self) -> dict[str, Any]:
        """Return all state that the next step depends on."""
        return {name: getattr(self, name).state_dict() for name in _PARTS} | {"steps": self.steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a state that :meth:`state_dict` returned; raise KeyError, ValueError or RuntimeError if it does not
        fit."""
        for name in _PARTS:
            getattr(self, name).load_state_dict(state[name])
        self.steps = int(state["steps"])


_PARTS = ("actor", "critic", "target_actor", "target_critic", "actor_optimizer", "critic_optimizer")


def _step(optimizer: torch.optim.Optimizer, loss: Tensor, module: nn.Module) -> None:
    """Make one step of an optimizer, with clipped gradients."""
    optimizer.zero_grad(set_to_none=True)
    loss.backward()  # type: ignore[no-untyped-call]
    nn.utils.clip_grad_norm_(module.parameters(), CLIP)
    optimizer.step()


def _follow(target: nn.Module, source: nn.Module, rate: float) -> None:
    """Move the weights of a target network towards those of its source by a fraction ``rate`` of the difference."""
    with torch.no_grad():
        for old, new in zip(target.parameters(), source.parameters(), strict=True):
            old.lerp_(new, rate)
