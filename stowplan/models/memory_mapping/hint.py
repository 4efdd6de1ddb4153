"""Hints for memory mapping, and the transfer of hints and plans from an earlier version of a program to the current one.

A hint has two or three values for each access, that is, for each pair of a tensor and a step that uses it. ``fast`` says
whether the access is served from fast memory, and ``keep`` whether the tensor stays there until its next access. The optional
``place`` is the tensor's offset as a fraction of the capacity. Accesses are those of
:mod:`~stowplan.models.memory_mapping.accesses`, ordered by tensor and then by step.

*Transfer between versions.* Most steps of an earlier version are recognized by the tensors that they use and by the steps
around them (:mod:`stowplan.models.hint`). A change may alter steps throughout the program. If a training
program gets another optimizer, for example, every step into which the compiler fuses an update of weights changes. Steps that
are not recognized are matched by their position between recognized ones if at least half of their bytes agree. The boundaries
of a plan move with the matched steps. The result need not be valid, so the verifier checks it, and tensors that break rules are
moved back to slow memory until the plan is valid. The *confidence* of an access says how reliable its values in a hint are. It
is 0 for an access without a counterpart in the earlier version, and searches ignore the values of such an access.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from functools import cache

import msgspec

from stowplan.models.hint import (
    Hint,
    HintValues,
    Steps,
    aligned,
    carried,
    check_hint,
    in_order,
    matched,
    of_values,
    plan_of,
    trust,
)
from stowplan.models.memory_mapping.accesses import TensorAccesses, access_sequences, accesses_of
from stowplan.models.memory_mapping.copy_engine import with_whole_copies
from stowplan.models.memory_mapping.plan import Copy, Plan, Residency, by_tensor
from stowplan.models.memory_mapping.problem import Problem, Step
from stowplan.models.memory_mapping.verify import Reason, Violation, verify

#: Names of the lists of values in a hint.
FAST, KEEP, PLACE = "fast", "keep", "place"

#: Names of the lists that a hint may omit.
OPTIONAL = (PLACE,)


def counts(problem: Problem) -> dict[str, int]:
    """The number of values that a hint has under each name: one for each access."""
    return dict.fromkeys((FAST, KEEP, PLACE), sum(map(len, accesses_of(problem))))


def hint(
    problem: Problem,
    fast: Sequence[float],
    keep: Sequence[float],
    *,
    place: Sequence[float] = (),
    confidence: Sequence[float] = (),
    plan: Plan | None = None,
    source: str = "",
) -> Hint:
    """Build a hint for a problem from lists of values, each of shape ``[accesses]``; an empty ``place`` is omitted."""
    values = {FAST: fast, KEEP: keep} | ({PLACE: place} if place else {})
    return of_values(problem, values, confidence=confidence, plan=plan, source=source)


def of_plan(problem: Problem, plan: Plan, source: str = "plan") -> Hint:
    """Build a hint that contains a plan and the values that correspond to it.

    Parameters
    ----------
    problem
        The problem that the plan is for.
    plan
        A valid plan.
    source
        Name of the origin of the plan, for people.
    """
    fast_numbers = {*plan.fast_uses}
    residencies_of = by_tensor(plan.residencies)
    fast: list[float] = []
    keep: list[float] = []
    place: list[float] = []
    for sequence in access_sequences(problem):
        tensor_residencies = residencies_of.get(sequence.tensor, [])
        for number, access in enumerate(sequence.accesses):
            fast.append(float(all(use in fast_numbers for use in access.uses)))
            keep.append(float(_stays(sequence, number, tensor_residencies)))
            residency_at_access = next(
                (residency for residency in tensor_residencies if residency.start <= access.step < residency.end), None
            )
            place.append(0.0 if residency_at_access is None else residency_at_access.offset / max(1, problem.capacity))
    return hint(problem, fast, keep, place=place, plan=plan, source=source)


def _stays(sequence: TensorAccesses, number: int, residencies: Sequence[Residency]) -> bool:
    """Whether one residency covers both an access and the next one."""
    if number + 1 == len(sequence):
        return False
    first, last = sequence.accesses[number].step, sequence.accesses[number + 1].step
    return any(residency.start <= first and last < residency.end for residency in residencies)


#: Description of a step without its name: its opcode, and (size, whether it is written) for each use.
Signature = tuple[str, tuple[tuple[int, bool], ...]]

#: Fraction of the bytes of two steps that must be in uses of equal size and role (read or write), so that the steps can be
#: matched by position.
ALIKE = 0.5


def matched_steps(problem: Problem, earlier: Problem) -> list[int]:
    """For each step of a problem, the step of an earlier version that it corresponds to, or -1; shape ``[steps]``."""
    pairs = matched(_steps(problem), _steps(earlier))
    signatures = [[_signature(version, step) for step in version.steps] for version in (problem, earlier)]
    likeness = cache(_likeness)
    return aligned(pairs, len(earlier.steps), lambda step, before: likeness(signatures[0][step], signatures[1][before]), ALIKE)


def paired_uses(problem: Problem, step: int, earlier: Problem, before: int) -> list[tuple[int, int]]:
    """Pair the uses of ``step`` with those of the matched step ``before`` of an earlier version.

    If both steps have the same sequence of reads and writes, uses correspond by position. Otherwise, the first use of each size
    and role (read or write) corresponds to the first such use of the other step, the second to the second, and so on.

    Returns
    -------
    list of tuple
        Positions of corresponding uses in the list of the step and in that of the matched step.
    """
    uses, earlier_uses = (
        _signature(version, version.steps[number])[1] for version, number in ((problem, step), (earlier, before))
    )
    if [is_output for _, is_output in uses] == [is_output for _, is_output in earlier_uses]:
        return [(place, place) for place in range(len(uses))]
    places: defaultdict[tuple[int, bool], list[int]] = defaultdict(list)
    for place in reversed(range(len(earlier_uses))):
        places[earlier_uses[place]].append(place)
    return [(place, places[use].pop()) for place, use in enumerate(uses) if places[use]]


def _steps(problem: Problem) -> Steps:
    """The steps of a problem in the form for matching.

    The sources of a step are the steps that last wrote the tensors that it uses.
    """
    writer = [-1] * len(problem.tensors)
    sources = []
    for number, step in enumerate(problem.steps):
        sources.append([writer[use.tensor] for use in step.uses])
        for use in step.uses:
            if use.is_output:
                writer[use.tensor] = number
    return Steps(
        [step.name for step in problem.steps],
        [_signature(problem, step) for step in problem.steps],
        [(step.opcode, tuple(use.is_output for use in step.uses)) for step in problem.steps],
        sources,
    )


def _signature(problem: Problem, step: Step) -> Signature:
    """The signature of a step of the problem."""
    return step.opcode, tuple((problem.tensors[use.tensor].size, use.is_output) for use in step.uses)


def _likeness(one: Signature, other: Signature) -> float:
    """Similarity of two steps: the fraction of the larger step's bytes in uses whose size and role both steps have."""
    if one[0] != other[0]:
        return 0.0
    first_uses, second_uses = Counter(one[1]), Counter(other[1])
    most = max(sum(size * count for (size, _), count in bag.items()) for bag in (first_uses, second_uses))
    return sum(size * count for (size, _), count in (first_uses & second_uses).items()) / most if most else 0.0


