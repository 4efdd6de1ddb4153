"""Orders in which to place buffers: by what makes them hard to place, weighed at random."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from stowplan.portfolio.packing.arrays import Data, Ints

Floats = NDArray[np.float64]


def features(data: Data) -> Floats:
    """[6, n] size, life, sections, area, area in sections (logarithms) and buffers met, each with mean 0 and deviation 1."""
    size, life, width = (np.log(column.astype(float)) for column in (data.size, data.life, data.end - data.begin))
    started = np.searchsorted(np.sort(data.begin), data.end)
    met = started - np.searchsorted(np.sort(data.end), data.begin, side="right")
    rows = np.stack([size, life, width, size + life, size + width, met.astype(float)])
    rows -= rows.mean(axis=1, keepdims=True)
    deviation = rows.std(axis=1, keepdims=True)
    return np.asarray(rows / np.where(deviation > 0, deviation, 1.0))


def pressure(data: Data) -> Floats:
    """[n] largest load that a buffer lives through, 1 for the largest of all."""
    load = table = data.load()
    begin, end = data.begin, data.end
    # The largest load of every 2^k sections, for one k after the other; two of them cover a life (Bender, Farach-Colton 2000).
    levels = np.frexp(end - begin)[1] - 1
    peaks = np.zeros(len(begin), np.int64)
    for level in range(int(levels.max(initial=-1)) + 1):
        some = np.flatnonzero(levels == level)
        peaks[some] = np.maximum(table[begin[some]], table[end[some] - (1 << level)])
        table = np.maximum(table[: -1 << level], table[1 << level :])
    return np.asarray(peaks / max(1, int(load.max(initial=0))), np.float64)


def by_key(data: Data, key: Floats) -> Ints:
    """Buffers of fixed offset first, then by descending key; ties by number."""
    return np.lexsort((-key, data.fixed < 0)).astype(np.int64)


#: (other feature, its weight against size, weight of the pressure) of the greedy's orders; the first is by size alone.
_RECIPES = ((1, 0.0, 0.0), (3, 1.0, 0.0), (2, 1.0, 0.0), (1, 0.95, 0.0), (1, 0.2, 3.0), (2, 0.5, 3.0), (1, 0.5, 0.0))

#: Number of the order that starts with what lives at the peak of the load.
PEAK = len(_RECIPES)


def greedy_keys(data: Data) -> Iterator[Floats]:
    """Keys for placing buffers greedily; number :data:`PEAK` is what lives at the peak, then by size."""
    rows, pressed = features(data), pressure(data)
    for row, weight, crowd in _RECIPES:
        yield (1 - weight) * rows[0] + weight * rows[row] + crowd * pressed
    yield rows[0] + 100.0 * (pressed >= 1.0)


def random_keys(data: Data, seed: int, simple: bool = True) -> Iterator[Floats]:
    """Keys without end. The first ones, where wanted, are ``simple`` rules: most pressed, then longest or largest in area."""
    rows, pressed = features(data), pressure(data)
    for row in (1, 4, 2, 3, 5) if simple else ():
        yield 1000.0 * pressed + rows[row]
    for row in (4, 2, 1, 5) if simple else ():
        yield rows[row]
    chance = np.random.default_rng(seed)
    while True:
        # Most pressed first, then those that meet most others, with a little of something else: it wins where little does.
        share = chance.uniform(0.85, 1.0)
        crowded = share * rows[5] + (1 - share) * rows[chance.integers(1, 5)]
        yield 1000.0 * pressed + crowded + chance.choice([0.02, 0.05]) * chance.normal(size=len(pressed))
        # Any mix of few features.
        weights = chance.exponential(1.0, len(rows)) * (chance.random(len(rows)) < 0.4)
        if weights.sum() == 0:
            weights[chance.integers(len(rows))] = 1.0
        mixed = weights @ rows / weights.sum()
        noise = chance.choice([0.0, 0.03, 0.1, 0.3]) * chance.normal(size=len(mixed))
        yield mixed + noise + chance.choice([0.0, 3.0, 1000.0, 1000.0]) * pressed
