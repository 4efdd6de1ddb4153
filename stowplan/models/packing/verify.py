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
    tops = [offset + buffer.size for offset, buffer in zip(offsets, problem.buffers, strict=True)]
    pieces = []
    for number, buffer in enumerate(problem.buffers):
        if buffer.size:
            whole = [(buffer.lower, buffer.upper)]
            pieces += [(*piece, number) for piece in (buffer.pieces if buffer.gaps else whole)]
    pieces.sort()
    ended = sorted(pieces, key=itemgetter(1), reverse=True)
    found: dict[tuple[int, int], Violation] = {}
    live: list[tuple[int, int]] = []
    # Of two live buffers below a third that it overlaps, the lower one reaches over the upper one: they overlap too. So,
    # beyond its neighbour, a newcomer can only overlap what has overlapped something before; ``widest`` is the largest of that.
    widest = 0
    for moment, _, number in pieces:
        # Lives are half-open: what ends at a moment makes room for what begins at it.
        while ended[-1][1] <= moment:
            gone = ended.pop()[2]
            del live[bisect_left(live, (offsets[gone], gone))]
        low, top = offsets[number], tops[number]
        at = bisect_left(live, (low, number))
        above, below = at, at - 1
        others = []
        while above < len(live) and live[above][0] < top:
            others.append(live[above][1])
            above += 1
        while below >= 0 and (below == at - 1 or live[below][0] + widest > low):
            other = live[below][1]
            if tops[other] > low:
                others.append(other)
            below -= 1
        for other in others:
            widest = max(widest, top - low, tops[other] - offsets[other])
            pair = (min(number, other), max(number, other))
            if pair not in found and len(found) < MOST_OVERLAPS:
                one, two = problem.buffers[pair[0]].id, problem.buffers[pair[1]].id
                found[pair] = Violation("overlap", f"buffers {one} and {two} share bytes at time {moment}", pair)
        live.insert(at, (low, number))
    return list(found.values())
