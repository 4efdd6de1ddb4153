"""What is free in each tier while tensors are placed one after the other."""

from __future__ import annotations

import numpy as np

from stowplan.models.tier_placement.problem import Problem


class Room:
    """The tiers of a problem, filling up. Where tiers are address spaces, every tensor gets the lowest offset that is free."""

    def __init__(self, problem: Problem):
        self._problem = problem
        self._used = np.zeros((len(problem.tiers), len(problem.layers)), np.int64)
        """Bytes taken in each tier at each step."""
        self._taken: list[list[tuple[int, int, int, int]]] = [[] for _ in problem.tiers]
        """(offset, end, first, last) of what lies in each tier, ascending; kept for address spaces only."""
        self.weights = [0] * len(problem.tiers)
        """Bytes of weights in each tier."""

    def free(self, tier: int, first: int, last: int) -> int:
        """Bytes that are free in a tier at all the steps from first to last."""
        return self._problem.tiers[tier].capacity - int(self._used[tier, first : last + 1].max())

    def take(self, tier: int, size: int, first: int, last: int) -> int | None:
        """Offset for a tensor that takes room from step first to step last (0 where only bytes count); None: it has none."""
        if self.free(tier, first, last) < size:
            return None
        offset = 0
        if self._problem.address_spaces and size:
            offset = self._lowest(tier, size, first, last)
            if offset + size > self._problem.tiers[tier].capacity:
                return None
            self._taken[tier].append((offset, offset + size, first, last))
            self._taken[tier].sort()
        self._used[tier, first : last + 1] += size
        return offset

    def _lowest(self, tier: int, size: int, first: int, last: int) -> int:
        alignment = self._problem.tiers[tier].alignment
        lowest = 0
        for offset, end, begins, ends in self._taken[tier]:
            if offset >= lowest + size:
                break
            if begins <= last and first <= ends and end > lowest:
                lowest = end + -end % alignment
        return lowest
