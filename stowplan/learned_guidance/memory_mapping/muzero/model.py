"""The network as the model that tree search asks: NumPy in and out, hidden states left where they are."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from stowplan.learned_guidance.memory_mapping.muzero.network import MMapNetwork, ObservationTensors
from stowplan.learned_guidance.memory_mapping.observation.layout import Observations

Floats = NDArray[np.float32]


def to_tensors(observations: Observations, device: torch.device | str = "cpu") -> ObservationTensors:
    """The observations on a device; on a processor they share the arrays' memory."""
    return ObservationTensors(*(torch.from_numpy(array).to(device) for array in observations))


class TorchModel:
    """A network on its device, as ``search.Model``.

    Hidden states are tensors on that device, which the search stores by node and game and gathers by index arrays; only
    logits, values and rewards come back, in one transfer. The weights are the network's own: what is learned counts at once.
    """

    def __init__(self, network: MMapNetwork):
        self.network = network
        self.device = next(network.parameters()).device
        self._value_atoms = network.value_support.atoms.to(self.device)
        self._reward_atoms = network.reward_support.atoms.to(self.device)

    @torch.inference_mode()
    def initial(self, observations: Observations) -> tuple[Tensor, Floats, Floats]:
        """Hidden states (B, H), logits of the policy (B, 3), and values (B,) in units."""
        hidden, policy, value = self.network.initial(to_tensors(observations, self.device))
        found = self._to_numpy(policy, torch.softmax(value, 1) @ self._value_atoms)
        return hidden, found[:, :3], found[:, 3]

    @torch.inference_mode()
    def recurrent(self, hidden: Tensor, actions: NDArray[np.int64]) -> tuple[Tensor, Floats, Floats, Floats]:
        """Hidden states, rewards (B,), logits of the policy (B, 3), and values (B,) after the actions (B,)."""
        hidden, reward, policy, value = self.network.recurrent(hidden, torch.from_numpy(actions).to(self.device))
        found = self._to_numpy(
            policy, torch.softmax(value, 1) @ self._value_atoms, torch.softmax(reward, 1) @ self._reward_atoms
        )
        return hidden, found[:, 4], found[:, :3], found[:, 3]

    def _to_numpy(self, *parts: Tensor) -> Any:
        return torch.column_stack(parts).cpu().numpy()
