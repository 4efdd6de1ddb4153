"""The plan of a memory-mapping problem: residencies, copies, and the uses that are served from fast memory.

A *residency* is one stay of a tensor in fast memory, a *use* is a read or a write of one tensor by one step, and a *boundary*
is the moment before a step. A use is *fast* if it is served from fast memory. This module defines the data; the verifier checks
the rules. Nothing here raises an error for a valid plan.
"""

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
    """Tensor ``tensor`` occupies bytes ``[offset, offset + size)`` of fast memory during the steps ``[start, end)``."""

    tensor: int
    """Number of the tensor."""
    start: int
    """First step."""
    end: int
    """First step after the residency."""
    offset: int
    """Offset in bytes in fast memory."""
    preloaded: bool = False
    """Whether the tensor is in fast memory before the program starts, without a copy (XLA: cross-program prefetch)."""


class Copy(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, gc=False):
    """A copy between slow and fast memory. It is queued at boundary ``start`` and must be complete before step ``end``."""

    tensor: int
    """Number of the tensor."""
    direction: Literal["in", "out"]
    """``in``: from slow to fast memory; ``out``: back to slow memory."""
    start: int
    """Boundary at which the copy is queued."""
    end: int
    """Boundary at which the program waits until the copy is complete."""
    part: tuple[int, int] | None = None
    """For a slice of a copy-in: the bytes ``[low, high)`` of the tensor that it copies; None for the whole tensor."""

    def moved(self, size: int) -> int:
        """Number of bytes that are copied, if the tensor has this size in bytes."""
        return size if self.part is None else self.part[1] - self.part[0]


class Plan(PlanDocument, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Residencies and copies of tensors, and the uses that are served from fast memory.

    :func:`stowplan.models.memory_mapping.verify.verify` says whether the plan is valid. The objective is the time that the
    program takes, in picoseconds.
    """

    objective: int = msgspec.field(name="objective_ps")
    """Time in ps that the plan states; the verifier computes it anew."""
    residencies: tuple[Residency, ...] = ()
    """Residencies, in any order."""
    copies: tuple[Copy, ...] = ()
    """Copies in the order in which they are queued, ascending in ``start``."""
    fast_uses: tuple[int, ...] = ()
    """Numbers of the uses that are served from fast memory, ascending."""
    program: str = ""
    """Name of the program, for people. The field ``problem`` decides which problem the plan belongs to."""
    target: str = ""
    """Name of the hardware target."""
    names: dict[int, str] = msgspec.field(default_factory=dict)
    """Names of the tensors that have residencies, by number, for programs and people that read the plan."""
    format: str = "stowplan.memory_mapping.plan"
    version: int = 1


_Thing = TypeVar("_Thing", Residency, Copy)


def by_tensor(things: Iterable[_Thing]) -> defaultdict[int, list[_Thing]]:
    """Residencies or copies, grouped by tensor; within a group they keep their order."""
    grouped: defaultdict[int, list[_Thing]] = defaultdict(list)
    for thing in things:
        grouped[thing.tensor].append(thing)
    return grouped


#: Key of a decision: the number of a pair, and the tensor of a residency, or the tensor and direction of a copy.
_Key = tuple[int, Hashable]


def _residencies(problem: Problem, first: Plan, second: Plan) -> tuple[dict[_Key, Values], dict[_Key, Values]]:
    """Pair the residencies of two plans. If two residencies of a tensor share a step, they count as one that was moved."""
    pairs = _pairs(first.residencies, second.residencies, lambda stay: stay.tensor, _by_overlap)
    return _sides(pairs, lambda stay: stay.tensor, _residency_values)


def _copies(problem: Problem, first: Plan, second: Plan) -> tuple[dict[_Key, Values], dict[_Key, Values]]:
    """Pair the copies of two plans. Copies with the same tensor and direction are paired in the order of their starts."""
    pairs = _pairs(first.copies, second.copies, lambda copy: (copy.tensor, copy.direction), zip_longest)
    return _sides(pairs, lambda copy: (copy.tensor, copy.direction), _copy_values)


def _fast_uses(problem: Problem, plan: Plan) -> dict[tuple[int, int, Use], Values]:
    """The fast uses of a plan, by the number of the use, its step, and the use itself."""
    uses = [(number, use) for number, step in enumerate(problem.steps) for use in step.uses]
    return {(use, *uses[use]): {} for use in plan.fast_uses}


def _use_name(problem: Problem, key: tuple[int, int, Use]) -> str:
    """The name of a fast use: its step, whether it reads or writes, and its tensor."""
    _, step, use = key
    return f"{problem.steps[step].name} {'writes' if use.is_output else 'reads'} {problem.tensors[use.tensor].name}"


def _residency_values(stay: Residency) -> Values:
    """The values of a residency that are compared."""
    return {"start": stay.start, "end": stay.end, "offset": stay.offset, "preloaded": stay.preloaded}


def _copy_values(copy: Copy) -> Values:
    """The values of a copy that are compared."""
    part: Values = {} if copy.part is None else {"part": f"{copy.part[0]}-{copy.part[1]}"}
    return {"start": copy.start, "end": copy.end, **part}


def _pairs(
    first: Iterable[_Thing],
    second: Iterable[_Thing],
    group: Callable[[_Thing], Hashable],
    pair: Callable[[Sequence[_Thing], Sequence[_Thing]], Iterable[tuple[_Thing | None, _Thing | None]]],
) -> list[tuple[_Thing | None, _Thing | None]]:
    """Pair residencies or copies of two plans, group by group: first those that are equal, then those that ``pair`` chooses.

    An item without a counterpart is paired with None.
    """
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
    """Pair the residencies of one tensor that share a step. Within one plan, no two residencies of a tensor share a step."""
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
    """The values of the first plan and those of the second, by key: the number of the pair, and the result of ``what``."""
    before = {(at, what(thing)): values(thing) for at, (thing, _) in enumerate(pairs) if thing is not None}
    after = {(at, what(thing)): values(thing) for at, (_, thing) in enumerate(pairs) if thing is not None}
    return before, after


#: The decisions that :mod:`stowplan.models.decisions` compares between two plans.
DECISIONS = (
    Decision("residency", lambda problem, key: problem.tensors[key[1]].name, paired=_residencies),
    Decision("fast use", _use_name, _fast_uses),
    Decision("copy", lambda problem, key: f"{problem.tensors[key[1][0]].name} {key[1][1]}", paired=_copies),
)


def offset_table(problem: Problem, plan: Plan) -> OffsetTable:
    """The plan as a table with a row for each residency, in the plan's order. A tensor may have several rows.

    The plan must be valid for the problem.
    """
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
