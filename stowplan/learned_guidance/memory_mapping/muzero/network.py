"""The network of MMap-MuZero: representation encoder, dynamics, and heads (Wang et al. 2023, section 4.3.1 and figure 4).

The encoder embeds each part of an observation: a ResNet reads the memory map, embeddings of ids are added to the features of
each buffer, and small networks read profile, supplies, actions and globals. An MLP over all of these gives the hidden state.
Dynamics and heads are MLPs. Hidden states are scaled to [0, 1] as in MuZero (Schrittwieser et al. 2020, appendix G).
:class:`TorchModel` is the network as a model for tree search. In shapes, B is the number of observations or states, H is the
width of hidden states, and *bins* are the atoms of a distribution over values or rewards
(:class:`stowplan.learned_guidance.nn.Support`). Nothing in this module raises an error of its own.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from stowplan.learned_guidance.memory_mapping.muzero.config import NetworkConfig
from stowplan.learned_guidance.memory_mapping.observation.layout import (
    FIRST_ID,
    ActionFeature,
    BufferFeature,
    GlobalFeature,
    Observations,
    SupplyFeature,
)
from stowplan.learned_guidance.nn import Dense, DynamicsBlock, Head, LineEncoder, ResidualBlock, Support, mlp, to_unit_range

ACTIONS = 3


class ObservationTensors(NamedTuple):
    """:class:`Observations` as tensors on a device, with the same fields, shapes and types."""

    buffers: Tensor
    memory_map: Tensor
    profile: Tensor
    supply: Tensor
    actions: Tensor
    globals: Tensor


class Initial(NamedTuple):
    """The network's outputs for B observations."""

    hidden: Tensor
    """(B, H) hidden states, with entries from 0 to 1."""
    policy_logits: Tensor
    """(B, 3), in the order of ``Action``."""
    value_logits: Tensor
    """(B, value bins)."""


class Recurrent(NamedTuple):
    """The network's predictions after one action in each of B hidden states."""

    hidden: Tensor
    """(B, H) next hidden states, with entries from 0 to 1."""
    reward_logits: Tensor
    """(B, reward bins)."""
    policy_logits: Tensor
    """(B, 3), in the order of ``Action``."""
    value_logits: Tensor
    """(B, value bins)."""


class MMapNetwork(nn.Module):
    """Representation, dynamics and prediction networks, with sizes from ``config``; works on any device."""

    def __init__(self, config: NetworkConfig):
        super().__init__()
        self.config = config
        self.value_support = Support(config.value_bins, config.value_limit)
        self.reward_support = Support(config.reward_bins, config.reward_limit)
        self.encoder = Encoder(config)
        self.action = nn.Parameter(torch.randn(ACTIONS, config.dynamics_width))
        self.dynamics = nn.ModuleList(
            DynamicsBlock(config.hidden, config.dynamics_width) for _ in range(config.dynamics_blocks)
        )
        self.policy = Head(config.hidden, config.head_layers, ACTIONS)
        self.value = Head(config.hidden, config.head_layers, config.value_bins)
        self.reward = Head(config.hidden, config.head_layers, config.reward_bins)

    def initial(self, observations: ObservationTensors) -> Initial:
        """Encode B observations and predict policy and value."""
        hidden = to_unit_range(self.encoder(observations))
        return Initial(hidden, self.policy(hidden), self.value(hidden))

    def recurrent(self, hidden: Tensor, action: Tensor) -> Recurrent:
        """Predict hidden states, rewards, policies and values after the actions (B,), integers, in hidden states (B, H)."""
        chosen = self.action.index_select(0, action)
        for block in self.dynamics:
            hidden = block(hidden, chosen)
        # The reward is read before the scaling, which differs between states.
        reward = self.reward(hidden)
        hidden = to_unit_range(hidden)
        return Recurrent(hidden, reward, self.policy(hidden), self.value(hidden))


class Encoder(nn.Module):
    """Map observations to (B, H), not yet scaled."""

    def __init__(self, config: NetworkConfig):
        super().__init__()
        self.of_map = MapEncoder(config)
        self.of_buffers = BufferEncoder(config)
        seen = config.observation
        self.of_profile = LineEncoder(
            seen.profile_bins, 1, config.profile_patch, config.profile_channels, config.profile_features
        )
        self.of_supply = LineEncoder(
            seen.supply_slots, len(SupplyFeature), config.supply_patch, config.supply_channels, config.supply_features
        )
        self.of_summary = Dense(ACTIONS * len(ActionFeature) + len(GlobalFeature), config.summary_features)
        width = (
            config.map_features
            + seen.buffers * config.buffer_features
            + config.profile_features
            + config.supply_features
            + config.summary_features
        )
        self.join, width = mlp(width, config.encoder_layers)
        self.last = nn.Linear(width, config.hidden)

    def forward(self, observations: ObservationTensors) -> Tensor:
        """Return the embeddings of B states."""
        summary = torch.cat([observations.actions.flatten(1), observations.globals], dim=1)
        parts = [
            self.of_buffers(observations.buffers),
            self.of_map(observations.memory_map),
            self.of_profile(observations.profile.unsqueeze(-1).to(summary.dtype) / 255),
            self.of_supply(observations.supply),
            self.of_summary(summary),
        ]
        joined: Tensor = self.last(self.join(torch.cat(parts, dim=1)))
        return joined


