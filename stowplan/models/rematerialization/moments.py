"""Moments that say much, and sequences of what runs from one to the next."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterator, Sequence

from stowplan.models.rematerialization.cuts import Moments
from stowplan.models.rematerialization.structure import Structure

#: Of so many of the fullest moments one is tried.
APART = 8

#: First runs after a moment above the limit that are looked at for one that can join a chain.
NEAR = 60


def first_moments(structure: Structure, most: int) -> list[int]:
    """Some of the fullest operators of the order given, of those on a longest path through the graph."""
    start, pred = structure.ordering.pred_start.tolist(), structure.ordering.pred.tolist()
    length, before = [0] * structure.ops, [-1] * structure.ops
    for op in structure.order:
        for other in pred[start[op] : start[op + 1]]:
            if length[other] >= length[op]:
                length[op], before[op] = length[other] + 1, other
    at = max(structure.order, key=length.__getitem__)
    profile = dict(zip(structure.order, structure.ordering.profile(structure.order).tolist(), strict=False))
    path = []
    while at >= 0:
        path.append(at)
        at = before[at]
    # The fullest are next to each other, and say much the same.
    return sorted(path, key=lambda op: -profile[op])[: most * APART : APART]


def more_moments(
    moments: Moments, chain: Sequence[int], sequence: Sequence[int], live: Sequence[int], limit: int, most: int
) -> list[int]:
    """The chain with first runs at or after the fullest moments of a sequence above the limit, up to ``most`` more of them."""
    more = [*chain]
    for near in _near(sequence, live, limit):
        for op in near:
            if op not in more and all((moments.before[op] >> other | moments.before[other] >> op) & 1 for other in more):
                more.append(op)
                break
        if len(more) >= len(chain) + most:
            break
    return sorted(more, key=sequence.index)


def _near(sequence: Sequence[int], live: Sequence[int], limit: int) -> Iterator[list[int]]:
    """Operators that first run at or soon after each moment of a sequence above the limit, the fullest moment first."""
    first: dict[int, int] = {}
    for at, op in enumerate(sequence):
        first.setdefault(op, at)
    ops, places = [*first], [*first.values()]
    for at in sorted((at for at, size in enumerate(live) if size > limit), key=lambda at: -live[at]):
        begin = bisect_left(places, at)
        yield ops[begin : begin + NEAR]


def in_stages(structure: Structure, chain: Sequence[int], stages: Sequence[Collection[int]]) -> list[int]:
    """The operators stage by stage: first runs in the order given, others right before they are needed.

    Parameters
    ----------
    chain
        Operators that run at the beginnings of all stages but the first.
    stages
        What runs in each, without these.
    """
    rank = {op: at for at, op in enumerate(structure.order)}
    earlier: dict[int, list[int]] = {}
    for one, other in structure.problem.precedences:
        earlier.setdefault(other, []).append(one)
    sequence: list[int] = []
    done: set[int] = set()
    for stage, ops in enumerate(stages):
        head = [chain[stage - 1]] if stage else []
        left = {*ops, *head}
        for first in [*head, *sorted(left - done, key=rank.__getitem__), *sorted(left & done, key=rank.__getitem__)]:
            stack = [first]
            while stack:
                op = stack[-1]
                missing: list[int] = []
                if op in left:
                    writers = [structure.writer[value] for value in structure.needs[op]]
                    missing = [writer for writer in (*writers, *earlier.get(op, ())) if writer in left]
                if missing:
                    stack += reversed(missing)
                    continue
                stack.pop()
                if op in left:
                    left.remove(op)
                    sequence.append(op)
        done |= {*ops, *head}
    return sequence
