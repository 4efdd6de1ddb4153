"""Sets of operators that have run, for compiled searches: how many bytes a step needs, and which steps are safe to take at
once.

The live bytes depend only on the set of operators that have run, not on the order in which they ran. An order is therefore a
path through sets of operators. A *step* adds one operator to the set, and the *peak* of the order is the largest number of
bytes that are live during a step. Let D be a set and f(D) the bytes that are live after it has run. The function f is
submodular: if other operators run first, a step never frees fewer bytes.

A *chain* S is a sequence of steps from D, each of which depends on the one before. It is *safe* if it does not raise the peak,
ends with f(D + S) <= f(D), and stays above f(D) until then. Then no continuation gets worse by taking the chain at once, so
that the best order is not lost. The shortest safe chain is a single step that frees at least as many bytes as it allocates. If
a step of a chain makes another step possible that frees at least as many bytes as it allocates, that step is taken as well.

A *storage* is a tensor with bytes of its own, which its views share. *Lazy* operators, which need nothing and write a single
storage, run right before the first operator that reads the storage. The graph *backwards* in time is for orders that are built
from the last operator to the first. There, a storage is allocated by the last operator that reads or writes it and freed by the
first, and an operator waits for its successors. The same code serves both directions; there are no lazy operators backwards.

A set of operators is kept in *working arrays* (:class:`Room`), which the functions change. The functions check no arguments and
raise no errors.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from stowplan.compiled import Bits2D, njit_inner, njit_small
from stowplan.models.operator_order.structure import Structure

Ints = NDArray[np.int64]
Bits = NDArray[np.uint64]

#: Largest number of steps of a chain, which limits the time for looking for one.
CHAIN = 96


class Graph(NamedTuple):
    """The operators and storages of a problem, in one direction of time; all arrays are int64.

    Lists of lists are stored as in :class:`~stowplan.models.operator_order.structure.Structure`: row i of ``x`` is
    ``x[x_start[i] : x_start[i + 1]]``.
    """

    succ_start: Ints
    """[ops + 1] index of each operator's first entry in ``succ``."""
    succ: Ints
    """Operators that wait for each operator: forwards in time those that depend on it, backwards those on which it depends."""
    waits: Ints
    """[ops] the number of operators that are not lazy and for which each operator waits."""
    is_lazy: Ints
    """[ops] 1 for operators that need nothing and write one storage, which all operators that wait for them touch; otherwise
    0."""
    touch_start: Ints
    """[ops + 1] index of each operator's first entry in ``touch``."""
    touch: Ints
    """Storages that each operator touches, that is, reads or writes."""
    size: Ints
    """[storages] bytes; 0 for a storage that is never live."""
    total: Ints
    """[storages] number of operators that touch the storage, plus one if it exists at the start, plus one if it is kept to the
    end."""
    rem: Ints
    """[storages] how many of ``total`` remain before the first operator runs. A storage is live if some but not all remain."""
    maker: Ints
    """[storages] lazy operator that writes the storage; -1 if there is none."""
    pair_start: Ints
    """[ops + 1] index of each operator's first entry in ``pair``."""
    pair: Ints
    """Storages whose bytes a result of each operator may take over, so that both count only once (in place)."""
    backward: int
    """1 if operators run last to first, otherwise 0."""


def make(structure: Structure, backward: bool = False) -> Graph:
    """The graph of a structure, forwards or backwards in time."""
    there = structure.is_there.astype(np.int64)
    total = structure.users + structure.given + structure.kept
    gone = structure.kept if backward else structure.given
    # A storage that is never live must not count as allocated or freed.
    total = np.where(there > 0, total, 1)
    lazy = np.zeros(structure.ops, np.int64)
    maker = np.full(structure.storages, -1, np.int64)
    if not backward:
        for op in np.flatnonzero(np.diff(structure.pred_start) == 0).tolist():
            touched = structure.touch[structure.touch_start[op] : structure.touch_start[op + 1]]
            after = structure.succ[structure.succ_start[op] : structure.succ_start[op + 1]]
            if len(touched) == 1 and structure.creator[touched[0]] == op and len(after) > 0:
                storage = int(touched[0])
                users = structure.user[structure.user_start[storage] : structure.user_start[storage + 1]]
                if set(after.tolist()) <= set(users.tolist()):
                    lazy[op], maker[storage] = 1, op
    starts, items = (structure.pred_start, structure.pred) if backward else (structure.succ_start, structure.succ)
    waits = np.zeros(structure.ops, np.int64)
    owner = np.repeat(np.arange(structure.ops), np.diff(starts))
    np.add.at(waits, items[lazy[owner] == 0], 1)
    return Graph(
        succ_start=starts,
        succ=items,
        waits=waits,
        is_lazy=lazy,
        touch_start=structure.touch_start,
        touch=structure.touch,
        size=np.where(there > 0, structure.size, 0),
        total=total,
        rem=np.where(there > 0, total - gone, 0),
        maker=maker,
        pair_start=structure.pair_start,
        pair=structure.pair,
        backward=int(backward),
    )


