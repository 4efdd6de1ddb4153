"""Beam search from the bottom up: it extends many partial packings in parallel and keeps those that waste least.

:class:`stowplan.portfolio.packing.arrays.Data` has the buffers: time is divided into *sections*, sizes and offsets are counted
in *units*, and n is the number of buffers. The *load* of a section is the sum of the sizes of the buffers that are live in it.
A *state* is a partial packing. It consists of a skyline, that is, how high the placed buffers reach in each section, and of the
buffers that wait to be placed. A *valley* is a lowest stretch of the skyline. A state has two kinds of successors. Either the
first valley takes a buffer whose life lies within it, or the whole valley is raised to its lower neighbour. If it takes a
buffer, the part of the valley before that buffer is *closed*, that is, raised to the top of the buffer or to the neighbour
before the valley, whichever is lower.

The *waste* of a section is the number of units below its skyline that no buffer takes. For a given height, every section can
waste at most the height minus its load. A state is dropped once some section has wasted more. The remaining states are ranked
by three quantities. The first is the waste, weighted so that it counts more in sections that can spare less. The second is the
area that the placed buffers cover. The third is how long these buffers live, because buffers with short lives are easily placed
later. Of several states that have placed the same buffers, only the best is kept. The states that have placed equally many
buffers form a *level* of the search; the *width* of a beam is the largest number of states that a level keeps. Beam search
guided by waste is among the best methods for strip packing and cutting (Libralesso and Fontan, "An anytime tree search
algorithm for the 2018 ROADEF/EURO challenge glass cutting problem", 2021).

:class:`Part` runs beams of many widths, forwards and backwards in time, at the bound and at heights between the bound and the
best plan. Nothing in this module raises an error.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from stowplan.compiled import Ints2D, Signs2D, njit, njit_inner
from stowplan.parameters import Parameters, parameters
from stowplan.portfolio.packing import canonical
from stowplan.portfolio.packing.arrays import Data, Ints
from stowplan.portfolio.packing.orders import Floats

#: A number of units that is larger than any height.
_FAR = 1 << 62

#: Before a buffer is placed, the valley of a state is raised fewer than this many times: not at all, or once.
_RAISES = 2


class BeamParameters(Parameters, frozen=True):
    """Parameters of beam search."""

    successors: int = 40
    """Largest number of successors that are examined on a level, divided by the beam width."""
    spare: float = 0.01
    """Fraction of the height that is added to the waste that a section can spare, when waste is weighted. Without it, the first
    unit that the fullest section wastes would outweigh everything else.
    """
    numbers: int = 12_000_000
    """Largest number of integers and floats in the arrays of all states, which limits the beam width."""
    at_bound: int = 1000
    """Width in states of the narrowest beam at the bound or capacity. Later beams are wider by the factors of Luby's sequence,
    1, 1, 2, 1, 1, 2, 4 and so on (:func:`.canonical.luby`)."""
    above: int = 300
    """Width in states of the narrowest beam at heights above the bound. Later beams are wider by the same factors."""
    aims: tuple[float, ...] = (0.5, 0.8, 0.3)
    """Parts of the way from the bound (0) to one unit below the best height (1) at which beams look for plans, one after the
    other. A beam that finds no plan at the bound mostly finds one there.
    """
    halves: tuple[int, ...] = (5, 6, 4, 5, 8)
    """Twice the exponent of the mean life of the placed buffers in the score of a state. Successive beams take these values in
    turn."""
    noises: tuple[float, ...] = (0.0, 0.1, 0.1, 0.05)
    """Largest fraction of a state's score that is added to the score at random. Every second beam takes the next of these
    values."""


PARAMS = parameters(BeamParameters, __name__)


#: Weighted waste that is added to every state, so that states without any waste can still be compared by area and lives. It is
#: small compared with the weight of all the waste that a section can spare, which is about 1.
_BASE_WASTE = 0.01


class SortedBuffers(NamedTuple):
    """The buffers as columns, sorted by the sections in which their lives begin."""

    size: Ints
    """[n] sizes in units."""
    align: Ints
    """[n] alignments in units."""
    begin: Ints
    """[n] first section of each life."""
    end: Ints
    """[n] section after the last one of each life."""
    first: Ints
    """[sections + 1] for each section, the first buffer that begins in it or later."""


class States(NamedTuple):
    """The states of one level of a beam as columns: each array has one row or one element for each state."""

    level: Ints2D
    """[states, sections] the skyline: how high the placed buffers reach, in units; ``_FAR`` if no waiting buffer lives in the
    section."""
    left: Ints2D
    """[states, sections] size of the waiting buffers that live in the section, in units."""
    waits: Signs2D
    """[states, n] 1 for buffers that wait."""
    waste: Floats
    """[states] weighted waste so far."""
    area: Floats
    """[states] area of the placed buffers, in units times sections."""
    lives: Floats
    """[states] sum of the lives of the placed buffers, in sections."""
    key: Ints
    """[states] hash of the set of placed buffers."""


def _states(count: int, n: int, sections: int) -> States:
    """Arrays for ``count`` states of a problem with n buffers."""
    level, left = np.empty((count, sections), np.int64), np.empty((count, sections), np.int64)
    waste, area, lives = np.zeros(count), np.zeros(count), np.zeros(count)
    return States(level, left, np.empty((count, n), np.int8), waste, area, lives, np.zeros(count, np.int64))


class Beam:
    """The buffers of one problem, prepared for many beam searches.

    Parameters
    ----------
    data
        Buffers without gaps, fixed offsets and overlaps (:attr:`~stowplan.portfolio.packing.arrays.Data.is_plain`).
    mirrored
        Whether time runs backwards, so that valleys are filled from their end.
    """

    def __init__(self, data: Data, mirrored: bool = False):
        begin, end = (data.sections - data.end, data.sections - data.begin) if mirrored else (data.begin, data.end)
        # Sorted by begin, so that the buffers that begin within a valley are contiguous.
        self._order = np.lexsort((end, begin))
        size, align, begin, end = (column[self._order] for column in (data.size, data.align, begin, end))
        self._buffers = SortedBuffers(size, align, begin, end, np.searchsorted(begin, np.arange(data.sections + 1)))
        self._load = data.load()[::-1].copy() if mirrored else data.load()
        self._sections = data.sections

    @property
    def widest(self) -> int:
        """The largest beam width, in states, that the arrays allow."""
        return max(
            16,
            PARAMS.numbers // (2 * (2 * self._sections + len(self._order) // 8) + 4 * PARAMS.successors + 3 * len(self._order)),
        )

    def pack(
        self, height: int, width: int, halves: int, chance: np.random.Generator, noise: float, should_stop: Callable[[], bool]
    ) -> tuple[Ints | None, int]:
        """Run one beam search for a plan within a height.

        Parameters
        ----------
        height
            Largest height of the plan, in units.
        width
            Beam width in states, at most :attr:`widest`.
        halves
            Twice the exponent of the mean life of the placed buffers in the score of a state. The larger it is, the more it
            counts to have placed buffers with long lives.
        chance
            Source of the noise, and of the random numbers with which sets of buffers are hashed.
        noise
            Largest fraction of a state's score that is added to the score at random.
        should_stop
            Called before each level of the beam, that is, before each placed buffer; True ends the search without a plan.

        Returns
        -------
        tuple
            Offsets [n] in units, or None if no plan was found; and the number of states in all levels, which is 0 if the load
            exceeds the height.
        """
        n, sections = len(self._order), self._sections
        width = min(width, self.widest)
        slack = height - self._load
        if slack.min() < 0:
            return None, 0
        waste_weight = np.concatenate([[0.0], np.cumsum(1.0 / (slack + max(1.0, PARAMS.spare * height)))])
        buffer_hashes = chance.integers(1, _FAR, n)
        old, new = _states(width, n, sections), _states(width, n, sections)
        old.level[0], old.left[0], old.waits[0] = 0, self._load, 1
        parent, placed, offset = (np.empty((n, width), np.int64) for _ in range(3))
        children = np.empty((3, width * PARAMS.successors + n), np.int64)
        score = np.empty(children.shape[1])
        table = np.empty(1 << (4 * width).bit_length(), np.int64)
        raised = np.empty((1, sections), np.int64)
        count, states = 1, 0
        for depth in range(n):
            if should_stop():
                return None, states
            count_of_children = expand(count, height, self._buffers, waste_weight, old, depth, halves, children, score, raised)
            if noise > 0:
                score[:count_of_children] *= 1.0 + noise * chance.random(count_of_children)
            moves = parent[depth], placed[depth], offset[depth]
            count = next_level(
                np.argsort(score[:count_of_children]),
                height,
                self._buffers,
                waste_weight,
                old,
                new,
                buffer_hashes,
                children,
                table,
                *moves,
            )
            states += count
            if count == 0:
                return None, states
            old, new = new, old
        offsets, state = np.empty(n, np.int64), 0
        for depth in range(n - 1, -1, -1):
            offsets[self._order[placed[depth, state]]] = offset[depth, state]
            state = parent[depth, state]
        return offsets, states


@njit_inner
def _lowest(level: Ints, state: int, sections: int) -> tuple[int, int]:
    """The valley ``[since, until)`` of a state, the first one if there are several; ``since`` is -1 if no buffer waits."""
    floor, since = _FAR, -1
    for s in range(sections):
        if level[state, s] < floor:
            floor, since = level[state, s], s
    until = since
    while 0 <= until < sections and level[state, until] == floor:
        until += 1
    return since, until


@njit_inner
def _raise(level: Ints, state: int, since: int, until: int, wall: int) -> None:
    """Raise a valley to the level ``wall``. This is a loop, because slices take several times as long to compile."""
    for s in range(since, until):
        level[state, s] = wall


@njit_inner
def _lower_wall(level: Ints, state: int, since: int, until: int, sections: int) -> int:
    """Level, in units, of the lower neighbour of a valley; ``_FAR`` if the valley has no neighbour."""
    wall = _FAR if since == 0 else level[state, since - 1]
    return wall if until == sections else min(wall, level[state, until])


@njit
def expand(
    count: int,
    height: int,
    buffers: SortedBuffers,
    waste_weight: Floats,
    states: States,
    depth: int,
    halves: int,
    children: Ints2D,
    score: Floats,
    raised: Ints2D,
) -> int:
    """Find the successors of ``count`` states; returns the number of successors, at most the length of ``score``.

    Parameters
    ----------
    count
        Number of states, the first ones of ``states``.
    height
        Largest height of the plan, in units.
    buffers, states
        The buffers, and the states of the level.
    waste_weight
        [sections + 1] prefix sums of the weight of a unit of waste in each section.
    depth
        Number of buffers that each state has placed.
    halves
        Twice the exponent of the mean life of the placed buffers in the score. The score is the weighted waste, divided by the
        area of the placed buffers and by this power of their mean life.
    children
        [3, most successors] output: for each successor the state that it comes from, how often the valley was raised, and the
        placed buffer.
    score
        [most successors] output: the score of each successor; smaller is better.
    raised
        [1, sections] scratch space.
    """
    # The arrays are unpacked, because numba would count references to the members of a tuple in every iteration.
    size, align, begin, end, first = buffers
    level, left, waits, waste, area, lives, _ = states
    sections, filled, max_children = len(waste_weight) - 1, 0, len(score)
    for state in range(count):
        for s in range(sections):
            raised[0, s] = level[state, s]
        wasted = waste[state]
        for raises in range(_RAISES):
            since, until = _lowest(raised, 0, sections)
            floor = raised[0, since]
            before = _FAR if since == 0 else raised[0, since - 1]
            # ``slack`` is the number of units that each section of the valley before the buffer can still waste.
            closed, slack = since, _FAR
            for i in range(first[since], first[until]):
                while closed < begin[i]:
                    slack = min(slack, height - floor - left[state, closed])
                    closed += 1
                if slack <= 0 or filled == max_children:
                    break
                if waits[state, i] == 0 or end[i] > until:
                    continue
                gap = -floor % align[i]
                low = min(before, floor + gap + size[i]) - floor
                if begin[i] > since and low > slack:
                    continue
                fits = True
                for s in range(begin[i], end[i] if gap > 0 else begin[i]):
                    fits = fits and floor + gap + left[state, s] <= height
                if not fits:
                    continue
                total = (
                    wasted
                    + low * (waste_weight[begin[i]] - waste_weight[since])
                    + gap * (waste_weight[end[i]] - waste_weight[begin[i]])
                )
                life = (lives[state] + end[i] - begin[i]) / (depth + 1)
                covered = area[state] + size[i] * (end[i] - begin[i])
                children[0, filled], children[1, filled], children[2, filled] = state, raises, i
                power = math.sqrt(life) if halves % 2 else 1.0
                for _ in range(halves // 2):
                    power *= life
                score[filled] = (total + _BASE_WASTE) / (covered * power)
                filled += 1
            wall = _lower_wall(raised, 0, since, until, sections)
            fits = wall < _FAR
            for s in range(since, until):
                fits = fits and wall + left[state, s] <= height
            if not fits:
                break
            wasted += (wall - floor) * (waste_weight[until] - waste_weight[since])
            _raise(raised, 0, since, until, wall)
    return filled


@njit
def next_level(
    ranked: Ints,
    height: int,
    buffers: SortedBuffers,
    waste_weight: Floats,
    old: States,
    new: States,
    buffer_hashes: Ints,
    children: Ints2D,
    table: Ints,
    parent: Ints,
    placed: Ints,
    offset: Ints,
) -> int:
    """Build the states of the next level from the best successors, in the order of ``ranked``; returns the number of states.

    Successors that waste too much are left out, and so are all but the first of those that have placed the same buffers.

    Parameters
    ----------
    ranked
        The successors, as columns of ``children``, best first.
    height, buffers, waste_weight, children
        As in :func:`expand`.
    old, new
        The states of this level, and the states of the next one, which are written.
    buffer_hashes
        [n] random number of each buffer, for hashing sets of buffers.
    table
        Scratch space for a hash table of the sets; its length is a power of two.
    parent, placed, offset
        [most states] output: for each new state its predecessor, the placed buffer, and the buffer's offset in units.
    """
    size, align, begin, end, first = buffers
    level, left, waits, waste, area, lives, key = old
    new_level, new_left, new_waits, new_waste, new_area, new_lives, new_key = new
    sections, count, max_states = len(waste_weight) - 1, 0, len(parent)
    for slot in range(len(table)):
        table[slot] = -1
    for child in ranked:
        state, i = children[0, child], children[2, child]
        set_hash = key[state] ^ buffer_hashes[i]
        slot = set_hash & (len(table) - 1)
        while table[slot] >= 0 and new_key[table[slot]] != set_hash:
            slot = (slot + 1) & (len(table) - 1)
        if table[slot] >= 0:
            continue
        for s in range(sections):
            new_level[count, s], new_left[count, s] = level[state, s], left[state, s]
        for k in range(len(buffer_hashes)):
            new_waits[count, k] = waits[state, k]
        wasted = waste[state]
        since, until = _lowest(new_level, count, sections)
        for _ in range(children[1, child]):
            wall = _lower_wall(new_level, count, since, until, sections)
            wasted += (wall - new_level[count, since]) * (waste_weight[until] - waste_weight[since])
            _raise(new_level, count, since, until, wall)
            since, until = _lowest(new_level, count, sections)
        floor = new_level[count, since]
        gap = -floor % align[i]
        top = floor + gap + size[i]
        low = top if since == 0 else min(top, new_level[count, since - 1])
        _raise(new_level, count, since, begin[i], low)
        new_waits[count, i] = 0
        wasted += (low - floor) * (waste_weight[begin[i]] - waste_weight[since]) + gap * (
            waste_weight[end[i]] - waste_weight[begin[i]]
        )
        for s in range(begin[i], end[i]):
            new_left[count, s] -= size[i]
            new_level[count, s] = top if new_left[count, s] > 0 else _FAR
        # If no waiting buffer lives within the valley, the only possible step is to raise the valley.
        fits = True
        since, until = _lowest(new_level, count, sections)
        while fits and since >= 0:
            has_choice = False
            for k in range(first[since], first[until]):
                if new_waits[count, k] == 1 and end[k] <= until:
                    has_choice = True
                    break
            if has_choice:
                break
            wall, floor = _lower_wall(new_level, count, since, until, sections), new_level[count, since]
            for s in range(since, until):
                fits = fits and wall + new_left[count, s] <= height
            wasted += (wall - floor) * (waste_weight[until] - waste_weight[since])
            _raise(new_level, count, since, until, wall)
            since, until = _lowest(new_level, count, sections)
        if not fits:
            continue
        new_waste[count], new_key[count], table[slot] = wasted, set_hash, count
        new_area[count] = area[state] + size[i] * (end[i] - begin[i])
        new_lives[count] = lives[state] + end[i] - begin[i]
        parent[count], placed[count], offset[count] = state, i, top - size[i]
        count += 1
        if count == max_states:
            break
    return count


@dataclass
class Part(canonical.Part):
    """Beam search for a part of a problem that can be packed independently, without gaps, fixed offsets and overlaps.

    It has the interface of :class:`stowplan.portfolio.packing.canonical.Part`, but it proves nothing and never raises the
    bound.
    """

    should_stop: Callable[[], bool] = lambda: False
    """Called before each level of a beam; True ends the beam without a plan."""
    _beams: tuple[Beam, Beam] = field(init=False)

    def __post_init__(self) -> None:
        self._beams = Beam(self.data), Beam(self.data, mirrored=True)
        self._chance = np.random.default_rng(self.seed)
        self._turn = 0
        self._at_bound = True
        self._turns = {at_bound: itertools.count() for at_bound in (True, False)}
        self._spent = {True: 0, False: 0}

    def next_target(self, capacity: int | None, floor: int) -> tuple[int, int]:
        """The height to try next, and the width of the beam in states.

        The height is the capacity, if there is one. Otherwise it is either the bound or a height between the bound and the best
        plan: the one on which beams have spent fewer states so far. ``capacity`` (None for none) and ``floor``, a lower bound
        of the height of the whole problem, are in units.
        """
        self._at_bound = capacity is not None or self.best is None or self._spent[True] <= self._spent[False]
        turn = self._turn = next(self._turns[self._at_bound])
        low = max(self.bound, floor)
        if self._at_bound or self.best is None:
            return low if capacity is None else capacity, PARAMS.at_bound * canonical.luby(turn + 1)
        return low + int(PARAMS.aims[turn % len(PARAMS.aims)] * (self.best - 1 - low)), PARAMS.above * canonical.luby(
            turn // len(PARAMS.aims) + 1
        )

    def run(self, height: int, length: int) -> int:
        """Run one beam of width ``length`` for a plan within ``height`` units; returns the number of its states.

        A plan that is found is adopted. The number is at least the width, because a beam that ends at once has still taken time
        for its arrays.
        """
        turn = self._turn
        self.runs += 1
        beam = self._beams[turn % 2]
        halves, noise = PARAMS.halves[turn % len(PARAMS.halves)], PARAMS.noises[turn // 2 % len(PARAMS.noises)]
        offsets, states = beam.pack(height, length, halves, self._chance, noise, self.should_stop)
        cost = max(states, min(length, beam.widest))
        self._spent[self._at_bound] += cost
        if offsets is not None:
            self.adopt(offsets)
        return cost
