"""Bounds on the peak by minimum cuts: the least that is live while an operator runs, over all sets that may have run before.

Such a set has all that the operator needs, nothing that needs the operator, and with each operator all that that one needs.
What is live after it is the capacity of a cut: a storage counts where some that touch it have run and some have not. So one
minimum cut gives the least of all orders for one operator, exactly, and the largest of these is a bound on the peak. Where
tensors are live that could be others (one side of a fork done, or the other), a cut says more than what is live in every order.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from stowplan.models.operator_order.structure import Ints, Structure

#: More than any sum of sizes (:data:`stowplan.models.operator_order.problem.LIMIT`), and twice that fits in 64 bits.
_ENDLESS = 1 << 61


class Cuts:
    """The network of a structure: operators, storages, and the two ends; one flow for each operator that is asked for."""

    def __init__(self, structure: Structure):
        from ortools.graph.python import max_flow

        self._structure = structure
        n, m = structure.ops, structure.storages
        self._source, self._sink = n + m, n + m + 1
        self._flow = max_flow.SimpleMaxFlow()
        count = np.diff(structure.user_start)
        takes = structure.is_there & (structure.size > 0)
        storage = np.repeat(np.arange(m), count)
        creator = structure.creator[storage]
        reads = takes[storage] & (structure.user != creator)
        owner = np.repeat(np.arange(n), np.diff(structure.pred_start))
        some = np.flatnonzero(takes)
        start = structure.creator[some]
        kept = np.flatnonzero(takes & (structure.kept > 0))
        every = np.arange(n)
        # A storage counts where its creator has run, unless all its users have.
        self._add(np.where(start < 0, self._source, start), n + some, structure.size[some])
        first = self._flow.num_arcs()
        self._add(n + storage[reads], structure.user[reads], np.full(int(reads.sum()), _ENDLESS))
        pairs = zip(storage[reads].tolist(), structure.user[reads].tolist(), strict=True)
        self._read = {pair: first + at for at, pair in enumerate(pairs)}
        self._add(n + kept, np.full(len(kept), self._sink), np.full(len(kept), _ENDLESS))
        # With each operator all that it needs.
        self._add(owner, structure.pred, np.full(len(owner), _ENDLESS))
        self._begin = self._flow.num_arcs()
        self._add(np.full(n, self._source), every, np.zeros(n, np.int64))
        self._end = self._flow.num_arcs()
        self._add(every, np.full(n, self._sink), np.zeros(n, np.int64))

    def _add(self, tails: Ints, heads: Ints, capacities: Ints) -> None:
        if len(tails):
            self._flow.add_arcs_with_capacity(
                tails.astype(np.int32), heads.astype(np.int32), np.ascontiguousarray(capacities, dtype=np.int64)
            )

    def least(self, op: int) -> int:
        """Bytes that are live while an operator runs, at least, in any order."""
        return self.cut(op)[0]

    def cut(self, op: int, *, want_set: bool = False) -> tuple[int, list[int]]:
        """The same, and where it is wanted the operators that have run before in an order in which it is so."""
        structure = self._structure
        before = structure.pred[structure.pred_start[op] : structure.pred_start[op + 1]].tolist()
        places = structure.pair[structure.pair_start[op] : structure.pair_start[op + 1]].tolist()
        # What the operator takes the place of need not be live beside its result.
        changes = {self._begin + each: _ENDLESS for each in before} | {self._end + op: _ENDLESS}
        freed = [self._read[storage, op] for storage in places if (storage, op) in self._read]
        for arc, capacity in (*changes.items(), *((arc, 0) for arc in freed)):
            self._flow.set_arc_capacity(arc, capacity)
        status = self._flow.solve(self._source, self._sink)
        found = int(self._flow.optimal_flow()) if status == self._flow.OPTIMAL else 0
        ran = [each for each in self._flow.get_source_side_min_cut() if each < structure.ops] if want_set else []
        for arc in changes:
            self._flow.set_arc_capacity(arc, 0)
        for arc in freed:
            self._flow.set_arc_capacity(arc, _ENDLESS)
        return found + int(structure.allocated[op]), ran


def cut_bound(
    structure: Structure,
    ceilings: Ints,
    floor: int,
    should_stop: Callable[[], bool],
    on_bound: Callable[[int], None] = lambda bound: None,
    most: int | None = None,
) -> int:
    """The largest of these bounds, of as many operators as there is time for.

    Parameters
    ----------
    ceilings
        [ops] bytes that are live while each runs in some order: its bound is no larger, so that many need not be looked at.
        Those that were get their bounds, so that another call goes on from there.
    floor
        A bound in bytes that is known.
    on_bound
        Called with every better bound.
    most
        Operators looked at, at most.

    Returns
    -------
    int
        Bytes; at least ``floor``.
    """
    cuts = None
    for op in np.argsort(-ceilings, kind="stable")[:most].tolist():
        if ceilings[op] <= floor or should_stop():
            break
        cuts = cuts or Cuts(structure)
        found = cuts.least(op)
        ceilings[op] = min(ceilings[op], found)
        if found > floor:
            floor = found
            on_bound(floor)
    return floor