class Room(NamedTuple):
    """The working arrays for one set of operators."""

    rem: Ints
    """[storages] how many of :attr:`Graph.total` remain after the set has run."""
    waits: Ints
    """[ops] the number of operators outside the set for which each operator waits."""
    ready: Ints
    """[ops + 1] operators that may run next."""
    moves: Ints
    """[ops + 1] *moves*: the operators that have run since the set was restored (:func:`restore`), in their order."""
    bits: Bits
    """[words] the set: one bit for each operator, 1 if it has run."""


def room_for(graph: Graph, words: int) -> Room:
    """Allocate the working arrays for a set of operators of a graph; a set takes ``words`` words of 64 bits.

    The arrays have no content before :func:`restore`.
    """
    n = len(graph.waits)
    rem, waits, ready, moves = (np.empty(count, np.int64) for count in (len(graph.rem), n, n + 1, n + 1))
    return Room(rem, waits, ready, moves, np.empty(words, np.uint64))


@njit_small
def copy_set(source: Bits2D, at: int, target: Bits2D, to: int) -> None:
    """Copy row ``at`` of ``source`` to row ``to`` of ``target``."""
    for word in range(source.shape[1]):
        target[to, word] = source[at, word]


@njit_inner
def weigh(g: Graph, rem: Ints, op: int) -> Any:
    """The triple (allocated, freed, saved) of bytes if ``op`` runs next, for the current ``rem`` [storages].

    Lazy operators that ``op`` needs are included. The saved bytes are those of results that may be written in place of an
    operand. While ``op`` runs, the live bytes are larger by ``allocated - saved``. Afterwards they are larger by
    ``allocated - freed``.
    """
    come = go = saved = 0
    for k in range(g.touch_start[op], g.touch_start[op + 1]):
        x = g.touch[k]
        left = rem[x]
        if left == g.total[x]:
            come += g.size[x]
            if g.maker[x] >= 0 and g.maker[x] != op:
                left -= 1
        if left == 1:
            go += g.size[x]
    for k in range(g.pair_start[op], g.pair_start[op + 1]):
        x = g.pair[k]
        left = rem[x]
        if g.backward == 1:
            if left == g.total[x]:
                saved += g.size[x]
        else:
            if left == g.total[x] and g.maker[x] >= 0:
                left -= 1
            if left == 1:
                saved += g.size[x]
    return come, go, saved


@njit_inner
def run(
    g: Graph, rem: Ints, waits: Ints, bits: Bits, ready: Ints, count: int, moves: Ints, moved: int, op: int, allowed: Ints
) -> Any:
    """Run ``op``, and before it the lazy operators that it needs; returns the new lengths of ``ready`` and ``moves``.

    The arrays are those of :class:`Room`. ``count`` and ``moved`` are the lengths of ``ready`` and ``moves`` before. Only
    operators with 1 in ``allowed`` [ops] become ready. ``op`` itself stays in ``ready``; callers skip operators that have run.
    """
    one = np.uint64(1)
    for k in range(g.touch_start[op], g.touch_start[op + 1]):
        x = g.touch[k]
        maker = g.maker[x]
        if rem[x] == g.total[x] and maker >= 0 and maker != op:
            rem[x] -= 1
            bits[maker >> 6] |= one << np.uint64(maker & 63)
            moves[moved] = maker
            moved += 1
        rem[x] -= 1
    bits[op >> 6] |= one << np.uint64(op & 63)
    moves[moved] = op
    moved += 1
    for k in range(g.succ_start[op], g.succ_start[op + 1]):
        other = g.succ[k]
        waits[other] -= 1
        if waits[other] == 0 and allowed[other] == 1:
            ready[count] = other
            count += 1
    return count, moved


