"""Says whether a packing plan is valid, and how high it is: a sweep over time, without any solver.

Written from docs/packing.md alone; it shares no code with models, bounds or heuristics.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass
from typing import Literal

import numpy as np

from stowplan.models import verification
from stowplan.models.packing.plan import Plan
from stowplan.models.packing.problem import LIMIT, Problem

Code = Literal[
    "wrong_problem", "wrong_count", "wrong_objective", "negative_offset", "misaligned", "moved", "over_capacity", "overlap"
]

#: Overlaps listed at most: where all buffers lie at 0, their pairs fill any memory.
MOST_OVERLAPS = 10_000


@dataclass(frozen=True)
class Violation(verification.Violation[Code]):
    """One broken rule."""

    buffers: tuple[int, ...] = ()
    """Numbers of the buffers concerned."""


@dataclass(frozen=True)
class Verification(verification.Verification[Violation]):
    """What was found."""

    height: int | None
    """Recomputed height in bytes; None where the plan has not one offset for each buffer."""


def verify(problem: Problem, plan: Plan) -> Verification:
    """All rules a plan breaks, and its height in bytes.

    The objective that the plan states must be its height: people read it.

    Parameters
    ----------
    plan
        Any that decodes; what is malformed is a violation, not an error.

    Returns
    -------
    Verification
        Violations, and the height in bytes.
    """
    found: list[Violation] = []
    if plan.problem != problem.digest:
        found.append(Violation("wrong_problem", f"the plan is for problem {plan.problem[:12]}, not {problem.digest[:12]}"))
    if len(plan.offsets) != len(problem.buffers):
        found.append(Violation("wrong_count", f"{len(plan.offsets)} offsets for {len(problem.buffers)} buffers"))
        return Verification(tuple(found), None)
    clean_height = _clean_height(problem, plan.offsets)
    if clean_height is not None and clean_height == plan.objective:
        return Verification(tuple(found), clean_height)
    height = 0
    for number, (buffer, offset) in enumerate(zip(problem.buffers, plan.offsets, strict=True)):
        end = offset + buffer.size
        height = max(height, end)
        if offset < 0:
            found.append(Violation("negative_offset", f"buffer {buffer.id} is at offset {offset}", (number,)))
        if offset % buffer.alignment:
            message = f"buffer {buffer.id} is at offset {offset}, not a multiple of {buffer.alignment}"
            found.append(Violation("misaligned", message, (number,)))
        if buffer.offset is not None and offset != buffer.offset:
            message = f"buffer {buffer.id} is at offset {offset}, fixed at {buffer.offset}"
            found.append(Violation("moved", message, (number,)))
        if problem.capacity is not None and end > problem.capacity:
            message = f"buffer {buffer.id} ends at {end}, beyond the capacity of {problem.capacity}"
            found.append(Violation("over_capacity", message, (number,)))
    if plan.objective != height:
        found.append(Violation("wrong_objective", f"the plan says {plan.objective} bytes, its height is {height}"))
    found.extend(_overlaps(problem, plan.offsets))
    return Verification(tuple(found), height)


def _clean_height(problem: Problem, offsets: tuple[int, ...]) -> int | None:
    """Height of a plan that breaks no rule, by columns instead of one by one; None where it breaks one, or numbers are huge."""
    buffers, n = problem.buffers, len(problem.buffers)
    try:
        low = np.array(offsets, np.int64)
        size, alignment, lower, upper = (
            np.fromiter((getattr(buffer, name) for buffer in buffers), np.int64, n)
            for name in ("size", "alignment", "lower", "upper")
        )
    except (OverflowError, TypeError, ValueError):
        return None
    if n == 0 or low.min() < 0 or low.max() >= LIMIT or (low % alignment).any():
        return None if n else 0
    height = int((low + size).max())
    if problem.capacity is not None and height > problem.capacity:
        return None
    if any(buffer.offset is not None and buffer.offset != at for buffer, at in zip(buffers, offsets, strict=True)):
        return None
    gapped = [number for number, buffer in enumerate(buffers) if buffer.gaps]
    whole = np.ones(n, bool)
    whole[gapped] = False
    # A part of a life is a rectangle in time and bytes: [start, end) by [low, low + size).
    pieces = [(*piece, number) for number in gapped for piece in buffers[number].pieces]
    parts = np.array(pieces, np.int64).reshape(-1, 3)
    owner = np.concatenate([np.flatnonzero(whole), parts[:, 2]])
    start, end = np.concatenate([lower[whole], parts[:, 0]]), np.concatenate([upper[whole], parts[:, 1]])
    taking = size[owner] > 0
    # By offset, so that what lives at a moment is sorted by number.
    taking = np.flatnonzero(taking)[np.argsort(low[owner[taking]], kind="stable")]
    owner, start, end = owner[taking], start[taking], end[taking]
    # At one moment, ends come before starts: lives are half-open.
    events = np.concatenate([2 * np.arange(len(owner)), 2 * np.arange(len(owner)) + 1])
    events = events[np.argsort(np.concatenate([end, start]), kind="stable")]
    bottoms, tops = low[owner].tolist(), (low + size)[owner].tolist()
    return height if _are_disjoint(events.tolist(), bottoms, tops) else None


def _are_disjoint(events: list[int], bottoms: list[int], tops: list[int]) -> bool:
    """Whether rectangles, numbered by their bottoms, never overlap; event 2 i is the end of number i, 2 i + 1 its start.

    What lives is a set of bits in words, with one bit more for each word that is not empty: a sorted list would move half of
    what lives for each event.
    """
    bits = max(6, len(bottoms).bit_length() // 2)
    mask = (1 << bits) - 1
    bit = [1 << at for at in range(max(1 << bits, (len(bottoms) >> bits) + 1))]
    words, filled = [0] * ((len(bottoms) >> bits) + 1), 0
    for event in events:
        number = event >> 1
        at, place = number >> bits, bit[number & mask]
        word = words[at]
        if not event & 1:
            words[at] = word ^ place
            if word == place:
                filled ^= bit[at]
            continue
        # While nothing overlaps, only the neighbours can reach into a newcomer.
        below, above = word & (place - 1), word >> (number & mask)
        if below:
            if tops[(at << bits) + below.bit_length() - 1] > bottoms[number]:
                return False
        elif (others := filled & (bit[at] - 1)) and (
            tops[((last := others.bit_length() - 1) << bits) + words[last].bit_length() - 1] > bottoms[number]
        ):
            return False
        if above:
            if bottoms[number + (above & -above).bit_length() - 1] < tops[number]:
                return False
        elif others := filled >> (at + 1):
            first = at + (others & -others).bit_length()
            if bottoms[(first << bits) + (words[first] & -words[first]).bit_length() - 1] < tops[number]:
                return False
        words[at] = word | place
        filled |= bit[at]
    return True


def _overlaps(problem: Problem, offsets: tuple[int, ...]) -> list[Violation]:
    """Pairs that share bytes while both live, each pair once, at the first moment they do."""
    events: list[tuple[int, int, int]] = []
    for number, buffer in enumerate(problem.buffers):
        if buffer.size == 0:
            continue
        moment = buffer.lower
        for start, end in (*buffer.gaps, (buffer.upper, buffer.upper)):
            if moment < start:
                # At one moment, ends come before starts: lives are half-open.
                events += [(moment, 1, number), (start, 0, number)]
            moment = end
    events.sort()
    found: list[Violation] = []
    seen: set[tuple[int, int]] = set()
    live: list[tuple[int, int]] = []
    # Of two live buffers below a third that it overlaps, the lower one reaches over the upper one: they overlap too. So,
    # beyond its neighbour, a newcomer can only overlap what has overlapped something before; ``widest`` is the largest of that.
    widest = 0
    for moment, starts, number in events:
        key = (offsets[number], number)
        if not starts:
            del live[bisect_left(live, key)]
            continue
        size = problem.buffers[number].size
        at = bisect_left(live, key)
        others = []
        above = at
        while above < len(live) and live[above][0] < key[0] + size:
            others.append(live[above][1])
            above += 1
        below = at - 1
        while below >= 0 and (below == at - 1 or live[below][0] + widest > key[0]):
            offset, other = live[below]
            if offset + problem.buffers[other].size > key[0]:
                others.append(other)
            below -= 1
        for other in others:
            widest = max(widest, size, problem.buffers[other].size)
            pair = (min(number, other), max(number, other))
            if pair not in seen and len(found) < MOST_OVERLAPS:
                seen.add(pair)
                one, two = problem.buffers[pair[0]].id, problem.buffers[pair[1]].id
                found.append(Violation("overlap", f"buffers {one} and {two} share bytes at time {moment}", pair))
        insort(live, key)
    return found
