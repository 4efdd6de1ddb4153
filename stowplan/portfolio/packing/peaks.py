"""Placement outward from the peaks of the load: nothing is wasted there, and more may be the farther away.

What lives at a peak is stacked without a hole. From there, forwards and backwards in time, buffers come as an allocator sees
them: what has ended leaves a hole, and each newcomer takes the tightest one. Its waste grows with the distance, while the load
falls. Where several peaks lie farther apart than two lives are long, each has its stack, and between two of them the one sweep
meets what the other has placed at the moment of the least load. Stacks are built in several ways, since what is good for one
side need not be for the other; which ways go best together is found from peak to peak by dynamic programming.

Buffers, sections and units are those of :class:`stowplan.portfolio.packing.arrays.Data`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from stowplan.compiled import njit, njit_inner
from stowplan.parameters import Parameters, parameters
from stowplan.portfolio.packing.arrays import Data, Ints
from stowplan.portfolio.packing.orders import Floats

_FAR = 1 << 62

#: Holes that one sweep may look at, for each buffer on average: with more of them it takes too long.
_HOLES = 10_000


class PeaksParameters(Parameters, frozen=True):
    """Parameters of placing from the peaks."""

    counts: tuple[int, ...] = (1, 2, 3, 5, 8, 13)
    """Peaks, the highest ones, that are tried one number after the other."""
    least_peak: float = 0.8
    """Part of the load below which a peak is none."""
    lower: float = 0.02
    """Part of the load by which a peak may be lower than the highest moment in later rounds."""
    shuffle: tuple[float, ...] = (0.0, 0.003, 0.02)
    """Parts of the places in a stack that are changed, in later rounds."""


PARAMS = parameters(PeaksParameters, __name__)

_FEW_WAYS, WAYS = (0, 1), (2, 3, 4, 0, 1)


class Side(NamedTuple):
    """What a sweep, or the two sweeps between two peaks, have placed."""

    height: int
    """``_FAR`` where it was too much."""
    buffers: Ints
    offsets: Ints


class Peaks:
    """Buffers ready to be placed again and again; for data that :attr:`~stowplan.portfolio.packing.arrays.Data.is_plain`.

    Parameters
    ----------
    target
        Height in units that is good enough.
    should_stop
        Asked between two sweeps.
    """

    def __init__(self, data: Data, target: int, seed: int, should_stop: Callable[[], bool]):
        self._size, self._align, self._begin, self._end = data.size, data.align, data.begin, data.end
        self._sections, self._load = data.sections, data.load()
        self._longest = int((data.end - data.begin).max())
        self._target, self._should_stop = target, should_stop
        self._chance = np.random.default_rng(seed)
        self._limit = _FAR

    def tries(self) -> list[tuple[int, Sequence[int]]]:
        """Numbers of peaks and ways to stack, for :meth:`place`, to try at first."""
        most = len(self._find_peaks(self._load, PARAMS.counts[-1]))
        counts = [count for count in PARAMS.counts if count <= most]
        return [(count, ways) for ways in (_FEW_WAYS, WAYS) for count in counts]

    def place(self, count: int, ways: Sequence[int], limit: int | None, *, at_random: bool = False) -> tuple[int, Ints] | None:
        """Height in units, and offsets [n]; None where nothing below a ``limit`` was found or it was told to stop.

        Parameters
        ----------
        count
            Peaks, the highest ones.
        ways
            Ways to stack what lives there.
        at_random
            Somewhere near the highest moments, and with stacks a little out of order.
        """
        limit = self._limit = _FAR if limit is None else limit
        load = self._load
        if at_random:
            # Every moment is lowered by chance, so that another of the high ones becomes the peak.
            load = load - (PARAMS.lower * self._chance.random() * load.max() * self._chance.random(len(load))).astype(np.int64)
        peaks = sorted(self._find_peaks(load, count))
        shuffle = float(self._chance.choice(PARAMS.shuffle)) if at_random else 0.0
        stacks = [[self._stack(peak, way, shuffle) for way in ways] for peak in peaks]
        # By way of the peak: the height up to it, and what that consists of.
        done = [[stack, self._from(peaks[0], stack, mirrored=True)] for stack in stacks[0]]
        for number in range(1, len(peaks)):
            best: list[list[Side]] = []
            for stack in stacks[number]:
                options = [
                    [*sides, stack, side]
                    for sides, before in zip(done, stacks[number - 1], strict=True)
                    if _height(sides) < limit
                    for side in [self._between(peaks[number - 1], before, peaks[number], stack)]
                ]
                best.append(min(options, key=_height, default=[Side(_FAR, stack.buffers, stack.offsets)]))
            done = best
        done = [
            [*sides, self._from(peaks[-1], stack, mirrored=False)] if _height(sides) < limit else sides
            for sides, stack in zip(done, stacks[-1], strict=True)
        ]
        chosen = min(done, key=_height)
        height = _height(chosen)
        if height >= limit:
            return None
        offsets = np.empty(len(self._size), np.int64)
        for side in chosen:
            offsets[side.buffers] = side.offsets
        return height, offsets

    def _find_peaks(self, load: Ints, count: int) -> list[int]:
        """The highest sections, so far from each other that nothing of one meets what lives at another."""
        apart = 2 * self._longest
        left, least = load.copy(), PARAMS.least_peak * load.max()
        peaks: list[int] = []
        while len(peaks) < count:
            peak = int(left.argmax())
            if left[peak] < least:
                break
            peaks.append(peak)
            left[max(0, peak - apart) : peak + apart + 1] = -1
        return peaks

    def _stack(self, peak: int, way: int, shuffle: float) -> Side:
        """What lives at a peak, one upon the other."""
        buffers = np.flatnonzero((self._begin <= peak) & (self._end > peak))
        since, until = peak - self._begin[buffers], self._end[buffers] - 1 - peak
        # What began last at the bottom, what ends first at the top: the space that is free before and after stays in one piece.
        # Or the other way round, by one side alone, or both at the top.
        two_sided = np.where(since < until, since, 2 * self._sections - until)
        key: Floats = (two_sided, -two_sided, -until, -since, -np.minimum(since, until))[way].astype(float)
        if shuffle:
            key += self._sections * shuffle * self._chance.normal(size=len(key))
        order = buffers[np.argsort(key, kind="stable")]
        offsets = np.empty(len(order), np.int64)
        top = pile(order, self._size, self._align, offsets)
        return Side(int(top), order, offsets)

    def _from(self, peak: int, stack: Side, *, mirrored: bool) -> Side:
        """From a peak to the end of time, or with ``mirrored`` to its beginning."""
        buffers = np.flatnonzero(self._end <= peak if mirrored else self._begin > peak)
        none = np.empty(0, np.int64)
        return self._better(lambda at_top: self._sweep(stack, buffers, Side(0, none, none), mirrored, at_top))

    def _between(self, first: int, stack: Side, second: int, other: Side) -> Side:
        """What lives between two peaks and at neither."""
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

        return self._better(both)

    def _better(self, sweep: Callable[[bool], Side]) -> Side:
        """The lower one with newcomers at the bottom of their holes, or at the top."""
        low = sweep(False)
        return low if low.height <= self._target else min(low, sweep(True), key=lambda side: side.height)

    def _sweep(self, stack: Side, buffers: Ints, beyond: Side, mirrored: bool, at_top: bool) -> Side:
        """Place ``buffers`` in the order of time; ``stack`` lives before, and ``beyond`` from some moment on to the end."""
        if self._should_stop():
            return Side(_FAR, buffers, np.zeros(len(buffers), np.int64))
        begin, end = (self._sections - self._end, self._sections - self._begin) if mirrored else (self._begin, self._end)
        order = buffers[np.lexsort((-self._size[buffers], begin[buffers]))]
        offset = np.zeros(len(self._size), np.int64)
        offset[stack.buffers] = stack.offsets
        leaving = np.concatenate([stack.buffers, order])
        leaving = leaving[np.argsort(end[leaving], kind="stable")]
        by_offset = np.argsort(beyond.offsets, kind="stable")
        others = beyond.buffers[by_offset]
        height = sweep(
            order, leaving, begin, end, self._size, self._align, stack.height,
            begin[others], beyond.offsets[by_offset], self._size[others], at_top, self._limit, offset,
            np.empty(2 * len(leaving) + 4, np.int64),
        )  # fmt: skip
        return Side(int(height), order, offset[order])


def _height(sides: Sequence[Side]) -> int:
    return max(side.height for side in sides)


@njit
def pile(order: Ints, size: Ints, align: Ints, offsets: Ints) -> int:
    """One upon the other; returns the height, ``offsets`` are in this order."""
    top = 0
    for place in range(len(order)):
        i = order[place]
        offsets[place] = top + -top % align[i]
        top = offsets[place] + size[i]
    return top


@njit_inner
def _insert(low: Ints, high: Ints, count: int, at: int, start: int, stop: int) -> None:
    """Put a hole before number ``at`` of ``count``."""
    for k in range(count, at, -1):
        low[k], high[k] = low[k - 1], high[k - 1]
    low[at], high[at] = start, stop


@njit_inner
def _remove(low: Ints, high: Ints, count: int, at: int) -> None:
    """Take hole number ``at`` of ``count`` out."""
    for k in range(at, count - 1):
        low[k], high[k] = low[k + 1], high[k + 1]


@njit_inner
def _free(low: Ints, high: Ints, count: int, start: int, stop: int) -> int:
    """Make [start, stop) a hole, one with its neighbours; returns how many there are."""
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
    leaving: Ints,
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
    room: Ints,
) -> int:
    """Place buffers in ``order``, by begin, each into the tightest hole; returns the height, ``_FAR`` from ``limit`` on.

    ``leaving`` has these and what lives before them, by end, which is a stack of height ``top`` at known offsets. What is
    ``beyond``, by offset, lives from its begin on longer than any of the buffers. ``at_top`` says where in its hole a buffer
    goes. ``offset`` [all] is written; ``room`` [2 len(leaving) + 4] is to work in.
    """
    low, high, count = room[: len(leaving) + 2], room[len(leaving) + 2 :], 1
    low[0], high[0] = top, _FAR
    first = _FAR
    for k in range(len(beyond_begin)):
        first = min(first, beyond_begin[k])
    height, left, looked = top, 0, 0
    for i in order:
        while left < len(leaving) and end[leaving[left]] <= begin[i]:
            j = leaving[left]
            count = _free(low, high, count, offset[j], offset[j] + size[j])
            left += 1
        hole, place, tightest, others = -1, 0, _FAR, 0
        is_alone = end[i] <= first
        looked += count if is_alone else count + len(beyond_begin)
        for k in range(count):
            start = low[k]
            if is_alone and high[k] - start < size[i]:
                continue
            while start < high[k]:
                stop = high[k]
                if not is_alone:
                    while others < len(beyond_begin) and (
                        beyond_begin[others] >= end[i] or beyond_offset[others] + beyond_size[others] <= start
                    ):
                        others += 1
                    if others < len(beyond_begin):
                        stop = min(stop, beyond_offset[others])
                lowest = start + -start % align[i]
                if stop == _FAR:
                    if hole < 0:
                        hole, place = k, lowest
                elif lowest + size[i] <= stop and stop - start - size[i] < tightest:
                    hole, tightest = k, stop - start - size[i]
                    place = stop - size[i] - (stop - size[i]) % align[i] if at_top else lowest
                if stop == high[k]:
                    break
                start = beyond_offset[others] + beyond_size[others]
        offset[i] = place
        above = place + size[i]
        height = max(height, above)
        if height >= limit or looked > _HOLES * (len(order) + 1):
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
