"""Depth-first search that fills valleys of the skyline, for packings in which hardly any byte can be wasted.

:class:`stowplan.portfolio.packing.arrays.Data` has the buffers: time is divided into *sections*, sizes and offsets are counted
in *units*, and n is the number of buffers. The *load* of a section is the sum of the sizes of the buffers that are live in it.
The *skyline* is how high the placed buffers reach in each section. A *valley* is a stretch of sections at one height between
higher neighbours (or the ends of time). The *waste* of a section is the number of units below its skyline that no buffer takes;
for a given height, a section can waste at most that height minus its load.

The search rests on one observation. At the bottom of a valley, its first section can only be taken by a buffer whose life
begins there and ends within the valley, because any other buffer that is live in this section also lies under a neighbour that
is higher. The same holds for the last section and buffers that end there. So each end of each valley has few ways to go on:
one for each such buffer, and one that wastes the end up to the lower neighbour, if its section can spare that much. A node of
the search branches on the end with the fewest ways, and one without any refutes the partial packing at once (the rule "first
fail" of constraint programming; Haralick and Elliott, "Increasing tree search efficiency for constraint satisfaction
problems", 1980).

Waste that ends below the lower neighbour is not tried. The search is thus complete only if no section can waste anything.
Otherwise it looks for plans in a restricted space: a plan that is found counts, and a space without one proves nothing.

Buffers that can be aligned only to multiples of more than one unit, fixed offsets, gaps and overlaps are not supported
(:func:`supports`). Nothing in this module raises an error.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from stowplan.compiled import Ints2D, njit
from stowplan.parameters import Parameters, parameters
from stowplan.portfolio.packing import canonical, orders
from stowplan.portfolio.packing.arrays import Data, Ints
from stowplan.portfolio.packing.orders import Floats

#: A number of units that is larger than any height.
_FAR = 1 << 60

#: Outcomes of :func:`fill_valleys`.
FOUND, EXHAUSTED, LIMIT = 1, 0, -1


class ValleyParameters(Parameters, frozen=True):
    """Parameters of the search over valleys."""

    shortest_run: int = 2000
    """Largest number of nodes of the shortest run; the lengths of restarts follow Luby's sequence."""
    noise: float = 0.3
    """Standard deviation of the random factors by which keys are varied."""
    wastes: int = 20
    """Ends that may be wasted on one path of the search, per section."""


PARAMS = parameters(ValleyParameters, __name__)


def supports(data: Data) -> bool:
    """Whether the search supports these buffers: there are some, with one piece of life each, no fixed offsets, no overlaps,
    and no alignment beyond one unit."""
    return data.is_plain and bool((data.align == 1).all())


@dataclass
class Part(canonical.Part):
    """Search over valleys for one independent part of a problem that :func:`supports` accepts.

    It has the interface of :class:`stowplan.portfolio.packing.canonical.Part`, but it never raises the bound.
    """

    def __post_init__(self) -> None:
        self._keys = _keys(self.data, self.seed)
        self._load = self.data.load()

    def run(self, height: int, length: int) -> int:
        """Search for a plan within ``height`` units; returns the number of nodes.

        ``length`` limits the nodes, as a multiple of :attr:`ValleyParameters.shortest_run`. A plan that is found is adopted.
        """
        self.runs += 1
        data = self.data
        order = orders.by_key(data, next(self._keys))
        by_begin, first_beginning = _grouped(order, data.begin, data.sections)
        by_end, first_ending = _grouped(order, data.end - 1, data.sections)
        offsets = np.empty(len(data.size), np.int64)
        top = np.zeros(data.sections + 2, np.int64)
        top[[0, -1]] = _FAR
        levels = len(data.size) + PARAMS.wastes * data.sections + 1
        outcome, nodes = fill_valleys(
            data.begin,
            data.end,
            data.size,
            height - self._load,
            height,
            by_begin,
            first_beginning,
            by_end,
            first_ending,
            PARAMS.shortest_run * length,
            top,
            np.zeros(len(data.size), np.int64),
            np.empty((8, levels), np.int64),
            offsets,
        )
        if outcome == FOUND:
            self.adopt(offsets)
        return nodes


def _keys(data: Data, seed: int) -> Iterator[Floats]:
    """An endless sequence of keys [n]; of the buffers at an end of a valley, those with larger keys are tried first.

    Size, length of the life in sections, area (the product of the two) and shortness take turns, first as they are, and from
    then on varied at random.
    """
    length = (data.end - data.begin).astype(np.float64)
    features = data.size.astype(np.float64), length, length * data.size, -length
    yield from features
    chance = np.random.default_rng(seed)
    for feature in itertools.cycle(features):
        yield feature * (1 + PARAMS.noise * chance.standard_normal(len(length)))


def _grouped(order: Ints, section: Ints, sections: int) -> tuple[Ints, Ints]:
    """The buffers [n] of ``order`` grouped by a section of each, and [sections + 1] the index of each section's first buffer.

    The order within a group is that of ``order``.
    """
    grouped = order[np.argsort(section[order], kind="stable")]
    return grouped, np.searchsorted(section[grouped], np.arange(sections + 1)).astype(np.int64)


