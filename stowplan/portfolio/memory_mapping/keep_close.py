"""Memory mappings that differ as little as possible from an earlier plan, compared tensor by tensor.

The option ``--keep-close`` names the earlier plan, which may be for an earlier version of the program. A *residency* is the
stay of a tensor in fast memory. A copy is *queued* at a *boundary*, the moment before a step from which on it may begin. A
*use* is the read or write of a tensor by a step; it is *fast* if it is served from fast memory.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from stowplan.kernel.keep_close.earlier_plan import ByValues, is_of_problem, needs_program
from stowplan.kernel.plan_changes import Budget, KeepClose
from stowplan.models.memory_mapping.hint import carried_plan, matched_steps
from stowplan.models.memory_mapping.plan import Copy, Plan, Residency
from stowplan.models.memory_mapping.problem import Problem
from stowplan.models.packing import problem as packing
from stowplan.portfolio.packing.keep_close import Boxes, boxes, colliding, near_offsets

#: The part of a plan that concerns one tensor: its residencies, its copies, and the numbers of its fast uses.
Part = tuple[tuple[Residency, ...], tuple[Copy, ...], tuple[int, ...]]


class Changes(ByValues):
    """Implements :class:`~stowplan.kernel.plan_changes.PlanChanges` for memory mapping.

    There is one decision for each tensor: the part of the plan that concerns it. The decision's number is that of the tensor.

    A plan for an earlier version of the program is first transferred to this version, as far as possible. If nothing of it is
    left, the plan with all tensors in slow memory takes its place, and :attr:`notes` says so.

    Parameters
    ----------
    problem
        The problem to solve.
    given
        The checked request with the earlier plan.

    Raises
    ------
    UsageError
        The plan is for an earlier version, and the problem of that version is not given.
    """

    what = "tensor"

    def __init__(self, problem: Problem, given: KeepClose):
        self._owner = problem.tensor_of_use
        start: Plan = given.plan
        self.notes = []
        if not is_of_problem(problem, given):
            if given.problem is None:
                raise needs_program("memory mapping")
            carried = carried_plan(problem, given.problem, start, matched_steps(problem, given.problem))
            if carried is None:
                self.notes = ["nothing of the earlier plan saves time in this version of the program"]
                carried = Plan(problem=problem.digest, objective=problem.all_slow_ps)
            start = carried
        self._tensors = len(problem.tensors)
        super().__init__(problem, KeepClose(plan=start))

    def values(self, plan: Any) -> Sequence[Part]:
        """The parts of a plan, one for each tensor."""
        stays: defaultdict[int, list[Residency]] = defaultdict(list)
        copies: defaultdict[int, list[Copy]] = defaultdict(list)
        uses: defaultdict[int, list[int]] = defaultdict(list)
        for stay in plan.residencies:
            stays[stay.tensor].append(stay)
        for copy in plan.copies:
            copies[copy.tensor].append(copy)
        for use in plan.fast_uses:
            uses[self._owner[use]].append(use)
        return [
            (tuple(sorted(stays[number], key=lambda stay: stay.start)), tuple(copies[number]), tuple(uses[number]))
            for number in range(self._tensors)
        ]

    def plan(self, values: Sequence[Any], near: Any) -> Plan:
        """The plan that consists of these parts, which is not checked and has objective 0.

        Copies that are queued at one boundary have the order of ``near``, or else of the earlier plan. Raises KeyError for a
        copy that neither plan has.
        """
        parts: Sequence[Part] = values
        rank: dict[Copy, int] = {}
        for plan in (near, self.start):
            for at, copy in enumerate(plan.copies):
                rank.setdefault(copy, at)
        residencies = [stay for stays, _, _ in parts for stay in stays]
        copies = [copy for _, queued, _ in parts for copy in queued]
        changed: Plan = msgspec.structs.replace(
            near,
            objective=0,
            residencies=tuple(sorted(residencies, key=lambda stay: (stay.start, stay.offset, stay.tensor))),
            copies=tuple(sorted(copies, key=lambda copy: (copy.start, rank[copy], copy.tensor))),
            fast_uses=tuple(sorted(use for _, _, uses in parts for use in uses)),
        )
        return changed

    def coupled(self, plan: Any) -> Callable[[int], Iterable[int]]:
        """Returns a function from a tensor to the other tensors that occupy bytes of its earlier residencies in ``plan``."""
        return colliding(self._boxes(self.start), self._boxes(plan))

    def improved(self, plan: Any, budget: Budget, ceiling: int) -> Iterable[Plan]:
        """Yields plans with the same residencies as ``plan`` and fewer and fewer changed offsets, until the budget is used up.

        The objective is that of ``plan``, so that ``ceiling`` is not used.
        """
        offset_of = {(stay.tensor, stay.start, stay.end, stay.preloaded): stay.offset for stay in self.start.residencies}
        stays: tuple[Residency, ...] = plan.residencies
        buffers = tuple(
            packing.Buffer(
                id=str(at),
                lower=stay.start,
                upper=stay.end,
                size=self.problem.tensors[stay.tensor].size,
                alignment=self.problem.alignment,
            )
            for at, stay in enumerate(stays)
        )
        earlier = [offset_of.get((stay.tensor, stay.start, stay.end, stay.preloaded)) for stay in stays]
        problem = packing.Problem(buffers=buffers, capacity=self.problem.capacity)
        for offsets in near_offsets(problem, earlier, [stay.offset for stay in stays], budget):
            moved = (msgspec.structs.replace(stay, offset=at) for stay, at in zip(stays, offsets, strict=True))
            yield msgspec.structs.replace(plan, residencies=tuple(moved))

    def _boxes(self, plan: Plan) -> Boxes:
        """The rectangles of steps and bytes that the residencies of a plan occupy."""
        return boxes(
            (
                residency.tensor,
                residency.start,
                residency.end,
                residency.offset,
                residency.offset + self.problem.tensors[residency.tensor].size,
            )
            for residency in plan.residencies
        )
