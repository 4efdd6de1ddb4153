"""Reads and checks the earlier plan that a result is kept close to, and compares plans with it, for all kinds of problem.

A *decision* is one part of a plan, such as the offset of one buffer; to *revert* it is to give it the value that it has in the
earlier plan. A kind implements :class:`~stowplan.kernel.plan_changes.PlanChanges` as the class ``Changes`` in
``portfolio/<kind>/keep_close.py``; for kinds without one, :class:`FieldByField` is used.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from stowplan import files
from stowplan.arguments import number
from stowplan.errors import InputError, UsageError
from stowplan.frontends.read import read_plan
from stowplan.kernel.kind import Kind, check, describe_plan, kind_of
from stowplan.kernel.plan_changes import Budget, Counts, KeepClose, PlanChanges
from stowplan.models.decisions import COMMON


def given(value: Any, kind: Kind[Any, Any]) -> KeepClose:
    """Checks the argument ``keep_close`` of ``solve`` and returns it as a :class:`KeepClose`.

    Raises
    ------
    UsageError
        It is neither a plan of the kind nor a :class:`KeepClose` with one. Its earlier problem is of another kind, or no
        problem. ``within`` is not a finite number of at least 0.
    InputError
        The plan is not valid for the earlier version of the problem that is given with it.
    """
    wish = value if isinstance(value, KeepClose) else KeepClose(plan=value)
    if not isinstance(wish.plan, kind.plan):
        raise UsageError(f"found {describe_plan(wish.plan)} to keep close to, expected a plan of {kind.name}")
    if wish.problem is not None:
        if kind_of(wish.problem) is not kind:
            raise UsageError(
                f"found an earlier version that is a problem of {kind_of(wish.problem).name}, expected one of {kind.name}"
            )
        if not (verified := check(kind, wish.problem, wish.plan)).ok:
            raise InputError(f"the earlier plan is not valid for the earlier version: {'; '.join(verified.lines[:3])}")
    within = number("a loss of {} to keep close", wish.within, 0.0)
    return msgspec.structs.replace(wish, within=within)


def read_earlier_plan(path: Path, problem: Any) -> Any:
    """Reads the plan of this problem, or of an earlier version of it, from a file.

    Raises
    ------
    InputError
        The file cannot be read or has no plan of the problem's kind; the message names the file.
    UsageError
        ``problem`` is no problem.
    """
    kind = kind_of(problem)
    if kind.read_described_plan is not None and not files.is_json(path):
        return kind.read_described_plan(path)
    data = files.read_bytes(path)
    if files.is_json(path) and files.peek_format(data) != kind.plan_format:
        raise InputError(f"found {files.describe(data)}, expected a plan: {kind.plan_format}", source=path, place="format")
    return read_plan(path, problem)


#: Sets of more decisions than this that must be reverted together are ignored.
MAX_COUPLED = 256


def is_of_problem(problem: Any, given: KeepClose) -> bool:
    """Whether the earlier plan belongs to this problem and not to an earlier version."""
    return bool(given.plan.problem == problem.digest)


def count_changes(problem: Any, earlier: Any, plan: Any) -> Counts:
    """Counts the decisions in which ``plan`` differs from ``earlier``, both of this problem, as ``stowplan compare`` does."""
    return {part.what: (len(part.changes), part.total) for part in kind_of(problem).diff(problem, earlier, plan)}


def needs_program(kind: str) -> UsageError:
    """The error for a plan of another problem that does not name the objects, such as buffers, that its decisions are about.
    ``kind`` is the kind's title."""
    return UsageError(
        f"found an earlier plan of another problem: plans of {kind} do not name all that they decide, "
        "expected the earlier version with it (--set hint_program=FILE)"
    )


