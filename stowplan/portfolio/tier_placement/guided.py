"""Maps that follow a hint: every tensor as fast as the hint lets it, then what is too much thrown out.

A map for each of several thresholds; they are raced with the maps of heuristics that follow nothing. The annealing that goes on
from the best fills up what is left.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from stowplan.models.hint import TRUST, Hint
from stowplan.models.tier_placement.plan import placed
from stowplan.models.tier_placement.problem import Problem
from stowplan.portfolio.tier_placement import engine
from stowplan.portfolio.tier_placement.arrays import Data, Ints
from stowplan.portfolio.tier_placement.heuristics import Walk

#: A tensor comes into the fastest tier that, with those above it, has at least this much of its values.
THRESHOLDS = (0.5, 0.2)


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
    for least in THRESHOLDS:
        if best is not None and stop():
            break
        state = engine.start(data, np.where(sure >= TRUST, _fastest(shares, least, begin), begin), 0)
        if not engine.repair(data, state):
            continue
        found = engine.latency(data, state)
        if best is None or found < best.latency:
            best = Walk(state.tier.copy(), found, evaluations=1)
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
