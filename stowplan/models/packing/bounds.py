"""Bounds on packing problems that need no search, and reasons why a problem is infeasible.

Heuristics, exact models and certificates use them. The *load* of a moment is the number of bytes that are live then. A *fixed*
buffer is one whose offset the problem prescribes. The problem may also permit two buffers to overlap while both are live
(:class:`~stowplan.models.packing.problem.Overlap`).

*Pairs that share bytes.* A *reuse penalty* is a cost that is paid if two buffers share bytes, one after the other. Take a
*crowd*: a set of m buffers of which every two are live together or have a reuse penalty. Let k be the largest number of them
that fit into the capacity without sharing a byte. Consider the graph that connects every two of them that share no byte. It has
no clique of k + 1 buffers. By Turán's theorem (Turán, Matematikai és Fizikai Lapok 48, 1941) it has at most as many edges as
there are pairs between k groups of nearly equal size. All other pairs share bytes, and each of them has a penalty.

The *number* of a buffer is its position in the problem's list of buffers. Nothing here raises an error for a valid problem.
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
    """A reason why a problem is infeasible: a few buffers that cannot all fit, and a time at which all of them are live."""

    start: int
    """First moment of an interval ``[start, end)`` in which all of ``buffers`` are live."""
    end: int
    """First moment after that interval."""
    load: int
    """Bytes that these buffers need together."""
    buffers: tuple[int, ...]
    """Numbers of the buffers, largest first."""
    reason: str
    """The reason as one sentence for people."""


def live_sets(lives: Iterable[tuple[int, int, int]]) -> Iterator[set[int]]:
    """The maximal sets of intervals that have a moment in common; the live set of any moment is a subset of one of them.

    Parameters
    ----------
    lives
        (number, first moment, first moment after the end) of each interval, which must not be empty. Numbers are distinct.

    Yields
    ------
    set of int
        Numbers of the intervals. It is the same set object every time and changes between yields, so a caller that keeps one
        must copy it.
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
            # Just before an interval ends, the live set is maximal if an interval has begun since the previous end.
            yield live
        has_grown = begins
        if not begins:
            live.remove(number)


def load_bound(problem: Problem) -> int:
    """Lower bound in bytes on the height of any plan: the larger of the peak load and the largest end of a fixed buffer."""
    fixed = (buffer.offset + buffer.size for buffer in problem.buffers if buffer.offset is not None)
    return max(max(fixed, default=0), peak_load(problem))


def peak_load(problem: Problem) -> int:
    """The largest number of bytes that are live at one moment; with permitted overlaps, the largest bound of
    :func:`~stowplan.models.packing.overlaps.loads`."""
    if problem.overlaps:
        return max(loads(problem).values(), default=0)
    spans = problem.spans
    moments = np.concatenate([spans.end, spans.start])
    sizes = spans.size[spans.owner]
    # Live ranges are half-open, so at equal moments ends must come before starts. The stable sort keeps that order.
    order = np.argsort(moments, kind="stable")
    return int(np.cumsum(np.concatenate([-sizes, sizes])[order]).max(initial=0))


def find_overload(problem: Problem) -> Overload | None:
    """A reason why no plan exists, if one can be found without a search; otherwise None, which does not prove that a plan
    exists.

    Reasons are fixed buffers that overlap or end beyond the capacity, and moments at which the live buffers need more bytes
    than the capacity. Of all such moments, the result has the one at which the fewest buffers exceed the capacity. If the
    problem permits overlaps, it has the moment with the largest load.
    """
    overload = _fixed_clash(problem)
    if overload is not None or problem.capacity is None or peak_load(problem) <= problem.capacity:
        return overload
    if problem.overlaps:
        return _shared_overload(problem, problem.capacity)
    fewest: tuple[int, ...] | None = None
    moment = 0
    for time, live in _overloaded_sets(problem, problem.capacity):
        # Buffers come largest first, so the shortest prefix that exceeds the capacity is the smallest set. Prefixes that are
        # not shorter than the best one so far are not considered.
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
    """Numbers of the buffers, ascending."""
    pairs: tuple[tuple[int, int], ...]
    """The pairs of these buffers that are never live together, so that they have a penalty: two numbers of buffers, the smaller
    one first."""
    least: int
    """In every plan, at least this many of these pairs share bytes."""


