"""Offsets for tensors whose tiers are final: every tier is a packing problem of its own."""

from __future__ import annotations

import math
import time

from stowplan.models.packing import cpsat as packing_model
from stowplan.models.packing import problem as packing
from stowplan.models.tier_placement.plan import Plan
from stowplan.models.tier_placement.structure import Structure, plan_of

#: Seconds for the packing model, in which it is much faster than in the wall's: a limit on work.
PACKING_LIMIT = 1.0

#: The packing model is only asked for tiers with fewer tensors than this.
MAX_PACKED = 400


class Offsets:
    """Makes plans of tiers, with offsets where tiers are address spaces.

    ``end`` is a moment of the monotonic clock: what is packed then or later gets no time for the packing model.
    """

    def __init__(self, structure: Structure, packing_limit: float = PACKING_LIMIT, end: float = math.inf):
        self._structure = structure
        self._packing_limit = packing_limit
        self._end = end

    def place(self, tier_of: list[int]) -> Plan | None:
        """Plan with every tensor in its tier; None where a tier overflows or no offsets were found in time."""
        structure = self._structure
        if not structure.fits(tier_of):
            return None
        if not structure.problem.address_spaces:
            return plan_of(structure, tier_of)
        offsets = [0] * len(structure.tensors)
        for tier in range(len(structure.problem.tiers)):
            inside = [number for number, at in enumerate(tier_of) if at == tier]
            found = self.pack(tier, inside)
            if found is None:
                return None
            for number, offset in zip(inside, found, strict=True):
                offsets[number] = offset
        return plan_of(structure, tier_of, offsets)

    def pack(self, tier: int, inside: list[int]) -> list[int] | None:
        """Offset of each of these tensors in one tier; None where none were found in time."""
        memory = self._structure.problem.tiers[tier]
        tensors = [self._structure.tensors[number] for number in inside]
        orders = (
            lambda at: (tensors[at].first - tensors[at].last, -tensors[at].size),
            lambda at: (-tensors[at].size, tensors[at].first),
            lambda at: (tensors[at].is_output, tensors[at].first),
        )
        for key in orders:
            found = self._first_fit(tier, inside, sorted(range(len(inside)), key=key))
            if found is not None:
                return found
        if len(inside) > MAX_PACKED:
            return None
        problem = packing.Problem(
            buffers=tuple(
                packing.Buffer(id=str(at), lower=each.first, upper=each.last + 1, size=each.size, alignment=memory.alignment)
                for at, each in enumerate(tensors)
            ),
            capacity=memory.capacity,
        )
        left = max(0.0, self._end - time.monotonic())
        outcome = packing_model.solve(
            problem, time_limit=min(10 * self._packing_limit, left), deterministic_limit=self._packing_limit
        )
        return None if outcome.plan is None else list(outcome.plan.offsets)

    def _first_fit(self, tier: int, inside: list[int], order: list[int]) -> list[int] | None:
        """Every tensor at the lowest offset that is free for its whole life, one after the other."""
        memory = self._structure.problem.tiers[tier]
        tensors = [self._structure.tensors[number] for number in inside]
        offsets = [0] * len(inside)
        placed: list[tuple[int, int, int, int]] = []
        """(offset, end, first, last), ascending."""
        for at in order:
            each = tensors[at]
            offset = 0
            for start, end, first, last in placed:
                if start >= offset + each.size:
                    break
                if first <= each.last and each.first <= last and end > offset:
                    offset = end + -end % memory.alignment
            if offset + each.size > memory.capacity:
                return None
            offsets[at] = offset
            if each.size:
                placed.append((offset, offset + each.size, each.first, each.last))
                placed.sort()
        return offsets
