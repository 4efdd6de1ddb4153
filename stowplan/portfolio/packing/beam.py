"""Beam search from the bottom up: many unfinished packings side by side, of which the least wasteful go on.

A *state* is a skyline (how high the placed buffers reach, for every section) and what waits. Its lowest valley takes a buffer
that lives within it, and what of the valley lies before that buffer is closed; or the valley is raised to its lower neighbour.
Within a height, every section has so much room to waste: its load is known. A state dies when a section has wasted more, and
the others are compared by what they have wasted of that room, so that it is spared where it is scarce; by the area that they
cover with it; and by the lives of what they have placed, since short ones are easily placed later. Of states that have placed
the same buffers the best goes on. Beam search by waste is what does best for packing strips and for cutting (Libralesso and
Fontan, "An anytime tree search algorithm for the 2018 ROADEF/EURO challenge glass cutting problem", 2021).

Buffers, sections and units are those of :class:`stowplan.portfolio.packing.arrays.Data`.

:class:`Part` runs beams of many widths, forwards and backwards in time, at the bound and between bound and height.
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

_FAR = 1 << 62

#: Times that a valley is raised before a buffer is placed, at most: so often that a state leaves it open what to place.
_RAISES = 2


class BeamParameters(Parameters, frozen=True):
    """Parameters of the beam."""

    successors: int = 40
    """Successors for each state that goes on, at most."""
    spare: float = 0.01
    """Part of the height that a section can spare beside its room: with none, the first unit that the fullest section wastes
    would count more than everything else.
    """
    numbers: int = 12_000_000
    """Numbers in the arrays of all states, at most."""
    at_bound: int = 1000
    """States side by side in the narrowest beam at the bound or capacity; restarts follow Luby's sequence."""
    above: int = 300
    """States side by side in the narrowest beam at heights above."""
    aims: tuple[float, ...] = (0.5, 0.8, 0.3)
    """Parts of the way from bound to height to aim at: a beam that misses the bound mostly finds what it aims at."""
    halves: tuple[int, ...] = (5, 6, 4, 5, 8)
    """Halves of a power of how much long lives count, run by run."""
    noises: tuple[float, ...] = (0.0, 0.1, 0.1, 0.05)
    """Parts of a state's worth by which it may be off, run by run."""


PARAMS = parameters(BeamParameters, __name__)


#: Waste that every state is said to have, so that there is something to compare before there is any.
_BEGINNING = 0.01


class Lives(NamedTuple):
    """Buffers, those of an early begin first."""

    size: Ints
    align: Ints
    begin: Ints
    end: Ints
    first: Ints
    """[sections + 1] First buffer that begins in a section or later."""


class States(NamedTuple):
    """States of one beam; the arrays are of one row for each, those of numbers of one element."""

    level: Ints2D
    """[states, sections] how high the placed buffers reach; ``_FAR`` where nothing waits any more."""
    left: Ints2D
    """[states, sections] units that wait."""
    waits: Signs2D
    """[states, n] 1 where a buffer waits."""
    waste: Floats
    area: Floats
    """What is covered."""
    lives: Floats
    """Sections that placed buffers live through."""
    key: Ints
    """Of the set of placed buffers."""


def _states(count: int, n: int, sections: int) -> States:
    """Empty arrays for ``count`` states."""
    level, left = np.empty((count, sections), np.int64), np.empty((count, sections), np.int64)
    waste, area, lives = np.zeros(count), np.zeros(count), np.zeros(count)
    return States(level, left, np.empty((count, n), np.int8), waste, area, lives, np.zeros(count, np.int64))


