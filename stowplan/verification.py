"""What verifiers share: what they return, and whether a plan is for the problem.

The rules and their checks are each kind's own. Nothing here is used by models, bounds or heuristics.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from stowplan.document import PlanDocument, ProblemDocument

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
