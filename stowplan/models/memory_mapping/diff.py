"""What two memory mappings do differently."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from itertools import zip_longest
from typing import TypeVar

from stowplan.models.memory_mapping.plan import Copy, Plan, Residency
from stowplan.models.memory_mapping.problem import Problem
from stowplan.models.plan_diff import Part, Values, compare_parts

_Thing = TypeVar("_Thing", Residency, Copy)


def diff(problem: Problem, first: Plan, second: Plan) -> tuple[Part, ...]:
    """Residencies, fast uses and copies; both plans are valid for the problem.

    Residencies of a tensor are the same one where they share a step: then it moved, in place or in time. Copies of a tensor in
    one direction that are not in both plans are set beside each other in the order in which they start.
    """

    def tensor(of: Residency | Copy) -> str:
        return problem.tensors[of.tensor].name

    uses = [(step, use) for step in problem.steps for use in step.uses]

    def use_name(number: int) -> str:
        step, use = uses[number]
        return f"{step.name} {'writes' if use.is_output else 'reads'} {problem.tensors[use.tensor].name}"

    return (
        _paired(
            "residency",
            _pairs(first.residencies, second.residencies, lambda each: each.tensor, _by_overlap),
            tensor,
            _residency_values,
        ),
        compare_parts("fast use", {each: {} for each in first.fast_uses}, {each: {} for each in second.fast_uses}, use_name),
        _paired(
            "copy",
            _pairs(first.copies, second.copies, lambda each: (each.tensor, each.direction), zip_longest),
            lambda each: f"{tensor(each)} {each.direction}",
            _copy_values,
        ),
    )


def _residency_values(each: Residency) -> Values:
    return {"start": each.start, "end": each.end, "offset": each.offset, "preloaded": each.preloaded}


def _copy_values(each: Copy) -> Values:
    part: Values = {} if each.part is None else {"part": f"{each.part[0]}-{each.part[1]}"}
    return {"start": each.start, "end": each.end, **part}


def _pairs(
    first: Iterable[_Thing],
    second: Iterable[_Thing],
    group: Callable[[_Thing], Hashable],
    pair: Callable[[Sequence[_Thing], Sequence[_Thing]], Iterable[tuple[_Thing | None, _Thing | None]]],
) -> list[tuple[_Thing | None, _Thing | None]]:
    """What is in both plans as it is, then, group by group, what ``pair`` sets beside each other."""
    groups: dict[Hashable, tuple[list[_Thing], list[_Thing]]] = {}
    for side, things in enumerate((first, second)):
        for each in sorted(things, key=lambda thing: (thing.start, thing.end)):
            groups.setdefault(group(each), ([], []))[side].append(each)
    found: list[tuple[_Thing | None, _Thing | None]] = []
    for before, after in groups.values():
        for each in list(before):
            if each in after:
                before.remove(each)
                after.remove(each)
                found.append((each, each))
        found.extend(pair(before, after))
    return found


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


def _paired(
    what: str,
    pairs: Sequence[tuple[_Thing | None, _Thing | None]],
    name: Callable[[_Thing], str],
    values: Callable[[_Thing], Values],
) -> Part:
    """The pairs as a part; what stands alone was added or dropped."""
    before = {at: values(each) for at, (each, _) in enumerate(pairs) if each is not None}
    after = {at: values(each) for at, (_, each) in enumerate(pairs) if each is not None}
    names = {at: name(each) for at, pair in enumerate(pairs) for each in pair if each is not None}
    return compare_parts(what, before, after, names.__getitem__)
