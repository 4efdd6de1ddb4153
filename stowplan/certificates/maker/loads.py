"""Proofs of packing: the moment of the largest load, buffers that are fixed too high, or that collide."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from stowplan.certificates.maker import Proof, Wish
from stowplan.models.packing.bounds import find_overload
from stowplan.models.packing.problem import Problem


def packing(wish: Wish) -> Iterator[Proof]:
    """The load, the highest fixed end, and why nothing fits."""
    problem: Problem = wish.problem
    moment = peak_moment(problem)
    if wish.infeasible:
        found = find_overload(problem)
        if found is not None and len(found.buffers) == 2:
            yield {"form": "load", "collide": [*found.buffers], "moment": found.start}
        if found is not None and len(found.buffers) == 1:
            yield {"form": "load", "fixed": found.buffers[0]}
        yield {"form": "load", "moment": moment}
        return
    yield {"form": "load", "moment": moment}
    ends = {each.offset + each.size: at for at, each in enumerate(problem.buffers) if each.offset is not None}
    if ends:
        yield {"form": "load", "fixed": ends[max(ends)]}


def peak_moment(problem: Problem) -> int:
    """A moment at which most bytes live; 0 where nothing does."""
    spans = problem.spans
    moments = np.concatenate([spans.end, spans.start])
    sizes = spans.size[spans.owner]
    # At one moment, ends come before starts: lives are half-open. A stable sort keeps them so.
    order = np.argsort(moments, kind="stable")
    loads = np.cumsum(np.concatenate([-sizes, sizes])[order])
    return int(moments[order][loads.argmax()]) if len(loads) else 0
