"""Bounds on packing problems that need no search: the largest load, buffers that cannot fit together, pairs that share bytes.

*Pairs that share bytes.* Take a set of m buffers of which every two are live together or have a reuse penalty, and of which at
most k can lie side by side within the capacity. Draw a line between every two that share no byte: no k + 1 buffers are all
connected. By Turán's theorem (Turán, Matematikai és Fizikai Lapok 48, 1941) the lines are then at most as many as between k
groups of nearly equal size, and all other pairs share bytes.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass
from itertools import accumulate, combinations, product

import numpy as np

from stowplan.models.packing.overlaps import allows, loads, separations
from stowplan.models.packing.problem import Problem


@dataclass(frozen=True)
class Overload:
    """A reason why a problem is infeasible: a few buffers that cannot all fit, and when all of them are live."""

    start: int
    end: int
    """``[start, end)`` is an interval in which all of ``buffers`` are live."""
    load: int
    """Bytes that they need together."""
    buffers: tuple[int, ...]
    """Numbers of the buffers, largest first."""
    reason: str
    """The reason as one sentence for people."""


def live_sets(lives: Iterable[tuple[int, int, int]]) -> Iterator[set[int]]:
    """The maximal sets of intervals that contain a common moment; the live set of any moment is a subset of one of them.

    Parameters
    ----------
    lives
        (number, first moment, first moment after the end) of each interval.

    Yields
    ------
    set of int
        Numbers of the intervals. It is always the same set object, which changes between yields: copy what you keep.
    """
    events = sorted(
        (moment, begins, number) for number, start, end in lives for moment, begins in ((start, True), (end, False))
    )
    live: set[int] = set()
    has_grown = False
    for _, begins, number in events:
        if begins:
            live.add(number)
        elif has_grown:
            # The live set is maximal just before an interval ends, if another one has begun since the last end.
            yield live
        has_grown = begins
        if not begins:
            live.remove(number)


def load_bound(problem: Problem) -> int:
    """Lower bound in bytes on the height of any plan: the largest load at a moment, or the end of a fixed buffer."""
    fixed = (buffer.offset + buffer.size for buffer in problem.buffers if buffer.offset is not None)
    return max(max(fixed, default=0), peak_load(problem))


def peak_load(problem: Problem) -> int:
    """The largest number of bytes that are live at one moment; with permitted overlaps, the largest bound of :func:`loads`."""
    if problem.overlaps:
        return max(loads(problem).values(), default=0)
    spans = problem.spans
    moments = np.concatenate([spans.end, spans.start])
    sizes = spans.size[spans.owner]
    # Live ranges are half-open, so at equal moments ends must come before starts. The stable sort keeps that order.
    order = np.argsort(moments, kind="stable")
    return int(np.cumsum(np.concatenate([-sizes, sizes])[order]).max(initial=0))


def find_overload(problem: Problem) -> Overload | None:
    """A reason why no plan exists, if one can be found without a search; otherwise None.

    Reasons are fixed offsets that overlap or end beyond the capacity, and moments at which the live buffers need more bytes
    than the capacity. Of all such moments, the one is reported at which the fewest buffers exceed the capacity.
    """
    overload = _fixed_clash(problem)
    if overload is not None or problem.capacity is None or peak_load(problem) <= problem.capacity:
        return overload
    if problem.overlaps:
        return _shared_overload(problem, problem.capacity)
    fewest: tuple[int, ...] | None = None
    moment = 0
    for time, live in _overloaded_sets(problem, problem.capacity):
        # Buffers come largest first, so the shortest prefix that overflows is the smallest set. Prefixes that would be no
        # smaller than the best one so far are not considered.
        total = 0
        for count, (minus_size, number) in enumerate(live[: len(live) if fewest is None else len(fewest) - 1], 1):
            total -= minus_size
            if total > problem.capacity:
                fewest, moment = (*(number for _, number in live[: count - 1]), number), time
                break
    if fewest is None:
        return None
    load = sum(problem.buffers[number].size for number in fewest)
    start, end = _shared_span(problem, fewest, moment)
    names = ", ".join(problem.buffers[number].id for number in fewest[:6]) + (", ..." if len(fewest) > 6 else "")
    is_one = len(fewest) == 1
    subject = (
        f"buffer {names} takes" if is_one else f"{len(fewest)} buffers ({names}) live at once in [{start}, {end}) and take"
    )
    return Overload(start, end, load, fewest, f"{subject} {load} bytes, more than the capacity of {problem.capacity}")


def _shared_overload(problem: Problem, capacity: int) -> Overload:
    """The buffers of the moment with the largest load, reduced to a few that still exceed the capacity."""
    load_at = loads(problem)
    moment = max(load_at, key=load_at.__getitem__)
    chosen = [
        number
        for number, buffer in enumerate(problem.buffers)
        if buffer.size and any(start <= moment < end for start, end in buffer.pieces)
    ]
    for number in sorted(chosen, key=lambda candidate: problem.buffers[candidate].size):
        rest = [other for other in chosen if other != number]
        if max(loads(problem, rest).values(), default=0) > capacity:
            chosen = rest
    chosen.sort(key=lambda number: (-problem.buffers[number].size, number))
    load = max(loads(problem, chosen).values())
    start, end = _shared_span(problem, tuple(chosen), moment)
    names = ", ".join(problem.buffers[number].id for number in chosen[:6]) + (", ..." if len(chosen) > 6 else "")
    subject = f"{len(chosen)} buffers ({names}) live at once in [{start}, {end}) and take"
    reason = f"{subject} {load} bytes where they share what they may, more than the capacity of {capacity}"
    return Overload(start, end, load, tuple(chosen), reason)


@dataclass(frozen=True)
class Crowd:
    """Buffers of which every two are live together or have a reuse penalty, and of which some must share bytes."""

    buffers: tuple[int, ...]
    pairs: tuple[tuple[int, int], ...]
    """The pairs with a penalty, the smaller number first."""
    least: int
    """How many of these pairs share bytes in every plan."""


def crowds(problem: Problem) -> list[Crowd]:
    """Crowds that together contain most pairs with a reuse penalty, found greedily; those without a pair that shares are left
    out.

    For each size, crowds are looked for among the buffers that are at least as large, because fewer of them fit side by side.
    """
    spans, penalty_of = problem.spans, problem.penalty_of
    is_large = len(problem.buffers) > MOST_CROWDED or len(penalty_of) > MOST_CROWDED_PAIRS
    if problem.overlaps or problem.capacity is None or is_large:
        return []
    hard = _pairs_live_together(problem)
    penalty_of = {pair: cost for pair, cost in penalty_of.items() if pair not in hard}
    near: dict[int, set[int]] = {}
    for one, other in (*hard, *penalty_of):
        near.setdefault(one, set()).add(other)
        near.setdefault(other, set()).add(one)
    fixed = [number for number, buffer in enumerate(problem.buffers) if buffer.offset is not None]
    found: dict[tuple[int, ...], Crowd] = {}
    for size in sorted({int(spans.size[number]) for pair in penalty_of for number in pair}, reverse=True):
        large = {number for number in near if spans.size[number] >= size > 0}.difference(fixed)
        left = {pair for pair in penalty_of if large.issuperset(pair)}
        while left:
            members = list(min(left))
            common = near[members[0]] & near[members[1]] & large
            while common:
                gain = {number: sum((min(number, other), max(number, other)) in left for other in members) for number in common}
                members.append(min(common, key=lambda number: (-gain[number], number)))
                common &= near[members[-1]]
            around = [number for number in fixed if all((min(pair), max(pair)) in hard for pair in product((number,), members))]
            crowd = _crowd(
                problem, tuple(sorted(members)), hard, around if all(pair in hard for pair in combinations(around, 2)) else []
            )
            left.difference_update(crowd.pairs)
            if crowd.least:
                found[crowd.buffers] = crowd
    return list(found.values())


#: Largest numbers of buffers and of penalties of a problem in which crowds are looked for: it takes some tenths of a second.
MOST_CROWDED, MOST_CROWDED_PAIRS = 300, 1000


def _crowd(problem: Problem, members: tuple[int, ...], hard: Set[tuple[int, int]], fixed: Iterable[int]) -> Crowd:
    """The crowd of these buffers; ``fixed`` are buffers at fixed offsets that may share bytes with none of them."""
    pairs = tuple(pair for pair in combinations(members, 2) if pair not in hard)
    room = (problem.capacity or 0) - sum(problem.buffers[number].size for number in fixed)
    beside = sum(total <= room for total in accumulate(sorted(problem.buffers[number].size for number in members)))
    share, rest = divmod(len(members), beside) if beside else (0, 0)
    # Within groups of nearly equal size, all pairs share bytes.
    return Crowd(members, pairs, rest * share + beside * share * (share - 1) // 2)


def _pairs_live_together(problem: Problem) -> set[tuple[int, int]]:
    """The pairs of buffers that are live at some moment, the smaller number first."""
    spans = problem.spans
    return {
        (min(owner, other), max(owner, other))
        for owner, start, end in zip(spans.owner.tolist(), spans.start, spans.end, strict=True)
        for other in spans.owner[(spans.start < end) & (spans.end > start)].tolist()
        if other != owner and problem.buffers[owner].size and problem.buffers[other].size
    }


def disjoint_crowds(problem: Problem) -> list[tuple[Crowd, int]]:
    """Crowds without a common pair, and a lower bound on the penalties of each: the cheapest pairs of which so many share."""
    costs, taken, chosen = problem.penalty_of, set[tuple[int, int]](), []
    found = [(crowd, sum(sorted(costs[pair] for pair in crowd.pairs)[: crowd.least])) for crowd in crowds(problem)]
    for crowd, cost in sorted(found, key=lambda entry: (-entry[1], entry[0].buffers)):
        if taken.isdisjoint(crowd.pairs):
            taken.update(crowd.pairs)
            chosen.append((crowd, cost))
    return chosen


def reuse_bound(problem: Problem) -> int:
    """Lower bound on the sum of the reuse penalties, by :func:`disjoint_crowds`."""
    return sum(cost for _, cost in disjoint_crowds(problem))


def _overloaded_sets(problem: Problem, limit: int) -> Iterator[tuple[int, list[tuple[int, int]]]]:
    """The live buffers of each moment at which some buffer becomes live and the load exceeds the capacity in bytes.

    Yields
    ------
    tuple
        The moment, and ``(-size, number)`` of each live buffer, the largest first.
    """
    events = sorted(
        (moment, begins, number)
        for number, buffer in enumerate(problem.buffers)
        for piece in buffer.pieces
        for moment, begins in zip(piece, (True, False), strict=True)
    )
    live: list[tuple[int, int]] = []
    load = 0
    for at, (moment, begins, number) in enumerate(events):
        key = (-problem.buffers[number].size, number)
        if not begins:
            load += key[0]
            del live[bisect_left(live, key)]
            continue
        load -= key[0]
        insort(live, key)
        if load > limit and (at + 1 == len(events) or events[at + 1][:2] != (moment, True)):
            yield moment, live


def _shared_span(problem: Problem, numbers: tuple[int, ...], moment: int) -> tuple[int, int]:
    """The interval around a moment in which all of these buffers are live."""
    pieces = [piece for number in numbers for piece in problem.buffers[number].pieces if piece[0] <= moment < piece[1]]
    return max(start for start, _ in pieces), min(end for _, end in pieces)


def _fixed_clash(problem: Problem) -> Overload | None:
    """A buffer that is fixed beyond the capacity, or two that are fixed where they overlap; None if there are none."""
    fixed = [(number, buffer, buffer.offset) for number, buffer in enumerate(problem.buffers) if buffer.offset is not None]
    for number, buffer, offset in fixed:
        end = offset + buffer.size
        if problem.capacity is not None and end > problem.capacity:
            reason = f"buffer {buffer.id} is fixed at {offset} and ends at {end}, beyond the capacity of {problem.capacity}"
            return Overload(buffer.lower, buffer.upper, buffer.size, (number,), reason)
    least_separation = separations(problem)
    # After sorting by offset, only buffers that start below the end of the first one can overlap it.
    fixed.sort(key=lambda entry: (entry[2], entry[0]))
    for position, (number, buffer, offset) in enumerate(fixed):
        for other, second, at_offset in fixed[position + 1 :]:
            if at_offset >= offset + buffer.size:
                break
            if second.size == 0 or allows(least_separation, number, other, offset, at_offset):
                continue
            for start, end in buffer.pieces:
                for low, high in second.pieces:
                    if max(start, low) < min(end, high):
                        span = max(start, low), min(end, high)
                        reason = f"buffers {buffer.id} and {second.id} are fixed at offsets that share bytes"
                        return Overload(*span, buffer.size + second.size, (number, other), reason)
    return None
