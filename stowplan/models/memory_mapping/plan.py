"""The answer to a memory-mapping problem: residencies, copies, and which uses are fast. Data, no rules."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from itertools import zip_longest
from typing import Literal, TypeVar

import msgspec

from stowplan.document import PlanDocument
from stowplan.models.decisions import Decision, Values
from stowplan.models.memory_mapping.problem import Problem, Use
from stowplan.models.offset_table import OffsetRow, OffsetTable, make_table


class Residency(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """Tensor ``tensor`` stands in fast memory at ``[offset, offset + size)`` bytes during the steps ``[start, end)``."""

    tensor: int
    start: int
    end: int
    offset: int
    preloaded: bool = False
    """In place before the program starts, without a copy (XLA's cross-program prefetch)."""


class Copy(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, gc=False):
    """A copy queued at boundary ``start``; step ``end`` waits for it."""

    tensor: int
    direction: Literal["in", "out"]
    start: int
    end: int
    part: tuple[int, int] | None = None
    """Bytes ``[low, high)`` of the tensor, where a prefetch is made in slices; None for all of it."""

    def moved(self, size: int) -> int:
        """Bytes it moves of a tensor of that size."""
        return size if self.part is None else self.part[1] - self.part[0]


class Plan(PlanDocument, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A memory-mapping plan; :func:`stowplan.models.memory_mapping.verify.verify` says whether it is valid."""

    objective: int = msgspec.field(name="objective_ps")
    residencies: tuple[Residency, ...] = ()
    copies: tuple[Copy, ...] = ()
    """In the order in which they are queued, sorted by ``start``."""
    fast_uses: tuple[int, ...] = ()
    """Numbers of the uses served from fast memory, ascending."""
    program: str = ""
    """Name of the program, for people; the digest decides."""
    target: str = ""
    names: dict[int, str] = msgspec.field(default_factory=dict)
    """Names of the tensors that have residencies, for whoever applies or reads the plan; the numbers decide."""
    format: str = "stowplan.memory_mapping.plan"
    version: int = 1


_Thing = TypeVar("_Thing", Residency, Copy)


def by_tensor(things: Iterable[_Thing]) -> defaultdict[int, list[_Thing]]:
    """Residencies or copies of each tensor, in their order."""
    grouped: defaultdict[int, list[_Thing]] = defaultdict(list)
    for thing in things:
        grouped[thing.tensor].append(thing)
    return grouped


#: Number of a pair, and what the thing is: a tensor, or a tensor and a direction.
_Key = tuple[int, Hashable]


def _residencies(problem: Problem, first: Plan, second: Plan) -> tuple[dict[_Key, Values], dict[_Key, Values]]:
    """Residencies of a tensor are the same one where they share a step: then it moved, in place or in time."""
    pairs = _pairs(first.residencies, second.residencies, lambda stay: stay.tensor, _by_overlap)
    return _sides(pairs, lambda stay: stay.tensor, _residency_values)


def _copies(problem: Problem, first: Plan, second: Plan) -> tuple[dict[_Key, Values], dict[_Key, Values]]:
    """Copies of a tensor in one direction that are not in both plans are set beside each other as they start."""
    pairs = _pairs(first.copies, second.copies, lambda copy: (copy.tensor, copy.direction), zip_longest)
    return _sides(pairs, lambda copy: (copy.tensor, copy.direction), _copy_values)


def _fast_uses(problem: Problem, plan: Plan) -> dict[tuple[int, int, Use], Values]:
    """By the number of the use in the program, its step, and itself."""
    uses = [(number, use) for number, step in enumerate(problem.steps) for use in step.uses]
    return {(use, *uses[use]): {} for use in plan.fast_uses}


def _use_name(problem: Problem, key: tuple[int, int, Use]) -> str:
    _, step, use = key
    return f"{problem.steps[step].name} {'writes' if use.is_output else 'reads'} {problem.tensors[use.tensor].name}"


def _residency_values(stay: Residency) -> Values:
    return {"start": stay.start, "end": stay.end, "offset": stay.offset, "preloaded": stay.preloaded}


def _copy_values(copy: Copy) -> Values:
    part: Values = {} if copy.part is None else {"part": f"{copy.part[0]}-{copy.part[1]}"}
    return {"start": copy.start, "end": copy.end, **part}


def _pairs(
    first: Iterable[_Thing],
    second: Iterable[_Thing],
    group: Callable[[_Thing], Hashable],
    pair: Callable[[Sequence[_Thing], Sequence[_Thing]], Iterable[tuple[_Thing | None, _Thing | None]]],
) -> list[tuple[_Thing | None, _Thing | None]]:
    """What is in both plans as it is, then, group by group, what ``pair`` sets beside each other."""
    groups: dict[Hashable, tuple[list[_Thing], list[_Thing]]] = {}
    for side, things in enumerate((first, second)):
        for thing in sorted(things, key=lambda thing: (thing.start, thing.end)):
            groups.setdefault(group(thing), ([], []))[side].append(thing)
    pairs: list[tuple[_Thing | None, _Thing | None]] = []
    for before, after in groups.values():
        for thing in list(before):
            if thing in after:
                before.remove(thing)
                after.remove(thing)
                pairs.append((thing, thing))
        pairs.extend(pair(before, after))
    return pairs


def _by_overlap(first: Sequence[Residency], second: Sequence[Residency]) -> Iterator[tuple[Residency | None, Residency | None]]:
    """Residencies of one tensor that share a step; in one plan no two of them do."""
    before, after = list(reversed(first)), list(reversed(second))
    while before or after:
        if not after or (before and before[-1].end <= after[-1].start):
            yield before.pop(), None
        elif not before or after[-1].end <= before[-1].start:
            yield None, after.pop()
        else:
            yield before.pop(), after.pop()


def _sides(
    pairs: Sequence[tuple[_Thing | None, _Thing | None]],
    what: Callable[[_Thing], Hashable],
    values: Callable[[_Thing], Values],
) -> tuple[dict[_Key, Values], dict[_Key, Values]]:
    """Both plans' sides of the pairs."""
    before = {(at, what(thing)): values(thing) for at, (thing, _) in enumerate(pairs) if thing is not None}
    after = {(at, what(thing)): values(thing) for at, (_, thing) in enumerate(pairs) if thing is not None}
    return before, after


DECISIONS = (
    Decision("residency", lambda problem, key: problem.tensors[key[1]].name, paired=_residencies),
    Decision("fast use", _use_name, _fast_uses),
    Decision("copy", lambda problem, key: f"{problem.tensors[key[1][0]].name} {key[1][1]}", paired=_copies),
)


def offset_table(problem: Problem, plan: Plan) -> OffsetTable:
    """A row for each residency, in the plan's order; a tensor may have several. The plan is valid for the problem."""
    rows = (
        OffsetRow(
            name=problem.tensors[residency.tensor].name,
            offset=residency.offset,
            size=problem.tensors[residency.tensor].size,
            alignment=problem.alignment,
            start=residency.start,
            end=residency.end,
        )
        for residency in plan.residencies
    )
    return make_table("memory_mapping", problem, plan, {"fast_memory": problem.capacity}, rows)
