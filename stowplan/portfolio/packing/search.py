"""Heuristic search: greedy placements by simple keys, then keys in which what ended too high comes sooner."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterator
from functools import cached_property

import numpy as np

from stowplan.compiled import Ints2D, njit
from stowplan.parameters import Parameters, parameters
from stowplan.portfolio.packing import orders, skyline
from stowplan.portfolio.packing.arrays import Data, Ints
from stowplan.portfolio.packing.sharing import greedy_with_overlaps, meet, partners

#: Places all buffers by a key [n]: height in units and offsets [n], None where it was told to stop.
Placement = Callable[[orders.Floats], tuple[int, Ints] | None]


class ClimbParameters(Parameters, frozen=True):
    """Parameters of climbing."""

    patience: int = 15
    """Rounds without a better plan after which a climb goes back to its best."""
    climbs: int = 3
    """Climbs from skylines that are carried on."""
    first_keys: int = 8
    """Skyline keys that are tried before the best of them are climbed from."""
    challenge: int = 12
    """Rounds, every second one, in which a new key may show what it is worth beside them."""
    local: float = 0.6
    """Part of the rounds of a local climb in which keys change around one buffer that ended too high."""
    slice: int = 200_000_000
    """Pairs of buffers that first fit compares between two looks at the clock."""


PARAMS = parameters(ClimbParameters, __name__)


class Placements:
    """The ways to place the buffers of some data.

    Parameters
    ----------
    should_stop
        Looked at now and then while a placement takes long.
    """

    def __init__(self, data: Data, should_stop: Callable[[], bool]):
        self._data, self._should_stop = data, should_stop
        self._skyline: skyline.Skyline | None = None

    @cached_property
    def _partners(self) -> tuple[Ints, Ints2D]:
        return partners(self._data)

    def first_fit(self, key: orders.Floats) -> tuple[int, Ints] | None:
        """By descending key, each into the lowest hole."""
        return self._in_order(key, best_fit=False)

    def best_fit(self, key: orders.Floats) -> tuple[int, Ints] | None:
        """By descending key, each into the tightest hole."""
        return self._in_order(key, best_fit=True)

    def skyline(self, key: orders.Floats) -> tuple[int, Ints]:
        """From the bottom up, in each valley what has the largest key; not for fixed offsets."""
        if self._skyline is None:
            self._skyline = skyline.Skyline(self._data)
        return self._skyline.place(key)

    def _in_order(self, key: orders.Floats, best_fit: bool) -> tuple[int, Ints] | None:
        data, n = self._data, len(self._data.size)
        order, offsets, table = orders.by_key(data, key), np.zeros(n, np.int64), np.empty((6, 2 * n), np.int64)
        height = since = 0
        while since < n:
            if since and self._should_stop():
                return None
            until = min(n, since + max(1, PARAMS.slice // n))
            arrays = order, data.size, data.align, data.fixed, data.piece, data.first, data.last
            if len(data.overlaps):
                placed = greedy_with_overlaps(*arrays, best_fit, offsets, table, since, until, *self._partners)
            else:
                placed = greedy(*arrays, best_fit, offsets, table, since, until)
            height = max(height, placed)
            since = until
        return height, offsets


def skyline_keys(data: Data, chance: np.random.Generator, flip: bool) -> Iterator[orders.Floats]:
    """Keys without end for placing from the bottom up: long lives first, with size and pressure in many mixes.

    The first ones are fixed: what did best on real and made-up problems. ``flip`` swaps neighbours among them, for a second
    search.
    """
    rows, pressed = orders.features(data), orders.pressure(data)
    #: (feature, weight of the size, weight of the pressure)
    first = [(2, 0.2, 0.0), (2, 0.1, 100.0), (4, 0.0, 0.0), (2, 0.5, 100.0), (2, 0.2, 3.0), (5, 0.0, 0.0), (2, 0.05, 0.0)]
    first += [(0, 0.0, 100.0)]
    if flip:
        first = [first[at ^ 1] for at in range(len(first))]
    drawn = ((int(chance.choice([2, 5, 4])), chance.uniform(0.0, 0.6), chance.choice([0, 1, 3, 10, 100])) for _ in iter(int, 1))
    for feature, weight, crowd in itertools.chain(first, drawn):
        yield (1 - weight) * rows[feature] + weight * rows[0] + crowd * pressed


class Climb:
    """Hill climbing over the keys of one greedy placement: buffers that end above some line get a larger key.

    Heights are in units; ``target`` is one that is good enough.

    Parameters
    ----------
    by_excess
        Whether plans are compared by all that stands above the target, not by the height alone: where many moments are
        crowded, it shows progress in one of them.
    """

    def __init__(
        self,
        key: orders.Floats,
        place: Placement,
        height: int,
        offsets: Ints,
        target: int,
        chance: np.random.Generator,
        first: bool = False,
        *,
        by_excess: bool = False,
    ):
        self.place = place
        self.best = height
        self.first = first
        self._target, self._chance = target, chance
        self._key = self._best_key = key
        self._height, self._offsets = self._best_height, self._best_offsets = height, offsets
        self._by_excess = by_excess
        self._least: int | None = None
        self._stale = 0

    def next_key(self, data: Data) -> orders.Floats:
        """The key to try next."""
        if self._stale > PARAMS.patience:
            self._key = self._best_key + 0.02 * self._chance.normal(size=len(self._key))
            self._stale = 0
        high = self._too_high(data, self.best, self._height, self._offsets)
        self._key = self._key.copy()
        self._key[high] += self._chance.exponential(self._chance.choice([0.02, 0.1, 0.3]), len(high))
        return self._key

    def _too_high(self, data: Data, best: int, height: int, offsets: Ints) -> Ints:
        """Buffers that end above some line between the target and the best height; one at least."""
        line = self._target + (best - self._target) * self._chance.choice([0.0, 0.5, 0.9])
        return np.flatnonzero(offsets + data.size > min(line, height - 1))

    def take(self, data: Data, height: int, offsets: Ints) -> None:
        """What became of the key that was tried."""
        self._height, self._offsets = height, offsets
        if self._least is None:
            self._least = self._worth(data, self._best_height, self._best_offsets)
        worth = self._worth(data, height, offsets)
        self._stale = 0 if worth < self._least else self._stale + 1
        # Equal is good enough: most changes do not show in the height.
        if worth <= self._least:
            self._least, self._best_key = worth, self._key
            self._best_height, self._best_offsets = height, offsets
        self.best = min(self.best, height)

    def _worth(self, data: Data, height: int, offsets: Ints) -> int:
        """Units, the fewer the better."""
        return int(np.clip(offsets + data.size - self._target, 0, data.size).sum()) if self._by_excess else height


class LocalClimb(Climb):
    """The same for many buffers: most rounds change the keys only of what lives together with one that ended too high."""

    def next_key(self, data: Data) -> orders.Floats:
        """The key to try next."""
        if self._chance.random() >= PARAMS.local:
            return super().next_key(data)
        high = self._too_high(data, self._best_height, self._best_height, self._best_offsets)
        one = self._chance.choice(high)
        begin, end = data.begin, data.end
        around = np.flatnonzero((begin < end[one]) & (end > begin[one]))
        around = around[self._chance.random(len(around)) < self._chance.choice([1.0, 0.3, 0.1])]
        self._key = self._best_key.copy()
        self._key[around] += self._chance.choice([0.02, 0.1, 0.3, 1.0]) * self._chance.normal(size=len(around))
        self._key[high] += self._chance.choice([0.0, 0.1])
        return self._key


class HeuristicSearch:
    """Placements by many keys, the best of which are climbed from.

    Parameters
    ----------
    target
        Height in units that is good enough.
    improved
        Told of every better plan: height in units, offsets [n], and the name of what made it.
    should_stop
        Whether to return now.
    """

    def __init__(
        self,
        data: Data,
        target: int,
        seed: int,
        improved: Callable[[int, Ints, str], None],
        should_stop: Callable[[], bool],
    ):
        self._data, self._target = data, target
        self._improved, self._should_stop = improved, should_stop
        self._seed = seed
        self._placements = Placements(data, should_stop)
        self._best: int | None = None

    def climb_orders(self, numbers: Collection[int], source: str, rounds: int | None) -> None:
        """First fit and best fit by simple orders (the first one is the baseline, ``greedy``), then climbs from the best.

        Parameters
        ----------
        numbers
            Of :func:`stowplan.portfolio.packing.orders.greedy_keys`.
        rounds
            At most so many after the first ones; None sets no limit.
        """
        climbs: list[Climb] = []
        for number, key in enumerate(orders.greedy_keys(self._data)):
            for place in (self._placements.first_fit, self._placements.best_fit) if number in numbers else ():
                climb = self._start(key, place, source if climbs or number else "greedy", number == orders.PEAK)
                if climb is None:
                    return
                climbs.append(climb)
        # Two of the best, and the order that does best where few moments are crowded.
        ranked = sorted(climbs, key=lambda climb: climb.best)
        chosen = [*ranked[:2], *(climb for climb in climbs if climb.first)]
        for done in itertools.count():
            if self._done or done == rounds:
                return
            self._go_on(chosen[done % len(chosen)], source)

    def climb_from(self, offsets: Ints, source: str, rounds: int | None) -> None:
        """Climb from a plan: first fit by ascending offsets puts no buffer higher than it stands in a plan without overlaps.

        Parameters
        ----------
        offsets
            [n] units.
        rounds
            At most so many; None sets no limit.
        """
        climb = self._start(-offsets / max(1, (offsets + self._data.size).max()), self._placements.first_fit, source)
        for _ in itertools.count() if rounds is None else range(rounds):
            if climb is None or self._done:
                return
            self._go_on(climb, source)

    def climb_skylines(self, source: str, rounds: int | None, *, flip: bool, baseline: bool) -> None:
        """From the bottom up by many keys, and climbs from the best of them; for data that :func:`skyline.takes`.

        Parameters
        ----------
        rounds
            Placements at most; None sets no limit.
        flip
            Another order of the first keys, and climbs by excess.
        baseline
            After them, the baseline: ``greedy``, which takes much longer.
        """
        keys = skyline_keys(self._data, self._chance, flip)
        climbs: list[Climb] = []
        challenger: Climb | None = None
        spent = 0
        for done in itertools.count():
            if done == PARAMS.first_keys and baseline and not self._done:
                self._start(next(orders.greedy_keys(self._data)), self._placements.first_fit, "greedy")
            if self._done or done == rounds:
                return
            if done >= PARAMS.first_keys and done % 2 == 0:
                self._go_on(climbs[done // 2 % len(climbs)], source)
                continue
            # A new key every round at first; then each is climbed from for a while before it is compared with the others.
            if challenger is None:
                key = next(keys)
                height, offsets = self._placements.skyline(key)
                self._take(height, offsets, source)
                place = self._placements.skyline
                challenger = LocalClimb(key, place, height, offsets, self._target, self._chance, by_excess=flip)
            else:
                self._go_on(challenger, source)
            spent += 1
            if done < PARAMS.first_keys or spent == PARAMS.challenge:
                climbs = sorted([*climbs, challenger], key=lambda climb: climb.best)[: PARAMS.climbs]
                challenger, spent = None, 0

    @cached_property
    def _chance(self) -> np.random.Generator:
        # Not before it is needed: loading it takes longer than placing some buffers.
        return np.random.default_rng(self._seed)

    @property
    def _done(self) -> bool:
        return (self._best is not None and self._best <= self._target) or self._should_stop()

    def _start(self, key: orders.Floats, place: Placement, source: str, first: bool = False) -> Climb | None:
        placed = place(key)
        if placed is None:
            return None
        self._take(*placed, source)
        return None if self._done else Climb(key, place, *placed, self._target, self._chance, first)

    def _go_on(self, climb: Climb, source: str) -> None:
        placed = climb.place(climb.next_key(self._data))
        if placed is not None:
            self._take(*placed, source)
            climb.take(self._data, *placed)

    def _take(self, height: int, offsets: Ints, source: str) -> None:
        if self._best is None or height < self._best:
            self._best = height
            self._improved(height, offsets, source)


#: More than any size.
_FAR = 1 << 62


@njit
def greedy(
    order: Ints,
    size: Ints,
    align: Ints,
    fixed: Ints,
    piece: Ints,
    first: Ints,
    last: Ints,
    best_fit: bool,
    offsets: Ints,
    table: Ints2D,
    since: int,
    until: int,
) -> int:
    """Compiled: place the buffers ``order[since:until]`` one after the other, each into the lowest (or the tightest) hole.

    Returns their height. Buffers of fixed offset must come first in ``order``. ``offsets`` [n] is written; ``table`` [5, n] is
    what is kept from one call to the next.
    """
    begin, end, low, top, who = table[0], table[1], table[2], table[3], table[4]
    height = 0
    for placed in range(since, until):
        i = order[placed]
        at = fixed[i]
        start_section, end_section = first[piece[i]], last[piece[i + 1] - 1]
        if at < 0:
            ceiling, tightest = 0, _FAR
            for k in range(placed):
                if begin[k] >= end_section or start_section >= end[k]:
                    continue
                j = who[k]
                # Lives with gaps are compared piece by piece.
                has_gaps = piece[i + 1] - piece[i] > 1 or piece[j + 1] - piece[j] > 1
                if has_gaps and not meet(i, j, piece, first, last):
                    continue
                start = ceiling + -ceiling % align[i]
                room = low[k] - start
                if room >= size[i] and room < tightest:
                    at, tightest = start, room
                    if not best_fit:
                        break
                if top[k] > ceiling:
                    ceiling = top[k]
            if at < 0:
                at = ceiling + -ceiling % align[i]
        offsets[i] = at
        height = max(height, at + size[i])
        k, right = 0, placed
        while k < right:
            middle = (k + right) // 2
            if low[middle] <= at:
                k = middle + 1
            else:
                right = middle
        for m in range(placed, k, -1):
            begin[m], end[m], low[m], top[m], who[m] = begin[m - 1], end[m - 1], low[m - 1], top[m - 1], who[m - 1]
        begin[k], end[k], low[k], top[k], who[k] = start_section, end_section, at, at + size[i], i
    return height
