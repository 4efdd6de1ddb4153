"""Files of the PPO mapper."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from stowplan.learned_guidance.modulo_scheduling.ppo.config import PpoConfig
from stowplan.learned_guidance.modulo_scheduling.ppo.network import Network, Shape
from stowplan.learned_guidance.training import checkpoint
from stowplan.learned_guidance.training.checkpoint import Content, FileFormat

POLICY = FileFormat("stowplan.ppo.policy", PpoConfig, version=1)
CHECKPOINT = FileFormat("stowplan.ppo.checkpoint", PpoConfig, version=1)


def policy_values(network: Network) -> dict[str, Any]:
    """What a policy file holds: weights and sizes."""
    return checkpoint.network_values(network, network.shape)


def load_policy(path: str | Path) -> tuple[Content[PpoConfig], Network]:
    """A policy file, and the network in it; InputError as of :func:`checkpoint.load_network`."""
    return checkpoint.load_network(path, POLICY, Shape, Network)
