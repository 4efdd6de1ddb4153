"""The simulated chip with which learned policies are trained: it returns a reward for every proposed memory map.

A proposal is first rectified (:mod:`stowplan.hardware.nnp_i.compiler`). *Epsilon* is the fraction of all bytes whose tier the
rectification changed. If it is 0, one inference runs and is measured. A *memory map* assigns a tier to the weights and to the
output of every layer; tiers are numbers from 0, the slowest one. If tiers are *address spaces*, every tensor also has an offset
in its tier. Shapes of arrays are in brackets: ``[K, N, 2]``.

Source: Khadka et al., ICLR 2021, algorithm 1.
"""

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

#: Factor of all rewards (table 2 of the paper).
REWARD_SCALE = 5.0


@dataclass(frozen=True)
class Evaluation:
    """Result of the evaluation of one proposed memory map."""

    map: MemoryMap
    """The rectified proposal, which can be executed."""
    epsilon: float
    """Fraction of all bytes whose tier the rectification changed."""
    latency_ps: int
    """Latency in ps of the rectified memory map by the cost model, without noise."""
    measured_ps: float | None
    """Measured duration of the inference in ps, with noise; None if no inference ran, because the proposal had to be
    rectified."""
    reward: float
    """``REWARD_SCALE`` times the measured speedup; if the proposal had to be rectified, ``REWARD_SCALE`` times ``-epsilon``."""
    speedup: float
    """Measured speedup over the compiler's memory map, which is the compiler's latency over the measured duration; 0 if the
    proposal had to be rectified, as in the paper."""


@dataclass(frozen=True, eq=False)
class Evaluations:
    """Results of the evaluation of K proposed memory maps of a network with N layers; see :class:`Evaluation`."""

    maps: Ints
    """[K, N, 2] tiers of weights and outputs of the rectified proposals."""
    epsilon: Floats
    """[K] fraction of all bytes whose tier changed."""
    latency_ps: Ints
    """[K] latencies in ps of the rectified memory maps, without noise."""
    rewards: Floats
    """[K] rewards."""
    speedups: Floats
    """[K] measured speedups; 0 if the proposal had to be rectified."""


