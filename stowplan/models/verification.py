"""What every verifier returns. The rules, and the code that checks them, are each kind's own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, TypeVar

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
