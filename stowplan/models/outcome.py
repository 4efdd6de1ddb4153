"""What exact models and verifiers return, the same for all kinds. The rules and their checks are each kind's own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

P = TypeVar("P")

Status = Literal["optimal", "feasible", "infeasible", "unknown"]


@dataclass(frozen=True)
class Outcome(Generic[P]):
    """Plan and proof."""

    status: Status
    """``optimal`` and ``infeasible`` only with a proof; running out of time is neither."""
    plan: P | None
    """The best plan found."""
    bound: int | None
    """Proven: no valid plan has a smaller objective (in the kind's unit). None where nothing is proven, or there is no plan."""
    reason: str | None = None
    """Why there is no plan, in one sentence, where that is proven and can be said."""


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
