"""How far a banked packing is from an earlier one: buffers and banks by their names."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from stowplan.models.banked_packing.plan import Plan
from stowplan.models.banked_packing.problem import Problem
from stowplan.models.packing import problem as packing
from stowplan.portfolio.keep_close.earlier_plan import Budget, ByValues, KeepClose, needs_program, of_this_problem
from stowplan.portfolio.packing.keep_close import Boxes, Place, colliding, near_places, stacked


class Changes(ByValues):
    """Decisions are bank and offset of the buffers."""

    def __init__(self, problem: Problem, given: KeepClose):
        earlier: Plan = given.plan
        self._places: list[Place | None] = list(zip(earlier.banks, earlier.offsets, strict=False))
        start: Plan | None = earlier
        if not of_this_problem(problem, given):
            source = given.problem
            buffers = earlier.buffers or (source.buffers if source is not None else ())
            banks = earlier.memory or (source.banks if source is not None else ())
            if len(buffers) != len(self._places) or not banks:
                raise needs_program("banked packing")
            number = {bank.name: at for at, bank in enumerate(problem.banks)}
            now = [number.get(bank.name) for bank in banks]
            known: dict[str, Place] = {}
            for buffer, place in zip(buffers, self._places, strict=True):
                assert place is not None
                bank = now[place[0]] if 0 <= place[0] < len(now) else None
                if bank is not None:
                    known[buffer.id] = bank, place[1]
            self._places = [known.get(buffer.id) for buffer in problem.buffers]
            whole = [place for place in self._places if place is not None]
            start = None if len(whole) < len(problem.buffers) else _plan(problem, whole)
        super().__init__(problem, given, "buffer", self._places, start)

    def values(self, plan: Any) -> Sequence[Place]:
        """Bank and offset."""
        return list(zip(plan.banks, plan.offsets, strict=True))

    def plan(self, values: Sequence[Any], near: Any) -> Plan:
        """Plan with these places."""
        return _plan(self.problem, values)

    def coupled(self, plan: Any) -> Callable[[int], Iterable[int]]:
        """Buffers that stand where the buffer was."""
        return colliding(_boxes(self.problem, self._places), _boxes(self.problem, self.values(plan)))

    def improved(self, plan: Any, budget: Budget, ceiling: int) -> Iterable[Plan]:
        """Other offsets in the same banks."""
        problem = self.problem

        def packed_in(bank: int, inside: list[int]) -> packing.Problem:
            rows = [problem.buffers[at] for at in inside]
            lower, upper = min(each.lower for each in rows), max(each.upper for each in rows)
            # What is reserved is a buffer that is always there.
            reserved = packing.Buffer(id="", lower=lower, upper=upper, size=problem.bottom(bank), offset=0)
            others = (
                packing.Buffer(
                    id=f" {at}",
                    lower=each.lower,
                    upper=each.upper,
                    size=problem.taken(at, bank),
                    alignment=problem.step(at, bank),
                )
                for at, each in zip(inside, rows, strict=True)
            )
            return packing.Problem(buffers=(reserved, *others), capacity=problem.banks[bank].capacity)

        for places in near_places(self.values(plan), self._places, len(problem.banks), packed_in, budget):
            yield _plan(problem, places)


def _plan(problem: Problem, places: Sequence[Place]) -> Plan:
    cost = sum(problem.traffic(at) * problem.banks[bank].cost for at, (bank, _) in enumerate(places))
    return Plan(
        problem=problem.digest,
        objective=cost,
        banks=tuple(bank for bank, _ in places),
        offsets=tuple(offset for _, offset in places),
        buffers=problem.buffers,
        memory=problem.banks,
        name=problem.name,
    )


def _boxes(problem: Problem, places: Sequence[Place | None]) -> Boxes:
    return stacked(
        (bank.capacity for bank in problem.banks),
        (
            (number, each.lower, each.upper, place, problem.taken(number, place[0]))
            for number, (each, place) in enumerate(zip(problem.buffers, places, strict=True))
            if place is not None and each.size
        ),
    )
