"""Banked packings that differ as little as possible from an earlier plan.

The option ``--keep-close`` names the earlier plan, which may be for an earlier version of the problem. Buffers are matched by
their ids, and banks (the memories) by their names. A *place* is the number of a bank and an offset in bytes from its start.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from stowplan.kernel.keep_close.earlier_plan import ByValues, needs_program
from stowplan.kernel.plan_changes import Budget, KeepClose
from stowplan.models.banked_packing.plan import Plan, plan_of
from stowplan.models.banked_packing.problem import Problem
from stowplan.models.packing import problem as packing
from stowplan.portfolio.packing.keep_close import Boxes, Place, colliding, near_places, stacked_boxes


class Changes(ByValues):
    """Implements :class:`~stowplan.kernel.plan_changes.PlanChanges` for banked packing.

    There is one decision for each buffer: its bank and its offset. The decision's number is the buffer's position in the
    problem. The constructor raises UsageError as :meth:`match_values` does.
    """

    what = "buffer"

    def match_values(self, given: KeepClose) -> Sequence[Place | None]:
        """The place of each buffer in a plan of an earlier version of the problem. It is None for a buffer that the earlier
        plan does not have, or whose earlier bank the problem does not have.

        Raises
        ------
        UsageError
            The earlier version of the problem is not given, and the plan does not list its buffers and banks.
        """
        earlier: Plan = given.plan
        source, places = given.problem, self.values(earlier)
        buffers = earlier.buffers or (source.buffers if source is not None else ())
        banks = earlier.memory or (source.banks if source is not None else ())
        if len(buffers) != len(places) or not banks:
            raise needs_program("banked packing")
        number = {bank.name: at for at, bank in enumerate(self.problem.banks)}
        bank_now = [number.get(bank.name) for bank in banks]
        earlier_places: dict[str, Place] = {}
        for buffer, place in zip(buffers, places, strict=True):
            bank = bank_now[place[0]] if 0 <= place[0] < len(bank_now) else None
            if bank is not None:
                earlier_places[buffer.id] = bank, place[1]
        return [earlier_places.get(buffer.id) for buffer in self.problem.buffers]

    def values(self, plan: Any) -> Sequence[Place]:
        """The place of each buffer in a plan, in the problem's order."""
        return list(zip(plan.banks, plan.offsets, strict=False))

    def plan(self, values: Sequence[Any], near: Any) -> Plan:
        """The plan with the places ``values``, which is not checked; ``near`` is not used."""
        return plan_of(self.problem, [bank for bank, _ in values], [offset for _, offset in values])

    def coupled(self, plan: Any) -> Callable[[int], Iterable[int]]:
        """Returns a function from a buffer to the other buffers that occupy bytes of its earlier place in ``plan``."""
        return colliding(_boxes(self.problem, self.earlier), _boxes(self.problem, self.values(plan)))

    def improved(self, plan: Any, budget: Budget, ceiling: int) -> Iterable[Plan]:
        """Yields plans with the same banks as ``plan`` and fewer and fewer changed offsets, until the budget is used up.

        Their cost is that of ``plan``, so that ``ceiling`` is not used.
        """
        problem = self.problem

        def packed_in(bank: int, inside: list[int]) -> packing.Problem:
            rows = [problem.buffers[at] for at in inside]
            lower, upper = min(row.lower for row in rows), max(row.upper for row in rows)
            # The reserved bytes are a buffer that is always live.
            reserved = packing.Buffer(id="", lower=lower, upper=upper, size=problem.bottom(bank), offset=0)
            others = (
                packing.Buffer(
                    id=f" {at}",
                    lower=row.lower,
                    upper=row.upper,
                    size=problem.size_in(at, bank),
                    alignment=problem.step(at, bank),
                )
                for at, row in zip(inside, rows, strict=True)
            )
            return packing.Problem(buffers=(reserved, *others), capacity=problem.banks[bank].capacity)

        for places in near_places(self.values(plan), self.earlier, len(problem.banks), packed_in, budget):
            yield self.plan(places, plan)


def _boxes(problem: Problem, places: Sequence[Place | None]) -> Boxes:
    """The rectangles of time and bytes that buffers occupy at these places. Buffers whose place is None, or that have no bytes,
    are left out."""
    return stacked_boxes(
        (bank.capacity for bank in problem.banks),
        (
            (number, buffer.lower, buffer.upper, place, problem.size_in(number, place[0]))
            for number, (buffer, place) in enumerate(zip(problem.buffers, places, strict=True))
            if place is not None and buffer.size
        ),
    )
