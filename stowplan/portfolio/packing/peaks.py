"""Placement outward from the peaks of the load, so that little is wasted where memory is scarcest.

:class:`stowplan.portfolio.packing.arrays.Data` has the buffers: time is divided into *sections*, sizes and offsets are counted
in *units*, and n is the number of buffers. The *load* of a section is the sum of the sizes of the buffers that are live in it,
and a *peak* is a section of high load. The buffers that are live at a peak are piled up without free space between them; this
is a *stack*. From there the placement *sweeps* through time in both directions, like an allocator at run time. A buffer that
ends leaves a *hole*, a free range of offsets, and each new buffer takes the smallest hole that is large enough. The waste of
such a sweep grows with the distance from the peak, while the load falls.

If several peaks lie farther apart than twice the longest life, each has a stack of its own. Two sweeps then start between two
peaks and meet at the moment of the least load between them; the second one avoids the buffers of the first. Stacks are built in
several ways, since the best way for one side need not be the best for the other. Dynamic programming from peak to peak finds
the ways that go best together. Nothing in this module raises an error.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from stowplan.compiled import njit, njit_inner
from stowplan.parameters import Parameters, parameters
from stowplan.portfolio.packing.arrays import Data, Ints
from stowplan.portfolio.packing.orders import Floats

#: A number of units or sections that is larger than any other.
_FAR = 1 << 62

#: Holes that a sweep may examine for each buffer on average. A sweep that needs more takes too long and is given up.
_HOLES = 10_000


class PeaksParameters(Parameters, frozen=True):
    """Parameters of placing from the peaks."""

    counts: tuple[int, ...] = (1, 2, 3, 5, 8, 13)
    """Numbers of peaks to place from, which are tried one after the other. The highest peaks are used."""
    least_peak: float = 0.8
    """Fraction of the largest load that a section must reach to count as a peak."""
    lower: float = 0.02
    """Largest fraction of the largest load by which a random placement (``at_random`` of :meth:`Peaks.place`) lowers the load
    of a section before it looks for peaks."""
    shuffle: tuple[float, ...] = (0.0, 0.003, 0.02)
    """Standard deviations of the noise in the order of a stack, as fractions of the number of sections. Each random placement
    chooses one of them."""


PARAMS = parameters(PeaksParameters, __name__)

#: Numbers of the ways to stack the buffers at a peak (:meth:`Peaks._stack`): the two ways that are best on most problems, and
#: all of them, in the order in which they are tried.
_FEW_WAYS, WAYS = (0, 1), (2, 3, 4, 0, 1)


class Side(NamedTuple):
    """Buffers that a stack, a sweep, or the two sweeps between two peaks have placed."""

    height: int
    """Height of the placement in units; ``_FAR`` if it reached the limit or was stopped."""
    buffers: Ints
    """[m] indices of the placed buffers."""
    offsets: Ints
    """[m] offsets of these buffers in units."""


class Peaks:
    """The buffers of one problem, prepared for many placements.

    Parameters
    ----------
    data
        Buffers without gaps, fixed offsets and overlaps (:attr:`~stowplan.portfolio.packing.arrays.Data.is_plain`).
    target
        Height in units that is good enough.
    seed
        Seed of the random placements (``at_random`` of :meth:`place`).
    should_stop
        Function that is called before each sweep and says whether to give up.
    """

    def __init__(self, data: Data, target: int, seed: int, should_stop: Callable[[], bool]):
        self._size, self._align, self._begin, self._end = data.size, data.align, data.begin, data.end
        self._sections, self._load = data.sections, data.load()
        self._longest = int((data.end - data.begin).max())
        self._target, self._should_stop = target, should_stop
        self._chance = np.random.default_rng(seed)
        self._limit = _FAR

    def tries(self) -> list[tuple[int, Sequence[int]]]:
        """Returns the arguments (``count``, ``ways``) of :meth:`place` to try first."""
        max_count = len(self._find_peaks(self._load, PARAMS.counts[-1]))
        counts = [count for count in PARAMS.counts if count <= max_count]
        return [(count, ways) for ways in (_FEW_WAYS, WAYS) for count in counts]

    def place(self, count: int, ways: Sequence[int], limit: int | None, *, at_random: bool = False) -> tuple[int, Ints] | None:
        """Place all buffers; returns the height and the offsets [n], in units.

        Returns None if every placement reaches ``limit``, or if ``should_stop`` ended the sweeps.

        Parameters
        ----------
        count
            Largest number of peaks to place from, the highest ones. There are fewer if not so many sections are high enough.
        ways
            Numbers of the ways to stack the buffers that are live at a peak.
        limit
            Height in units that the placement must stay below; None for no limit.
        at_random
            Whether to vary the placement: the peaks are sections near the highest ones, and the order of the stacks has some
            noise.
        """
        limit = self._limit = _FAR if limit is None else limit
        load = self._load
        if at_random:
            # The load of every section is lowered at random, so that another high section becomes the peak.
            load = load - (PARAMS.lower * self._chance.random() * load.max() * self._chance.random(len(load))).astype(np.int64)
        peaks = sorted(self._find_peaks(load, count))
        shuffle = float(self._chance.choice(PARAMS.shuffle)) if at_random else 0.0
        stacks = [[self._stack(peak, way, shuffle) for way in ways] for peak in peaks]
        # For each way to stack the current peak, this has the best placement of all buffers up to the peak, as a list of sides.
        best_up_to = [[stack, self._sweep_outward(peaks[0], stack, mirrored=True)] for stack in stacks[0]]
        for number in range(1, len(peaks)):
            best: list[list[Side]] = []
            for stack in stacks[number]:
                options = [
                    [*sides, stack, side]
                    for sides, before in zip(best_up_to, stacks[number - 1], strict=True)
                    if _height(sides) < limit
                    for side in [self._sweep_between(peaks[number - 1], before, peaks[number], stack)]
                ]
                best.append(min(options, key=_height, default=[Side(_FAR, stack.buffers, stack.offsets)]))
            best_up_to = best
        best_up_to = [
            [*sides, self._sweep_outward(peaks[-1], stack, mirrored=False)] if _height(sides) < limit else sides
            for sides, stack in zip(best_up_to, stacks[-1], strict=True)
        ]
        chosen = min(best_up_to, key=_height)
        height = _height(chosen)
        if height >= limit:
            return None
        offsets = np.empty(len(self._size), np.int64)
        for side in chosen:
            offsets[side.buffers] = side.offsets
        return height, offsets

    def _find_peaks(self, load: Ints, count: int) -> list[int]:
        """Returns at most ``count`` sections of high load, highest first. Any two are farther apart than twice the longest
        life, so that no buffer is live at the same time as buffers of two peaks."""
        distance = 2 * self._longest
        remaining, threshold = load.copy(), PARAMS.least_peak * load.max()
        peaks: list[int] = []
        while len(peaks) < count:
            peak = int(remaining.argmax())
            if remaining[peak] < threshold:
                break
            peaks.append(peak)
            remaining[max(0, peak - distance) : peak + distance + 1] = -1
        return peaks

    def _stack(self, peak: int, way: int, shuffle: float) -> Side:
        """Stack the buffers that are live at a peak, one above the other, in an order that ``way`` chooses.

        ``shuffle`` is the standard deviation of the noise in the order, as a part of the number of sections.
        """
        buffers = np.flatnonzero((self._begin <= peak) & (self._end > peak))
        since, until = peak - self._begin[buffers], self._end[buffers] - 1 - peak
        # Way 0 has the buffers that begin last at the bottom and those that end first at the top, so that the space that is
        # free before and after the peak stays in one piece. Way 1 is its reverse, ways 2 and 3 look at one side alone, and way
        # 4 has at the top the buffers that begin or end close to the peak.
        two_sided = np.where(since < until, since, 2 * self._sections - until)
        key: Floats = (two_sided, -two_sided, -until, -since, -np.minimum(since, until))[way].astype(float)
        if shuffle:
            key += self._sections * shuffle * self._chance.normal(size=len(key))
        order = buffers[np.argsort(key, kind="stable")]
        offsets = np.empty(len(order), np.int64)
        top = pile(order, self._size, self._align, offsets)
        return Side(int(top), order, offsets)

    def _sweep_outward(self, peak: int, stack: Side, *, mirrored: bool) -> Side:
        """Place the buffers that begin after a peak or, if ``mirrored``, end before it, by a sweep away from the peak."""
        buffers = np.flatnonzero(self._end <= peak if mirrored else self._begin > peak)
        none = np.empty(0, np.int64)
        return self._lower_of_two(lambda at_top: self._sweep(stack, buffers, Side(0, none, none), mirrored, at_top))

    def _sweep_between(self, first: int, stack: Side, second: int, other: Side) -> Side:
        """Place the buffers between two peaks, with the stacks ``stack`` and ``other``, by two sweeps that meet."""
        meet = first + 1 + int(self._load[first + 1 : second].argmin())
        inside = (self._begin > first) & (self._end <= second)
        early, late = np.flatnonzero(inside & (self._begin <= meet)), np.flatnonzero(inside & (self._begin > meet))

        def both(at_top: bool) -> Side:
            forward = self._sweep(stack, early, other, False, at_top)
            if forward.height >= self._limit:
                return forward
            earlier, places = (np.concatenate(parts) for parts in zip(stack[1:], forward[1:], strict=True))
            crossing = np.flatnonzero(self._end[earlier] > meet)
            beyond = Side(0, earlier[crossing], places[crossing])
            backward = self._sweep(other, late, beyond, True, at_top)
            buffers, offsets = (np.concatenate(parts) for parts in zip(forward[1:], backward[1:], strict=True))
            return Side(max(forward.height, backward.height), buffers, offsets)

        return self._lower_of_two(both)

    def _lower_of_two(self, sweep: Callable[[bool], Side]) -> Side:
        """The lower of two placements: with each buffer at the bottom of its hole, and with each at the top.

        The second one is tried only if the first is higher than the target.
        """
        low = sweep(False)
        return low if low.height <= self._target else min(low, sweep(True), key=lambda side: side.height)

    def _sweep(self, stack: Side, buffers: Ints, beyond: Side, mirrored: bool, at_top: bool) -> Side:
        """Place ``buffers`` in the order in which the sweep meets them.

        Parameters
        ----------
        stack
            Placed buffers that are live where the sweep begins.
        buffers
            [m] indices of the buffers to place.
        beyond
            Placed buffers that the sweep meets later and that then stay live until its end.
        mirrored
            Whether the sweep runs backwards in time.
        at_top
            Whether each buffer goes to the top of its hole, not to the bottom.
        """
        if self._should_stop():
            return Side(_FAR, buffers, np.zeros(len(buffers), np.int64))
        begin, end = (self._sections - self._end, self._sections - self._begin) if mirrored else (self._begin, self._end)
        order = buffers[np.lexsort((-self._size[buffers], begin[buffers]))]
        offset = np.zeros(len(self._size), np.int64)
        offset[stack.buffers] = stack.offsets
        by_end = np.concatenate([stack.buffers, order])
        by_end = by_end[np.argsort(end[by_end], kind="stable")]
        by_offset = np.argsort(beyond.offsets, kind="stable")
        others = beyond.buffers[by_offset]
        height = sweep(
            order, by_end, begin, end, self._size, self._align, stack.height,
            begin[others], beyond.offsets[by_offset], self._size[others], at_top, self._limit, offset,
            np.empty(2 * len(by_end) + 4, np.int64),
        )  # fmt: skip
        return Side(int(height), order, offset[order])


def _height(sides: Sequence[Side]) -> int:
    """The height of several placements together, in units."""
    return max(side.height for side in sides)


@njit
def pile(order: Ints, size: Ints, align: Ints, offsets: Ints) -> int:
    """Place the buffers ``order`` [m] one above the other; returns the height in units.

    ``offsets`` [m] is written in the same order. ``size`` and ``align`` [n] are in units.
    """
    top = 0
    for place in range(len(order)):
        i = order[place]
        offsets[place] = top + -top % align[i]
        top = offsets[place] + size[i]
    return top


@njit_inner
def _insert(low: Ints, high: Ints, count: int, at: int, start: int, stop: int) -> None:
    """Insert the hole ``[start, stop)`` before number ``at`` of ``count`` holes ``[low, high)``, which are ascending."""
    for k in range(count, at, -1):
        low[k], high[k] = low[k - 1], high[k - 1]
    low[at], high[at] = start, stop


@njit_inner
def _remove(low: Ints, high: Ints, count: int, at: int) -> None:
    """Remove number ``at`` of ``count`` holes."""
    for k in range(at, count - 1):
        low[k], high[k] = low[k + 1], high[k + 1]


@njit_inner
def _free(low: Ints, high: Ints, count: int, start: int, stop: int) -> int:
    """Free ``[start, stop)`` and merge it with adjacent holes; returns the new number of holes."""
    at, right = 0, count
    while at < right:
        middle = (at + right) // 2
        if low[middle] < start:
            at = middle + 1
        else:
            right = middle
    if at > 0 and high[at - 1] == start:
        if at < count and low[at] == stop:
            high[at - 1] = high[at]
            _remove(low, high, count, at)
            return count - 1
        high[at - 1] = stop
    elif at < count and low[at] == stop:
        low[at] = start
    else:
        _insert(low, high, count, at, start, stop)
        return count + 1
    return count


@njit
def sweep(
    order: Ints,
    by_end: Ints,
    begin: Ints,
    end: Ints,
    size: Ints,
    align: Ints,
    top: int,
    beyond_begin: Ints,
    beyond_offset: Ints,
    beyond_size: Ints,
    at_top: bool,
    limit: int,
    offset: Ints,
    scratch: Ints,
) -> int:
    """Place buffers in the order in which their lives begin, each into the smallest hole that is large enough.

    Returns the height in units, or ``_FAR`` if the sweep reached ``limit`` or examined too many holes.

    Parameters
    ----------
    order
        [m] the buffers to place, by the section in which their lives begin.
    by_end
        These buffers and those of the stack that is live before them, by the section in which their lives end.
    begin, end, size, align
        [n] the lives of all buffers in sections, and their sizes and alignments in units.
    top
        Height of the stack in units; the buffers of the stack have their offsets in ``offset``.
    beyond_begin, beyond_offset, beyond_size
        First sections, offsets and sizes of placed buffers, sorted by offset. They stay live until all buffers in ``order``
        have ended.
    at_top
        Whether each buffer goes to the top of its hole, not to the bottom.
    limit
        Height in units at which the sweep is given up.
    offset
        [n] offsets in units; written for the buffers in ``order``.
    scratch
        [2 len(by_end) + 4] scratch space.
    """
    low, high, count = scratch[: len(by_end) + 2], scratch[len(by_end) + 2 :], 1
    low[0], high[0] = top, _FAR
    first = _FAR
    for k in range(len(beyond_begin)):
        first = min(first, beyond_begin[k])
    height, ended, examined = top, 0, 0
    for i in order:
        while ended < len(by_end) and end[by_end[ended]] <= begin[i]:
            j = by_end[ended]
            count = _free(low, high, count, offset[j], offset[j] + size[j])
            ended += 1
        hole, place, tightest, next_beyond = -1, 0, _FAR, 0
        is_alone = end[i] <= first
        examined += count if is_alone else count + len(beyond_begin)
        for k in range(count):
            start = low[k]
            if is_alone and high[k] - start < size[i]:
                continue
            while start < high[k]:
                stop = high[k]
                if not is_alone:
                    while next_beyond < len(beyond_begin) and (
                        beyond_begin[next_beyond] >= end[i] or beyond_offset[next_beyond] + beyond_size[next_beyond] <= start
                    ):
                        next_beyond += 1
                    if next_beyond < len(beyond_begin):
                        stop = min(stop, beyond_offset[next_beyond])
                lowest = start + -start % align[i]
                if stop == _FAR:
                    if hole < 0:
                        hole, place = k, lowest
                elif lowest + size[i] <= stop and stop - start - size[i] < tightest:
                    hole, tightest = k, stop - start - size[i]
                    place = stop - size[i] - (stop - size[i]) % align[i] if at_top else lowest
                if stop == high[k]:
                    break
                start = beyond_offset[next_beyond] + beyond_size[next_beyond]
        offset[i] = place
        above = place + size[i]
        height = max(height, above)
        if height >= limit or examined > _HOLES * (len(order) + 1):
            return _FAR
        if low[hole] == place and high[hole] == above:
            _remove(low, high, count, hole)
            count -= 1
        elif low[hole] == place:
            low[hole] = above
        elif high[hole] == above:
            high[hole] = place
        else:
            _insert(low, high, count, hole, low[hole], place)
            low[hole + 1] = above
            count += 1
    return height
