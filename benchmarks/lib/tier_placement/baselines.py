"""Baselines of the EGRL paper that know nothing: random maps, and simulated annealing as in the textbooks."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from stowplan.compiled import njit
from stowplan.portfolio.tier_placement import engine
from stowplan.portfolio.tier_placement.arrays import Data, Ints
from stowplan.portfolio.tier_placement.engine import State, _overfull, _random, _shift
from stowplan.portfolio.tier_placement.heuristics import Search, Walk, any_map


@njit
def _random_map(data: Data, state: State, order: Ints) -> None:
    """Put every tensor, in this order, into a random tier; where it does not fit, into the next slower one with room."""
    for i in order:
        t = _random(state, len(data.capacity))
        _shift(data, state, i, t)
        while t > 0 and _overfull(data, state, t):
            t -= 1
            _shift(data, state, i, t)


def random_maps(data: Data, seed: int, evaluations: int, stop: Callable[[], bool]) -> Walk | None:
    """The best of many random maps, made executable: what does not fit stands in the next slower tier."""
    begin = any_map(data, seed)
    if begin is None:
        return None
    walk = Walk(begin, engine.latency(data, engine.start(data, begin, seed)))
    random = np.random.default_rng(seed)
    slowest = np.zeros(len(data.size), np.int64)
    state = engine.start(data, slowest, seed)
    while walk.evaluations < evaluations and not stop():
        _random_map(data, state, random.permutation(len(data.size)).astype(np.int64))
        found = engine.latency(data, state)
        walk.evaluations += 1
        if found < walk.latency and engine.fits_capacities(data, state):
            walk.latency = found
            walk.tier[:] = state.tier
            walk.note()
    return walk


def annealing(data: Data, tier: Ints, seed: int, evaluations: int, stop: Callable[[], bool]) -> Walk:
    """Simulated annealing as in the textbooks: one tensor moves at a time, maps that do not fit are refused."""
    search = Search(data, tier, seed)
    search.cool(evaluations, search.scale(), stop, ejections=0)
    return search.walk
