"""Proofs of packing: the moment of the largest load, or a height that no packing stays below."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from stowplan.certificates.maker import Proof, Wish
from stowplan.models.packing.overlaps import loads as taken_bytes
from stowplan.models.packing.problem import Problem


def packing(wish: Wish) -> Iterator[Proof]:
    """The load; then that a search finds nothing lower than what is claimed."""
    problem: Problem = wish.problem
    yield {"form": "load", "moment": peak_moment(problem)}
    if wish.infeasible:
        yield {"form": "search"}
    elif wish.bound is not None:
        yield {"form": "search", "below": wish.bound}


def peak_moment(problem: Problem) -> int:
    """A moment at which most bytes live, shared ones once; 0 where nothing does."""
    if problem.overlaps:
        taken = taken_bytes(problem)
        return max(taken, key=lambda moment: taken[moment])
    spans = problem.spans
    moments = np.concatenate([spans.end, spans.start])
    sizes = spans.size[spans.owner]
    # At one moment, ends come before starts: lives are half-open. A stable sort keeps them so.
    order = np.argsort(moments, kind="stable")
    loads = np.cumsum(np.concatenate([-sizes, sizes])[order])
    return int(moments[order][loads.argmax()]) if len(loads) else 0
