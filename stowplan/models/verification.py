"""What verifiers share: what they return, whether a plan is for the problem, and a plain sweep for what stands in one place.

The rules and their checks are each kind's own. Nothing here is used by models, bounds or heuristics.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Generic, TypeVar

from stowplan.kinds import Problem

CodeT = TypeVar("CodeT", bound=str, covariant=True)


@dataclass(frozen=True)
class Violation(Generic[CodeT]):
    """One broken rule: a code for programs, and one line for people."""

    code: CodeT
    message: str


ViolationT = TypeVar("ViolationT", bound=Violation[Any], covariant=True)


@dataclass(frozen=True)
class Verification(Generic[ViolationT]):
    """What a verifier found."""

    violations: tuple[ViolationT, ...]
    """All of them; of those that may be many, such as overlaps, the first, as the kind's verifier says."""

    @property
    def ok(self) -> bool:
        """Whether the plan is valid, and what it says of itself true."""
        return not self.violations


V = TypeVar("V", bound=Violation[Any])


def of_problem(violation: type[V], problem: Problem, plan: Any) -> list[V]:
    """The violation ``wrong_problem`` of a kind, where a plan is for another problem; else none."""
    if plan.problem == problem.digest:
        return []
    return [violation("wrong_problem", f"the plan is for problem {plan.problem[:12]}, not {problem.digest[:12]}")]


#: Overlaps listed at most: where everything lies at 0, the pairs fill any memory.
MOST_OVERLAPS = 10_000

#: Moments ``[start, end)`` and bytes ``[low, high)`` that something takes, and its number: (start, end, low, high, number).
Box = tuple[int, int, int, int, int]


def overlaps(boxes: Iterable[Box], most: int = MOST_OVERLAPS) -> dict[tuple[int, int], int]:
    """Pairs that share bytes at a moment, smaller number first, each with the first such moment.

    Parameters
    ----------
    boxes
        Of one memory. Several may have one number, at different moments.
    most
        Pairs listed at most.
    """
    boxes = sorted(box for box in boxes if box[2] < box[3])
    ended = sorted(boxes, key=itemgetter(1), reverse=True)
    found: dict[tuple[int, int], int] = {}
    # (low, number, high) of what lives now.
    live: list[tuple[int, int, int]] = []
    clashing: set[int] = set()
    for moment, _, low, high, number in boxes:
        # Lives are half-open: what ends at a moment makes room for what begins at it.
        while ended[-1][1] <= moment:
            _, _, start, _, gone = ended.pop()
            del live[bisect_left(live, (start, gone))]
            clashing.discard(gone)
        at = bisect_left(live, (low, number))
        # Where no two that live share bytes, whatever meets the newcomer is its neighbour, or stands behind one that meets it.
        above, below = live[at : at + 1], live[max(0, at - 1) : at]
        is_met = clashing or (above and above[0][0] < high) or (below and below[0][2] > low)
        for start, other, end in live if is_met else ():
            if start < high and end > low and len(found) < most:
                clashing |= {number, other}
                found.setdefault((min(number, other), max(number, other)), moment)
        live.insert(at, (low, number, high))
    return found
