"""Chooses which parts of the layers on a device are *spilled*, that is, stay on the host, so that the other parts fit.

The layers are those of a language model. Two layers are of one *class* if they differ at most in their names. Each layer has
*levels*: at level ``n`` its first ``n`` spillable parts are on the host. A level frees bytes of the device and costs time.

To choose the levels is a multiple-choice knapsack problem. It is solved by the usual greedy rule (Kellerer, Pferschy and
Pisinger, "Knapsack Problems", 2004, chapter 11). A *step* raises layers of one class from one level to a higher one. The rule
takes the steps between levels on the lower convex hull of time over bytes, in the order of time lost for each byte freed. The
last step is taken for the largest number of layers that frees no more bytes than are needed. One *extra* layer then frees the
rest at the least cost. The module does this for many *groups* of layers at once, as arrays; a group is the set of layers that
one device would hold. The functions raise no errors.
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
    """The bytes that a level of a layer frees and the time that it costs, compared with level 0."""

    freed: int
    """Bytes of the device that are freed."""
    time: int
    """Picoseconds that a request takes longer; negative if spilling saves time."""


class Step(NamedTuple):
    """The step of a layer from one level to a higher one."""

    kind: int
    """Number of the class of layers."""
    source: int
    """Level before the step."""
    target: int
    """Level after the step."""
    freed: int
    """Bytes of the device that the step frees, for each layer."""
    time: int
    """Picoseconds that a request takes longer, for each layer; negative if the step saves time."""


class Spills(NamedTuple):
    """The greedy solutions for groups of layers. All arrays have one entry for each group."""

    time: Floats
    """Picoseconds that the spills cost, negative if they save time; infinite if the layers do not fit even if all parts are
    spilled."""
    freed: Integers
    """Bytes that are spilled to the host."""
    last: Integers
    """Number of the last step in :attr:`Knapsack.steps`. All steps before it are taken for all layers of their classes. It is
    the number of steps if all of them are taken."""
    layers: Integers
    """Number of layers for which the last step is taken."""
    extra: Integers
    """Index of the extra layer's step in :meth:`Knapsack.extras` of the last step; -1 if there is no extra layer."""


class Knapsack:
    """The spills of layers of several classes.

    Parameters
    ----------
    levels
        The levels of each class of layers, in ascending order. The first level of each class is ``Level(0, 0)``.
    """

    def __init__(self, levels: Sequence[Sequence[Level]]):
        self.levels = levels
        steps = [step for kind, options in enumerate(levels) for step in _hull(kind, options)]
        self.steps = sorted(steps, key=lambda step: (step.time / step.freed, step.kind, step.target))
        #: [steps + 1][classes] the level of each class before each step is taken; the last row is the level after all steps.
        self.before = [[0] * len(levels)]
        for step in self.steps:
            self.before.append([*self.before[-1]])
            self.before[-1][step.kind] = step.target

    def extras(self, last: int) -> list[Step]:
        """The steps that an extra layer can take if number ``last`` is the last step; empty if no level frees more bytes."""
        found = []
        for kind, source in enumerate(self.before[last]):
            here = self.levels[kind][source]
            for target in range(source + 1, len(self.levels[kind])):
                there = self.levels[kind][target]
                if there.freed > here.freed:
                    found.append(Step(kind, source, target, there.freed - here.freed, there.time - here.time))
        return found

    def spill(self, counts: Integers, over: Integers) -> Spills:
        """Choose the spills of groups of layers.

        Parameters
        ----------
        counts
            ``[groups, classes]`` number of layers of each class in each group.
        over
            ``[groups]`` bytes that have to be freed; 0 or less if the layers of the group fit.
        """
        groups = len(over)
        time, freed = np.zeros(groups), np.zeros(groups, np.int64)
        last = np.full(groups, len(self.steps))
        taken, extra = np.zeros(groups, np.int64), np.full(groups, -1)
        is_open, left = np.ones(groups, bool), over.astype(np.int64)
        for number, step in enumerate(self.steps):
            layers = counts[:, step.kind]
            now = np.where(is_open, layers, 0)
            # Steps that save time come first, and are taken even if no bytes have to be freed.
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
        """For each group, how many layers take the last step, and the index of the extra layer's step (-1 for none).

        ``number`` is the number of the last step, and ``counts`` is as in :meth:`spill`. ``left`` [groups] has the bytes, at
        least 0, that the steps before have not freed.
        """
        step = self.steps[number]
        taken, rest = np.divmod(left, step.freed)
        extra, least = np.full(len(left), -1), np.full(len(left), np.inf)
        for index, other in enumerate(self.extras(number)):
            available = counts[:, other.kind] - taken * (other.kind == step.kind)
            is_better = (rest > 0) & (other.freed >= rest) & (available > 0) & (other.time < least)
            extra[is_better], least[is_better] = index, other.time
        return taken, extra

    def levels_of(self, spills: Spills, group: int, counts: Sequence[int]) -> list[tuple[int, int, int]]:
        """The levels of one group that are not 0, as rows (class, number of layers, level).

        ``spills`` is the result of :meth:`spill`, ``group`` the index of the group, and ``counts`` has the number of layers of
        each class in the group. A class can have several rows.
        """
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
    """The steps between neighbouring levels on the lower convex hull of time over bytes, for class ``kind``.

    The time for each byte increases from step to step. The list is empty if no level frees bytes.
    """
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
    """Picoseconds for each byte that is freed between two levels; ``target`` must free more bytes than ``source``."""
    return (levels[target].time - levels[source].time) / (levels[target].freed - levels[source].freed)
