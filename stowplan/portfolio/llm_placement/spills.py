"""Which parts of the layers on a device are spilled to the host, so that the rest fits: a knapsack with a few options a layer.

Each layer has levels: at level ``n`` its first ``n`` spillable parts are on the host. A level frees bytes of the device and
costs time. This is a multiple-choice knapsack problem, solved by its usual greedy rule (Kellerer, Pferschy and Pisinger,
"Knapsack Problems", 2004, chapter 11): the levels of each layer that lie on the lower convex hull of time over bytes are taken
in the order of time lost for each byte freed. The last of them is taken for as many layers as leave something to free, and one
more layer frees the rest at the least cost. All this is done for many groups of layers at once, as arrays.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64]
Floats = NDArray[np.float64]


class Level(NamedTuple):
    """What a level of a layer frees and costs, compared with level 0."""

    freed: int
    """Bytes."""
    time: int
    """Picoseconds of the request; may be negative."""


class Step(NamedTuple):
    """From one level of the layers of a class to a higher one."""

    kind: int
    """Number of the class of layers."""
    source: int
    target: int
    freed: int
    time: int


class Spills(NamedTuple):
    """The greedy solutions for groups of layers. All arrays have one entry for each group."""

    time: Floats
    """Picoseconds that the spills cost; infinite if the layers do not fit even with all parts spills."""
    freed: Integers
    """Bytes that go to the host."""
    last: Integers
    """Number of the last step; all steps before it are taken for all layers of their class."""
    layers: Integers
    """Layers for which the last step is taken."""
    extra: Integers
    """Index of the step of one more layer among :meth:`Knapsack.extras` of the last step; -1 for none."""


class Knapsack:
    """The spills of layers of several classes.

    Parameters
    ----------
    levels
        For each class of layers its levels; the first one is ``Level(0, 0)``.
    """

    def __init__(self, levels: Sequence[Sequence[Level]]):
        self.levels = levels
        steps = [step for kind, options in enumerate(levels) for step in _hull(kind, options)]
        self.steps = sorted(steps, key=lambda step: (step.time / step.freed, step.kind, step.target))
        #: [steps + 1][classes] the level of each class before a step is taken.
        self.before = [[0] * len(levels)]
        for step in self.steps:
            self.before.append([*self.before[-1]])
            self.before[-1][step.kind] = step.target

    def extras(self, last: int) -> list[Step]:
        """Steps that one more layer can take where ``last`` is the last step."""
        found = []
        for kind, source in enumerate(self.before[last]):
            here = self.levels[kind][source]
            for target in range(source + 1, len(self.levels[kind])):
                there = self.levels[kind][target]
                if there.freed > here.freed:
                    found.append(Step(kind, source, target, there.freed - here.freed, there.time - here.time))
        return found

    def spill(self, counts: Integers, over: Integers) -> Spills:
        """Free bytes in groups of layers.

        Parameters
        ----------
        counts
            ``[groups, classes]`` layers of each class.
        over
            ``[groups]`` bytes that are to be freed; 0 or less where everything fits.
        """
        groups = len(over)
        time, freed = np.zeros(groups), np.zeros(groups, np.int64)
        last = np.full(groups, len(self.steps))
        taken, extra = np.zeros(groups, np.int64), np.full(groups, -1)
        is_open, left = np.ones(groups, bool), over.astype(np.int64)
        for number, step in enumerate(self.steps):
            layers = counts[:, step.kind]
            now = np.where(is_open, layers, 0)
            # Steps that save time come first, and are taken even if nothing has to be freed.
            ends = is_open & (left <= layers * step.freed) & (step.time >= 0)
            if ends.any():
                now[ends], extra[ends] = self._end(number, counts[ends], np.maximum(left[ends], 0))
                last[ends], taken[ends] = number, now[ends]
                is_open &= ~ends
            time += now * float(step.time)
            freed += now * step.freed
            left -= now * step.freed
        for number in np.unique(last):
            for index, step in enumerate(self.extras(number)):
                chosen = (last == number) & (extra == index)
                time[chosen] += step.time
                freed[chosen] += step.freed
        time[is_open & (left > 0)] = np.inf
        return Spills(time, freed, last, taken, extra)

    def _end(self, number: int, counts: Integers, left: Integers) -> tuple[Integers, Integers]:
        """At the last step: how many layers take it, and which step one more layer takes."""
        step = self.steps[number]
        taken, rest = np.divmod(left, step.freed)
        extra, least = np.full(len(left), -1), np.full(len(left), np.inf)
        for index, other in enumerate(self.extras(number)):
            available = counts[:, other.kind] - taken * (other.kind == step.kind)
            is_better = (rest > 0) & (other.freed >= rest) & (available > 0) & (other.time < least)
            extra[is_better], least[is_better] = index, other.time
        return taken, extra

    def levels_of(self, spills: Spills, group: int, counts: Sequence[int]) -> list[tuple[int, int, int]]:
        """For one group: how many layers of a class are at a level other than 0, as (class, layers, level)."""
        last, taken, extra = int(spills.last[group]), int(spills.layers[group]), int(spills.extra[group])
        left, found = [*counts], []
        if taken:
            step = self.steps[last]
            found.append((step.kind, taken, step.target))
            left[step.kind] -= taken
        if extra >= 0:
            step = self.extras(last)[extra]
            found.append((step.kind, 1, step.target))
            left[step.kind] -= 1
        found += [(kind, count, level) for kind, (count, level) in enumerate(zip(left, self.before[last], strict=True))]
        return [row for row in found if row[1] and row[2]]


def _hull(kind: int, levels: Sequence[Level]) -> list[Step]:
    """Steps between neighbouring levels on the lower convex hull; their time for each byte increases."""
    corners: list[int] = [0]
    for level in sorted(range(1, len(levels)), key=lambda level: (levels[level].freed, levels[level].time)):
        if levels[level].freed <= levels[corners[-1]].freed:
            continue
        while len(corners) > 1 and _slope(levels, corners[-2], corners[-1]) >= _slope(levels, corners[-1], level):
            corners.pop()
        corners.append(level)
    return [
        Step(kind, source, target, levels[target].freed - levels[source].freed, levels[target].time - levels[source].time)
        for source, target in pairwise(corners)
    ]


def _slope(levels: Sequence[Level], source: int, target: int) -> float:
    return (levels[target].time - levels[source].time) / (levels[target].freed - levels[source].freed)