def crowds(problem: Problem) -> list[Crowd]:
    """Find crowds greedily, and return the crowds in which at least one pair shares bytes in every plan.

    For each size of a buffer, crowds are sought among the buffers that are at least as large, because fewer large buffers fit
    into the capacity side by side. Each penalty between two of these buffers is in some crowd, unless one of the two has a
    fixed offset. The list is empty if the problem has no capacity, permits overlaps, or has more than :data:`MOST_CROWDED`
    buffers or :data:`MOST_CROWDED_PAIRS` penalties.
    """
    spans, penalty_of = problem.spans, problem.penalty_of
    is_large = len(problem.buffers) > MOST_CROWDED or len(penalty_of) > MOST_CROWDED_PAIRS
    if problem.overlaps or problem.capacity is None or is_large:
        return []
    hard = _pairs_live_together(problem)
    penalty_of = {pair: cost for pair, cost in penalty_of.items() if pair not in hard}
    neighbours: dict[int, set[int]] = {}
    for one, other in (*hard, *penalty_of):
        neighbours.setdefault(one, set()).add(other)
        neighbours.setdefault(other, set()).add(one)
    # ``hard`` has the pairs that must not share bytes. A fixed buffer that is live together with all members of a crowd only
    # reduces the bytes in which the crowd can lie.
    fixed = [number for number, buffer in enumerate(problem.buffers) if buffer.offset is not None]
    found: dict[tuple[int, ...], Crowd] = {}
    for size in sorted({int(spans.size[number]) for pair in penalty_of for number in pair}, reverse=True):
        candidates = {number for number in neighbours if spans.size[number] >= size > 0}.difference(fixed)
        uncovered = {pair for pair in penalty_of if candidates.issuperset(pair)}
        while uncovered:
            members = list(min(uncovered))
            common = neighbours[members[0]] & neighbours[members[1]] & candidates
            while common:
                gain = {
                    number: sum((min(number, other), max(number, other)) in uncovered for other in members) for number in common
                }
                members.append(min(common, key=lambda number: (-gain[number], number)))
                common &= neighbours[members[-1]]
            fixed_around = [
                number for number in fixed if all((min(pair), max(pair)) in hard for pair in product((number,), members))
            ]
            crowd = _crowd(
                problem,
                tuple(sorted(members)),
                hard,
                fixed_around if all(pair in hard for pair in combinations(fixed_around, 2)) else [],
            )
            uncovered.difference_update(crowd.pairs)
            if crowd.least:
                found[crowd.buffers] = crowd
    return list(found.values())


#: Largest numbers of buffers and of penalties of a problem in which crowds are sought. At these sizes, the search takes some
#: tenths of a second.
MOST_CROWDED, MOST_CROWDED_PAIRS = 300, 1000


def _crowd(problem: Problem, members: tuple[int, ...], hard: Set[tuple[int, int]], fixed: Iterable[int]) -> Crowd:
    """The crowd of these buffers; ``fixed`` are buffers at fixed offsets, which share no bytes with each other or a member."""
    pairs = tuple(pair for pair in combinations(members, 2) if pair not in hard)
    free_bytes = (problem.capacity or 0) - sum(problem.buffers[number].size for number in fixed)
    most_beside = sum(total <= free_bytes for total in accumulate(sorted(problem.buffers[number].size for number in members)))
    group_size, larger_groups = divmod(len(members), most_beside) if most_beside else (0, 0)
    # The fewest pairs share bytes if the members form `most_beside` groups of nearly equal size: all pairs within a group.
    return Crowd(members, pairs, larger_groups * group_size + most_beside * group_size * (group_size - 1) // 2)


def _pairs_live_together(problem: Problem) -> set[tuple[int, int]]:
    """The pairs of buffers that are live together at some moment and have bytes, the smaller number first."""
    spans = problem.spans
    return {
        (min(owner, other), max(owner, other))
        for owner, start, end in zip(spans.owner.tolist(), spans.start, spans.end, strict=True)
        for other in spans.owner[(spans.start < end) & (spans.end > start)].tolist()
        if other != owner and problem.buffers[owner].size and problem.buffers[other].size
    }


def disjoint_crowds(problem: Problem) -> list[tuple[Crowd, int]]:
    """Choose crowds that have no pair in common, and give a lower bound on the penalties that each of them costs.

    The bound of a crowd is the sum of its :attr:`Crowd.least` cheapest penalties.
    """
    costs, used_pairs, chosen = problem.penalty_of, set[tuple[int, int]](), []
    found = [(crowd, sum(sorted(costs[pair] for pair in crowd.pairs)[: crowd.least])) for crowd in crowds(problem)]
    for crowd, cost in sorted(found, key=lambda entry: (-entry[1], entry[0].buffers)):
        if used_pairs.isdisjoint(crowd.pairs):
            used_pairs.update(crowd.pairs)
            chosen.append((crowd, cost))
    return chosen


def reuse_bound(problem: Problem) -> int:
    """Lower bound on the sum of the reuse penalties, by :func:`disjoint_crowds`."""
    return sum(cost for _, cost in disjoint_crowds(problem))


def _overloaded_sets(problem: Problem, limit: int) -> Iterator[tuple[int, list[tuple[int, int]]]]:
    """The live buffers of each moment at which some buffer becomes live and the load exceeds ``limit`` bytes.

    Yields
    ------
    tuple
        The moment, and ``(-size, number)`` of each live buffer, the largest first. The list changes between yields.
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
    """The interval around a moment in which all of these buffers are live; they must be live at that moment."""
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
