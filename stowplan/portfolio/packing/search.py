"""Heuristic search: greedy placement of the buffers sorted by simple keys, then hill climbing over these keys.

A *key* [n] gives every buffer a number, and buffers are placed by descending number. A *hole* is a free range of offsets
between buffers that are live at the same time as the new one. *Climbing* raises the numbers of buffers that ended too high, so
that they are placed earlier in the next *round*, that is, the next placement of all buffers. Buffers can also be placed from
the bottom up, at the *skyline*, which says how high the placed buffers reach at each time (:mod:`.skyline`).
:class:`stowplan.portfolio.packing.arrays.Data` has the buffers: time is divided into *sections*, sizes and offsets are counted
in *units*, and n is the number of buffers. The *height* of a plan is the highest address that it uses. Nothing in this module
raises an error, except as stated.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterator
from functools import cached_property

import numpy as np

from stowplan.compiled import Ints2D, njit
from stowplan.parameters import Parameters, parameters
from stowplan.portfolio.packing import orders, skyline
from stowplan.portfolio.packing.arrays import Data, Ints
from stowplan.portfolio.packing.sharing import are_live_together, greedy_with_overlaps, partners

#: A function that places all buffers by a key [n]. It returns the height and the offsets [n] in units, or None if it was
#: stopped.
Placement = Callable[[orders.Floats], tuple[int, Ints] | None]


class ClimbParameters(Parameters, frozen=True):
    """Parameters of hill climbing."""

    patience: int = 15
    """Number of rounds without a better plan after which a climb returns to its best key."""
    climbs: int = 3
    """Number of climbs over skyline keys (:func:`skyline_keys`) that are continued in turn."""
    first_keys: int = 8
    """Number of skyline keys that are tried before climbing starts from the best of them."""
    challenge: int = 12
    """Number of rounds that a climb from a new skyline key gets before it is compared with the continued ones."""
    local: float = 0.6
    """Fraction of the rounds of a local climb (:class:`LocalClimb`) that change the numbers of buffers around one buffer that
    ended too high."""
    slice: int = 200_000_000
    """Number of pairs of buffers that first fit compares between two calls of ``should_stop``."""


PARAMS = parameters(ClimbParameters, __name__)


class Placements:
    """Places the buffers of one problem by keys, in one of three ways: first fit, best fit, or from the bottom up (skyline).

    Parameters
    ----------
    data
        The buffers.
    should_stop
        Called now and then during long placements by first fit and best fit; True ends the placement.
    """

    def __init__(self, data: Data, should_stop: Callable[[], bool]):
        self._data, self._should_stop = data, should_stop
        self._skyline: skyline.Skyline | None = None

    @cached_property
    def _partners(self) -> tuple[Ints, Ints2D]:
        return partners(self._data)

    def first_fit(self, key: orders.Floats) -> tuple[int, Ints] | None:
        """Place by descending key [n], each buffer into the lowest hole that is large enough.

        Returns the height and the offsets [n] in units; None if ``should_stop`` ended the placement.
        """
        return self._in_order(key, best_fit=False)

    def best_fit(self, key: orders.Floats) -> tuple[int, Ints] | None:
        """Place by descending key [n], each buffer into the smallest hole that is large enough.

        Returns the same as :meth:`first_fit`.
        """
        return self._in_order(key, best_fit=True)

    def skyline(self, key: orders.Floats) -> tuple[int, Ints]:
        """Place from the bottom up: the lowest valley of the skyline takes the buffer of the largest key (:mod:`.skyline`).

        Returns the height and the offsets [n] in units. Only data that :func:`.skyline.supports` can be placed in this way.
        """
        if self._skyline is None:
            self._skyline = skyline.Skyline(self._data)
        return self._skyline.place(key)

    def _in_order(self, key: orders.Floats, best_fit: bool) -> tuple[int, Ints] | None:
        """First fit or best fit by descending key, in slices between which ``should_stop`` is called. Buffers with a fixed
        offset come first."""
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
    """An endless sequence of keys [n] for placing from the bottom up: long lives first, mixed with size and pressure.

    The *pressure* of a buffer is the largest load during its life (:func:`.orders.pressure`). The first eight keys are fixed,
    because they did best on real and synthetic problems; the others are random mixes of the same features. ``chance`` is the
    source of the random numbers. ``flip`` swaps pairs of neighbours among the first eight, so that a second search starts with
    other keys.
    """
    rows, pressures = orders.features(data), orders.pressure(data)
    # Each mix has the row of a feature in orders.features, the weight w of the size (the feature has the weight 1 - w), and the
    # weight of the pressure.
    fixed_mixes = [(2, 0.2, 0.0), (2, 0.1, 100.0), (4, 0.0, 0.0), (2, 0.5, 100.0), (2, 0.2, 3.0), (5, 0.0, 0.0), (2, 0.05, 0.0)]
    fixed_mixes += [(0, 0.0, 100.0)]
    if flip:
        fixed_mixes = [fixed_mixes[at ^ 1] for at in range(len(fixed_mixes))]
    random_mixes = (
        (int(chance.choice([2, 5, 4])), chance.uniform(0.0, 0.6), chance.choice([0, 1, 3, 10, 100])) for _ in iter(int, 1)
    )
    for feature, weight, pressure_weight in itertools.chain(fixed_mixes, random_mixes):
        yield (1 - weight) * rows[feature] + weight * rows[0] + pressure_weight * pressures


class Climb:
    """Hill climbing over the keys of one greedy placement: buffers that end above a random height get a larger number.

    A round is a call of :meth:`next_key`, a placement by the caller with :attr:`place`, and a call of :meth:`record`. The
    attribute ``best`` is the least height so far, in units.

    Parameters
    ----------
    key
        [n] key to start from.
    place
        Function that places the buffers by a key.
    height, offsets
        Height and offsets [n], in units, of the plan to which ``key`` leads.
    target
        Height in units that is good enough, at most ``height``.
    chance
        Source of random numbers.
    starts_at_peak
        Whether ``key`` is that of the order :data:`.orders.PEAK`, from which every search climbs
        (:meth:`HeuristicSearch.climb_orders`).
    by_excess
        Whether plans are compared by the number of units of buffers that lie above the target, not by their height. If many
        moments are crowded, this shows progress at one of them, which the height does not.
    """

    def __init__(
        self,
        key: orders.Floats,
        place: Placement,
        height: int,
        offsets: Ints,
        target: int,
        chance: np.random.Generator,
        starts_at_peak: bool = False,
        *,
        by_excess: bool = False,
    ):
        self.place = place
        self.best = height
        self.starts_at_peak = starts_at_peak
        self._target, self._chance = target, chance
        self._key = self._best_key = key
        self._height, self._offsets = self._best_height, self._best_offsets = height, offsets
        self._by_excess = by_excess
        self._best_worth: int | None = None
        self._stale = 0

    def next_key(self, data: Data) -> orders.Floats:
        """The key [n] to try next."""
        # The random steps below are in standard deviations of a feature, to which keys are scaled (orders.features).
        if self._stale > PARAMS.patience:
            self._key = self._best_key + 0.02 * self._chance.normal(size=len(self._key))
            self._stale = 0
        high = self._too_high(data, self.best, self._height, self._offsets)
        self._key = self._key.copy()
        self._key[high] += self._chance.exponential(self._chance.choice([0.02, 0.1, 0.3]), len(high))
        return self._key

    def _too_high(self, data: Data, best: int, height: int, offsets: Ints) -> Ints:
        """Returns the buffers that end above a random height between the target and ``best``; at least one.

        ``height`` and ``offsets`` belong to the plan whose buffers are examined.
        """
        line = self._target + (best - self._target) * self._chance.choice([0.0, 0.5, 0.9])
        return np.flatnonzero(offsets + data.size > min(line, height - 1))

    def record(self, data: Data, height: int, offsets: Ints) -> None:
        """Record the plan to which the last key led: its height and its offsets [n], in units."""
        self._height, self._offsets = height, offsets
        if self._best_worth is None:
            self._best_worth = self._worth(data, self._best_height, self._best_offsets)
        worth = self._worth(data, height, offsets)
        self._stale = 0 if worth < self._best_worth else self._stale + 1
        # Keys that lead to an equally good plan are accepted as well, because most changes do not show in the height.
        if worth <= self._best_worth:
            self._best_worth, self._best_key = worth, self._key
            self._best_height, self._best_offsets = height, offsets
        self.best = min(self.best, height)

    def _worth(self, data: Data, height: int, offsets: Ints) -> int:
        """The number by which plans are compared: the height or the excess, in units; smaller is better."""
        return int(np.clip(offsets + data.size - self._target, 0, data.size).sum()) if self._by_excess else height


class LocalClimb(Climb):
    """Hill climbing for many buffers. Most rounds change the numbers of buffers that live at the same time as one buffer that
    ended too high, and may raise the numbers of all buffers that ended too high a little."""

    def next_key(self, data: Data) -> orders.Floats:
        """The key [n] to try next."""
        if self._chance.random() >= PARAMS.local:
            return super().next_key(data)
        high = self._too_high(data, self._best_height, self._best_height, self._best_offsets)
        center = self._chance.choice(high)
        begin, end = data.begin, data.end
        around = np.flatnonzero((begin < end[center]) & (end > begin[center]))
        around = around[self._chance.random(len(around)) < self._chance.choice([1.0, 0.3, 0.1])]
        self._key = self._best_key.copy()
        self._key[around] += self._chance.choice([0.02, 0.1, 0.3, 1.0]) * self._chance.normal(size=len(around))
        self._key[high] += self._chance.choice([0.0, 0.1])
        return self._key


class HeuristicSearch:
    """Places the buffers by many keys and climbs from the best of them.

    Parameters
    ----------
    data
        The buffers.
    target
        Height in units that is good enough.
    seed
        Seed of the random numbers.
    improved
        Called with every better plan: its height and its offsets [n] in units, and the name of the method.
    should_stop
        Function that says whether to return; it is called before each placement, and during long ones.
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
        """Place by greedy orders with first fit and best fit, then climb from the best.

        The first plan, first fit by size, is the baseline ``greedy`` and is reported under this name.

        Parameters
        ----------
        numbers
            Numbers of the orders to use, as :func:`stowplan.portfolio.packing.orders.greedy_keys` counts them.
        source
            Name under which plans are reported.
        rounds
            Maximum number of rounds of climbing; None sets no limit. With 0, the greedy orders are placed all the same.
        """
        climbs: list[Climb] = []
        for number, key in enumerate(orders.greedy_keys(self._data)):
            for place in (self._placements.first_fit, self._placements.best_fit) if number in numbers else ():
                climb = self._start(key, place, source if climbs or number else "greedy", number == orders.PEAK)
                if climb is None:
                    return
                climbs.append(climb)
        # The climbs start from the two best plans and from the order that begins at the peak, which does best if few moments
        # are crowded.
        ranked = sorted(climbs, key=lambda climb: climb.best)
        chosen = [*ranked[:2], *(climb for climb in climbs if climb.starts_at_peak)]
        for round_number in itertools.count():
            if self._is_done or round_number == rounds:
                return
            self._continue(chosen[round_number % len(chosen)], source)

    def climb_from(self, offsets: Ints, source: str, rounds: int | None) -> None:
        """Climb from a plan.

        The first key sorts the buffers by their offsets in the plan. If the plan uses no overlaps, first fit in this order puts
        no buffer higher than the plan does. Raises ValueError if there are no buffers.

        Parameters
        ----------
        offsets
            [n] offsets of the plan in units.
        source
            Name under which plans are reported.
        rounds
            Maximum number of rounds; None sets no limit.
        """
        climb = self._start(-offsets / max(1, (offsets + self._data.size).max()), self._placements.first_fit, source)
        for _ in itertools.count() if rounds is None else range(rounds):
            if climb is None or self._is_done:
                return
            self._continue(climb, source)

    def climb_skylines(self, source: str, rounds: int | None, *, flip: bool, baseline: bool) -> None:
        """Place from the bottom up by many keys, and climb from the best; for data that :func:`.skyline.supports`.

        Parameters
        ----------
        source
            Name under which plans are reported.
        rounds
            Maximum number of placements from the bottom up; None sets no limit.
        flip
            Whether to use the first keys in another order, and to compare plans by their excess (``by_excess`` of
            :class:`Climb`).
        baseline
            Whether to compute the baseline ``greedy`` after the first keys. First fit takes much longer than a skyline.
        """
        keys = skyline_keys(self._data, self._chance, flip)
        climbs: list[Climb] = []
        challenger: Climb | None = None
        challenge_rounds = 0
        for round_number in itertools.count():
            if round_number == PARAMS.first_keys and baseline and not self._is_done:
                self._start(next(orders.greedy_keys(self._data)), self._placements.first_fit, "greedy")
            if self._is_done or round_number == rounds:
                return
            if round_number >= PARAMS.first_keys and round_number % 2 == 0:
                self._continue(climbs[round_number // 2 % len(climbs)], source)
                continue
            # At first, every round tries a new key. Later, every second round continues the climb from a new key, the
            # challenger, which is compared with the other climbs after some rounds.
            if challenger is None:
                key = next(keys)
                height, offsets = self._placements.skyline(key)
                self._record(height, offsets, source)
                place = self._placements.skyline
                challenger = LocalClimb(key, place, height, offsets, self._target, self._chance, by_excess=flip)
            else:
                self._continue(challenger, source)
            challenge_rounds += 1
            if round_number < PARAMS.first_keys or challenge_rounds == PARAMS.challenge:
                climbs = sorted([*climbs, challenger], key=lambda climb: climb.best)[: PARAMS.climbs]
                challenger, challenge_rounds = None, 0

    @cached_property
    def _chance(self) -> np.random.Generator:
        # The generator is made on first use, because importing it takes longer than placing a few buffers.
        return np.random.default_rng(self._seed)

    @property
    def _is_done(self) -> bool:
        """Whether the best plan is good enough, or ``should_stop`` says so."""
        return (self._best is not None and self._best <= self._target) or self._should_stop()

    def _start(self, key: orders.Floats, place: Placement, source: str, starts_at_peak: bool = False) -> Climb | None:
        """Place by a key and report the plan; returns a climb from it, or None if the search is done or was stopped."""
        placed = place(key)
        if placed is None:
            return None
        self._record(*placed, source)
        return None if self._is_done else Climb(key, place, *placed, self._target, self._chance, starts_at_peak)

    def _continue(self, climb: Climb, source: str) -> None:
        """Do one round of a climb, and report the plan if it is the best so far."""
        placed = climb.place(climb.next_key(self._data))
        if placed is not None:
            self._record(*placed, source)
            climb.record(self._data, *placed)

    def _record(self, height: int, offsets: Ints, source: str) -> None:
        """Report a plan if it is lower than the best so far."""
        if self._best is None or height < self._best:
            self._best = height
            self._improved(height, offsets, source)


#: A number of units that is larger than any size or offset.
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
    """Place the buffers ``order[since:until]`` one after the other, each into the lowest hole that is large enough.

    If ``best_fit`` is set, each goes into the smallest hole that is large enough instead. A buffer that fits into no hole goes
    above all others that are live at the same time. Returns the height of these buffers in units. Buffers with a fixed offset
    must come first in ``order`` [n]; they are not checked for collisions. ``offsets`` [n] is written. ``table`` [5 or more, n
    or more] keeps the placed buffers from one call to the next, by ascending offset. The other arrays are those of
    :class:`stowplan.portfolio.packing.arrays.Data`.
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
                # Buffers whose lives have gaps are compared piece by piece.
                has_gaps = piece[i + 1] - piece[i] > 1 or piece[j + 1] - piece[j] > 1
                if has_gaps and not are_live_together(i, j, piece, first, last):
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
