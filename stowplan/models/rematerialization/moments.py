"""Selects the moments of a staged program, and turns its solutions into sequences of runs of operators.

A *moment* is the first run of an operator in a plan. The staged program (:mod:`stowplan.models.rematerialization.stages`) is a
MILP that looks at several moments together. They are given by a *chain*, a list of operators each of which needs the one
before. The moments divide a plan into *stages*, and a solution says which operators run in each stage. Its bound is best if
many bytes are live at the moments. The graph is given as its :class:`~.structure.Structure`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterator, Sequence

from stowplan.models.rematerialization.cuts import Moments
from stowplan.models.rematerialization.structure import Structure

#: Of the operators at which most bytes are live, every eighth is selected, because neighbours give nearly the same bound.
APART = 8

#: If a sequence exceeds the limit at some place, this many operators that first run there or later are considered as additions
#: to a chain.
NEAR = 60


def first_moments(structure: Structure, most: int) -> list[int]:
    """Select up to ``most`` operators of a longest path through the graph at which many bytes are live.

    Bytes are counted for the input's order, in which each operator runs once. The operator with most live bytes comes first.
    The graph must have operators; otherwise ValueError is raised.
    """
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
    # The operators with most live bytes are next to each other and give nearly the same bound, so most of them are skipped.
    return sorted(path, key=lambda op: -profile[op])[: most * APART : APART]


def more_moments(
    moments: Moments, chain: Sequence[int], sequence: Sequence[int], live: Sequence[int], limit: int, most: int
) -> list[int]:
    """Extend a chain by up to ``most`` operators that first run where a sequence exceeds the limit, or soon after.

    Parameters
    ----------
    moments
        The predecessors of each operator. Of any two operators of a chain, one must be a predecessor of the other.
    sequence, live
        A sequence of runs (numbers of operators), and the bytes that are live at each run. Every operator of the chain must
        occur in it.
    limit
        Limit in bytes.

    Returns
    -------
    list of int
        The operators of the longer chain, in the order of their first runs in ``sequence``. If no operator can be added, these
        are the operators of ``chain``.
    """
    longer = [*chain]
    for near in _first_runs_near(sequence, live, limit):
        for op in near:
            if op not in longer and all((moments.before[op] >> other | moments.before[other] >> op) & 1 for other in longer):
                longer.append(op)
                break
        if len(longer) >= len(chain) + most:
            break
    return sorted(longer, key=sequence.index)


def _first_runs_near(sequence: Sequence[int], live: Sequence[int], limit: int) -> Iterator[list[int]]:
    """For each run of a sequence at which the limit is exceeded, the operators that first run there or soon after.

    The runs with most live bytes come first.
    """
    first: dict[int, int] = {}
    for at, op in enumerate(sequence):
        first.setdefault(op, at)
    ops, places = [*first], [*first.values()]
    for at in sorted((at for at, size in enumerate(live) if size > limit), key=lambda at: -live[at]):
        begin = bisect_left(places, at)
        yield ops[begin : begin + NEAR]


def in_stages(structure: Structure, chain: Sequence[int], stages: Sequence[Collection[int]]) -> list[int]:
    """Build a sequence of runs from a solution of the staged program.

    Within a stage, operators that run for the first time keep the order of the input. An operator that runs again does so right
    before the first operator of the stage that needs its result.

    Parameters
    ----------
    chain
        The chain. Its operators begin the stages from the second one on: stage i + 1 begins with the run of ``chain[i]``.
    stages
        The operators that run in each stage, without those of the chain.
    """
    rank = {op: at for at, op in enumerate(structure.order)}
    earlier: dict[int, list[int]] = {}
    for one, other in structure.problem.precedences:
        earlier.setdefault(other, []).append(one)
    sequence: list[int] = []
    done: set[int] = set()
    for stage, ops in enumerate(stages):
        head = [chain[stage - 1]] if stage else []
        remaining = {*ops, *head}
        for first in [*head, *sorted(remaining - done, key=rank.__getitem__), *sorted(remaining & done, key=rank.__getitem__)]:
            stack = [first]
            while stack:
                op = stack[-1]
                missing: list[int] = []
                if op in remaining:
                    writers = [structure.writer[value] for value in structure.needs[op]]
                    missing = [writer for writer in (*writers, *earlier.get(op, ())) if writer in remaining]
                if missing:
                    stack += reversed(missing)
                    continue
                stack.pop()
                if op in remaining:
                    remaining.remove(op)
                    sequence.append(op)
        done |= {*ops, *head}
    return sequence
