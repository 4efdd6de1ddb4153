"""Permitted overlaps (:class:`~stowplan.models.packing.problem.Overlap`) as separations between offsets.

An overlap permits a buffer, its *result*, to share bytes with a buffer that is live when the result is created, its *operand*.
Two buffers that are live together must satisfy ``o[a] + s[a, b] <= o[b]`` or ``o[b] + s[b, a] <= o[a]``, where ``o`` are their
offsets and ``s`` is the *separation*: the least number of bytes from the offset of the lower buffer to that of the upper one.
Without a permitted overlap, the separation is the size of the lower buffer. If the lower buffer is the result of a permitted
overlap and the upper one its operand, the separation is the overlap's ``distance`` minus the operand's size, which may be
negative. For two buffers that hold the same data (a distance of None), the separations are the full sizes, and ``o[a] == o[b]``
is a third choice. Nothing here raises an error for a valid problem.
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
    """The same problem without permitted overlaps. Its plans are also valid for the original problem."""
    buffers = tuple(msgspec.structs.replace(buffer, overlaps=msgspec.UNSET) for buffer in problem.buffers)
    return msgspec.structs.replace(problem, buffers=buffers)


def separations(problem: Problem) -> dict[tuple[int, int], int | None]:
    """The separation of each permitted overlap, by (result, operand): see the docstring of this module.

    Values are bytes, rounded up to a multiple of the greatest common divisor of the two alignments. None means that the two
    buffers may share bytes only at the same offset. Overlaps that permit nothing are left out: those whose separation is not
    smaller than the result's size, and those with a buffer of 0 bytes.
    """
    found: dict[tuple[int, int], int | None] = {}
    for result, operand, distance in problem.overlaps:
        below, above = problem.buffers[result], problem.buffers[operand]
        if distance is None:
            if below.size:
                found[result, operand] = None
            continue
        step = gcd(below.alignment, above.alignment)
        separation = -(-(distance - above.size) // step) * step
        if below.size and above.size and separation < below.size:
            found[result, operand] = separation
    return found


def allows(separation_of: Mapping[tuple[int, int], int | None], one: int, other: int, at_one: int, at_other: int) -> bool:
    """Whether a permitted overlap lets two buffers have these offsets while both are live; False if they may not overlap at
    all.

    Parameters
    ----------
    separation_of
        The result of :func:`separations`.
    one, other
        Numbers of the buffers.
    at_one, at_other
        Their offsets in bytes.
    """
    for pair, below, above in (((one, other), at_one, at_other), ((other, one), at_other, at_one)):
        if pair in separation_of:
            separation = separation_of[pair]
            return below == above if separation is None else below + separation <= above
    return False


def shared_spans(problem: Problem, offsets: Sequence[int]) -> dict[tuple[int, int], tuple[int, int]]:
    """Returns the range of bytes ``[low, high)`` that each result shares with its operand, by the numbers (result, operand).

    Pairs that share no byte are left out. ``offsets`` are those of a plan, in bytes.
    """
    spans = {}
    for result, operand, _ in problem.overlaps:
        low = max(offsets[result], offsets[operand])
        high = min(offsets[number] + problem.buffers[number].size for number in (result, operand))
        if low < high:
            spans[result, operand] = low, high
    return spans


def shared_bytes(problem: Problem, offsets: Sequence[int]) -> dict[tuple[int, int], int]:
    """The number of bytes that a result shares with its operand, by (result, operand); pairs that share none are left out."""
    return {pair: high - low for pair, (low, high) in shared_spans(problem, offsets).items()}


def loads(problem: Problem, chosen: Sequence[int] | None = None) -> dict[int, int]:
    """A lower bound on the number of bytes that are occupied, for each moment at which some buffer becomes live.

    The bound is the sum of the sizes of the live buffers, less an upper limit on the bytes that they share. If several live
    buffers of a plan occupy the same byte, each of them except the oldest is a result that overlaps an operand there. The
    shared bytes are therefore at most the sum, over the results, of the bytes that each may share with all its operands, capped
    by its own size. The same sum over the operands is another upper limit, and the smaller of the two is subtracted.

    Parameters
    ----------
    chosen
        Numbers of the buffers to consider; None for all.

    Returns
    -------
    dict
        The bound in bytes, by moment.
    """
    buffers, spans = problem.buffers, problem.spans
    is_chosen = np.ones(len(spans.owner), bool) if chosen is None else np.isin(spans.owner, np.array(chosen, np.int64))
    owner, start, end = spans.owner[is_chosen], spans.start[is_chosen], spans.end[is_chosen]
    moments = np.unique(start)
    load = np.zeros(len(moments) + 1, np.int64)
    np.add.at(load, np.searchsorted(moments, start), spans.size[owner])
    np.subtract.at(load, np.searchsorted(moments, end), spans.size[owner])
    load_at = dict(zip(moments.tolist(), np.cumsum(load).tolist(), strict=False))
    included = set(owner.tolist())
    by_result: dict[int, dict[int, int]] = defaultdict(lambda: defaultdict(int))
    by_operand: dict[int, dict[int, int]] = defaultdict(lambda: defaultdict(int))
    times = moments.tolist()
    for (result, operand), separation in separations(problem).items():
        if result not in included or operand not in included:
            continue
        size, other = buffers[result].size, buffers[operand].size
        most_shared = min(size, other, size - (separation or 0))
        end = min(buffers[operand].upper, buffers[result].upper)
        for moment in times[bisect_left(times, buffers[result].lower) : bisect_left(times, end)]:
            by_result[moment][result] += most_shared
            by_operand[moment][operand] += most_shared
    for moment, results in by_result.items():
        load_at[moment] -= min(
            sum(min(shared, buffers[number].size) for number, shared in sharing.items())
            for sharing in (results, by_operand[moment])
        )
    return load_at
