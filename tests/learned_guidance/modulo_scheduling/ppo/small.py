"""Trainers that take a second."""

from __future__ import annotations

from typing import Any

import torch

from stowplan.learned_guidance.modulo_scheduling.ppo.config import PpoConfig

# With more threads, many small batches wait for each other.
torch.set_num_threads(1)


def small(**changes: Any) -> PpoConfig:
    """A configuration for tests."""
    values: dict[str, Any] = {
        "steps": 64,
        "hidden": 8,
        "heads": 2,
        "layers": 1,
        "environments": 4,
        "rollout_steps": 16,
        "batch_size": 32,
        "epochs": 2,
        "imitation_steps": 0,
        "imitation_batch": 16,
        **changes,
    }
    return PpoConfig.cpu(**values)
