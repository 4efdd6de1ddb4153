"""Networks that have learned nothing, in numpy."""

from __future__ import annotations

import numpy as np

from stowplan.learned_guidance.memory_mapping.guide.guide import Weights, shapes


def random_weights(seed: int = 0) -> Weights:
    """Weights such that scores differ from access to access."""
    rng = np.random.default_rng(seed)
    made = {name: (rng.normal(size=shape) * (1.5 / shape[0]) ** 0.5).astype(np.float32) for name, shape in shapes().items()}
    made["scale"] = np.full_like(made["scale"], 0.3)
    return made
