"""How far a plan is from an earlier one, and how decisions of it are taken back: the same terms for every kind.

A kind says what its decisions are with a :class:`Closeness`, named as ``close`` of its ``Kind``. A kind that names none gets
:class:`FieldByField`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from typing import Any, Protocol

import msgspec

from stowplan import kinds
from stowplan.errors import UsageError
from stowplan.models.decisions import COMMON, diff
from stowplan.portfolio.keep_close.budget import Budget
from stowplan.portfolio.keep_close.given import KeepClose
from stowplan.portfolio.kind import kind_of

#: Sets of decisions that can only be taken back together are left out beyond this many.
MOST_TOGETHER = 256

#: By sort of decision: how many of them changed, and of how many.
Counts = dict[str, tuple[int, int]]


class Closeness(Protocol):
    """Decisions of plans for a problem beside those of an earlier plan. Decisions are known by their numbers."""

    start: Any
    """The earlier plan as one for this problem, which may be invalid; None where there is none."""
    notes: Sequence[str]
    """What of the earlier plan could not be used."""

    def counts(self, plan: Any) -> Counts:
        """What a valid plan changes."""

    def groups(self, plan: Any, should_stop: Callable[[], bool]) -> list[frozenset[int]]:
        """Sets of decisions of a valid plan that are unlike the earlier plan's and may be taken back together."""

    def reverted(self, plan: Any, decisions: Collection[int]) -> Any:
        """The plan with these decisions as in the earlier one, and what follows from them; None where there is none.

        It need not be valid, nor state the right objective.
        """

    def improved(self, plan: Any, budget: Budget, ceiling: int) -> Iterable[Any]:
        """Other plans that may be closer, by searches of the kind's own.

        ``ceiling`` is the highest ``second`` of a plan's check that is allowed, or where plans have none the highest objective.
        """


def of_this_problem(problem: Any, given: KeepClose) -> bool:
    """Whether the earlier plan is of the very problem."""
    return bool(given.plan.problem == problem.digest)


def compared(problem: Any, earlier: Any, plan: Any) -> Counts:
    """Changes as ``stowplan compare`` counts them."""
    return {part.what: (len(part.changes), part.total) for part in diff(problem, earlier, plan)}


def needs_program(kind: str) -> UsageError:
    """The error for a plan that does not say what its decisions are of."""
    return UsageError(
        f"found an earlier plan of another problem: plans of {kind} do not name all that they decide, "
        "expected the earlier version with it (--hint-program)"
    )


class ByValues:
    """A closeness for plans that are made of a value for each decision.

    Parameters
    ----------
    problem, given
        What is to be solved, and the earlier plan.
    what
        What decisions are called, for plans of another problem.
    values
        The earlier plan's value of each decision, None where it has none.
    start
        See :attr:`Closeness.start`.
    """

    notes: Sequence[str] = ()

    def __init__(self, problem: Any, given: KeepClose, what: str, values: Sequence[Hashable | None], start: Any):
        self.problem = problem
        self.start = start
        self._is_of_this = of_this_problem(problem, given)
        self._what = what
        self._earlier = list(values)

    def values(self, plan: Any) -> Sequence[Hashable]:
        """Value of each decision of a plan."""
        raise NotImplementedError

    def plan(self, values: Sequence[Any], near: Any) -> Any:
        """Plan with these values; ``near`` is one of which most of them are. None where there is none."""
        raise NotImplementedError

    def partners(self, plan: Any) -> Callable[[int], Iterable[int]]:
        """For a decision those that must be taken back with it, as far as that is known."""
        return lambda decision: ()

    def counts(self, plan: Any) -> Counts:
        """What a valid plan changes."""
        if self._is_of_this:
            return compared(self.problem, self.start, plan)
        known = [number for number, value in enumerate(self._earlier) if value is not None]
        return {self._what: (len(self._differing(plan)), len(known))}

    def groups(self, plan: Any, should_stop: Callable[[], bool]) -> list[frozenset[int]]:
        """Each decision with those that must be taken back with it, the smallest sets first."""
        changed = self._differing(plan)
        return together(changed, self.partners(plan), should_stop)

    def reverted(self, plan: Any, decisions: Collection[int]) -> Any:
        """The plan with these decisions as in the earlier one."""
        values: list[Any] = list(self.values(plan))
        for each in decisions:
            values[each] = self._earlier[each]
        return self.plan(values, plan)

    def improved(self, plan: Any, budget: Budget, ceiling: int) -> Iterable[Any]:
        """Nothing more."""
        return ()

    def _differing(self, plan: Any) -> list[int]:
        pairs = zip(self._earlier, self.values(plan), strict=True)
        return [number for number, (before, after) in enumerate(pairs) if before is not None and before != after]


def together(
    changed: Sequence[int], partners: Callable[[int], Iterable[int]], should_stop: Callable[[], bool]
) -> list[frozenset[int]]:
    """Each decision with all that must be taken back with it; sets with others than ``changed`` are left out."""
    free = set(changed)
    known: dict[int, list[int]] = {}
    found: dict[frozenset[int], None] = {}
    for first in changed:
        if should_stop():
            break
        group, front = {first}, [first]
        while front and len(group) <= MOST_TOGETHER:
            each = front.pop()
            if each not in known:
                known[each] = list(partners(each))
            for other in known[each]:
                if other not in group:
                    group.add(other)
                    front.append(other)
        if group <= free and len(group) <= MOST_TOGETHER:
            found[frozenset(group)] = None
    return sorted(found, key=len)


class FieldByField(ByValues):
    """For kinds that say nothing of their decisions: the fields of their plans, those that are sequences place by place."""

    def __init__(self, problem: Any, given: KeepClose):
        if not of_this_problem(problem, given):
            raise UsageError(
                f"found an earlier plan of another problem: plans of {kind_of(problem).modules.title} are only kept close to "
                "others of the same problem"
            )
        self._fields = [name for name in given.plan.__struct_fields__ if name not in COMMON]
        self._places: list[tuple[str, int | None]] = []
        for name in self._fields:
            value = getattr(given.plan, name)
            self._places += [(name, place) for place in range(len(value))] if isinstance(value, tuple) else [(name, None)]
        super().__init__(problem, given, "decision", self.values(given.plan), given.plan)

    def values(self, plan: Any) -> Sequence[Hashable]:
        """Entries of the fields; what a plan lacks is None."""
        found: list[Hashable] = []
        for name, place in self._places:
            value = getattr(plan, name)
            found.append(value if place is None else value[place] if place < len(value) else None)
        return found

    def plan(self, values: Sequence[Any], near: Any) -> Any:
        """Plan with these entries."""
        fields: dict[str, Any] = {}
        for (name, place), value in zip(self._places, values, strict=True):
            if place is None:
                fields[name] = value
            elif value is not None:
                fields.setdefault(name, []).append(value)
        return msgspec.structs.replace(
            near, **{name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()}
        )


def closeness_of(problem: Any, given: KeepClose) -> Closeness:
    """Of a problem of any kind; raises UsageError where the earlier plan says too little of another problem's decisions."""
    place = kind_of(problem).close
    found: Closeness = (kinds.load(place) if place else FieldByField)(problem, given)
    return found
