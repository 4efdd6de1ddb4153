"""What the back end for torch says where it cannot do what it is asked for."""

from __future__ import annotations

from stowplan.errors import StowplanError


class MemoryLimitError(StowplanError):
    """No plan, or no step, is within the memory limit; says the least that was reached, and what is proven.

    Attributes
    ----------
    limit, least, bound
        Bytes: what was asked for, the least peak found, and what no plan is below.
    """

    def __init__(self, message: str, limit: int, least: int, bound: int):
        super().__init__(message)
        self.limit, self.least, self.bound = limit, least, bound
