"""Keys by which buffers are sorted before they are placed: combinations of features that make a buffer hard to place.

A *key* [n] gives every buffer a number, and buffers with larger numbers are placed earlier. Sections are those of
:class:`stowplan.portfolio.packing.arrays.Data`, and n is the number of buffers. The *load* of a section is the sum of the sizes
of the buffers that are live in it. The *pressure* of a buffer is the largest load during its life. There must be at least one
buffer. A *greedy order* is one of eight fixed orders that the searches try first (:func:`greedy_keys`). The functions raise no
errors.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from stowplan.portfolio.packing.arrays import Data, Ints

Floats = NDArray[np.float64]


def features(data: Data) -> Floats:
    """Features of the buffers [6, n], each scaled to mean 0 and standard deviation 1.

    The first five rows are the logarithms of the size, of the length of the life, of the number of sections that a buffer lives
    through, of size times life, and of size times sections. The last row is the number of other buffers that are live at some
    time of its life.
    """
    size, life, width = (np.log(column.astype(float)) for column in (data.size, data.life, data.end - data.begin))
    begun_before_end = np.searchsorted(np.sort(data.begin), data.end)
    concurrent = begun_before_end - np.searchsorted(np.sort(data.end), data.begin, side="right")
    rows = np.stack([size, life, width, size + life, size + width, concurrent.astype(float)])
    rows -= rows.mean(axis=1, keepdims=True)
    deviation = rows.std(axis=1, keepdims=True)
    return np.asarray(rows / np.where(deviation > 0, deviation, 1.0))


def pressure(data: Data) -> Floats:
    """[n] the pressure of each buffer: the largest load during its life, as a fraction of the largest load of all sections."""
    load = table = data.load()
    begin, end = data.begin, data.end
    # A sparse table has the largest load of every 2^k consecutive sections, here for one k after the other. Two of its entries
    # cover a life (Bender and Farach-Colton 2000).
    levels = np.frexp(end - begin)[1] - 1
    peaks = np.zeros(len(begin), np.int64)
    for level in range(int(levels.max(initial=-1)) + 1):
        of_level = np.flatnonzero(levels == level)
        peaks[of_level] = np.maximum(table[begin[of_level]], table[end[of_level] - (1 << level)])
        table = np.maximum(table[: -1 << level], table[1 << level :])
    return np.asarray(peaks / max(1, int(load.max(initial=0))), np.float64)


def by_key(data: Data, key: Floats) -> Ints:
    """Returns the buffers [n] in order: those with a fixed offset first, then by descending key. Buffers with equal keys are in
    the order of their indices."""
    return np.lexsort((-key, data.fixed < 0)).astype(np.int64)


#: For each greedy order: the row of a second feature in :func:`features`; its weight w, while the size has the weight 1 - w;
#: and the weight of the pressure. The first order sorts by size alone. The weights are tuned.
_RECIPES = ((1, 0.0, 0.0), (3, 1.0, 0.0), (2, 1.0, 0.0), (1, 0.95, 0.0), (1, 0.2, 3.0), (2, 0.5, 3.0), (1, 0.5, 0.0))

#: Number of the greedy order that starts with the buffers that are live at the peak of the load.
PEAK = len(_RECIPES)


def greedy_keys(data: Data) -> Iterator[Floats]:
    """Yield the keys [n] of the greedy orders, numbers 0 to :data:`PEAK`.

    The last one starts with the buffers that are live in a section of the largest load. Both these and the remaining buffers
    are sorted by size.
    """
    rows, pressures = features(data), pressure(data)
    for row, weight, pressure_weight in _RECIPES:
        yield (1 - weight) * rows[0] + weight * rows[row] + pressure_weight * pressures
    yield rows[0] + 100.0 * (pressures >= 1.0)


def random_keys(data: Data, seed: int, simple: bool = True) -> Iterator[Floats]:
    """An endless sequence of random keys [n].

    If ``simple`` is set, it starts with fixed keys of one feature each, first combined with the pressure and then alone.
    ``seed`` is the seed of the other keys, which are random mixes of features.
    """
    rows, pressures = features(data), pressure(data)
    for row in (1, 4, 2, 3, 5) if simple else ():
        yield 1000.0 * pressures + rows[row]
    for row in (4, 2, 1, 5) if simple else ():
        yield rows[row]
    chance = np.random.default_rng(seed)
    while True:
        # This key sorts by pressure, then by the number of other live buffers mixed with a little of another feature. It
        # succeeds on problems on which few orders do.
        share = chance.uniform(0.85, 1.0)
        concurrency = share * rows[5] + (1 - share) * rows[chance.integers(1, 5)]
        yield 1000.0 * pressures + concurrency + chance.choice([0.02, 0.05]) * chance.normal(size=len(pressures))
        # This key is a random mix of a few features.
        weights = chance.exponential(1.0, len(rows)) * (chance.random(len(rows)) < 0.4)
        if weights.sum() == 0:
            weights[chance.integers(len(rows))] = 1.0
        mixed = weights @ rows / weights.sum()
        noise = chance.choice([0.0, 0.03, 0.1, 0.3]) * chance.normal(size=len(mixed))
        yield mixed + noise + chance.choice([0.0, 3.0, 1000.0, 1000.0]) * pressures
