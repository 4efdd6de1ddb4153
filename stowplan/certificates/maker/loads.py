"""Makes proofs of packing by the moment with the most live bytes, by a search, and by sets of buffers that must share bytes."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from stowplan.certificates.maker import Proof, Wish
from stowplan.models.packing.bounds import disjoint_crowds
from stowplan.models.packing.overlaps import loads as taken_bytes
from stowplan.models.packing.problem import Problem


def packing(wish: Wish) -> Iterator[Proof]:
    """Yields proofs for packing: one by the bytes that are live at the fullest moment, and another one.

    Without reuse penalties the other one is a search, which comes second. It shows that no packing is lower than the claimed
    bound, or that none exists; without a claim there is none. With reuse penalties it consists of sets of buffers of which few
    fit side by side, and comes first: the bytes show no cost, and a run that is interrupted makes only the first proof.
    """
    problem: Problem = wish.problem
    if problem.penalties and not wish.infeasible and wish.bound != 0 and (found := disjoint_crowds(problem)):
        yield {"form": "crowds", "crowds": [list(crowd.buffers) for crowd, _ in found]}
    yield {"form": "load", "moment": peak_moment(problem)}
    if wish.infeasible:
        yield {"form": "search"}
    elif not problem.penalties and wish.bound is not None:
        yield {"form": "search", "below": wish.bound}


def peak_moment(problem: Problem) -> int:
    """A moment at which the most bytes are live, if shared bytes are counted once; 0 if there are no buffers."""
    if problem.overlaps:
        bytes_by_moment = taken_bytes(problem)
        return max(bytes_by_moment, key=lambda moment: bytes_by_moment[moment])
    spans = problem.spans
    moments = np.concatenate([spans.end, spans.start])
    sizes = spans.size[spans.owner]
    # At one moment, ends come before starts, because lives are half-open intervals. A stable sort preserves this.
    order = np.argsort(moments, kind="stable")
    loads = np.cumsum(np.concatenate([-sizes, sizes])[order])
    return int(moments[order][loads.argmax()]) if len(loads) else 0
