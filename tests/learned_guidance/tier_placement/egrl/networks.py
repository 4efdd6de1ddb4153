"""What tests of EGRL share: small networks with features, and a configuration that trains in a second."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import torch

from stowplan.hardware.nnp_i.problem import FEATURES
from stowplan.learned_guidance.tier_placement.egrl.config import EgrlConfig
from stowplan.models.tier_placement.problem import Layer, Problem, Tier

# With more threads, small networks wait for each other.
torch.set_num_threads(1)


def small_config(**changes: Any) -> EgrlConfig:
    """Everything switched on, everything small."""
    fields: dict[str, Any] = {
        "evaluations": 60,
        "hidden": 8,
        "heads": 2,
        "depth": 2,
        "population": 6,
        "boltzmann_fraction": 0.34,
        "updates_per_evaluation": 0.25,
        "batch_size": 4,
        "imitation": 0.1,
    }
    return EgrlConfig.cpu(**{**fields, **changes})


def small_network(layers: int = 4, seed: int = 0, *, tiers: int = 3, address_spaces: bool = False) -> Problem:
    """Layers that read the one before and now and then another, too large for the fast tiers; features are drawn."""
    chance = random.Random(seed)
    found = [
        Layer(
            name=f"layer{number}",
            inputs=tuple(sorted({number - 1, chance.randrange(number)})) if number else (),
            output_bytes=chance.randint(1, 10),
            weight_bytes=chance.choice((0, chance.randint(4, 12))),
            external_bytes=0 if number else 5,
            compute_ps=chance.randint(0, 60),
            overhead_ps=3,
        )
        for number in range(layers)
    ]
    room = 6 * layers
    memories = (("slow", 100 * layers, 10**11), ("middle", room, 3 * 10**11), ("fast", room // 3, 10**12))
    return Problem(
        tiers=tuple(Tier(name=name, capacity=size, bandwidth=speed) for name, size, speed in memories[:tiers]),
        layers=tuple(found),
        features=tuple(tuple(chance.randint(0, 50) for _ in FEATURES) for _ in found),
        address_spaces=address_spaces,
        name=f"small{layers}",
    )


def other_digest(problem: Problem) -> Problem:
    """The same network, a little slower."""
    return msgspec.structs.replace(
        problem, layers=(*problem.layers[:-1], msgspec.structs.replace(problem.layers[-1], overhead_ps=9))
    )
