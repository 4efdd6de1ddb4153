"""Says whether a packing plan is valid, and how high it is: a sweep over time, without any solver.

Written from docs/reference/packing.md alone; it shares no code with models, bounds or heuristics.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from operator import itemgetter
from typing import Literal

from stowplan.models import outcome
from stowplan.models.packing.plan import Plan
from stowplan.models.packing.problem import Problem

Code = Literal[
    "wrong_problem", "wrong_count", "wrong_objective", "negative_offset", "misaligned", "moved", "over_capacity", "overlap"
]

#: Overlaps listed at most: where all buffers lie at 0, their pairs fill any memory.
MOST_OVERLAPS = 10_000


@dataclass(frozen=True)
class Violation(outcome.Violation[Code]):
    """One broken rule."""

    buffers: tuple[int, ...] = ()
    """Numbers of the buffers concerned."""


@dataclass(frozen=True)
class Verification(outcome.Verification[Violation]):
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


def _overlaps(problem: Problem, offsets: tuple[int, ...]) -> list[Violation]:
    """Pairs that share bytes while both live, each pair once, at the first moment they do."""
    pieces: list[tuple[int, int, int]] = []
    for number, buffer in enumerate(problem.buffers):
        lives = buffer.pieces if buffer.gaps else ((buffer.lower, buffer.upper),)
        pieces += [(start, end, number) for start, end in lives if buffer.size]
    pieces.sort()
    ended = sorted(pieces, key=itemgetter(1), reverse=True)
    tops = [offset + buffer.size for offset, buffer in zip(offsets, problem.buffers, strict=True)]
    found: dict[tuple[int, int], Violation] = {}
    live: list[tuple[int, int]] = []
    clashing: set[int] = set()
    for moment, _, number in pieces:
        # Lives are half-open: what ends at a moment makes room for what begins at it.
        while ended[-1][1] <= moment:
            gone = ended.pop()[2]
            del live[bisect_left(live, (offsets[gone], gone))]
            clashing.discard(gone)
        low, top = offsets[number], tops[number]
        at = bisect_left(live, (low, number))
        # Where no two that live share bytes, whatever meets the newcomer is its neighbour, or stands behind one that meets it.
        above, below = live[at : at + 1], live[max(0, at - 1) : at]
        is_met = clashing or (above and above[0][0] < top) or (below and tops[below[0][1]] > low)
        for offset, other in live if is_met else ():
            if offset < top and tops[other] > low and len(found) < MOST_OVERLAPS:
                clashing |= {number, other}
                pair = (min(number, other), max(number, other))
                one, two = (problem.buffers[each].id for each in pair)
                found.setdefault(pair, Violation("overlap", f"buffers {one} and {two} share bytes at time {moment}", pair))
        live.insert(at, (low, number))
    return list(found.values())