class Beam:
    """Buffers ready to be packed again and again; for data that :attr:`~stowplan.portfolio.packing.arrays.Data.is_plain`.

    Parameters
    ----------
    mirrored
        Whether time runs backwards: valleys are filled from their end.
    """

    def __init__(self, data: Data, mirrored: bool = False):
        begin, end = (data.sections - data.end, data.sections - data.begin) if mirrored else (data.begin, data.end)
        # By begin, so that those that begin within a valley are neighbours.
        self._order = np.lexsort((end, begin))
        size, align, begin, end = (column[self._order] for column in (data.size, data.align, begin, end))
        self._lives = Lives(size, align, begin, end, np.searchsorted(begin, np.arange(data.sections + 1)))
        self._load = data.load()[::-1].copy() if mirrored else data.load()
        self._sections = data.sections

    @property
    def widest(self) -> int:
        """States side by side, at most."""
        return max(
            16,
            PARAMS.numbers // (2 * (2 * self._sections + len(self._order) // 8) + 4 * PARAMS.successors + 3 * len(self._order)),
        )

    def pack(
        self, height: int, width: int, halves: int, chance: np.random.Generator, noise: float, should_stop: Callable[[], bool]
    ) -> tuple[Ints | None, int]:
        """Look for a plan.

        Parameters
        ----------
        height
            Units that it must not exceed.
        width
            States side by side; no more than :attr:`widest` are kept.
        halves
            How much long lives count: twice the power of the mean life in what states are compared by.
        chance
            What sets of buffers are told apart by, and noise.
        noise
            Part by which the worth of a state may be off.
        should_stop
            Asked after each buffer.

        Returns
        -------
        tuple
            Offsets [n] in units or None, and the number of states.
        """
        n, sections = len(self._order), self._sections
        width = min(width, self.widest)
        room = height - self._load
        if room.min() < 0:
            return None, 0
        price = np.concatenate([[0.0], np.cumsum(1.0 / (room + max(1.0, PARAMS.spare * height)))])
        names = chance.integers(1, _FAR, n)
        old, new = _states(width, n, sections), _states(width, n, sections)
        old.level[0], old.left[0], old.waits[0] = 0, self._load, 1
        parent, placed, offset = (np.empty((n, width), np.int64) for _ in range(3))
        children = np.empty((3, width * PARAMS.successors + n), np.int64)
        worth = np.empty(children.shape[1])
        table = np.empty(1 << (4 * width).bit_length(), np.int64)
        raised = np.empty((1, sections), np.int64)
        count, states = 1, 0
        for depth in range(n):
            if should_stop():
                return None, states
            filled = expand(count, height, self._lives, price, old, depth, halves, children, worth, raised)
            if noise > 0:
                worth[:filled] *= 1.0 + noise * chance.random(filled)
            moves = parent[depth], placed[depth], offset[depth]
            count = go_on(np.argsort(worth[:filled]), height, self._lives, price, old, new, names, children, table, *moves)
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
    """The lowest valley [since, until), the first of them; since is -1 where nothing waits."""
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
    """Raise a valley. Loops compile several times faster than slices do."""
    for s in range(since, until):
        level[state, s] = wall


@njit_inner
def _lower_wall(level: Ints, state: int, since: int, until: int, sections: int) -> int:
    """Level of the lower neighbour of a valley; ``_FAR`` where it has none."""
    wall = _FAR if since == 0 else level[state, since - 1]
    return wall if until == sections else min(wall, level[state, until])


