"""How far a packing is from an earlier one: buffers by their ids, and where they stand."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from stowplan.models.packing.plan import Plan
from stowplan.models.packing.problem import Problem
from stowplan.portfolio.keep_close.earlier_plan import Budget, ByValues, KeepClose, needs_program, of_this_problem
from stowplan.portfolio.packing.near import colliding, near_offsets, packed, under


class Changes(ByValues):
    """Decisions are the offsets of the buffers."""

    def __init__(self, problem: Problem, given: KeepClose):
        earlier: Plan = given.plan
        before: Sequence[int | None] = earlier.offsets
        start: Plan | None = earlier
        if not of_this_problem(problem, given):
            buffers = earlier.buffers or (given.problem.buffers if given.problem is not None else ())
            if len(buffers) != len(earlier.offsets):
                raise needs_program("packing")
            known = {buffer.id: offset for buffer, offset in zip(buffers, earlier.offsets, strict=True)}
            before = [known.get(buffer.id) for buffer in problem.buffers]
            start = None if None in before else self._plan(problem, [offset or 0 for offset in before])
        super().__init__(problem, given, "buffer", before, start)
        self._offsets = tuple(before)

    @staticmethod
    def _plan(problem: Problem, offsets: Sequence[int]) -> Plan:
        height = max((offset + each.size for offset, each in zip(offsets, problem.buffers, strict=True)), default=0)
        return Plan(
            problem=problem.digest, objective=height, offsets=tuple(offsets), buffers=problem.buffers, name=problem.name
        )

    def values(self, plan: Any) -> Sequence[int]:
        """Offsets."""
        offsets: tuple[int, ...] = plan.offsets
        return offsets

    def plan(self, values: Sequence[Any], near: Any) -> Plan:
        """Plan with these offsets."""
        return self._plan(self.problem, values)

    def coupled(self, plan: Any) -> Callable[[int], Iterable[int]]:
        """Buffers that stand where the buffer was."""
        return colliding(packed(self.problem, self._offsets), packed(self.problem, plan.offsets))

    def improved(self, plan: Any, budget: Budget, ceiling: int) -> Iterable[Plan]:
        """Other offsets under the ceiling."""
        capacity = self.problem.capacity
        problem = under(self.problem, ceiling if capacity is None else min(capacity, ceiling))
        for offsets in near_offsets(problem, self._offsets, plan.offsets, budget):
            yield self._plan(self.problem, offsets)