#: Largest number of verifier runs in the repair of a plan. Each lists up to a hundred violations of each rule.
ROUNDS = 30


def carried_plan(problem: Problem, earlier: Problem, plan: Plan, before: Sequence[int]) -> Plan | None:
    """Transfer a plan from an earlier version of a program to the current one.

    Parameters
    ----------
    problem
        The current version.
    earlier, plan
        The earlier version, and a plan that is valid for it.
    before
        For each step of the current version, the matched step of the earlier one, or -1; shape ``[steps]``.

    Returns
    -------
    Plan or None
        A valid plan with its objective. It is None if no residency can be transferred, if the plan cannot be repaired within
        :data:`ROUNDS` rounds, or if the valid plan is no better than having all tensors in slow memory.
    """
    moved = _Move(problem, earlier, before).plan(with_whole_copies(earlier, plan))
    for _ in range(ROUNDS):
        if not moved.residencies:
            return None
        verification = verify(problem, moved)
        tensors_to_drop = {
            _tensor_to_give_up(problem, moved, violation)
            for violation in verification.violations
            if violation.code != Reason.WRONG_OBJECTIVE
        }
        if not tensors_to_drop:
            if verification.objective is None or verification.objective >= problem.all_slow_ps:
                return None
            return msgspec.structs.replace(moved, objective=verification.objective)
        if tensors_to_drop == {None}:
            return None
        moved = _without(problem, moved, tensors_to_drop)
    return None


