"""Bounds on the peak: tensors that are live at an operator in every order, and minimum cuts.

A minimum cut gives the least that is live while an operator runs, over all sets that may have run before. Such a set has all
that the operator needs, nothing that needs the operator, and with each operator all that that one needs. What is live after it
is the capacity of a cut: a storage counts where some that touch it have run and some have not. So one minimum cut gives the
least of all orders for one operator, exactly, and the largest of these is a bound on the peak. Where tensors are live that
could be others (one side of a fork done, or the other), a cut says more than what is live in every order.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from stowplan.models.operator_order.problem import Problem
from stowplan.models.operator_order.structure import Ints, Structure, build, stable_order

#: Beyond so many operators only what an operator itself touches is added up: the tables grow with the square.
MANY_OPS = 20_000


def load_bound(problem: Problem) -> int:
    """Least peak in bytes that any order can have, by what is live at each operator whatever the order."""
    return int(forced_loads(build(problem)).max(initial=0))


def forced_loads(structure: Structure) -> NDArray[np.int64]:
    """[ops] bytes that are live while each operator runs, in every order.

    That is what it touches, and each storage of which some that touch it must run before and some after it. What may die in
    its place is taken off. The start and the end of the program are operators, too: the last two entries, [ops + 2] in all.
    """
    n = structure.ops
    size = structure.size
    loads = np.zeros(n + 2, np.int64)
    loads[n] = structure.start_bytes
    loads[n + 1] = int(size[(structure.kept > 0) & structure.is_there].sum())
    touched = np.zeros(n, np.int64)
    owner = np.repeat(np.arange(n), np.diff(structure.touch_start))
    np.add.at(touched, owner, size[structure.touch])
    saved = np.zeros(n, np.int64)
    # Not what stays: nothing may take its place.
    np.add.at(saved, np.repeat(np.arange(n), np.diff(structure.pair_start)), (size * (structure.kept == 0))[structure.pair])
    if n <= MANY_OPS:
        touched += _forced_others(structure)
    else:
        stays = (structure.kept > 0) & (structure.given > 0)
        loads[:n] += int(size[stays].sum())
        np.subtract.at(touched, owner, (size * stays)[structure.touch])
    loads[:n] += touched - saved
    return loads


def _forced_others(structure: Structure) -> NDArray[np.int64]:
    """[ops] bytes of storages that an operator does not touch, but that are live while it runs in every order."""
    n = structure.ops
    bits, after = ancestors(structure), descendants(structure)
    forced = np.zeros(n, np.int64)
    everyone = (1 << n) - 1
    user, start = structure.user.tolist(), structure.user_start.tolist()
    for storage in np.flatnonzero((structure.size > 0) & structure.is_there).tolist():
        users = user[start[storage] : start[storage + 1]]
        creator = int(structure.creator[storage])
        before = everyone if creator < 0 else after[creator]
        until = everyone if structure.kept[storage] else 0
        own = 0
        for reader in users:
            until |= bits[reader]
            own |= 1 << reader
        live = before & until & ~own
        if live:
            raw = np.frombuffer(live.to_bytes((n + 7) // 8, "little"), np.uint8)
            forced += np.unpackbits(raw, count=n, bitorder="little") * structure.size[storage]
    return forced


def ancestors(structure: Structure) -> list[int]:
    """[ops] the operators that must run before each, as bits."""
    return _reached(stable_order(structure), structure.pred_start, structure.pred)


def descendants(structure: Structure) -> list[int]:
    """[ops] the operators that must run after each, as bits."""
    return _reached(stable_order(structure)[::-1], structure.succ_start, structure.succ)


def _reached(order: list[int], starts: Ints, neighbours: Ints) -> list[int]:
    reached = [0] * len(order)
    start, near = starts.tolist(), neighbours.tolist()
    for op in order:
        for other in near[start[op] : start[op + 1]]:
            reached[op] |= reached[other] | (1 << other)
    return reached


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
        self._kept = dict(enumerate(kept.tolist(), self._flow.num_arcs()))
        self._add(n + kept, np.full(len(kept), self._sink), np.full(len(kept), _ENDLESS))
        # With each operator all that it needs.
        self._needs = dict(enumerate(zip(structure.pred.tolist(), owner.tolist(), strict=True), self._flow.num_arcs()))
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
        changes = {self._begin + other: _ENDLESS for other in before} | {self._end + op: _ENDLESS}
        freed = [self._read[storage, op] for storage in places if (storage, op) in self._read]
        for arc, capacity in (*changes.items(), *((arc, 0) for arc in freed)):
            self._flow.set_arc_capacity(arc, capacity)
        status = self._flow.solve(self._source, self._sink)
        flow = int(self._flow.optimal_flow()) if status == self._flow.OPTIMAL else 0
        ran = [op for op in self._flow.get_source_side_min_cut() if op < structure.ops] if want_set else []
        for arc in changes:
            self._flow.set_arc_capacity(arc, 0)
        for arc in freed:
            self._flow.set_arc_capacity(arc, _ENDLESS)
        return flow + int(structure.allocated[op]), ran

    def flow(self) -> tuple[list[tuple[int, int, int]], list[tuple[int, int, int]]]:
        """The flow of the last cut, which proves it.

        Returns
        -------
        tuple
            (tensor, operator that uses it or -1 for the end, bytes), and (operator before, operator after, bytes).
        """
        tensor, amount = self._structure.tensor, self._flow.flow
        held = [(int(tensor[storage]), user, amount(arc)) for (storage, user), arc in self._read.items()]
        held += [(int(tensor[storage]), -1, amount(arc)) for arc, storage in self._kept.items()]
        after = [(*pair, amount(arc)) for arc, pair in self._needs.items()]
        return [entry for entry in held if entry[2]], [entry for entry in after if entry[2]]


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
        least = cuts.least(op)
        ceilings[op] = min(ceilings[op], least)
        if least > floor:
            floor = least
            on_bound(floor)
    return floor