@njit_inner
def undo(g: Graph, rem: Ints, waits: Ints, bits: Bits, moves: Ints, moved: int, back_to: int) -> int:
    """Undo the last of the ``moved`` moves until ``back_to`` of them are left; returns ``back_to``.

    ``ready`` is not changed: the caller sets its length back.
    """
    one = np.uint64(1)
    while moved > back_to:
        moved -= 1
        op = moves[moved]
        for k in range(g.touch_start[op], g.touch_start[op + 1]):
            rem[g.touch[k]] += 1
        bits[op >> 6] &= ~(one << np.uint64(op & 63))
        if g.is_lazy[op] == 0:
            for k in range(g.succ_start[op], g.succ_start[op + 1]):
                waits[g.succ[k]] += 1
    return moved


@njit_inner
def is_done(bits: Bits, op: int) -> bool:
    """Whether an operator belongs to the set ``bits`` of operators that have run."""
    return bool((bits[op >> 6] >> np.uint64(op & 63)) & np.uint64(1))


@njit_inner
def restore(g: Graph, bits: Bits, rem: Ints, waits: Ints, ready: Ints, allowed: Ints) -> Any:
    """Fill ``rem``, ``waits`` and ``ready`` for the set ``bits``; returns the live bytes and the length of ``ready``.

    Only operators with 1 in ``allowed`` [ops] become ready, and lazy operators never do.
    """
    n = len(waits)
    for storage in range(len(rem)):
        rem[storage] = g.rem[storage]
    for op in range(len(waits)):
        waits[op] = g.waits[op]
    for op in range(n):
        if is_done(bits, op):
            for k in range(g.touch_start[op], g.touch_start[op + 1]):
                rem[g.touch[k]] -= 1
            if g.is_lazy[op] == 0:
                for k in range(g.succ_start[op], g.succ_start[op + 1]):
                    waits[g.succ[k]] -= 1
    count = 0
    for op in range(n):
        if waits[op] == 0 and g.is_lazy[op] == 0 and allowed[op] == 1 and not is_done(bits, op):
            ready[count] = op
            count += 1
    live = 0
    for x in range(len(rem)):
        if 0 < rem[x] < g.total[x]:
            live += g.size[x]
    return live, count


@njit_inner
def settle(
    g: Graph,
    rem: Ints,
    waits: Ints,
    bits: Bits,
    ready: Ints,
    count: int,
    moves: Ints,
    moved: int,
    live: int,
    most: int,
    allowed: Ints,
) -> Any:
    """Take all safe steps and chains that need at most ``most`` bytes.

    ``live`` are the live bytes before, and ``count`` and ``moved`` the lengths of ``ready`` and ``moves``. Returns the live
    bytes afterwards and the new lengths. Only operators with 1 in ``allowed`` [ops] are taken.
    """
    has_changed = True
    while has_changed:
        has_changed = False
        i = 0
        while i < count:
            op = ready[i]
            has_run = is_done(bits, op)
            if not has_run:
                come, go, saved = weigh(g, rem, op)
                if come <= go and live + come - saved <= most:
                    count, moved = run(g, rem, waits, bits, ready, count, moves, moved, op, allowed)
                    live += come - go
                    has_run = has_changed = True
            if has_run:
                count -= 1
                ready[i] = ready[count]
            else:
                i += 1
        if has_changed:
            continue
        for i in range(count):
            first = ready[i]
            come, go, saved = weigh(g, rem, first)
            if live + come - saved > most:
                continue
            old_count, old_moved, now = count, moved, live + come - go
            count, moved = run(g, rem, waits, bits, ready, count, moves, moved, first, allowed)
            since = old_count
            for _ in range(CHAIN):
                # Steps that the chain has made possible and that free at least what they write are taken as well.
                k = old_count
                while k < count:
                    op = ready[k]
                    if not is_done(bits, op):
                        come, go, saved = weigh(g, rem, op)
                        if come <= go and now + come - saved <= most:
                            count, moved = run(g, rem, waits, bits, ready, count, moves, moved, op, allowed)
                            now += come - go
                            k = old_count
                            continue
                    k += 1
                if now <= live:
                    break
                best, least = -1, 0
                for k in range(since, count):
                    op = ready[k]
                    if not is_done(bits, op):
                        come, go, saved = weigh(g, rem, op)
                        if now + come - saved <= most and (best < 0 or come - go < least):
                            best, least = op, come - go
                if best < 0:
                    break
                since = count
                count, moved = run(g, rem, waits, bits, ready, count, moves, moved, best, allowed)
                now += least
            if now <= live:
                live = now
                has_changed = True
                break
            moved = undo(g, rem, waits, bits, moves, moved, old_moved)
            count = old_count
    return live, count, moved
