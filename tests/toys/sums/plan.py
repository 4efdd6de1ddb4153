"""The answer: places in the list."""

from __future__ import annotations

from stowplan.document import PlanDocument


class Plan(PlanDocument, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Places in the list."""

    chosen: tuple[int, ...]
    target: str = ""
    format: str = "stowplan.sums.plan"
    version: int = 1
