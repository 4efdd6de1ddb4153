"""The baselines of the EGRL paper and a local search of our own, all counted in evaluations of the hardware.

An evaluation is one run of the network on the chip with a new map, valid or not, as the paper counts them (section 4).

Maps that follow a hint have every tensor as fast as the hint lets it, then what is too much thrown out: one for each of several
thresholds, raced with the maps of heuristics that follow nothing.
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
    """Moves between two looks at the clock."""
    cold: float = 1e-4
    """Part of the first temperature at which a cooling ends."""
    tries: int = 50
    """Orders that are tried for a map where not all fits into the slowest tier."""
    thresholds: tuple[float, float] = (0.5, 0.2)
    """Share of a tensor with which, and with the tiers above, it comes into the fastest tier that has so much of its values."""


PARAMS = parameters(AnnealingParameters, __name__)


@dataclass
class Walk:
    """What a heuristic has found so far."""

    tier: Ints
    """[m] The best map."""
    latency: int
    """Of it, ps."""
    evaluations: int = 0
    progress: list[tuple[int, int]] = field(default_factory=list)
    """(evaluations, best latency) at each improvement that was looked at."""

    def note(self) -> None:
        """Remember how far it is."""
        if not self.progress or self.latency < self.progress[-1][1]:
            self.progress.append((self.evaluations, self.latency))


def is_valid(data: Data, tier: Ints) -> bool:
    """Whether no tier ever holds more than it can."""
    return bool(engine.holds(data, engine.start(data, tier, 0)))


def any_map(data: Data, seed: int = 0) -> Ints | None:
    """A valid map: all in the slowest tier where it holds them, else the first that chance finds; None where it finds none."""
    tier = np.zeros(len(data.size), np.int64)
    if is_valid(data, tier):
        return tier
    random = np.random.default_rng(seed)
    for attempt in range(PARAMS.tries):
        state = engine.start(data, tier, seed * PARAMS.tries + attempt)
        # The largest first: they have the fewest places to go.
        order = np.argsort(-data.size * random.uniform(0.5, 1.0, len(data.size)), kind="stable")
        engine.place_anywhere(data, state, order.astype(np.int64))
        if is_valid(data, state.tier):
            return state.tier.copy()
    return None


def greedy_dp(data: Data, tier: Ints, stop: Callable[[], bool], passes: int = 50) -> Walk:
    """Greedy-DP of the paper: layer by layer, the best of all choices with the rest as it is; passes until none helps."""
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
    """Our local search: annealing whose moves throw tensors out of a tier that gets too full, cooled again and again.

    The tensors thrown out are those that lose least a byte among a few drawn at random, so that a large tensor can take the
    place of several small ones in one move: plain annealing would have to pass through worse maps for that.
    """

    def __init__(self, data: Data, tier: Ints, seed: int):
        self.data = data
        self._state = engine.start(data, tier, seed)
        self._now = engine.latency(data, self._state)
        self._seed, self._cycles = seed, 0
        self.walk = Walk(tier.copy(), self._now)

    def scale(self) -> float:
        """Temperature at which the walk begins to hold on to what matters, ps."""
        greedy = greedy_dp(self.data, self.walk.tier, lambda: False, passes=1)
        return max(1.0, float(engine.mean_loss(self.data, engine.start(self.data, greedy.tier, 0))))

    def restart(self, tier: Ints) -> None:
        """Go on from another valid map."""
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
        """One cooling of so many moves, each an evaluation; without ejections, maps that do not fit are refused."""
        walk = self.walk
        # Short coolings look at their progress often enough to draw it.
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
        The network, and its arrays for m tensors and T tiers.
    hint
        With values, checked.
    begin
        [m] A valid map: where tensors stand that the hint says nothing of.
    stop
        Asked between two maps.

    Returns
    -------
    Walk
        None where no map that follows it fits.
    """
    shares, sure = _in_order(problem, data, hint)
    best: Walk | None = None
    for least in PARAMS.thresholds:
        if best is not None and stop():
            break
        state = engine.start(data, np.where(sure >= TRUST, _fastest(shares, least, begin), begin), 0)
        if not engine.repair(data, state):
            continue
        latency = engine.latency(data, state)
        if best is None or latency < best.latency:
            best = Walk(state.tier.copy(), latency, evaluations=1)
    return best


def _in_order(problem: Problem, data: Data, hint: Hint) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Values [T, m] and confidences [m] of a hint, its tensors in the order of the arrays."""
    number: dict[tuple[int, bool], int] = {decision: place for place, decision in enumerate(placed(problem))}
    owners = zip(data.layer.tolist(), data.is_weight.tolist(), strict=True)
    order = [number[layer, not is_weight] for layer, is_weight in owners]
    shares = np.array([hint.values[tier.name] for tier in problem.tiers], np.float64)[:, order]
    sure = np.array(hint.confidence, np.float64)[order] if hint.confidence else np.ones(len(order))
    return shares, sure


def _fastest(shares: NDArray[np.float64], least: float, otherwise: Ints) -> Ints:
    """[m] The fastest tier such that it and those above it have at least the part ``least`` of a tensor's values."""
    total = shares.sum(axis=0)
    above = np.cumsum(shares[::-1], axis=0)
    steps = np.argmax(above >= np.maximum(least * total, 1e-12), axis=0)
    return np.where(total > 0, len(shares) - 1 - steps, otherwise).astype(np.int64)