def _tensor_to_give_up(problem: Problem, plan: Plan, violation: Violation) -> int | None:
    """The tensor to move to slow memory because of a violation; of two that overlap, the smaller one.

    It is None if the violation concerns no tensor.
    """
    residencies = violation.concerns.get("residencies", ())
    if violation.code == Reason.OVERLAP and residencies:
        tensors = {plan.residencies[number].tensor for number in residencies}
        return min(tensors, key=lambda tensor: (problem.tensors[tensor].size, tensor))
    return next(iter(violation.concerns.get("tensors", ())), None)


def _without(problem: Problem, plan: Plan, tensors: set[int | None]) -> Plan:
    """The plan with these tensors in slow memory only."""
    return msgspec.structs.replace(
        plan,
        residencies=tuple(residency for residency in plan.residencies if residency.tensor not in tensors),
        copies=tuple(copy for copy in plan.copies if copy.tensor not in tensors),
        fast_uses=tuple(use for use in plan.fast_uses if problem.tensor_of_use[use] not in tensors),
    )


class _Move:
    """Maps steps, tensors and uses of an earlier version to those of the current one, and moves plans accordingly."""

    def __init__(self, problem: Problem, earlier: Problem, before: Sequence[int]):
        self._problem = problem
        self._step = {old: new for new, old in enumerate(before) if old >= 0}
        # Matched steps that are in the same order in both versions; boundaries are moved by them.
        self._old, self._new = in_order(self._step)
        self._use: dict[int, int] = {}
        self._tensor: dict[int, int] = {}
        self._accesses: defaultdict[int, list[int]] = defaultdict(list)
        """For each tensor of the earlier version, the matched steps that use it, ascending."""
        for old, new in sorted(self._step.items()):
            for place, other in paired_uses(problem, new, earlier, old):
                current_use, earlier_use = problem.steps[new].uses[place], earlier.steps[old].uses[other]
                # If one tensor has become two, or two have become one, the first matched use decides which tensors correspond.
                if self._tensor.setdefault(earlier_use.tensor, current_use.tensor) == current_use.tensor:
                    self._use[earlier.first_use[old] + other] = problem.first_use[new] + place
                    self._accesses[earlier_use.tensor].append(old)

    def plan(self, plan: Plan) -> Plan:
        """Move all residencies, copies and uses of a plan that have a counterpart. The result need not be valid."""
        copies: list[tuple[int, int, Copy]] = []
        ins = {(copy.tensor, copy.start): copy for copy in plan.copies if copy.direction == "in"}
        homes: defaultdict[int, list[tuple[Residency, Residency]]] = defaultdict(list)
        for stay in plan.residencies:
            moved = self._residency(stay, ins.get((stay.tensor, stay.start)))
            if moved is not None:
                homes[stay.tensor].append((stay, moved))
        for place, copy in enumerate(plan.copies):
            home = next((pair for pair in homes[copy.tensor] if pair[0].start <= copy.start < pair[0].end), None)
            if home is None:
                home = next((pair for pair in homes[copy.tensor] if copy.start == pair[0].end), None)
            if home is not None:
                moved_copy = self._copy(copy, *home)
                copies.append((moved_copy.start, place, moved_copy))
        return Plan(
            problem=self._problem.digest,
            objective=0,
            program=self._problem.name,
            target=self._problem.target,
            residencies=tuple(moved for pairs in homes.values() for _, moved in pairs),
            copies=tuple(copy for _, _, copy in sorted(copies, key=lambda item: item[:2])),
            fast_uses=tuple(sorted(self._use[use] for use in plan.fast_uses if use in self._use)),
        )

    def _residency(self, stay: Residency, copy: Copy | None) -> Residency | None:
        """Move a residency, which ``copy`` fills if it is not None; returns None if the residency has no counterpart."""
        used = [self._step[step] for step in self._inside(stay)]
        if not used or (copy is None and not stay.preloaded and stay.start not in self._step):
            return None
        start = 0 if stay.preloaded else self._at(stay.start) if copy is not None else self._step[stay.start]
        end = max(self._after(stay.end), max(used) + 1)
        return Residency(self._tensor[stay.tensor], min(start, *used), end, stay.offset, stay.preloaded)

    def _copy(self, copy: Copy, stay: Residency, moved: Residency) -> Copy:
        """Move a copy of the residency ``stay``, which has become ``moved``."""
        used = [(step, self._step[step]) for step in self._inside(stay)]
        if copy.direction == "in":
            first = min((new for old, new in used if old >= copy.end), default=moved.end)
            end = max(moved.start, min(self._at(copy.end), first))
            return Copy(moved.tensor, "in", moved.start, end)
        written = max((new + 1 for old, new in used if old < copy.start), default=moved.start)
        start = min(max(self._at(copy.start), written), moved.end)
        return Copy(moved.tensor, "out", start, min(moved.end, max(start, self._at(copy.end))))

    def _inside(self, stay: Residency) -> list[int]:
        """The matched steps of the earlier version that use the tensor during a residency."""
        steps = self._accesses[stay.tensor]
        return steps[bisect_left(steps, stay.start) : bisect_left(steps, stay.end)]

    def _at(self, boundary: int) -> int:
        """The new boundary before the first matched step at or after an old boundary."""
        place = bisect_left(self._old, boundary)
        return self._new[place] if place < len(self._new) else len(self._problem.steps)

    def _after(self, boundary: int) -> int:
        """The new boundary after the last matched step before an old boundary."""
        place = bisect_right(self._old, boundary - 1) - 1
        return self._new[place] + 1 if place >= 0 else 0


