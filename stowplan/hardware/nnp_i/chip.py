"""The chip as learned policies meet it: propose a map, and get a reward. Khadka et al., ICLR 2021, algorithm 1."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from stowplan.errors import UsageError
from stowplan.hardware.nnp_i import kernel
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


@dataclass(frozen=True, eq=False)
class Evaluations:
    """The same of many proposals."""

    maps: kernel.Ints
    """[K, N, 2] Tiers of weights and outputs, rectified."""
    epsilon: kernel.Floats
    """[K]"""
    latency_ps: kernel.Ints
    """[K] Of the rectified maps, without noise."""
    rewards: kernel.Floats
    """[K]"""
    speedups: kernel.Floats
    """[K] 0 where the proposal could not be executed."""


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
        self._arrays = kernel.arrays_of(problem)
        self._total = max(1, int(self._arrays.weights.sum() + self._arrays.outputs.sum()))
        self._noise = noise
        self._chance = np.random.default_rng(seed)

    @property
    def noise_generator(self) -> np.random.Generator:
        """What noise is drawn from: its state and the two counters are all that a chip remembers of its proposals."""
        return self._chance

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

    def compiled(self, maps: kernel.Ints) -> tuple[kernel.Ints, kernel.Floats]:
        """What the compiler makes of proposals, without running them: ``[K, N, 2]`` tiers, and epsilons ``[K]``.

        Tiers of weights of 0 bytes are 0 in the result, whatever was proposed. UsageError where a tier does not exist.
        """
        count = len(self.problem.layers)
        if maps.ndim != 3 or maps.shape[1:] != (count, 2):
            raise UsageError(f"found maps of shape {maps.shape}, expected (any number, {count}, 2)")
        if maps.size and not (maps.min() >= 0 and maps.max() < len(self.problem.tiers)):
            raise UsageError(f"found tiers {maps.min()} to {maps.max()}, expected 0 to {len(self.problem.tiers) - 1}")
        if self.problem.address_spaces:
            found = [self._rectifier.rectify(each[:, 0].tolist(), each[:, 1].tolist()) for each in maps]
            tiers = np.array([np.stack(each.map[:2], axis=1) for each in found], np.int64).reshape(-1, count, 2)
            return tiers, np.array([each.epsilon for each in found])
        weights, outputs = maps[..., 0].astype(np.int64), maps[..., 1].astype(np.int64)
        wanted = np.where(self._arrays.weights > 0, weights, 0), outputs.copy()
        moved = kernel.rectify(self._arrays, weights, outputs)
        for failed in np.flatnonzero(moved < 0):
            weights[failed], outputs[failed] = self.compiler.weight_tiers, self.compiler.output_tiers
            moved[failed] = self._arrays.weights[weights[failed] != wanted[0][failed]].sum()
            moved[failed] += self._arrays.outputs[outputs[failed] != wanted[1][failed]].sum()
        return np.stack([weights, outputs], axis=2), moved / self._total

    def evaluate_many(self, maps: kernel.Ints) -> Evaluations:
        """:meth:`evaluate` of many proposals ``[K, N, 2]`` at once, in their order."""
        found, epsilon = self.compiled(maps)
        latency = kernel.latencies(self._arrays, found[..., 0], found[..., 1])
        speedups = np.zeros(len(maps))
        executed = np.flatnonzero(epsilon == 0)
        measured = latency[executed].astype(float)
        if self._noise:
            measured *= np.maximum(0.01, 1.0 + self._noise * self._chance.standard_normal(len(executed)))
        speedups[executed] = np.where(measured > 0, self.compiler_ps / np.where(measured > 0, measured, 1.0), 1.0)
        self.evaluations += len(maps)
        self.inferences += len(executed)
        rewards = REWARD_SCALE * np.where(epsilon > 0, -epsilon, speedups)
        return Evaluations(found, epsilon, latency, rewards, speedups)

    def plan(self, found: MemoryMap) -> Plan:
        """A map that can be executed, as a plan."""
        latency = self.timing.latency_ps(found.weight_tiers, found.output_tiers)
        return Plan(problem=self.problem.digest, objective_ps=latency, **found._asdict())
