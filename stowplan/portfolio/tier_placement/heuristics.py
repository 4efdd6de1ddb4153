"""Greedy-DP of the EGRL paper and a local search of this project, both counted in evaluations.

A *tier* is one memory of a chip's memory hierarchy; tier 0 is the slowest. A *map* assigns a tier to every tensor. It is
*valid* if no capacity is ever exceeded. An *evaluation* is one run of the network on the (simulated) chip with a new map, valid
or not, as in the paper (section 4). Arrays are those of :class:`stowplan.portfolio.tier_placement.arrays.Data`, for m tensors
and T tiers. The paper is Khadka et al., "Optimizing memory placement using evolutionary graph reinforcement learning" (ICLR
2021).

A *hint* has, for each tensor and tier, a value in [0, 1] that says how good it is to put the tensor there. A map that follows a
hint puts every tensor into the fastest tier that the hint suggests, and then *ejects* tensors from overfull tiers, that is,
moves them into slower ones. One such map is built for each of several thresholds. Heuristics that follow no hint run as well.
Nothing in this module raises an error.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from stowplan.models.hint import TRUST, Hint
from stowplan.models.tier_placement.plan import placed
from stowplan.models.tier_placement.problem import Problem
from stowplan.parameters import Parameters, parameters
from stowplan.portfolio.tier_placement import engine
from stowplan.portfolio.tier_placement.arrays import Data, Ints


class AnnealingParameters(Parameters, frozen=True):
    """Parameters of annealing."""

    chunk: int = 5_000
    """Largest number of moves between two calls of ``stop``."""
    cold: float = 1e-4
    """Last temperature of an annealing run, as a fraction of its first one."""
    tries: int = 50
    """Number of orders of tensors that are tried to find a first map if the slowest tier is too small for all tensors."""
    thresholds: tuple[float, float] = (0.5, 0.2)
    """Fractions of the sum of a tensor's hinted values over all tiers, one for each map that follows a hint. The tensor goes to
    the fastest tier that has, together with all faster tiers, at least this fraction of the sum."""


PARAMS = parameters(AnnealingParameters, __name__)


@dataclass
class Walk:
    """The best map that a heuristic has found, and its history."""

    tier: Ints
    """[m] the best map."""
    latency: int
    """Latency of the best map (ps)."""
    evaluations: int = 0
    """Number of evaluations so far."""
    progress: list[tuple[int, int]] = field(default_factory=list)
    """Pairs (number of evaluations, best latency in ps) at the recorded improvements."""

    def note(self) -> None:
        """Record the best latency if it has improved since the last record."""
        if not self.progress or self.latency < self.progress[-1][1]:
            self.progress.append((self.evaluations, self.latency))


def is_valid(data: Data, tier: Ints) -> bool:
    """Whether a map [m] is valid: no capacity is ever exceeded."""
    return bool(engine.fits_capacities(data, engine.start(data, tier, 0)))


def any_map(data: Data, seed: int = 0) -> Ints | None:
    """A valid map [m]; None if none is found.

    All tensors are in the slowest tier. If that is too small, some are moved to other tiers, in random orders.
    """
    tier = np.zeros(len(data.size), np.int64)
    if is_valid(data, tier):
        return tier
    random = np.random.default_rng(seed)
    for attempt in range(PARAMS.tries):
        state = engine.start(data, tier, seed * PARAMS.tries + attempt)
        # Large tensors come first, because they fit into the fewest tiers.
        order = np.argsort(-data.size * random.uniform(0.5, 1.0, len(data.size)), kind="stable")
        engine.place_anywhere(data, state, order.astype(np.int64))
        if is_valid(data, state.tier):
            return state.tier.copy()
    return None


def greedy_dp(data: Data, tier: Ints, stop: Callable[[], bool], passes: int = 50) -> Walk:
    """Greedy-DP of the EGRL paper: at most ``passes`` passes over all layers, until one brings no improvement.

    Each layer gets the best tiers for its weights and its output while all other tensors are fixed. The first map is ``tier``
    [m], which must be valid. ``stop`` is called after every 256 layers and says whether to end.
    """
    weights = np.full(len(data.compute), -1, np.int64)
    outputs = np.full(len(data.compute), -1, np.int64)
    for i, (layer, is_weight) in enumerate(zip(data.layer.tolist(), data.is_weight.tolist(), strict=True)):
        (weights if is_weight else outputs)[layer] = i
    state = engine.start(data, tier, 0)
    walk = Walk(tier.copy(), engine.latency(data, state))
    block = max(1, min(256, len(weights)))
    for _ in range(passes):
        before = walk.latency
        for begin in range(0, len(weights), block):
            walk.evaluations += engine.greedy_pass(data, state, weights, outputs, begin, min(begin + block, len(weights)))
            walk.latency = engine.latency(data, state)
            walk.tier[:] = state.tier
            walk.note()
            if stop():
                return walk
        if walk.latency == before:
            break
    return walk


class Search:
    """Simulated annealing whose moves eject tensors from a tier that becomes overfull, in several runs (:meth:`cool`).

    The ejected tensors are, of a few random ones, those whose ejection costs the least latency for each byte. In this way a
    large tensor can replace several small ones in one move. Annealing without ejections would have to pass through worse maps.
    Its attribute ``walk`` has the best map of all runs.

    Parameters
    ----------
    data
        The arrays of the problem.
    tier
        [m] a valid map to start from.
    seed
        Seed of the random numbers.
    """

    def __init__(self, data: Data, tier: Ints, seed: int):
        self.data = data
        self._state = engine.start(data, tier, seed)
        self._now = engine.latency(data, self._state)
        self._seed, self._cycles = seed, 0
        self.walk = Walk(tier.copy(), self._now)

    def scale(self) -> float:
        """A first temperature (ps) for annealing from scratch.

        It is the mean increase of the latency if, in the map after one pass of Greedy-DP, a tensor moves one tier down.
        """
        greedy = greedy_dp(self.data, self.walk.tier, lambda: False, passes=1)
        return max(1.0, float(engine.mean_loss(self.data, engine.start(self.data, greedy.tier, 0))))

    def restart(self, tier: Ints) -> None:
        """Continue from another valid map [m], with new random numbers. If it is the best so far, it is kept as the best."""
        self._cycles += 1
        self._state = engine.start(self.data, tier, self._seed + 7919 * self._cycles)
        self._now = engine.latency(self.data, self._state)
        if self._now < self.walk.latency:
            self.walk.latency = self._now
            self.walk.tier[:] = tier

    def cool(
        self,
        moves: int,
        temperature: float,
        stop: Callable[[], bool],
        *,
        ejections: int = engine.EJECTIONS,
    ) -> None:
        """Make one annealing run of ``moves`` moves, each an evaluation, from a first temperature (ps).

        A move may eject at most ``ejections`` tensors. If that is 0, moves that would overfill a tier are rejected. ``stop`` is
        called before every 5,000 moves, or more often in short runs, and says whether to end. ``temperature`` must be positive.
        """
        walk = self.walk
        # Short runs record their progress often enough for a plot.
        chunk = max(1, min(PARAMS.chunk, moves // 40))
        for done in range(0, moves, chunk):
            if stop():
                return
            count = min(chunk, moves - done)
            degrees = temperature * math.exp(math.log(PARAMS.cold) * done / moves)
            self._now, walk.latency = engine.anneal(
                self.data, self._state, count, ejections, degrees, self._now, walk.latency, walk.tier
            )
            walk.evaluations += count
            walk.note()


def best_guided(problem: Problem, data: Data, hint: Hint, begin: Ints, stop: Callable[[], bool]) -> Walk | None:
    """The best map that follows a hint.

    Parameters
    ----------
    problem, data
        The problem, and its arrays for m tensors and T tiers.
    hint
        A checked hint with values (:func:`~stowplan.models.hint.check_hint`).
    begin
        [m] a valid map. It has the tiers of tensors whose hinted values are all 0, or whose confidence is less than
        :data:`~stowplan.models.hint.TRUST`.
    stop
        Called between two maps; True ends the search if there is a map already.

    Returns
    -------
    Walk or None
        None if no map that follows the hint could be made valid.
    """
    shares, sure = _in_order(problem, data, hint)
    best: Walk | None = None
    for least in PARAMS.thresholds:
        if best is not None and stop():
            break
        state = engine.start(data, np.where(sure >= TRUST, _fastest_tiers(shares, least, begin), begin), 0)
        if not engine.repair(data, state):
            continue
        latency = engine.latency(data, state)
        if best is None or latency < best.latency:
            best = Walk(state.tier.copy(), latency, evaluations=1)
    return best


def _in_order(problem: Problem, data: Data, hint: Hint) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Values [T, m] and confidences [m] of a hint, with tensors in the order of the arrays.

    Hints number tensors by layer, the arrays have all weights before all outputs. A hint without confidences has confidence 1.
    """
    number: dict[tuple[int, bool], int] = {decision: place for place, decision in enumerate(placed(problem))}
    owners = zip(data.layer.tolist(), data.is_weight.tolist(), strict=True)
    order = [number[layer, not is_weight] for layer, is_weight in owners]
    shares = np.array([hint.values[tier.name] for tier in problem.tiers], np.float64)[:, order]
    sure = np.array(hint.confidence, np.float64)[order] if hint.confidence else np.ones(len(order))
    return shares, sure


def _fastest_tiers(shares: NDArray[np.float64], least: float, otherwise: Ints) -> Ints:
    """[m] the fastest tier that has, with all faster tiers, at least the fraction ``least`` of the sum of a tensor's values.

    ``shares`` [T, m] has the values. Tensors whose values are all 0 get their tier of ``otherwise``.
    """
    total = shares.sum(axis=0)
    above = np.cumsum(shares[::-1], axis=0)
    steps = np.argmax(above >= np.maximum(least * total, 1e-12), axis=0)
    return np.where(total > 0, len(shares) - 1 - steps, otherwise).astype(np.int64)
