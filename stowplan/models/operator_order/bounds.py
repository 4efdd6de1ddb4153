"""Lower bounds on the peak: bytes that are live at an operator in every order, and minimum cuts.

A *storage* is a tensor with bytes of its own; an operator *touches* the storages that it reads or writes.

*Loads in every order.* A storage is live while an operator runs, whatever the order, if some operator that touches it must run
before that operator and another one after it. The sum of the sizes of such storages is a bound (:func:`load_bound`).

*Minimum cuts.* Fix one operator and consider the set of operators that have run before it. The set contains everything that the
operator needs, nothing that needs the operator, and with each operator all of its predecessors. The bytes that are live between
the set and the rest are the capacity of a cut in a network: a storage counts if some operator that touches it is in the set and
another one is not. A minimum cut therefore gives exactly the fewest bytes that can be live at this operator, over all orders.
The largest of these numbers over all operators is a bound on the peak (:func:`cut_bound`). It is tighter than the first bound
if some storage must be live but the order decides which one, for example if either branch of a fork can be computed first.

:class:`~stowplan.models.operator_order.structure.Structure` has the operators and storages as arrays. Shapes are in brackets;
ops is the number of operators. Nothing here raises an error for a valid problem.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from stowplan.models.operator_order.problem import Problem
from stowplan.models.operator_order.structure import Ints, Structure, build, stable_order

#: For larger graphs only the storages that an operator itself touches are counted, since the tables grow quadratically.
MANY_OPS = 20_000


def load_bound(problem: Problem) -> int:
    """Lower bound in bytes on the peak of any order: the largest load that is live at an operator in every order."""
    return int(forced_loads(build(problem)).max(initial=0))


def forced_loads(structure: Structure) -> NDArray[np.int64]:
    """The bytes that are live while each operator runs, in every order.

    These are the storages that the operator touches, without operands whose bytes a result may reuse, and every storage that
    some operator must touch before it and another one after it.

    Returns
    -------
    array
        [ops + 2] bytes. The last two entries are the start and the end of the program.
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
    # Storages that stay to the end are not subtracted, since no result may reuse their bytes.
    np.add.at(saved, np.repeat(np.arange(n), np.diff(structure.pair_start)), (size * (structure.kept == 0))[structure.pair])
    if n <= MANY_OPS:
        touched += _forced_others(structure)
    else:
        is_permanent = (structure.kept > 0) & (structure.given > 0)
        loads[:n] += int(size[is_permanent].sum())
        np.subtract.at(touched, owner, (size * is_permanent)[structure.touch])
    loads[:n] += touched - saved
    return loads


