"""Trainers that take a second."""

from __future__ import annotations

from typing import Any

from stowplan.learned_guidance.modulo_scheduling.ppo.config import PpoConfig


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
