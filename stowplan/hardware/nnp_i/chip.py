"""The chip as learned policies meet it: propose a map, and get a reward. Khadka et al., ICLR 2021, algorithm 1."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from stowplan.errors import UsageError
from stowplan.hardware.nnp_i.compiled import Floats, Ints, arrays_of, latencies, rectify
from stowplan.hardware.nnp_i.compiler import MemoryMap, Rectified, Rectifier, compiler_map, plan_of
from stowplan.hardware.nnp_i.problem import latency_ps
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

    maps: Ints
    """[K, N, 2] Tiers of weights and outputs, rectified."""
    epsilon: Floats
    """[K]"""
    latency_ps: Ints
    """[K] Of the rectified maps, without noise."""
    rewards: Floats
    """[K]"""
    speedups: Floats
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
        self.compiler = compiler_map(problem)
        """The compiler's own map."""
        self.compiler_ps = latency_ps(problem, self.compiler.weight_tiers, self.compiler.output_tiers)
        """Its latency."""
        self.evaluations = 0
        """Proposals so far: what all methods are compared by."""
        self.inferences = 0
        """Those of them that were executed."""
        self._rectifier = Rectifier(problem)
        self._arrays = arrays_of(problem)
        self._total = max(1, int(self._arrays.weights.sum() + self._arrays.outputs.sum()))
        self._noise = noise
        self.reseed(seed)

    def reseed(self, seed: int) -> None:
        """Noise from here on as of a new chip with this seed."""
        self._chance = np.random.default_rng(seed)

    @property
    def noise_generator(self) -> np.random.Generator:
        """What noise is drawn from: its state and the two counters are all that a chip remembers of its proposals."""
        return self._chance

    def evaluate(self, weight_tiers: Sequence[int], output_tiers: Sequence[int]) -> Evaluation:
        """Compile a proposal and, where it can be executed as it is, run one inference. UsageError: it is no map at all."""
        rectified, epsilon = self._rectified(weight_tiers, output_tiers)
        latency = latency_ps(self.problem, rectified.weight_tiers, rectified.output_tiers)
        measured, speedups = self._run(np.array([latency]), np.array([epsilon]))
        is_executed = epsilon == 0
        return Evaluation(
            map=rectified,
            epsilon=epsilon,
            latency_ps=latency,
            measured_ps=float(measured[0]) if is_executed else None,
            reward=REWARD_SCALE * (float(speedups[0]) if is_executed else -epsilon),
            speedup=float(speedups[0]),
        )

    def evaluate_many(self, maps: Ints) -> Evaluations:
        """:meth:`evaluate` of many proposals ``[K, N, 2]``, tiers of weights and outputs, at once; measured in their order."""
        compiled, epsilon = self.compiled(maps)
        latency = latencies(self._arrays, compiled[..., 0], compiled[..., 1])
        _, speedups = self._run(latency, epsilon)
        rewards = REWARD_SCALE * np.where(epsilon > 0, -epsilon, speedups)
        return Evaluations(compiled, epsilon, latency, rewards, speedups)

    def compiled(self, maps: Ints) -> tuple[Ints, Floats]:
        """What the compiler makes of proposals ``[K, N, 2]``, without running them; does not count as an evaluation.

        Returns
        -------
        tuple
            Tiers ``[K, N, 2]``, 0 for weights of 0 bytes whatever was proposed, and epsilons ``[K]``.

        Raises
        ------
        UsageError
            An array of another shape, or a tier that does not exist.
        """
        count, tiers = len(self.problem.layers), len(self.problem.tiers)
        maps = np.asarray(maps)
        if maps.ndim != 3 or maps.shape[1:] != (count, 2) or maps.dtype.kind not in "iu":
            given = f"{maps.dtype} maps of shape {maps.shape}"
            raise UsageError(f"found {given}, expected whole numbers of shape (any number of maps, {count}, 2)")
        if maps.size and not 0 <= maps.min() <= maps.max() < tiers:
            raise UsageError(f"found tiers from {maps.min()} to {maps.max()}, expected 0 to {tiers - 1}")
        if self.problem.address_spaces:
            rectified = [self._rectifier.rectify(one[:, 0].tolist(), one[:, 1].tolist()) for one in maps]
            compiled_maps = np.array([np.stack(one.map[:2], axis=1) for one in rectified], np.int64).reshape(-1, count, 2)
            return compiled_maps, np.array([one.epsilon for one in rectified], np.float64)
        # Copies: they are changed in place.
        weights, outputs = (np.array(maps[..., which], np.int64, order="C") for which in range(2))
        weights[:, self._arrays.weights == 0] = 0
        wanted = weights.copy(), outputs.copy()
        moved = rectify(self._arrays, weights, outputs)
        for failed in np.flatnonzero(moved < 0):
            weights[failed], outputs[failed] = self.compiler.weight_tiers, self.compiler.output_tiers
            moved[failed] = self._arrays.weights[weights[failed] != wanted[0][failed]].sum()
            moved[failed] += self._arrays.outputs[outputs[failed] != wanted[1][failed]].sum()
        return np.stack([weights, outputs], axis=2), moved / self._total

    def _rectified(self, weight_tiers: Sequence[int], output_tiers: Sequence[int]) -> Rectified:
        """Of one proposal, with offsets where tiers are address spaces."""
        if self.problem.address_spaces:
            return self._rectifier.rectify(weight_tiers, output_tiers)
        wanted = self._rectifier.checked(weight_tiers, output_tiers)
        maps, epsilon = self.compiled(np.stack(wanted[:2], axis=1)[np.newaxis])
        weights, outputs = maps[0].T.tolist()
        return Rectified(MemoryMap(tuple(weights), tuple(outputs)), float(epsilon[0]))

    def _run(self, latency_ps: Ints, epsilon: Floats) -> tuple[Floats, Floats]:
        """Inferences of those maps that needed no rectifying: what they took, and speedups (0 of the others)."""
        executed = np.flatnonzero(epsilon == 0)
        self.evaluations += len(latency_ps)
        self.inferences += len(executed)
        measured = latency_ps.astype(np.float64)
        if self._noise:
            # Measurements stay positive, however unlucky.
            measured[executed] *= np.maximum(0.01, 1.0 + self._noise * self._chance.standard_normal(len(executed)))
        speedups = np.zeros(len(measured))
        takes_time = measured[executed] > 0
        speedups[executed] = np.where(takes_time, self.compiler_ps / np.where(takes_time, measured[executed], 1.0), 1.0)
        return measured, speedups

    def plan(self, memory_map: MemoryMap) -> Plan:
        """A map that can be executed, as a plan."""
        return plan_of(self.problem, memory_map)
