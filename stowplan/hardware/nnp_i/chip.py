"""The chip as learned policies meet it: propose a map, and get a reward. Khadka et al., ICLR 2021, algorithm 1."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from stowplan.errors import UsageError
from stowplan.hardware.nnp_i.compiler import MemoryMap, compiler_map
from stowplan.hardware.nnp_i.rectifier import Rectifier
from stowplan.hardware.nnp_i.timing import Timing
from stowplan.models.tier_placement.plan import Plan
from stowplan.models.tier_placement.problem import Problem

#: Rewards are scaled by this (table 2 of the paper).
REWARD_SCALE = 5.0


@dataclass(frozen=True)
class Evaluation:
    """What the chip says of a proposal."""

    map: MemoryMap
    """The proposal, rectified: it can be executed."""
    epsilon: float
    """Ratio of bytes that were re-assigned."""
    latency_ps: int
    """Of the rectified map, by the cost model, without noise."""
    measured_ps: float | None
    """What the inference took, noise included; None where there was none, because the proposal had to be rectified."""
    reward: float
    """``REWARD_SCALE`` times minus epsilon where that is positive, else times the speedup that was measured."""
    speedup: float
    """Over the compiler's map, as the paper reports it: 0 where the proposal could not be executed."""


class Chip:
    """A simulated chip, with one network on it.

    Parameters
    ----------
    noise
        Standard deviation of measurements, relative to the latency.
    seed
        Of that noise.

    Raises
    ------
    InputError
        The compiler finds no map for the network.
    """

    def __init__(self, problem: Problem, *, noise: float = 0.0, seed: int = 0):
        if not 0.0 <= noise < 1.0:
            raise UsageError(f"found noise {noise}, expected 0 to below 1")
        self.problem = problem
        self.timing = Timing(problem)
        self.compiler = compiler_map(problem)
        """The compiler's own map."""
        self.compiler_ps = self.timing.latency_ps(self.compiler.weight_tiers, self.compiler.output_tiers)
        """Its latency."""
        self.evaluations = 0
        """Proposals so far: what all methods are compared by."""
        self.inferences = 0
        """Those of them that were executed."""
        self._rectifier = Rectifier(problem)
        self._noise = noise
        self._chance = np.random.default_rng(seed)

    def evaluate(self, weight_tiers: Sequence[int], output_tiers: Sequence[int]) -> Evaluation:
        """Compile a proposal and, where it can be executed as it is, run one inference. UsageError: it is no map at all."""
        found, epsilon = self._rectifier.rectify(weight_tiers, output_tiers)
        self.evaluations += 1
        latency = self.timing.latency_ps(found.weight_tiers, found.output_tiers)
        if epsilon > 0:
            return Evaluation(found, epsilon, latency, None, -REWARD_SCALE * epsilon, 0.0)
        self.inferences += 1
        measured = float(latency)
        if self._noise:
            # Measurements stay positive, however unlucky.
            measured *= max(0.01, 1.0 + self._noise * float(self._chance.standard_normal()))
        speedup = self.compiler_ps / measured if measured else 1.0
        return Evaluation(found, 0.0, latency, measured, REWARD_SCALE * speedup, speedup)

    def plan(self, found: MemoryMap) -> Plan:
        """A map that can be executed, as a plan."""
        latency = self.timing.latency_ps(found.weight_tiers, found.output_tiers)
        return Plan(problem=self.problem.digest, objective_ps=latency, **found._asdict())
