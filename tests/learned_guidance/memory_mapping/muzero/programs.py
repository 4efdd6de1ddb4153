"""What tests of MMap-MuZero's training share: small programs, and a configuration that learns in a second."""

from __future__ import annotations

from typing import Any

import torch

from stowplan.learned_guidance.mcts.search import SearchConfig
from stowplan.learned_guidance.memory_mapping.muzero.config import NetworkConfig, TrainingConfig
from stowplan.learned_guidance.memory_mapping.observation.layout import ObservationConfig
from stowplan.models.memory_mapping.problem import Problem
from tests.learned_guidance.memory_mapping.programs import program

# With more threads, small networks wait for each other.
torch.set_num_threads(1)

SMALL_NETWORK = NetworkConfig(
    observation=ObservationConfig(
        future_buffers=1,
        same_tensor_buffers=1,
        id_buckets=8,
        map_rows=16,
        map_columns=16,
        profile_bins=16,
        supply_slots=4,
    ),
    hidden=16,
    id_embedding=2,
    buffer_features=8,
    map_stages=((4, 1),),
    map_bottleneck=2,
    map_features=8,
    profile_features=8,
    supply_features=8,
    summary_features=16,
    encoder_layers=(32,),
    dynamics_blocks=1,
    dynamics_width=16,
    head_layers=(16,),
    value_bins=21,
    reward_bins=21,
)


def small_config(**changes: Any) -> TrainingConfig:
    """Everything switched on, everything small."""
    fields: dict[str, Any] = {
        "network": SMALL_NETWORK,
        "search": SearchConfig(method="gumbel", simulations=4),
        "games": 4,
        "moves_per_iteration": 6,
        "updates_per_iteration": 2,
        "replay_size": 6,
        "elite_games": 2,
        "kept_fraction": 0.25,
        "restart_fraction": 0.3,
        "td_steps": 3,
        "full_return_fraction": 0.5,
        "reanalyse_fraction": 0.3,
        "target_network_interval": 3,
        "imitation": 0.1,
        "batch_size": 8,
        "learning_rate": 1e-3,
    }
    return TrainingConfig(**{**fields, **changes})


def small_program(**options: Any) -> Problem:
    """Twelve moves; too little memory for all of them."""
    sizes = {"a": 20, "b": 30, "c": 40, "d": 20, "e": 30, "f": 10}
    steps = ["a >b", "b c >d", "d a >e", "e b >f"]
    return program(steps, sizes, **{"inputs": "ac", "outputs": "f", "capacity": 70, **options})


def other_program() -> Problem:
    """Eight moves."""
    return program(["a >b", "b >c", "c a >d"], {"a": 10, "b": 40, "c": 20, "d": 30}, inputs="a", outputs="d", capacity=50)
