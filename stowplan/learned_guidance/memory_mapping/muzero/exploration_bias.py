"""Exploration bias: episodes that are played throughout with preferences of their own, so that self-play sees other games.

Noise at single moves hardly ever keeps fast memory empty for long enough to hold a very large buffer, because dozens of moves
must all be drops. A *bias* is drawn once for an episode and changes the preferences of all of its moves alike: fast memory only
for buffers whose benefit, or benefit per byte and step, is above some threshold. It is the exploration by perturbed parameters
of Plappert et al. 2018, with a few parameters that mean something in place of a network's many. The paper has none; see
``docs/reference/mmap-muzero.md``.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from stowplan.compiled import njit_outer
from stowplan.learned_guidance.memory_mapping.game.kernel.layout import COPY, DROP, LEGAL, POSITION, RETURN_PS
from stowplan.learned_guidance.memory_mapping.game.kernel.readers import benefit, is_over, placement
from stowplan.learned_guidance.memory_mapping.game.kernel.rules import step
from stowplan.learned_guidance.memory_mapping.game.kernel.tables import Ints, Tables
from stowplan.learned_guidance.memory_mapping.observation.kernel import clipped, signed
from stowplan.learned_guidance.memory_mapping.observation.layout import ActionFeature, Floats

Bias = NDArray[np.float32]
"""Shape (4,): slopes over the reward and over the density of an action, threshold of the two, preference of Copy to NoCopy."""

#: Steepest and gentlest slope, in nats for each unit of the features (both are logarithms).
SLOPES = 1.0, 30.0

#: Range of thresholds, in the features' units: from what earns less than the mean to what earns fifty times as much.
THRESHOLDS = -0.2, 1.4

NONE: Bias = np.zeros(4, np.float32)
"""No bias."""


def draw(rng: np.random.Generator) -> Bias:
    """A random bias: a slope, how it is shared between reward and density, a threshold, and a preference for copies."""
    slope = np.exp(rng.uniform(*np.log(SLOPES)))
    share = rng.random()
    threshold = rng.uniform(*THRESHOLDS)
    return np.array([slope * share, slope * (1.0 - share), slope * threshold, rng.normal()], np.float32)


def preferences(biases: Floats, actions: Floats) -> Floats:
    """What biases (B, 4) add to the log probabilities of actions, shape (B, 3), given the action features (B, 3, G)."""
    reward, density, threshold, copies = (biases[:, number, None] for number in range(4))
    found = reward * actions[:, :, ActionFeature.REWARD] + density * actions[:, :, ActionFeature.DENSITY] - threshold
    found[:, COPY] += copies[:, 0]
    found[:, DROP] = 0.0
    return np.asarray(found, np.float32)


@njit_outer
def play_biased(tables: Tables, data: Ints, bias: Floats, noise: Floats, mean_benefit: float, density: float) -> int:
    """Play to the end by a bias (4,) alone, at each move the action that it and the noise (M, 3) like best; the return (ps).

    ``mean_benefit`` and ``density`` (of benefit, per byte and step) are the program's, as in the action features.
    """
    while not is_over(tables, data):
        position = data[POSITION]
        reward = float(benefit(tables, data, position))
        best, most = -1, 0.0
        for action in range(3):
            if not data[LEGAL] >> action & 1:
                continue
            preference = float(noise[position, action])
            if action != DROP:
                start, end, _ = placement(data, action)
                area = float(tables.moves[position].bytes) * (end - start)
                preference += bias[0] * signed(reward / mean_benefit) - bias[2]
                preference += bias[1] * clipped(signed(reward / max(area, 1e-9) / density))
            if action == COPY:
                preference += bias[3]
            if best < 0 or preference > most:
                best, most = action, preference
        step(tables, data, best)
    return data[RETURN_PS]  # type: ignore[no-any-return]
