"""Small networks of layers with node features, and a tiny policy for them."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np

from stowplan.hardware.nnp_i.problem import FEATURES
from stowplan.models.tier_placement.problem import Problem
from tests.models.tier_placement.cases import chain


def featured(problem: Problem, seed: int = 0) -> Problem:
    """The same with any numbers for features."""
    rows = np.random.default_rng(seed).integers(0, 29, (len(problem.layers), len(FEATURES)))
    return msgspec.structs.replace(problem, features=tuple(tuple(row) for row in rows.tolist()))


def small_network(layers: int = 12, *, address_spaces: bool = False) -> Problem:
    """A chain with a fast tier that holds a part of it."""
    return featured(chain(layers, address_spaces=address_spaces))


def write_policy(path: Path) -> Path:
    """A policy file that knows next to nothing."""
    from stowplan.learned_guidance.tier_placement.egrl.trainer import Trainer
    from stowplan.learned_guidance.training.run import run
    from tests.learned_guidance.tier_placement.egrl.networks import small_config

    trainer = Trainer([small_network()], small_config(evaluations=12), seed=0)
    run(trainer)
    trainer.save_policy(path)
    return path
