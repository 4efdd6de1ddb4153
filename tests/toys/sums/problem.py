"""The instance: numbers."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from stowplan.document import ProblemDocument

if TYPE_CHECKING:
    from tests.toys.sums.plan import Plan  # noqa: F401


class Problem(ProblemDocument["Plan"], frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Two numbers of the list shall be chosen, the smaller their sum the better."""

    numbers: tuple[int, ...]
    name: str = "sums"
    target: str = "paper"
    cost_model: str = "sum"
    format: str = "stowplan.sums.problem"
    version: int = 1

    @property
    def digest(self) -> str:
        return hashlib.sha256(repr(self.numbers).encode()).hexdigest()