@njit
def expand(
    count: int,
    height: int,
    buffers: Lives,
    price: Floats,
    states: States,
    depth: int,
    halves: int,
    children: Ints2D,
    worth: Floats,
    raised: Ints2D,
) -> int:
    """Successors of states; returns how many.

    ``children`` [3, ...] gets state, raises and buffer of each, ``worth`` what they are compared by, the less the better.
    ``price`` [sections + 1] are sums of what a unit of waste costs, and ``halves`` is twice the power of the mean life.
    ``raised`` [1, sections] is room to work in.
    """
    # Arrays by themselves: in loops the members of a tuple would be counted as references each time.
    size, align, begin, end, first = buffers
    level, left, waits, waste, area, lives, _ = states
    sections, filled, most = len(price) - 1, 0, len(worth)
    for state in range(count):
        for s in range(sections):
            raised[0, s] = level[state, s]
        wasted = waste[state]
        for raises in range(_RAISES):
            since, until = _lowest(raised, 0, sections)
            floor = raised[0, since]
            before = _FAR if since == 0 else raised[0, since - 1]
            # What may be wasted in all sections before the buffer.
            closed, room = since, _FAR
            for i in range(first[since], first[until]):
                while closed < begin[i]:
                    room = min(room, height - floor - left[state, closed])
                    closed += 1
                if room <= 0 or filled == most:
                    break
                if waits[state, i] == 0 or end[i] > until:
                    continue
                gap = -floor % align[i]
                low = min(before, floor + gap + size[i]) - floor
                if begin[i] > since and low > room:
                    continue
                fits = True
                for s in range(begin[i], end[i] if gap > 0 else begin[i]):
                    fits = fits and floor + gap + left[state, s] <= height
                if not fits:
                    continue
                total = wasted + low * (price[begin[i]] - price[since]) + gap * (price[end[i]] - price[begin[i]])
                life = (lives[state] + end[i] - begin[i]) / (depth + 1)
                covered = area[state] + size[i] * (end[i] - begin[i])
                children[0, filled], children[1, filled], children[2, filled] = state, raises, i
                power = math.sqrt(life) if halves % 2 else 1.0
                for _ in range(halves // 2):
                    power *= life
                worth[filled] = (total + _BEGINNING) / (covered * power)
                filled += 1
            wall = _lower_wall(raised, 0, since, until, sections)
            fits = wall < _FAR
            for s in range(since, until):
                fits = fits and wall + left[state, s] <= height
            if not fits:
                break
            wasted += (wall - floor) * (price[until] - price[since])
            _raise(raised, 0, since, until, wall)
    return filled


@njit
def go_on(
    ranked: Ints,
    height: int,
    buffers: Lives,
    price: Floats,
    old: States,
    new: States,
    names: Ints,
    children: Ints2D,
    table: Ints,
    parent: Ints,
    placed: Ints,
    offset: Ints,
) -> int:
    """Make states of the best successors, in the order of ``ranked``; returns how many.

    Left out are those that waste too much, and all but the first of those that have placed the same buffers. ``table`` is for
    finding them; its length is a power of two. ``parent``, ``placed`` and ``offset`` get what was placed, on which state.
    """
    size, align, begin, end, first = buffers
    level, left, waits, waste, area, lives, key = old
    new_level, new_left, new_waits, new_waste, new_area, new_lives, new_key = new
    sections, count, most = len(price) - 1, 0, len(parent)
    for slot in range(len(table)):
        table[slot] = -1
    for child in ranked:
        state, i = children[0, child], children[2, child]
        name = key[state] ^ names[i]
        slot = name & (len(table) - 1)
        while table[slot] >= 0 and new_key[table[slot]] != name:
            slot = (slot + 1) & (len(table) - 1)
        if table[slot] >= 0:
            continue
        for s in range(sections):
            new_level[count, s], new_left[count, s] = level[state, s], left[state, s]
        for k in range(len(names)):
            new_waits[count, k] = waits[state, k]
        wasted = waste[state]
        since, until = _lowest(new_level, count, sections)
        for _ in range(children[1, child]):
            wall = _lower_wall(new_level, count, since, until, sections)
            wasted += (wall - new_level[count, since]) * (price[until] - price[since])
            _raise(new_level, count, since, until, wall)
            since, until = _lowest(new_level, count, sections)
        floor = new_level[count, since]
        gap = -floor % align[i]
        top = floor + gap + size[i]
        low = top if since == 0 else min(top, new_level[count, since - 1])
        _raise(new_level, count, since, begin[i], low)
        new_waits[count, i] = 0
        wasted += (low - floor) * (price[begin[i]] - price[since]) + gap * (price[end[i]] - price[begin[i]])
        for s in range(begin[i], end[i]):
            new_left[count, s] -= size[i]
            new_level[count, s] = top if new_left[count, s] > 0 else _FAR
        # Where nothing that waits lives within the lowest valley, it can only be raised.
        fits = True
        since, until = _lowest(new_level, count, sections)
        while fits and since >= 0:
            within = False
            for k in range(first[since], first[until]):
                if new_waits[count, k] == 1 and end[k] <= until:
                    within = True
                    break
            if within:
                break
            wall, floor = _lower_wall(new_level, count, since, until, sections), new_level[count, since]
            for s in range(since, until):
                fits = fits and wall + new_left[count, s] <= height
            wasted += (wall - floor) * (price[until] - price[since])
            _raise(new_level, count, since, until, wall)
            since, until = _lowest(new_level, count, sections)
        if not fits:
            continue
        new_waste[count], new_key[count], table[slot] = wasted, name, count
        new_area[count] = area[state] + size[i] * (end[i] - begin[i])
        new_lives[count] = lives[state] + end[i] - begin[i]
        parent[count], placed[count], offset[count] = state, i, top - size[i]
        count += 1
        if count == most:
            break
    return count


@dataclass
class Part(canonical.Part):
    """Beams for one independent part, with data that :attr:`~stowplan.portfolio.packing.arrays.Data.is_plain`."""

    should_stop: Callable[[], bool] = lambda: False
    """Asked after each buffer that all states of a beam have placed."""
    _beams: tuple[Beam, Beam] = field(init=False)

    def __post_init__(self) -> None:
        self._beams = Beam(self.data), Beam(self.data, mirrored=True)
        self._chance = np.random.default_rng(self.seed)
        self._turn = 0
        self._at_bound = True
        self._turns = {at_bound: itertools.count() for at_bound in (True, False)}
        self._spent = {True: 0, False: 0}

    def aim(self, capacity: int | None, floor: int) -> tuple[int, int]:
        """Height to try next, and width of the beam.

        The capacity where there is one; else the bound, and heights between it and the plan at hand, both for the same time.
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
        """One beam of ``length`` states for a plan within ``height``; returns its states, all told, but its width at least.

        A beam that dies at once has cost the arrays of its width.
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
