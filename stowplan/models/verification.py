"""What verifiers share: what they return, whether a plan is for the problem, and a plain sweep for what stands in one place.

The rules and their checks are each kind's own. Nothing here is used by models, bounds or heuristics.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any, Generic, TypeVar

from stowplan.models.document import PlanDocument, ProblemDocument

CodeT = TypeVar("CodeT", bound=str, covariant=True)


@dataclass(frozen=True)
class Violation(Generic[CodeT]):
    """One broken rule: a code for programs, and one line for people."""

    code: CodeT
    message: str
    concerns: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Numbers of what it is about, by sort: ``{"buffers": (0, 3)}``."""

    def __str__(self) -> str:
        return f"{self.code}: {self.message}"


@dataclass(frozen=True)
class Verification(Generic[CodeT]):
    """What a verifier found, of any kind of problem."""

    violations: tuple[Violation[CodeT], ...]
    """All of them; of those that may be many, such as overlaps, the first, as the kind's verifier says."""
    objective: int | None
    """Recomputed from scratch; None where the plan is too malformed for it."""
    figures: Mapping[str, int] = field(default_factory=dict)
    """What else was recomputed, by names that are the kind's own: ``peak``, ``arena``; left out where it could not be."""
    tie_break: int = 0
    """What decides between plans of equal objective: the smaller the better."""
    is_tie_break_least: bool = True
    """Whether no plan of this objective has a smaller ``tie_break``."""

    @property
    def ok(self) -> bool:
        """Whether the plan is valid, and what it says of itself true."""
        return not self.violations

    @property
    def lines(self) -> tuple[str, ...]:
        """The violations, one line each. Of a plan for another problem that is all there is to say: its numbers mean other
        things."""
        texts = tuple(map(str, self.violations))
        return tuple(text for text in texts if text.startswith("wrong_problem: ")) or texts


def of_problem(problem: ProblemDocument[PlanDocument], plan: PlanDocument) -> list[Violation[Any]]:
    """The violation ``wrong_problem``, where a plan is for another problem; else none."""
    if plan.problem == problem.digest:
        return []
    return [Violation("wrong_problem", f"the plan is for problem {plan.problem[:12]}, not {problem.digest[:12]}")]


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
    pairs: dict[tuple[int, int], int] = {}
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
            if start < high and end > low and len(pairs) < most:
                clashing |= {number, other}
                pairs.setdefault((min(number, other), max(number, other)), moment)
        live.insert(at, (low, number, high))
    return pairs
