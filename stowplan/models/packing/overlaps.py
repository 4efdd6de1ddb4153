"""What it means that a buffer may take the bytes of one that dies (:class:`~stowplan.models.packing.problem.Overlap`).

Of two buffers one lies below the other, and from the offset of the one below to that of the other there are as many bytes as
its size. An overlap makes that less where the result lies below its operand: ``distance`` less the operand's size, which may be
below 0. So with ``o`` the offsets and ``s`` the separations, ``o[a] + s[a, b] <= o[b]`` or ``o[b] + s[b, a] <= o[a]``. Buffers
that hold the same bytes have the full separation, or the same offset: ``o[a] == o[b]`` is a third choice.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Mapping, Sequence
from math import gcd

import msgspec
import numpy as np

from stowplan.models.packing.problem import Problem


def without_overlaps(problem: Problem) -> Problem:
    """The problem with all buffers apart: its plans are valid with overlaps, too."""
    buffers = tuple(msgspec.structs.replace(buffer, overlaps=msgspec.UNSET) for buffer in problem.buffers)
    return msgspec.structs.replace(problem, buffers=buffers)


def separations(problem: Problem) -> dict[tuple[int, int], int | None]:
    """By result and operand, bytes from the result's offset up to the operand's, at least, where the result lies below.

    Rounded up to what divides both alignments. Overlaps that make it no less than the result's size are left out. None where
    the two share bytes at the same offset only.
    """
    least_distance: dict[tuple[int, int], int | None] = {}
    for result, operand, distance in problem.overlaps:
        below, above = problem.buffers[result], problem.buffers[operand]
        if distance is None:
            if below.size:
                least_distance[result, operand] = None
            continue
        step = gcd(below.alignment, above.alignment)
        least = -(-(distance - above.size) // step) * step
        if below.size and above.size and least < below.size:
            least_distance[result, operand] = least
    return least_distance


def allows(least: Mapping[tuple[int, int], int | None], one: int, other: int, at_one: int, at_other: int) -> bool:
    """Whether an overlap of those in :func:`separations` lets two buffers stand at these offsets while both live."""
    for pair, below, above in (((one, other), at_one, at_other), ((other, one), at_other, at_one)):
        if pair in least:
            apart = least[pair]
            return below == above if apart is None else below + apart <= above
    return False


def shared_spans(problem: Problem, offsets: Sequence[int]) -> dict[tuple[int, int], tuple[int, int]]:
    """Bytes ``[low, high)`` that results share with their operands in a plan, where they share any."""
    spans = {}
    for result, operand, _ in problem.overlaps:
        low = max(offsets[result], offsets[operand])
        high = min(offsets[number] + problem.buffers[number].size for number in (result, operand))
        if low < high:
            spans[result, operand] = low, high
    return spans


def shared_bytes(problem: Problem, offsets: Sequence[int]) -> dict[tuple[int, int], int]:
    """How many they are."""
    return {pair: high - low for pair, (low, high) in shared_spans(problem, offsets).items()}


def loads(problem: Problem, chosen: Sequence[int] | None = None) -> dict[int, int]:
    """Bytes that are taken at once, at least, after each moment at which some of the buffers begin to live.

    A byte under several buffers is counted once for each but the oldest of them, as a result that overlaps. So from the sum of
    sizes goes, for each result, what it can share with its operands, and no more than its size; or for each operand likewise.

    Parameters
    ----------
    chosen
        Numbers of the buffers that are looked at; None for all.
    """
    buffers, spans = problem.buffers, problem.spans
    inside = np.ones(len(spans.owner), bool) if chosen is None else np.isin(spans.owner, np.array(chosen, np.int64))
    owner, start, end = spans.owner[inside], spans.start[inside], spans.end[inside]
    moments = np.unique(start)
    load = np.zeros(len(moments) + 1, np.int64)
    np.add.at(load, np.searchsorted(moments, start), spans.size[owner])
    np.subtract.at(load, np.searchsorted(moments, end), spans.size[owner])
    load_at = dict(zip(moments.tolist(), np.cumsum(load).tolist(), strict=False))
    known = set(owner.tolist())
    by_result: dict[int, dict[int, int]] = defaultdict(lambda: defaultdict(int))
    by_operand: dict[int, dict[int, int]] = defaultdict(lambda: defaultdict(int))
    times = moments.tolist()
    for (result, operand), least in separations(problem).items():
        if result not in known or operand not in known:
            continue
        size, other = buffers[result].size, buffers[operand].size
        most = min(size, other, size - (least or 0))
        end = min(buffers[operand].upper, buffers[result].upper)
        for moment in times[bisect_left(times, buffers[result].lower) : bisect_left(times, end)]:
            by_result[moment][result] += most
            by_operand[moment][operand] += most
    for moment, results in by_result.items():
        load_at[moment] -= min(
            sum(min(shared, buffers[number].size) for number, shared in sharing.items())
            for sharing in (results, by_operand[moment])
        )
    return load_at