class Chip:
    """A simulated chip that runs one network with proposed memory maps.

    Parameters
    ----------
    problem
        The tier-placement problem of the network.
    noise
        Standard deviation of measured durations, relative to the latency; at least 0 and less than 1.
    seed
        Seed of the noise.

    Raises
    ------
    UsageError
        The noise is out of range.
    InputError
        The compiler finds no memory map for the network.
    """

    def __init__(self, problem: Problem, *, noise: float = 0.0, seed: int = 0):
        if not 0.0 <= noise < 1.0:
            raise UsageError(f"found noise {noise}, expected 0 to below 1")
        self.problem = problem
        self.compiler = compiler_map(problem)
        """The compiler's own memory map."""
        self.compiler_ps = latency_ps(problem, self.compiler.weight_tiers, self.compiler.output_tiers)
        """Latency of the compiler's memory map in ps."""
        self.evaluations = 0
        """Number of evaluated proposals so far; methods are compared after equal numbers of evaluations."""
        self.inferences = 0
        """Number of evaluated proposals that were executed."""
        self._rectifier = Rectifier(problem)
        self._arrays = arrays_of(problem)
        self._total = max(1, int(self._arrays.weights.sum() + self._arrays.outputs.sum()))
        self._noise = noise
        self.reseed(seed)

    def reseed(self, seed: int) -> None:
        """Restarts the noise, so that it is that of a new chip with this seed."""
        self._generator = np.random.default_rng(seed)

    @property
    def noise_generator(self) -> np.random.Generator:
        """The generator of the noise. An evaluation changes only its state and the two counters of a chip."""
        return self._generator

    def evaluate(self, weight_tiers: Sequence[int], output_tiers: Sequence[int]) -> Evaluation:
        """Rectifies a proposal and, if it did not have to be changed, runs one inference.

        Parameters
        ----------
        weight_tiers, output_tiers
            The proposed tier of each layer's weights, and of its output.

        Raises
        ------
        UsageError
            The proposal does not have a tier for each layer, or has one that does not exist.
        """
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
        """Evaluates many proposals as :meth:`evaluate` does, in their order.

        Parameters
        ----------
        maps
            ``[K, layers, 2]`` the proposed tiers of weights and outputs.

        Raises
        ------
        UsageError
            The array has another shape, or has a tier that does not exist.
        """
        compiled, epsilon = self.compiled(maps)
        latency = latencies(self._arrays, compiled[..., 0], compiled[..., 1])
        _, speedups = self._run(latency, epsilon)
        rewards = REWARD_SCALE * np.where(epsilon > 0, -epsilon, speedups)
        return Evaluations(compiled, epsilon, latency, rewards, speedups)

    def compiled(self, maps: Ints) -> tuple[Ints, Floats]:
        """Rectifies proposals without running them; this does not count as an evaluation.

        Parameters
        ----------
        maps
            ``[K, layers, 2]`` the proposed tiers of weights and outputs.

        Returns
        -------
        tuple
            ``[K, layers, 2]`` the rectified tiers, with 0 for weights of 0 bytes; and ``[K]`` the epsilons, which are the
            fractions of all bytes whose tier changed.

        Raises
        ------
        UsageError
            The array has another shape, or has a tier that does not exist.
        """
        count, tiers = len(self.problem.layers), len(self.problem.tiers)
        maps = np.asarray(maps)
        if maps.ndim != 3 or maps.shape[1:] != (count, 2) or maps.dtype.kind not in "iu":
            shown = f"{maps.dtype} maps of shape {maps.shape}"
            raise UsageError(f"found {shown}, expected whole numbers of shape (any number of maps, {count}, 2)")
        if maps.size and not 0 <= maps.min() <= maps.max() < tiers:
            raise UsageError(f"found tiers from {maps.min()} to {maps.max()}, expected 0 to {tiers - 1}")
        if self.problem.address_spaces:
            rectified = [self._rectifier.rectify(one[:, 0].tolist(), one[:, 1].tolist()) for one in maps]
            compiled_maps = np.array([np.stack(one.map[:2], axis=1) for one in rectified], np.int64).reshape(-1, count, 2)
            return compiled_maps, np.array([one.epsilon for one in rectified], np.float64)
        # These arrays are changed in place, so they must be copies.
        weights, outputs = (np.array(maps[..., which], np.int64, order="C") for which in range(2))
        weights[:, self._arrays.weights == 0] = 0
        proposed = weights.copy(), outputs.copy()
        moved = rectify(self._arrays, weights, outputs)
        for failed in np.flatnonzero(moved < 0):
            weights[failed], outputs[failed] = self.compiler.weight_tiers, self.compiler.output_tiers
            moved[failed] = self._arrays.weights[weights[failed] != proposed[0][failed]].sum()
            moved[failed] += self._arrays.outputs[outputs[failed] != proposed[1][failed]].sum()
        return np.stack([weights, outputs], axis=2), moved / self._total

    def _rectified(self, weight_tiers: Sequence[int], output_tiers: Sequence[int]) -> Rectified:
        """Rectifies one proposal; the result has offsets if tiers are address spaces."""
        if self.problem.address_spaces:
            return self._rectifier.rectify(weight_tiers, output_tiers)
        proposed = self._rectifier.checked(weight_tiers, output_tiers)
        maps, epsilon = self.compiled(np.stack(proposed[:2], axis=1)[np.newaxis])
        weights, outputs = maps[0].T.tolist()
        return Rectified(MemoryMap(tuple(weights), tuple(outputs)), float(epsilon[0]))

    def _run(self, latency_ps: Ints, epsilon: Floats) -> tuple[Floats, Floats]:
        """Runs the memory maps that rectification did not change; returns measured durations in ps, and speedups.

        The speedup is 0 for the other memory maps.
        """
        executed = np.flatnonzero(epsilon == 0)
        self.evaluations += len(latency_ps)
        self.inferences += len(executed)
        measured = latency_ps.astype(np.float64)
        if self._noise:
            # The factor is at least 0.01, so that measurements stay positive.
            measured[executed] *= np.maximum(0.01, 1.0 + self._noise * self._generator.standard_normal(len(executed)))
        speedups = np.zeros(len(measured))
        takes_time = measured[executed] > 0
        speedups[executed] = np.where(takes_time, self.compiler_ps / np.where(takes_time, measured[executed], 1.0), 1.0)
        return measured, speedups

    def plan(self, memory_map: MemoryMap) -> Plan:
        """The plan of a memory map that can be executed."""
        return plan_of(self.problem, memory_map)
