"""What an exact model comes to, the same for all kinds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

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
