"""Files of the PPO mapper."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec
import torch

from stowplan.errors import InputError, brief
from stowplan.learned_guidance.modulo_scheduling.ppo.config import PpoConfig
from stowplan.learned_guidance.modulo_scheduling.ppo.network import Network, Shape
from stowplan.learned_guidance.training import checkpoint
from stowplan.learned_guidance.training.checkpoint import Content, FileFormat

POLICY = FileFormat("stowplan.ppo.policy", PpoConfig, version=1)
CHECKPOINT = FileFormat("stowplan.ppo.checkpoint", PpoConfig, version=1)


def policy_values(network: Network) -> dict[str, Any]:
    """What a policy file holds: weights and sizes."""
    return {"weights": checkpoint.plain_weights(network.state_dict()), "shape": asdict(network.shape)}


def load_policy(path: str | Path) -> tuple[Content[PpoConfig], Network]:
    """A policy file, and the network in it.

    Raises
    ------
    InputError
        The file is no policy, is damaged, or its weights do not fit the sizes that it states.
    """
    content = checkpoint.load(path, POLICY)
    try:
        shape = msgspec.convert(content.values["shape"], Shape)
        with torch.random.fork_rng(devices=[]):
            network = Network(shape)
        network.load_state_dict(content.values["weights"])
    except (LookupError, TypeError, ValueError, ArithmeticError, RuntimeError, AttributeError, msgspec.MsgspecError) as error:
        raise InputError(f"its weights do not fit its network: {brief(str(error), 160)}", source=path) from error
    return content, network
