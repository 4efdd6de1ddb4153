"""The code that the verifiers of all kinds share: the type that they return, and the check that a plan belongs to its problem.

Each kind's rules and their checks are in a module of that kind. Models, bounds and heuristics do not use this module.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from stowplan.document import PlanDocument, ProblemDocument

CodeT = TypeVar("CodeT", bound=str, covariant=True)


@dataclass(frozen=True)
class Violation(Generic[CodeT]):
    """One broken rule: a code for programs, and a message of one line for people."""

    code: CodeT
    message: str
    concerns: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Indices of the parts of the problem that the rule was broken for, by sort of part: ``{"buffers": (0, 3)}``."""

    def __str__(self) -> str:
        return f"{self.code}: {self.message}"


@dataclass(frozen=True)
class Verification(Generic[CodeT]):
    """The outcome of verifying a plan, for every kind of problem."""

    violations: tuple[Violation[CodeT], ...]
    """All broken rules. If a rule is broken many times, for example by overlaps of buffers, only its first violations are
    listed; the verifier of the kind says how many."""
    objective: int | None
    """The objective, computed anew from the plan; None if the plan is too malformed to compute it."""
    figures: Mapping[str, int] = field(default_factory=dict)
    """Other figures computed from the plan, such as ``peak`` or ``arena``; each kind has its own names. A figure that cannot be
    computed is left out."""
    tie_break: int = 0
    """Decides between plans of equal objective: the plan with the smaller number is preferred. 0 if the kind has no such
    number."""
    is_tie_break_least: bool = True
    """Whether it is certain that no plan of this objective has a smaller ``tie_break``."""

    @property
    def ok(self) -> bool:
        """Whether the plan obeys every rule and the figures that it states about itself are right."""
        return not self.violations

    @property
    def lines(self) -> tuple[str, ...]:
        """The violations as text, one line each. For a plan of another problem, only the violation ``wrong_problem`` is listed:
        the indices of such a plan refer to parts of the other problem, so that further violations would mean nothing."""
        texts = tuple(map(str, self.violations))
        return tuple(text for text in texts if text.startswith("wrong_problem: ")) or texts


def of_problem(problem: ProblemDocument[PlanDocument], plan: PlanDocument) -> list[Violation[Any]]:
    """Checks that a plan belongs to a problem: returns the violation ``wrong_problem`` if it does not, and an empty list if it
    does."""
    if plan.problem == problem.digest:
        return []
    return [Violation("wrong_problem", f"the plan is for problem {plan.problem[:12]}, not {problem.digest[:12]}")]
