"""What an exact model of tier placement came to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from stowplan.models.tier_placement.plan import Plan


@dataclass(frozen=True)
class Outcome:
    """Plan and proof."""

    status: Literal["optimal", "feasible", "infeasible", "unknown"]
    """``optimal`` and ``infeasible`` only with a proof; running out of time is neither."""
    plan: Plan | None
    """The best plan found."""
    bound_ps: int
    """Proven: no valid plan is faster."""