def _forced_others(structure: Structure) -> NDArray[np.int64]:
    """[ops] bytes of the storages that an operator does not touch but that are live while it runs, in every order."""
    n = structure.ops
    bits, after = ancestors(structure), descendants(structure)
    forced = np.zeros(n, np.int64)
    all_ops = (1 << n) - 1
    user, start = structure.user.tolist(), structure.user_start.tolist()
    for storage in np.flatnonzero((structure.size > 0) & structure.is_there).tolist():
        users = user[start[storage] : start[storage + 1]]
        creator = int(structure.creator[storage])
        before = all_ops if creator < 0 else after[creator]
        until = all_ops if structure.kept[storage] else 0
        users_mask = 0
        for reader in users:
            until |= bits[reader]
            users_mask |= 1 << reader
        live = before & until & ~users_mask
        if live:
            raw = np.frombuffer(live.to_bytes((n + 7) // 8, "little"), np.uint8)
            forced += np.unpackbits(raw, count=n, bitorder="little") * structure.size[storage]
    return forced


def ancestors(structure: Structure) -> list[int]:
    """[ops] the operators that must run before each operator, as the bits of an integer."""
    return _reached(stable_order(structure), structure.pred_start, structure.pred)


def descendants(structure: Structure) -> list[int]:
    """[ops] the operators that must run after each operator, as the bits of an integer."""
    return _reached(stable_order(structure)[::-1], structure.succ_start, structure.succ)


def _reached(order: list[int], starts: Ints, neighbours: Ints) -> list[int]:
    """[ops] the operators that can be reached over neighbours, as the bits of an integer.

    The neighbours of an operator must come before it in ``order``.
    """
    reached = [0] * len(order)
    start, near = starts.tolist(), neighbours.tolist()
    for op in order:
        for other in near[start[op] : start[op + 1]]:
            reached[op] |= reached[other] | (1 << other)
    return reached


#: An infinite capacity: larger than any sum of sizes, and small enough that twice this number fits in 64 bits.
_INFINITE = 1 << 61


class Cuts:
    """The flow network of a graph. Its minimum cuts bound the bytes that are live at an operator.

    Its nodes are the operators, the storages, a source and a sink. The network is built once; each call of :meth:`cut` changes
    some capacities and computes a maximum flow.
    """

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
        # A storage counts if its creator has run, unless all operators that touch it have run.
        self._add(np.where(start < 0, self._source, start), n + some, structure.size[some])
        first = self._flow.num_arcs()
        self._add(n + storage[reads], structure.user[reads], np.full(int(reads.sum()), _INFINITE))
        pairs = zip(storage[reads].tolist(), structure.user[reads].tolist(), strict=True)
        self._read = {pair: first + at for at, pair in enumerate(pairs)}
        self._kept = dict(enumerate(kept.tolist(), self._flow.num_arcs()))
        self._add(n + kept, np.full(len(kept), self._sink), np.full(len(kept), _INFINITE))
        # The side of the source contains, with each operator, its predecessors.
        self._needs = dict(enumerate(zip(structure.pred.tolist(), owner.tolist(), strict=True), self._flow.num_arcs()))
        self._add(owner, structure.pred, np.full(len(owner), _INFINITE))
        self._begin = self._flow.num_arcs()
        self._add(np.full(n, self._source), every, np.zeros(n, np.int64))
        self._end = self._flow.num_arcs()
        self._add(every, np.full(n, self._sink), np.zeros(n, np.int64))

    def _add(self, tails: Ints, heads: Ints, capacities: Ints) -> None:
        """Add arcs to the network."""
        if len(tails):
            self._flow.add_arcs_with_capacity(
                tails.astype(np.int32), heads.astype(np.int32), np.ascontiguousarray(capacities, dtype=np.int64)
            )

    def least(self, op: int) -> int:
        """The fewest bytes that can be live while an operator runs, over all orders."""
        return self.cut(op)[0]

    def cut(self, op: int, *, want_set: bool = False) -> tuple[int, list[int]]:
        """The fewest bytes that can be live while an operator runs, and the operators that have run before it.

        The operators are those of an order with this number of bytes. The list is empty unless ``want_set`` is true.
        """
        structure = self._structure
        before = structure.pred[structure.pred_start[op] : structure.pred_start[op + 1]].tolist()
        reusable = structure.pair[structure.pair_start[op] : structure.pair_start[op + 1]].tolist()
        # Operands whose bytes a result may reuse need not be live together with the result.
        changes = {self._begin + other: _INFINITE for other in before} | {self._end + op: _INFINITE}
        reusable_arcs = [self._read[storage, op] for storage in reusable if (storage, op) in self._read]
        for arc, capacity in (*changes.items(), *((arc, 0) for arc in reusable_arcs)):
            self._flow.set_arc_capacity(arc, capacity)
        status = self._flow.solve(self._source, self._sink)
        flow = int(self._flow.optimal_flow()) if status == self._flow.OPTIMAL else 0
        has_run = [op for op in self._flow.get_source_side_min_cut() if op < structure.ops] if want_set else []
        for arc in changes:
            self._flow.set_arc_capacity(arc, 0)
        for arc in reusable_arcs:
            self._flow.set_arc_capacity(arc, _INFINITE)
        return flow + int(structure.allocated[op]), has_run

    def flow(self) -> tuple[list[tuple[int, int, int]], list[tuple[int, int, int]]]:
        """The flow that proves the last cut to be minimal.

        Returns
        -------
        tuple of two lists
            The flow of storages as (tensor, operator that uses it or -1 for the end, bytes), and that of precedences as
            (operator before, operator after, bytes).
        """
        tensor, amount = self._structure.tensor, self._flow.flow
        storage_flow = [(int(tensor[storage]), user, amount(arc)) for (storage, user), arc in self._read.items()]
        storage_flow += [(int(tensor[storage]), -1, amount(arc)) for arc, storage in self._kept.items()]
        precedence_flow = [(*pair, amount(arc)) for arc, pair in self._needs.items()]
        return [entry for entry in storage_flow if entry[2]], [entry for entry in precedence_flow if entry[2]]


def cut_bound(
    structure: Structure,
    ceilings: Ints,
    floor: int,
    should_stop: Callable[[], bool],
    on_bound: Callable[[int], None] = lambda bound: None,
    most: int | None = None,
) -> int:
    """The largest bound from minimum cuts at operators, until ``should_stop`` returns True.

    Parameters
    ----------
    ceilings
        [ops] bytes that are live while each operator runs in some known order. The minimum cut of an operator is no larger, so
        operators whose ceiling is at most the bound so far are skipped. Entries are lowered to the minimum cuts that were
        computed, so that another call does not compute them again.
    floor
        A lower bound in bytes that is proven already.
    should_stop
        Called for every operator; the function returns when it returns True.
    on_bound
        Called with every better bound.
    most
        Largest number of operators to consider; None for all operators.

    Returns
    -------
    int
        The bound in bytes, at least ``floor``.
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
