"""What can be proven about a packing problem at once: the load bound, why nothing can fit, and what lives together."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from stowplan.models.packing.overlaps import allows, loads, separations
from stowplan.models.packing.problem import Problem


@dataclass(frozen=True)
class Overload:
    """Buffers that cannot all fit, as few as were found, and when they are all live."""

    start: int
    end: int
    """Half-open span of time in which all of ``buffers`` live."""
    load: int
    """Bytes they need together."""
    buffers: tuple[int, ...]
    """Numbers of the buffers, largest first."""
    reason: str
    """One sentence for people."""


def live_sets(lives: Iterable[tuple[int, int, int]]) -> Iterator[set[int]]:
    """Sets of things that live at once, the largest ones: what lives at any moment is part of one of them.

    Parameters
    ----------
    lives
        (number, first moment, moment after the last) of each.

    Yields
    ------
    set of int
        Numbers; one and the same set, which changes from one time to the next.
    """
    events = sorted(
        (moment, begins, number) for number, start, end in lives for moment, begins in ((start, True), (end, False))
    )
    live: set[int] = set()
    grown = False
    for _, begins, number in events:
        if begins:
            live.add(number)
        elif grown:
            # Just before something ends, the live set is as large as it gets.
            yield live
        grown = begins
        if not begins:
            live.remove(number)


def load_bound(problem: Problem) -> int:
    """Least height in bytes that any plan can have: the largest load at a moment, or the end of a fixed buffer."""
    fixed = (buffer.offset + buffer.size for buffer in problem.buffers if buffer.offset is not None)
    return max(max(fixed, default=0), peak_load(problem))


def peak_load(problem: Problem) -> int:
    """Bytes that live at once, at most; with overlaps those that are taken at once, at least."""
    if problem.overlaps:
        return max(loads(problem).values(), default=0)
    spans = problem.spans
    moments = np.concatenate([spans.end, spans.start])
    sizes = spans.size[spans.owner]
    # At one moment, ends come before starts: lives are half-open. A stable sort keeps them so.
    order = np.argsort(moments, kind="stable")
    return int(np.cumsum(np.concatenate([-sizes, sizes])[order]).max(initial=0))


def find_overload(problem: Problem) -> Overload | None:
    """Why nothing fits the capacity, where that shows without a search; None where it does not.

    Of all moments whose load exceeds the capacity, the one at which the fewest buffers suffice is taken, and the span is the
    time those buffers share around it. Fixed offsets beyond the capacity, or that collide, are reasons too.
    """
    overload = _fixed_clash(problem)
    if overload is not None or problem.capacity is None or peak_load(problem) <= problem.capacity:
        return overload
    if problem.overlaps:
        return _shared_overload(problem, problem.capacity)
    fewest: tuple[int, ...] | None = None
    moment = 0
    for time, live in _live_sets(problem, problem.capacity):
        # Largest first, so the first few that overflow are the fewest; no more are looked at than would be an improvement.
        total = 0
        for count, (minus_size, number) in enumerate(live[: len(live) if fewest is None else len(fewest) - 1], 1):
            total -= minus_size
            if total > problem.capacity:
                fewest, moment = (*(number for _, number in live[: count - 1]), number), time
                break
    if fewest is None:
        return None
    load = sum(problem.buffers[number].size for number in fewest)
    begin, end = _shared_span(problem, fewest, moment)
    names = ", ".join(problem.buffers[number].id for number in fewest[:6]) + (", ..." if len(fewest) > 6 else "")
    one = len(fewest) == 1
    what = f"buffer {names} takes" if one else f"{len(fewest)} buffers ({names}) live at once in [{begin}, {end}) and take"
    return Overload(begin, end, load, fewest, f"{what} {load} bytes, more than the capacity of {problem.capacity}")


def _shared_overload(problem: Problem, capacity: int) -> Overload:
    """Buffers of the moment at which most bytes are taken, without those that are not needed to exceed the capacity."""
    taken = loads(problem)
    moment = max(taken, key=lambda moment: taken[moment])
    chosen = [
        number
        for number, buffer in enumerate(problem.buffers)
        if buffer.size and any(start <= moment < end for start, end in buffer.pieces)
    ]
    for number in sorted(chosen, key=lambda number: problem.buffers[number].size):
        rest = [other for other in chosen if other != number]
        if max(loads(problem, rest).values(), default=0) > capacity:
            chosen = rest
    chosen.sort(key=lambda number: (-problem.buffers[number].size, number))
    load = max(loads(problem, chosen).values())
    begin, end = _shared_span(problem, tuple(chosen), moment)
    names = ", ".join(problem.buffers[number].id for number in chosen[:6]) + (", ..." if len(chosen) > 6 else "")
    what = f"{len(chosen)} buffers ({names}) live at once in [{begin}, {end}) and take"
    reason = f"{what} {load} bytes where they share what they may, more than the capacity of {capacity}"
    return Overload(begin, end, load, tuple(chosen), reason)


def _live_sets(problem: Problem, above: int) -> Iterator[tuple[int, list[tuple[int, int]]]]:
    """(moment, [(-size, number)] of the live buffers, largest first) after each moment at which some begin to live.

    Only where they need more than ``above`` bytes.
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
        if load > above and (at + 1 == len(events) or events[at + 1][:2] != (moment, True)):
            yield moment, live


def _shared_span(problem: Problem, numbers: tuple[int, ...], moment: int) -> tuple[int, int]:
    pieces = [piece for number in numbers for piece in problem.buffers[number].pieces if piece[0] <= moment < piece[1]]
    return max(start for start, _ in pieces), min(end for _, end in pieces)


def _fixed_clash(problem: Problem) -> Overload | None:
    fixed = [(number, buffer, buffer.offset) for number, buffer in enumerate(problem.buffers) if buffer.offset is not None]
    for number, buffer, offset in fixed:
        end = offset + buffer.size
        if problem.capacity is not None and end > problem.capacity:
            reason = f"buffer {buffer.id} is fixed at {offset} and ends at {end}, beyond the capacity of {problem.capacity}"
            return Overload(buffer.lower, buffer.upper, buffer.size, (number,), reason)
    least = separations(problem)
    # Sorted by offset, only those below the end of the first can share bytes with it.
    fixed.sort(key=lambda entry: (entry[2], entry[0]))
    for at, (number, buffer, offset) in enumerate(fixed):
        for other, second, at_offset in fixed[at + 1 :]:
            if at_offset >= offset + buffer.size:
                break
            if second.size == 0 or allows(least, number, other, offset, at_offset):
                continue
            for start, end in buffer.pieces:
                for low, high in second.pieces:
                    if max(start, low) < min(end, high):
                        span = max(start, low), min(end, high)
                        reason = f"buffers {buffer.id} and {second.id} are fixed at offsets that share bytes"
                        return Overload(*span, buffer.size + second.size, (number, other), reason)
    return None