@njit
def fill_valleys(
    begin: Ints,
    end: Ints,
    size: Ints,
    spare: Ints,
    height: int,
    by_begin: Ints,
    first_beginning: Ints,
    by_end: Ints,
    first_ending: Ints,
    node_limit: int,
    top: Ints,
    placed: Ints,
    stack: Ints2D,
    offsets: Ints,
) -> tuple[int, int]:
    """Search for a packing within ``height`` units.

    Parameters
    ----------
    begin, end
        [n] first section of each life, and section after its last one.
    size
        [n] sizes in units.
    spare
        [sections] units that each section can waste; changed by the search.
    height
        Height in units that the packing may have.
    by_begin, first_beginning
        [n] buffers grouped by their first section, those to try first at the front of each group; [sections + 1] index of the
        first buffer of each group.
    by_end, first_ending
        The same by the last section of each life.
    node_limit
        Largest number of nodes.
    top
        [sections + 2] the skyline, in units: 0 everywhere but for the walls at both ends of time, which are higher than any
        packing. Section s has index s + 1.
    placed
        [n] zeros; 1 for buffers that are placed.
    stack
        [8, levels] empty; one column for each level of the search.
    offsets
        [n] output: the offsets in units, if a packing is found.

    Returns
    -------
    tuple
        The outcome, :data:`FOUND`, :data:`EXHAUSTED` or :data:`LIMIT`, and the number of nodes.
    """
    n, sections = len(size), len(spare)
    for s in range(sections):
        if spare[s] < 0:
            return EXHAUSTED, 0
    # Each level has the first and the last section of its valley, the height of its bottom, and the end that is filled (0 the
    # first section, 1 the last); then the index of the next buffer to try, the buffer that is placed or -1, the buffer that was
    # tried before or -1, and the height up to which the end is wasted, or 0.
    first, last, bottom, side = stack[0], stack[1], stack[2], stack[3]
    following, current, before, raised = stack[4], stack[5], stack[6], stack[7]
    levels = stack.shape[1]
    level, nodes, count, is_new = 0, 0, 0, True
    while True:
        if is_new:
            is_new = False
            nodes += 1
            if count == n:
                return FOUND, nodes
            if nodes > node_limit or level == levels - 1:
                return LIMIT, nodes
            fewest, chosen, chosen_end, chosen_side = _FAR, 0, 0, 0
            s = 1
            while s <= sections and fewest > 0:
                e = s
                while e < sections and top[e + 1] == top[s]:
                    e += 1
                low = top[s]
                if top[s - 1] > low and top[e + 1] > low and low < height:
                    wall = min(min(top[s - 1], top[e + 1]), height)
                    ways = 1 if spare[s - 1] >= wall - low else 0
                    for at in range(first_beginning[s - 1], first_beginning[s]):
                        i = by_begin[at]
                        if placed[i] == 0 and end[i] <= e and low + size[i] <= height:
                            ways += 1
                    if ways < fewest or (ways == fewest and low < top[chosen]):
                        fewest, chosen, chosen_end, chosen_side = ways, s, e, 0
                    ways = 1 if spare[e - 1] >= wall - low else 0
                    for at in range(first_ending[e - 1], first_ending[e]):
                        i = by_end[at]
                        if placed[i] == 0 and begin[i] >= s - 1 and low + size[i] <= height:
                            ways += 1
                    if ways < fewest:
                        fewest, chosen, chosen_end, chosen_side = ways, s, e, 1
                s = e + 1
            # Without a valley below the height, nothing can be placed any more: the level has no way to go on.
            first[level], last[level], side[level] = chosen, chosen_end, chosen_side
            bottom[level] = top[chosen]
            following[level] = 0
            if chosen > 0:
                following[level] = first_beginning[chosen - 1] if chosen_side == 0 else first_ending[chosen_end - 1]
            current[level] = before[level] = -1
            raised[level] = 0
        s, e, low = first[level], last[level], bottom[level]
        # Undo what this level has tried.
        i = current[level]
        if i >= 0:
            for at in range(begin[i] + 1, end[i] + 1):
                top[at] = low
            placed[i] = 0
            count -= 1
            current[level] = -1
        target = s if side[level] == 0 else e
        way = -1
        if raised[level] > 0:
            top[target] = low
            spare[target - 1] += raised[level] - low
        elif s > 0:
            at = following[level]
            stop = first_beginning[s] if side[level] == 0 else first_ending[e]
            while at < stop and way < 0:
                i = by_begin[at] if side[level] == 0 else by_end[at]
                at += 1
                if placed[i] == 0 and begin[i] >= s - 1 and end[i] <= e and low + size[i] <= height:
                    j = before[level]
                    # A twin of the buffer that was tried before would fail in the same way.
                    if j < 0 or begin[j] != begin[i] or end[j] != end[i] or size[j] != size[i]:
                        way = i
            following[level] = at
            if way >= 0:
                for at in range(begin[way] + 1, end[way] + 1):
                    top[at] = low + size[way]
                placed[way], offsets[way] = 1, low
                current[level] = before[level] = way
                count += 1
                level, is_new = level + 1, True
                continue
            wall = min(min(top[s - 1], top[e + 1]), height)
            if wall > low and spare[target - 1] >= wall - low:
                spare[target - 1] -= wall - low
                top[target] = raised[level] = wall
                level, is_new = level + 1, True
                continue
        level -= 1
        if level < 0:
            return EXHAUSTED, nodes