class BufferEncoder(nn.Module):
    """Applies the same layer to each buffer, with embedded ids, and concatenates the results in the order of the buffers."""

    def __init__(self, config: NetworkConfig):
        super().__init__()
        self.tensor_id = nn.Embedding(config.observation.id_buckets, config.id_embedding)
        self.alias_id = nn.Embedding(config.observation.id_buckets, config.id_embedding)
        self.layer = Dense(FIRST_ID + 2 * config.id_embedding, config.buffer_features)

    def forward(self, buffers: Tensor) -> Tensor:
        """Map (B, n, features) to (B, n * buffer_features)."""
        ids = buffers[..., FIRST_ID:].long()
        tensor = self.tensor_id(ids[..., BufferFeature.TENSOR_ID - FIRST_ID])
        alias = self.alias_id(ids[..., BufferFeature.ALIAS_ID - FIRST_ID])
        layer: Tensor = self.layer(torch.cat([buffers[..., :FIRST_ID], tensor, alias], dim=-1))
        return layer.flatten(1)


class MapEncoder(nn.Module):
    """ResNet that reads the memory map. The first layer reduces patches to single cells, so that the others read few cells.

    Patches are a linear layer and cells are stored channels last: a convolution of the same size took ten times as long to
    train on a processor.
    """

    def __init__(self, config: NetworkConfig):
        super().__init__()
        patch, inputs = config.map_patch, config.map_stages[0][0]
        seen = config.observation
        self.grid = (seen.map_rows // patch, seen.map_columns // patch)
        self.patch = nn.Linear(patch * patch, inputs)
        layers: list[nn.Module] = []
        for number, (channels, blocks) in enumerate(config.map_stages):
            if number:
                layers += [nn.Conv2d(inputs, channels, 3, stride=2, padding=1), nn.GroupNorm(1, channels), nn.ReLU()]
            layers += [ResidualBlock(channels) for _ in range(blocks)]
            inputs = channels
        self.stages = nn.Sequential(*layers)
        self.bottleneck = nn.Linear(inputs, config.map_bottleneck)
        halvings = len(config.map_stages) - 1
        cells = (self.grid[0] >> halvings) * (self.grid[1] >> halvings)
        self.layer = Dense(cells * config.map_bottleneck, config.map_features)

    def forward(self, image: Tensor) -> Tensor:
        """Map (B, rows, columns) uint8 to (B, map_features)."""
        rows, columns = self.grid
        patches = image.view(-1, rows, image.shape[1] // rows, columns, image.shape[2] // columns).transpose(2, 3)
        cells = patches.reshape(-1, rows, columns, self.patch.in_features).to(self.patch.weight.dtype)
        # A full cell is 255. Scaling the weights is cheaper than scaling the image.
        cells = torch.relu(functional.linear(cells, self.patch.weight / 255, self.patch.bias))
        cells = self.stages(cells.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)
        layer: Tensor = self.layer(torch.relu(self.bottleneck(cells)).flatten(1))
        return layer


Floats = NDArray[np.float32]


def to_tensors(observations: Observations, device: torch.device | str = "cpu") -> ObservationTensors:
    """Move observations to a device. On a CPU the tensors share the memory of the arrays."""
    return ObservationTensors(*(torch.from_numpy(array).to(device) for array in observations))


class TorchModel:
    """A network on its device, in the form of the ``Model`` that tree search expects.

    Hidden states are tensors on that device, which the search stores by node and game and gathers by index arrays; only
    logits, values and rewards come back, in one transfer. The weights are not copied, so each training step takes effect at
    once.
    """

    def __init__(self, network: MMapNetwork):
        self.network = network
        self.device = next(network.parameters()).device

    @torch.inference_mode()
    def initial(self, observations: Observations) -> tuple[Tensor, Floats, Floats]:
        """Return hidden states (B, H), logits of the policy (B, 3), and values (B,) in units of the game."""
        hidden, policy, value = self.network.initial(to_tensors(observations, self.device))
        outputs = self._to_numpy(policy, self.network.value_support.mean(value))
        return hidden, outputs[:, :3], outputs[:, 3]

    @torch.inference_mode()
    def recurrent(self, hidden: Tensor, actions: NDArray[np.int64]) -> tuple[Tensor, Floats, Floats, Floats]:
        """Return hidden states, rewards (B,), logits of the policy (B, 3), and values (B,) after the actions (B,)."""
        hidden, reward, policy, value = self.network.recurrent(hidden, torch.from_numpy(actions).to(self.device))
        means = self.network.value_support.mean(value), self.network.reward_support.mean(reward)
        outputs = self._to_numpy(policy, *means)
        return hidden, outputs[:, 4], outputs[:, :3], outputs[:, 3]

    def _to_numpy(self, *parts: Tensor) -> Any:
        """Return tensors (B,) or (B, n) as the columns of one array, in one transfer from the device."""
        return torch.column_stack(parts).cpu().numpy()
