"""Schedules that follow a hint: list scheduling with eviction, in the hint's order and on the tiles that it likes.

They are raced with those that follow nothing: at each initiation interval (II) below the best one, and at that.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from stowplan.models.hint import TRUST, Hint
from stowplan.models.modulo_scheduling.hint import TIME, tile_name
from stowplan.portfolio.modulo_scheduling.body import Body
from stowplan.portfolio.modulo_scheduling.mapper import Mapper
from stowplan.portfolio.modulo_scheduling.search import FIRST_RATIO, Tally

#: Clocks that the tile a hint likes best is worth: more than a link that is missing.
LIKING = 12.0


def follow(tally: Tally, hint: Hint, seed: int, stop: Callable[[], bool]) -> bool:
    """Try schedules that follow a hint at one II after the other, upwards; whether one is better than the best before.

    Parameters
    ----------
    tally
        Of the loop body; it is told of what is found, and of what that cost.
    hint
        With values, checked.
    seed
        Of ties.
    stop
        Asked between two attempts, and in them.
    """
    body, before = tally.body, tally.best
    above = None if before is None else before.ii
    for ii in body.iis:
        if above is not None and ii > above:
            break
        for attempt, order in enumerate(_orders(body, hint, ii)):
            if stop():
                return tally.best is not before
            mapper = Mapper(body, ii, random.Random(f"{seed} {ii} {attempt}"), liking=_liking(body, hint))
            done = mapper.run(order, FIRST_RATIO * body.count, stop)
            tally.placements += max(1, mapper.steps)
            if done:
                tally.offer(ii, mapper.tiles, mapper.times)
        if tally.best is not before:
            return True
    return False


def _orders(body: Body, hint: Hint, ii: int) -> Iterator[list[float]]:
    """Orders to place instructions in, the highest first: the hint's, then that of heights."""
    heights = [float(height) for height in body.heights(ii)]
    longest = max(heights, default=0.0)
    times, sure = hint.values[TIME], hint.confidence or (1.0,) * body.count
    yield [
        longest * (1.0 - time) if trust >= TRUST else height for height, time, trust in zip(heights, times, sure, strict=True)
    ]
    yield heights


def _liking(body: Body, hint: Hint) -> NDArray[np.float64]:
    """[groups, tiles] Clocks that each tile is worth to a group: that of its instruction which is surest."""
    values = np.array([hint.values[tile_name(tile)] for tile in range(body.tiles)], np.float64)
    sure = np.array(hint.confidence, np.float64) if hint.confidence else np.ones(body.count)
    values[:, sure < TRUST] = 0.0
    found = [values[:, members].max(axis=1) for members in body.members]
    return LIKING * np.array(found, np.float64).reshape(len(body.members), body.tiles)
