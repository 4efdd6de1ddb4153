"""The plan of an earlier version of a program, as far as it is one for the version at hand.

Boundaries move with the steps that are known again (:mod:`stowplan.models.memory_mapping.earlier_steps`); then the verifier
is asked, and tensors that it blames go back to slow memory, until it blames none.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Sequence

import msgspec

from stowplan.models.earlier import in_order
from stowplan.models.memory_mapping.earlier_steps import paired_uses
from stowplan.models.memory_mapping.plan import Copy, Plan, Residency
from stowplan.models.memory_mapping.problem import Problem
from stowplan.models.memory_mapping.slices import with_whole_copies
from stowplan.models.memory_mapping.verify import Reason, Violation, verify

#: Times that the verifier is asked at most; each time it lists up to a hundred violations of each rule.
ROUNDS = 30


def carried_plan(problem: Problem, earlier: Problem, plan: Plan, before: Sequence[int]) -> Plan | None:
    """A valid plan for a problem, made of what a plan for an earlier version of it says.

    Parameters
    ----------
    problem
        What is to be solved.
    earlier, plan
        The version that the plan is valid for.
    before
        For each step of the problem the step of the earlier version that it was, -1 for none; shape ``[T]``.

    Returns
    -------
    Plan or None
        With its objective; None where nothing of the plan is left that saves anything.
    """
    moved = _Move(problem, earlier, before).plan(with_whole_copies(earlier, plan))
    for _ in range(ROUNDS):
        if not moved.residencies:
            return None
        found = verify(problem, moved)
        blamed = {_blamed(problem, moved, each) for each in found.violations if each.code != Reason.WRONG_OBJECTIVE}
        if not blamed:
            if found.objective_ps is None or found.objective_ps >= problem.all_slow_ps:
                return None
            return msgspec.structs.replace(moved, objective_ps=found.objective_ps)
        if blamed == {None}:
            return None
        moved = _without(problem, moved, blamed)
    return None


def _blamed(problem: Problem, plan: Plan, violation: Violation) -> int | None:
    """The tensor to give up for a violation: of two that meet, the smaller one, which loses less."""
    if violation.code == Reason.OVERLAP and violation.residencies:
        tensors = {plan.residencies[number].tensor for number in violation.residencies}
        return min(tensors, key=lambda tensor: (problem.tensors[tensor].size, tensor))
    return violation.tensor


def _without(problem: Problem, plan: Plan, tensors: set[int | None]) -> Plan:
    return msgspec.structs.replace(
        plan,
        residencies=tuple(each for each in plan.residencies if each.tensor not in tensors),
        copies=tuple(each for each in plan.copies if each.tensor not in tensors),
        fast_uses=tuple(use for use in plan.fast_uses if problem.tensor_of_use[use] not in tensors),
    )


class _Move:
    """From steps, tensors and uses of the earlier version to those of the later one."""

    def __init__(self, problem: Problem, earlier: Problem, before: Sequence[int]):
        self._problem = problem
        self._step = {old: new for new, old in enumerate(before) if old >= 0}
        self._old, self._new = in_order(self._step)
        self._use: dict[int, int] = {}
        self._tensor: dict[int, int] = {}
        self._accesses: defaultdict[int, list[int]] = defaultdict(list)
        """For each tensor of the earlier version, the steps that use it and are known again, ascending."""
        begins = [_first_uses(problem), _first_uses(earlier)]
        for old, new in sorted(self._step.items()):
            for place, other in paired_uses(problem, new, earlier, old):
                mine, theirs = problem.steps[new].uses[place], earlier.steps[old].uses[other]
                # A tensor that has become two, or the other way round, is that of its first use.
                if self._tensor.setdefault(theirs.tensor, mine.tensor) == mine.tensor:
                    self._use[begins[1][old] + other] = begins[0][new] + place
                    self._accesses[theirs.tensor].append(old)

    def plan(self, plan: Plan) -> Plan:
        """All of the plan that has a counterpart; it need not be valid."""
        copies: list[tuple[int, int, Copy]] = []
        ins = {(copy.tensor, copy.start): copy for copy in plan.copies if copy.direction == "in"}
        homes: defaultdict[int, list[tuple[Residency, Residency]]] = defaultdict(list)
        for stay in plan.residencies:
            moved = self._residency(stay, ins.get((stay.tensor, stay.start)))
            if moved is not None:
                homes[stay.tensor].append((stay, moved))
        for place, copy in enumerate(plan.copies):
            found = next((pair for pair in homes[copy.tensor] if pair[0].start <= copy.start < pair[0].end), None)
            if found is None:
                found = next((pair for pair in homes[copy.tensor] if copy.start == pair[0].end), None)
            if found is not None:
                moved_copy = self._copy(copy, *found)
                copies.append((moved_copy.start, place, moved_copy))
        return Plan(
            problem=self._problem.digest,
            objective_ps=0,
            program=self._problem.name,
            target=self._problem.target,
            residencies=tuple(moved for pairs in homes.values() for _, moved in pairs),
            copies=tuple(copy for _, _, copy in sorted(copies, key=lambda item: item[:2])),
            fast_uses=tuple(sorted(self._use[use] for use in plan.fast_uses if use in self._use)),
        )

    def _residency(self, stay: Residency, copy: Copy | None) -> Residency | None:
        used = [self._step[step] for step in self._inside(stay)]
        if not used or (copy is None and not stay.preloaded and stay.start not in self._step):
            return None
        start = 0 if stay.preloaded else self._at(stay.start) if copy is not None else self._step[stay.start]
        end = max(self._after(stay.end), max(used) + 1)
        return Residency(self._tensor[stay.tensor], min(start, *used), end, stay.offset, stay.preloaded)

    def _copy(self, copy: Copy, stay: Residency, moved: Residency) -> Copy:
        used = [(step, self._step[step]) for step in self._inside(stay)]
        if copy.direction == "in":
            first = min((new for old, new in used if old >= copy.end), default=moved.end)
            end = max(moved.start, min(self._at(copy.end), first))
            return Copy(moved.tensor, "in", moved.start, end)
        written = max((new + 1 for old, new in used if old < copy.start), default=moved.start)
        start = min(max(self._at(copy.start), written), moved.end)
        return Copy(moved.tensor, "out", start, min(moved.end, max(start, self._at(copy.end))))

    def _inside(self, stay: Residency) -> list[int]:
        steps = self._accesses[stay.tensor]
        return steps[bisect_left(steps, stay.start) : bisect_left(steps, stay.end)]

    def _at(self, boundary: int) -> int:
        """The boundary before the first step at or after it that is known again."""
        place = bisect_left(self._old, boundary)
        return self._new[place] if place < len(self._new) else len(self._problem.steps)

    def _after(self, boundary: int) -> int:
        """The boundary after the last step before it that is known again."""
        place = bisect_right(self._old, boundary - 1) - 1
        return self._new[place] + 1 if place >= 0 else 0


def _first_uses(problem: Problem) -> list[int]:
    found, count = [], 0
    for step in problem.steps:
        found.append(count)
        count += len(step.uses)
    return found
