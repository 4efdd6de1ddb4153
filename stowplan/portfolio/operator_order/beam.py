"""Beam search for an order: many sets of operators side by side, each step the best of what may follow."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stowplan.compiled import Bits2D, Ints2D, njit, njit_inner
from stowplan.parameters import Parameters, parameters
from stowplan.portfolio.operator_order.graph import (
    Bits,
    Graph,
    Ints,
    Room,
    copy_set,
    is_done,
    restore,
    room_for,
    run,
    settle,
    weigh,
)

Floats = NDArray[np.float64]


class BeamParameters(Parameters, frozen=True):
    """Parameters of the beam."""

    children: int = 64
    """Children a set of a level, at most."""


PARAMS = parameters(BeamParameters, __name__)


class Level(NamedTuple):
    """Sets side by side."""

    bits: Bits2D
    """[sets, words]"""
    key: Ints
    """[sets] Peak so far, in bytes."""
    hashes: Bits2D
    """[sets, 2]"""


class Children(NamedTuple):
    """What may follow the sets of a level, and a hash table of sets."""

    of: Ints2D
    """[children, 2] Set, and the operator that runs next."""
    key: Ints
    score: Floats
    table: Bits
    order: Ints
    """[children] Least score first; scratch before."""
    merged: Ints
    """[children] Scratch."""
    settled: Ints2D
    """[sets, 2] First of the safe steps of each set, and how many."""


def search(
    graph: Graph,
    floor: int,
    upper: int,
    width: int,
    chance: np.random.Generator | None,
    should_stop: Callable[[], bool],
    weight: float = 1000.0,
    done: Sequence[int] = (),
    among: Sequence[int] | None = None,
) -> tuple[int, list[int]] | None:
    """An order below ``upper`` bytes.

    Parameters
    ----------
    floor
        Bytes that are allowed anyway: steps that need no more are safe where they free what they take.
    width
        Sets side by side.
    chance
        Source of noise in what is live, of some percent; None for none.
    weight
        Of the peak so far against the bytes that are live.
    done, among
        Operators that have run, and those that are to run; all others by default. Lazy ones that nobody among those reads are
        left out.

    Returns
    -------
    (int, list of int) or None
        Its peak, and the operators, first to last; None where the beam came to no end, or was stopped.
    """
    n = len(graph.waits)
    words = max(1, (n + 63) // 64)
    random = np.random.default_rng(20_240_607).integers(1, 1 << 63, (max(1, n), 2), np.int64).astype(np.uint64)
    noise = np.zeros(n) if chance is None else chance.normal(0.0, 0.05, n)
    allowed = np.ones(n, np.int64) if among is None else np.zeros(n, np.int64)
    allowed[[] if among is None else list(among)] = 1
    now, after = (
        Level(np.zeros((width, words), np.uint64), np.full(width, floor, np.int64), np.zeros((width, 2), np.uint64))
        for _ in range(2)
    )
    many = width * PARAMS.children
    table = np.zeros(1 << (2 * many).bit_length(), np.uint64)
    ranks, merged, settled = np.zeros(many, np.int64), np.zeros(many, np.int64), np.zeros((width, 2), np.int64)
    children = Children(np.zeros((many, 2), np.int64), np.zeros(many, np.int64), np.zeros(many), table, ranks, merged, settled)
    room = room_for(graph, words)
    for op in done:
        now.bits[0, op >> 6] |= np.uint64(1) << np.uint64(op & 63)
    backs: list[np.ndarray] = []
    moves: list[np.ndarray] = []
    wide = 1
    while not should_stop():
        back, level_moves = np.zeros((width, 4), np.int64), np.zeros(wide * (n + 1), np.int64)
        made, used, complete = _advance(
            graph, allowed, floor, upper, weight, width, noise, random, now, after, back, level_moves, wide, children, room
        )
        if made == 0:
            return None
        backs.append(back[:made].copy())
        moves.append(level_moves[:used].copy())
        now, after = after, now
        wide = made
        if complete >= 0:
            order = _follow(graph, backs, moves, set(done))
            return int(now.key[0]), order[::-1] if graph.backward else order
    return None


@njit_inner
def _rank(score: Floats, count: int, order: Ints, merged: Ints) -> None:
    """Numbers of the first ``count`` scores into ``order``, the least first and equal ones in their order (merge sort)."""
    for at in range(count):
        order[at] = at
    width = 1
    while width < count:
        for begin in range(0, count, 2 * width):
            middle, end = min(begin + width, count), min(begin + 2 * width, count)
            left, right = begin, middle
            for at in range(begin, end):
                if left < middle and (right >= end or score[order[left]] <= score[order[right]]):
                    merged[at] = order[left]
                    left += 1
                else:
                    merged[at] = order[right]
                    right += 1
        for at in range(count):
            order[at] = merged[at]
        width *= 2


@njit
def _advance(
    g: Graph,
    allowed: Ints,
    floor: int,
    upper: int,
    weight: float,
    width: int,
    noise: Floats,
    random: Bits2D,
    now: Level,
    then: Level,
    back: Ints2D,
    moves: Ints,
    wide: int,
    successors: Children,
    room: Room,
) -> tuple[int, int, int]:
    """One level of a beam: every set of ``wide`` takes its safe steps, and the best ``width`` of what may follow are the next.

    ``back`` [sets, 4] gets (parent, first move, moves, operator) for each next set, ``moves`` those of the safe steps. Returns
    the number of the next sets, the length of ``moves``, and the number of a set that is complete, -1 where none is.
    """
    # Arrays by themselves: in loops the members of a tuple would be counted as references each time.
    since = 0
    bits, key, hashes = now
    next_bits, next_key, next_hashes = then
    child, child_key, child_score, table, order, merged, settled = successors
    rem, waits, ready, scratch, _ = room
    children = 0
    complete = -1
    for at in range(wide):
        live, count = restore(g, bits[at], rem, waits, ready, allowed)
        most = max(key[at], floor)
        live, count, moved = settle(g, rem, waits, bits[at], ready, count, scratch, 0, live, most, allowed)
        settled[at, 0], settled[at, 1] = since, moved
        for i in range(moved):
            op = scratch[i]
            moves[since + i] = op
            hashes[at, 0] ^= random[op, 0]
        since += moved
        open_ones = 0
        for i in range(count):
            op = ready[i]
            if is_done(bits[at], op):
                continue
            open_ones += 1
            come, go, saved = weigh(g, rem, op)
            peak = max(most, live + come - saved)
            if peak >= upper or children >= len(child_key):
                continue
            child[children, 0], child[children, 1] = at, op
            child_key[children] = peak
            child_score[children] = weight * peak + (live + come - go) * (1.0 + noise[op])
            children += 1
        if open_ones == 0 and (complete < 0 or key[at] < key[complete]):
            complete = at
    made = 0
    if complete >= 0:
        copy_set(bits, complete, next_bits, 0)
        next_key[0] = key[complete]
        back[0, 0], back[0, 1], back[0, 2] = complete, settled[complete, 0], settled[complete, 1]
        back[0, 3] = -1
        return 1, since, 0
    _rank(child_score, children, order, merged)
    mask = len(table) - 1
    table[:] = np.uint64(0)
    for rank in range(children):
        if made == width:
            break
        c = order[rank]
        at, op = child[c, 0], child[c, 1]
        mixed = hashes[at, 0] ^ random[op, 0]
        slot = np.int64(mixed & np.uint64(mask))
        while table[slot] != np.uint64(0) and table[slot] != mixed:
            slot = (slot + 1) & mask
        if table[slot] == mixed:
            continue
        table[slot] = mixed
        copy_set(bits, at, next_bits, made)
        next_key[made] = child_key[c]
        next_hashes[made, 0] = hashes[at, 0]
        back[made, 0], back[made, 1], back[made, 2], back[made, 3] = at, settled[at, 0], settled[at, 1], op
        made += 1
    for new in range(made):
        op = back[new, 3]
        restore(g, next_bits[new], rem, waits, ready, allowed)
        _, moved = run(g, rem, waits, next_bits[new], ready, 0, scratch, 0, op, allowed)
        for i in range(moved):
            next_hashes[new, 0] ^= random[scratch[i], 0]
    return made, since, -1


def _follow(graph: Graph, backs: list[np.ndarray], moves: list[np.ndarray], before: set[int]) -> list[int]:
    """The order behind the only set of the last level."""
    parts: list[list[int]] = []
    at = 0
    for back, level in zip(reversed(backs), reversed(moves), strict=True):
        parent, first, count, op = back[at].tolist()
        parts.append([*level[first : first + count].tolist(), *([op] if op >= 0 else [])])
        at = parent
    return complete_lazy(graph, [op for part in reversed(parts) for op in part], before)


def complete_lazy(graph: Graph, order: list[int], before: Iterable[int] = ()) -> list[int]:
    """An order, after what has run before, with each lazy operator that is missing right before the first that needs it."""
    done = set(before)
    complete: list[int] = []
    for op in order:
        if op in done:
            continue
        for storage in graph.touch[graph.touch_start[op] : graph.touch_start[op + 1]]:
            maker = int(graph.maker[storage])
            if maker >= 0 and maker != op and maker not in done:
                done.add(maker)
                complete.append(maker)
        done.add(op)
        complete.append(op)
    return complete


def normalize(graph: Graph, order: list[int]) -> list[int]:
    """An order of all operators with the lazy ones as late as they can be, which is never worse."""
    return complete_lazy(graph, [op for op in order if not graph.is_lazy[op]])
