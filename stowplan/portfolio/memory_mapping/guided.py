"""Constructive heuristics that follow a hint: tensors come to fast memory where it says so, and stay as long as it says.

A plan for each of several thresholds and orders; each is then filled up with what the hint left out. They are raced with the
heuristics that follow nothing, so that a bad hint costs a little time.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from stowplan.models.hint import TRUST, Hint
from stowplan.models.memory_mapping.hint import FAST, KEEP, PLACE
from stowplan.portfolio.memory_mapping.arrays import Data, Ints
from stowplan.portfolio.memory_mapping.construct import Floats, construct, follow, lowest_places, permitted_gains
from stowplan.portfolio.memory_mapping.engine import new_state
from stowplan.portfolio.memory_mapping.heuristics import PIECE, Built, by_density, run
from stowplan.portfolio.memory_mapping.space import BEST_FIT, FIRST_FIT
from stowplan.portfolio.memory_mapping.state import ENTER, STAY, State

#: A tensor comes in where its value is at least this, and stays where that one is. Small: what a relaxation has a little of in
#: fast memory is worth trying, and one half is much worse (``docs/results/guidance.md``).
THRESHOLDS = (0.2, 0.05)

#: Part of an objective by which a plan that follows a hint may be worse and still be near it. On 31 modules, where one of the
#: eight plans that follow the relaxation, the learned guide or memory filled by density was better than all that follow none,
#: the first was no worse than those (but for resnet50_inf: 3.3 %, and the best of eight gained 0.01 %). With values at the
#: wrong accesses it was 2 to 24 % worse on the six hard ones.
MARGIN = 0.02


class Guide(NamedTuple):
    """The values of a hint, each of shape ``[accesses]``."""

    fast: Floats
    keep: Floats
    sure: Floats
    place: Floats | None = None
    """None where the hint has none."""


def guide(hint: Hint) -> Guide:
    """The values of a hint that :func:`stowplan.models.hint.check` has passed."""
    fast, keep = (np.array(hint.values[name], np.float64) for name in (FAST, KEEP))
    sure = np.array(hint.confidence, np.float64) if hint.confidence else np.ones_like(fast)
    return Guide(fast, keep, sure, np.array(hint.values[PLACE], np.float64) if PLACE in hint.values else None)


def followed(data: Data, guide: Guide, least: float, by: int) -> Built:
    """Every tensor in the best of the ways that the guide permits, in one of the :data:`ORDERS`."""
    state = new_state(data)
    follow(data, state, guide.fast, guide.keep, guide.sure, least, TRUST)
    if by == BY_PLACE:
        assert guide.place is not None
        places = np.full(len(data.tensors) - 1, np.inf)
        lowest_places(data, guide.fast, guide.place, guide.sure, TRUST, places)
        order = np.argsort(places, kind="stable")[: np.count_nonzero(places < np.inf)]
    else:
        order = _order(data, state, by)
    for start in range(0, len(order), PIECE):
        construct(data, state, order, start, PIECE, True, FIRST_FIT if by == BY_PLACE else BEST_FIT, True)
        yield state
    yield state


def guided(data: Data, guide: Guide, least: float, by: int) -> Built:
    """What :func:`followed` builds, filled up with the tensors that found no place, in any of the ways."""
    for state in followed(data, guide, least, by):
        yield state
    state.permits[:] = ENTER | STAY
    rest = by_density(data, 1)
    for start in range(0, len(rest), PIECE):
        construct(data, state, rest, start, PIECE, True, BEST_FIT, True)
        yield state
    yield state


#: Orders: by saving, bytes, saving over the root of bytes, saving over bytes; the largest first.
ORDERS = (0, 1, 2, 3)

#: One more, where a hint says where tensors stand: from the lowest up, each as low as it can. So all that stood together finds
#: room again, at its place or below.
BY_PLACE = 4


def _order(data: Data, state: State, by: int) -> Ints:
    gains = np.zeros(len(data.tensors) - 1)
    permitted_gains(data, state, gains)
    size = np.array([max(1, data.tensors[tensor].bytes) for tensor in range(len(gains))], np.float64)
    keys = (gains, size, gains / np.sqrt(size), gains / size)[by]
    order = np.argsort(-keys, kind="stable")
    return order[gains[order] > 0]


def best_guided(data: Data, hint: Hint, stop: Callable[[], bool], objective: int | None = None) -> State:
    """The best plan that follows a hint, of those that time allows; the first as far as time allows.

    Where there is a plan of this ``objective``, in picoseconds, and none up to that of the first of :data:`ORDERS` comes near
    it (:data:`MARGIN`), no further one is built: so a hint that says little of this problem costs little.
    """
    values = guide(hint)
    enough = math.inf if objective is None else (1.0 + MARGIN) * objective
    best: State | None = None
    for least in THRESHOLDS:
        for by in ORDERS if values.place is None else (BY_PLACE, *ORDERS):
            state, _ = run(guided(data, values, least, by), stop)
            if best is None or state.totals[0].total < best.totals[0].total:
                best = state
            if stop() or (by == ORDERS[0] and best.totals[0].total > enough):
                return best
    assert best is not None
    return best