class ByValues:
    """Base class of :class:`PlanChanges` for plans that consist of one value for each decision.

    Parameters
    ----------
    problem
        The problem to solve.
    given
        The checked request with the earlier plan.

    Raises
    ------
    UsageError
        The earlier plan belongs to another problem and does not name what its decisions are about.
    """

    what = "decision"
    """The word for decisions in the counts, if the earlier plan belongs to another problem."""
    notes: Sequence[str] = ()
    """Remarks about parts of the earlier plan that could not be used."""

    def __init__(self, problem: Any, given: KeepClose):
        self.problem = problem
        self._is_of_this = is_of_problem(problem, given)
        self.earlier: list[Any] = list(self.values(given.plan) if self._is_of_this else self.match_values(given))
        """The earlier plan's value of each decision; None for decisions that it does not have."""
        self.start = given.plan
        if not self._is_of_this:
            self.start = None if None in self.earlier else self.plan(self.earlier, given.plan)

    def match_values(self, given: KeepClose) -> Sequence[Hashable | None]:
        """The value of each decision in a plan of an earlier version; None for decisions that the plan does not have.

        Raises
        ------
        UsageError
            The plan does not name what its decisions are about.
        """
        raise needs_program(kind_of(self.problem).title)

    def values(self, plan: Any) -> Sequence[Hashable]:
        """The value of each decision in a plan, in the order of the decisions' numbers. Subclasses must define it."""
        raise NotImplementedError

    def plan(self, values: Sequence[Any], near: Any) -> Any:
        """The plan with these values; None if there is none. ``near`` is a plan that has most of them. Subclasses must define
        it."""
        raise NotImplementedError

    def coupled(self, plan: Any) -> Callable[[int], Iterable[int]]:
        """Returns a function that maps a decision, by its number, to the decisions that must be reverted together with it, as
        far as they can be foreseen."""
        return lambda decision: ()

    def counts(self, plan: Any) -> Counts:
        """Counts the decisions in which a valid plan differs from the earlier one."""
        if self._is_of_this:
            return count_changes(self.problem, self.start, plan)
        return {self.what: (len(self.differing(plan)), sum(value is not None for value in self.earlier))}

    def groups(self, plan: Any, should_stop: Callable[[], bool]) -> list[frozenset[int]]:
        """Each differing decision with those that must be reverted with it, the smallest sets first."""
        return coupled_groups(self.differing(plan), self.coupled(plan), should_stop)

    def reverted(self, plan: Any, decisions: Collection[int]) -> Any:
        """The plan with these decisions as in the earlier one."""
        values: list[Any] = list(self.values(plan))
        for decision in decisions:
            values[decision] = self.earlier[decision]
        return self.plan(values, plan)

    def improved(self, plan: Any, budget: Budget, ceiling: int) -> Iterable[Any]:
        """Yields no plans. Subclasses override it if their kind has a search of its own for closer plans."""
        return ()

    def differing(self, plan: Any) -> list[int]:
        """Numbers of the decisions that differ from the earlier plan's. Decisions that the earlier plan does not have are left
        out."""
        pairs = zip(self.earlier, self.values(plan), strict=True)
        return [number for number, (before, after) in enumerate(pairs) if before is not None and before != after]


def coupled_groups(
    changed: Sequence[int], coupled: Callable[[int], Iterable[int]], should_stop: Callable[[], bool]
) -> list[frozenset[int]]:
    """For each changed decision, the set of decisions that must be reverted together with it, the smallest sets first. Sets
    that contain decisions other than ``changed`` are left out, and so are sets of more than :data:`MAX_COUPLED` decisions."""
    free = set(changed)
    coupled_with: dict[int, list[int]] = {}
    groups: dict[frozenset[int], None] = {}
    for first in changed:
        if should_stop():
            break
        group, front = {first}, [first]
        while front and len(group) <= MAX_COUPLED:
            member = front.pop()
            if member not in coupled_with:
                coupled_with[member] = list(coupled(member))
            for other in coupled_with[member]:
                if other not in group:
                    group.add(other)
                    front.append(other)
        if group <= free and len(group) <= MAX_COUPLED:
            groups[frozenset(group)] = None
    return sorted(groups, key=len)


class FieldByField(ByValues):
    """For kinds that do not describe their decisions: each field of a plan is a decision, or each entry of a field that is a
    tuple."""

    def __init__(self, problem: Any, given: KeepClose):
        self._fields = [name for name in given.plan.__struct_fields__ if name not in COMMON]
        self._places: list[tuple[str, int | None]] = []
        for name in self._fields:
            value = getattr(given.plan, name)
            self._places += [(name, place) for place in range(len(value))] if isinstance(value, tuple) else [(name, None)]
        super().__init__(problem, given)

    def match_values(self, given: KeepClose) -> Sequence[Hashable | None]:
        """Raises UsageError: without a description, decisions of another problem cannot be matched."""
        raise UsageError(
            f"found an earlier plan of another problem: plans of {kind_of(self.problem).title} are only kept close to "
            "others of the same problem"
        )

    def values(self, plan: Any) -> Sequence[Hashable]:
        """Entries of the fields; None for those that the plan lacks."""
        entries: list[Hashable] = []
        for name, place in self._places:
            value = getattr(plan, name)
            entries.append(value if place is None else value[place] if place < len(value) else None)
        return entries

    def plan(self, values: Sequence[Any], near: Any) -> Any:
        """The plan with these entries."""
        fields: dict[str, Any] = {}
        for (name, place), value in zip(self._places, values, strict=True):
            if place is None:
                fields[name] = value
            elif value is not None:
                fields.setdefault(name, []).append(value)
        return msgspec.structs.replace(
            near, **{name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()}
        )


def changes_of(problem: Any, given: KeepClose) -> PlanChanges:
    """The differences between plans of a problem and the earlier plan, for any kind.

    Raises
    ------
    UsageError
        The earlier plan belongs to another problem and its decisions cannot be matched.
    """
    return (kind_of(problem).extras().changes or FieldByField)(problem, given)