def transferred(problem: Problem, earlier: Problem, given: Hint) -> Hint:
    """Transfer a hint from an earlier version of a program to the current one.

    Parameters
    ----------
    problem
        The current version.
    earlier
        The version that the hint is for.
    given
        A hint with values for ``earlier``. If it has a plan, the plan must be valid, and is transferred as far as possible.

    Raises
    ------
    InputError
        The hint is not for the earlier version, or its values or its plan are not valid.
    UsageError
        ``earlier`` is not a problem.
    """
    check_hint(earlier, given, VALUES)
    number_of = {access: number for number, access in enumerate(_accesses(earlier))}
    before = matched_steps(problem, earlier)
    numbers: list[int | None] = []
    tensors: dict[int, dict[int, int]] = {}
    for tensor, step in _accesses(problem):
        if before[step] >= 0 and step not in tensors:
            # If a step uses a tensor several times, the first use counts.
            pairs = paired_uses(problem, step, earlier, before[step])
            uses, earlier_uses = problem.steps[step].uses, earlier.steps[before[step]].uses
            tensors[step] = {uses[place].tensor: earlier_uses[other].tensor for place, other in reversed(pairs)}
        old = tensors.get(step, {}).get(tensor)
        numbers.append(None if old is None else number_of.get((old, before[step])))
    plan = plan_of(given)
    fast, keep, place = (carried(given, name, numbers, 0.5) for name in (FAST, KEEP, PLACE))
    return hint(
        problem,
        fast,
        keep,
        place=place if PLACE in given.values else (),
        confidence=trust(given, numbers),
        plan=None if plan is None else carried_plan(problem, earlier, plan, before),
        source=given.source,
    )


def _accesses(problem: Problem) -> Iterator[tuple[int, int]]:
    """(tensor, step) of every access, in the order of a hint's values."""
    for tensor, accesses in enumerate(accesses_of(problem)):
        for access in accesses:
            yield tensor, access.step


#: The lists of values that hints for memory mapping may have.
VALUES = HintValues(counts, of_plan, transferred, OPTIONAL)
