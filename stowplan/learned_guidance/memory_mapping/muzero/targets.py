"""Value targets of a played game: full returns, and n-step values that end in a stored value.

Arrays are over the moves of one game; rewards and values are in the game's learning unit.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]


def full_returns(rewards: F32, discount: float) -> F64:
    """Discounted return from each move to the end of the game, and 0 for after the end: shape (L + 1,)."""
    returns = np.zeros(len(rewards) + 1)
    total = 0.0
    for position in range(len(rewards) - 1, -1, -1):
        total = float(rewards[position]) + discount * total
        returns[position] = total
    return returns


def td_values(returns: F64, values: F32, discount: float, steps: int | None) -> F32:
    """n-step value of each position and of the end, shape (L + 1,): ``steps`` rewards, then the stored value.

    That is G_t - discount^n (G_{t+n} - v_{t+n}), G the full return; beyond the end both are 0. ``steps`` None: G.
    """
    targets = returns.copy()
    if steps is not None and steps < len(values):
        targets[: len(values) - steps] -= discount**steps * (returns[steps:-1] - values[steps:])
    return targets.astype(np.float32)
