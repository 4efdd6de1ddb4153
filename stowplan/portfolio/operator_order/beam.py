"""Beam search for an order of low peak.

The *peak* of an order is the largest number of bytes that are live while an operator runs. A state of the search is a set of
operators that have run, since this set alone determines which bytes are live. The *beam* is the list of the best sets so far.
Each level of the search extends every set of the beam by all steps that are safe to take at once and by one more operator. Of
the extended sets, the *successors*, it keeps the best ones. A step is *safe* if no order gets worse by taking it at once. A
*lazy* operator needs no input and runs right before the first operator that reads its result. A graph *backwards* in time is
for orders that are built from the last operator to the first. :mod:`stowplan.portfolio.operator_order.graph` explains all
three. The functions raise no errors.
"""

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
    """Parameters of beam search."""

    children: int = 64
    """Largest number of successors of a level, divided by the beam width; further ones are dropped."""


PARAMS = parameters(BeamParameters, __name__)


class Level(NamedTuple):
    """The sets of one level of the beam."""

    bits: Bits2D
    """[sets, words] one bit for each operator, 1 if it has run, in words of 64 bits."""
    key: Ints
    """[sets] peak so far, in bytes."""
    hashes: Bits
    """[sets] hash of each set."""


class Children(NamedTuple):
    """The successors of the sets of a level, with a hash table of sets."""

    of: Ints2D
    """[children, 2] the set, and the operator that runs next."""
    key: Ints
    """[children] peak so far, in bytes."""
    score: Floats
    """[children] score by which successors are ranked; smaller is better."""
    table: Bits
    """Hash table of the sets of the next level, with their hashes as entries; its length is a power of two."""
    order: Ints
    """[children] the successors by ascending score."""
    merged: Ints
    """[children] scratch space of the sort."""
    settled: Ints2D
    """[sets, 2] for each set, the index of its first safe step in the list ``moves`` of :func:`_advance`, and the number of its
    safe steps."""


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
    """Look for an order whose peak is below ``upper`` bytes.

    Parameters
    ----------
    graph
        The operators, forwards or backwards in time.
    floor
        Number of bytes that may be live in any case, such as a lower bound of the peak. Safe steps within it are taken at once.
    upper
        Number of bytes below which the peak must be.
    width
        Beam width, in sets.
    chance
        Source of noise in the live bytes, with a standard deviation of 5 %; None for no noise.
    should_stop
        Function that is called before each level and says whether to give up.
    weight
        Weight of the peak so far relative to the live bytes in the score of a set.
    done
        Operators that have run already; backwards in time, those that run afterwards.
    among
        Operators that are to run; by default all that are not in ``done``. Lazy operators whose results none of them reads are
        left out.

    Returns
    -------
    (int, list of int) or None
        The peak in bytes, at least ``floor``, and the operators from the first to the last. The result is None if every set was
        dropped, or if the search was stopped.
    """
    n = len(graph.waits)
    words = max(1, (n + 63) // 64)
    random = np.random.default_rng(20_240_607).integers(1, 1 << 63, max(1, n), np.int64).astype(np.uint64)
    noise = np.zeros(n) if chance is None else chance.normal(0.0, 0.05, n)
    allowed = np.ones(n, np.int64) if among is None else np.zeros(n, np.int64)
    allowed[[] if among is None else list(among)] = 1
    now, after = (
        Level(np.zeros((width, words), np.uint64), np.full(width, floor, np.int64), np.zeros(width, np.uint64))
        for _ in range(2)
    )
    max_children = width * PARAMS.children
    table = np.zeros(1 << (2 * max_children).bit_length(), np.uint64)
    ranks, merged, safe_steps = (
        np.zeros(max_children, np.int64),
        np.zeros(max_children, np.int64),
        np.zeros((width, 2), np.int64),
    )
    children = Children(
        np.zeros((max_children, 2), np.int64),
        np.zeros(max_children, np.int64),
        np.zeros(max_children),
        table,
        ranks,
        merged,
        safe_steps,
    )
    scratch_arrays = room_for(graph, words)
    for op in done:
        now.bits[0, op >> 6] |= np.uint64(1) << np.uint64(op & 63)
    backs: list[np.ndarray] = []
    moves: list[np.ndarray] = []
    width_now = 1
    while not should_stop():
        back, level_moves = np.zeros((width, 4), np.int64), np.zeros(width_now * (n + 1), np.int64)
        new_sets, used, complete = _advance(
            graph,
            allowed,
            floor,
            upper,
            weight,
            width,
            noise,
            random,
            now,
            after,
            back,
            level_moves,
            width_now,
            children,
            scratch_arrays,
        )
        if new_sets == 0:
            return None
        backs.append(back[:new_sets].copy())
        moves.append(level_moves[:used].copy())
        now, after = after, now
        width_now = new_sets
        if complete >= 0:
            order = _follow(graph, backs, moves, set(done))
            return int(now.key[0]), order[::-1] if graph.backward else order
    return None


@njit_inner
def _rank(score: Floats, count: int, order: Ints, merged: Ints) -> None:
    """Sort the numbers of the first ``count`` scores into ``order``, smallest first; the merge sort is stable."""
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
    random: Bits,
    now: Level,
    following: Level,
    back: Ints2D,
    moves: Ints,
    width_now: int,
    successors: Children,
    scratch_arrays: Room,
) -> tuple[int, int, int]:
    """Make one level of the beam: each of the ``width_now`` sets takes its safe steps, then the best ``width`` successors are
    kept.

    ``now`` has the sets of the level, and ``following`` receives the new sets; ``successors`` and ``scratch_arrays`` are
    scratch space. ``noise`` [ops] is added, as a fraction, to the live bytes in the score. ``random`` [ops] has random
    numbers for hashing. ``back`` [sets, 4] receives (number of the set before, index of its first safe step in ``moves``,
    number of its safe steps, operator) for each new set, and ``moves`` the operators of the safe steps.

    Returns the number of new sets (0 if all successors were dropped), the length of ``moves``, and 0 if the first new set is
    complete, otherwise -1.
    """
    # The arrays are unpacked, because numba would count references to the members of a tuple in every iteration.
    since = 0
    bits, key, hashes = now
    next_bits, next_key, next_hashes = following
    child, child_key, child_score, table, order, merged, safe_steps = successors
    rem, waits, ready, scratch, _ = scratch_arrays
    children = 0
    complete = -1
    for at in range(width_now):
        live, count = restore(g, bits[at], rem, waits, ready, allowed)
        most = max(key[at], floor)
        live, count, moved = settle(g, rem, waits, bits[at], ready, count, scratch, 0, live, most, allowed)
        safe_steps[at, 0], safe_steps[at, 1] = since, moved
        for i in range(moved):
            op = scratch[i]
            moves[since + i] = op
            hashes[at] ^= random[op]
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
    new_sets = 0
    if complete >= 0:
        copy_set(bits, complete, next_bits, 0)
        next_key[0] = key[complete]
        back[0, 0], back[0, 1], back[0, 2] = complete, safe_steps[complete, 0], safe_steps[complete, 1]
        back[0, 3] = -1
        return 1, since, 0
    _rank(child_score, children, order, merged)
    mask = len(table) - 1
    table[:] = np.uint64(0)
    for rank in range(children):
        if new_sets == width:
            break
        c = order[rank]
        at, op = child[c, 0], child[c, 1]
        mixed = hashes[at] ^ random[op]
        slot = np.int64(mixed & np.uint64(mask))
        while table[slot] != np.uint64(0) and table[slot] != mixed:
            slot = (slot + 1) & mask
        if table[slot] == mixed:
            continue
        table[slot] = mixed
        copy_set(bits, at, next_bits, new_sets)
        next_key[new_sets] = child_key[c]
        next_hashes[new_sets] = hashes[at]
        back[new_sets, 0], back[new_sets, 1], back[new_sets, 2], back[new_sets, 3] = (
            at,
            safe_steps[at, 0],
            safe_steps[at, 1],
            op,
        )
        new_sets += 1
    for new in range(new_sets):
        op = back[new, 3]
        restore(g, next_bits[new], rem, waits, ready, allowed)
        _, moved = run(g, rem, waits, next_bits[new], ready, 0, scratch, 0, op, allowed)
        for i in range(moved):
            next_hashes[new] ^= random[scratch[i]]
    return new_sets, since, -1


def _follow(graph: Graph, backs: list[np.ndarray], moves: list[np.ndarray], before: set[int]) -> list[int]:
    """The order that led to the first set of the last level, traced back level by level.

    ``backs`` and ``moves`` have the arrays ``back`` and ``moves`` of :func:`_advance` for each level. ``before`` has the
    operators that had run before the search.
    """
    parts: list[list[int]] = []
    at = 0
    for back, level in zip(reversed(backs), reversed(moves), strict=True):
        parent, first, count, op = back[at].tolist()
        parts.append([*level[first : first + count].tolist(), *([op] if op >= 0 else [])])
        at = parent
    return complete_lazy(graph, [op for part in reversed(parts) for op in part], before)


def complete_lazy(graph: Graph, order: list[int], before: Iterable[int] = ()) -> list[int]:
    """Returns the order, completed by the missing lazy operators: each comes right before the first operator that needs it.

    ``before`` has the operators that have run earlier; they are left out.
    """
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
    """Returns an order of all operators with the lazy ones as late as possible. This never raises the peak."""
    return complete_lazy(graph, [op for op in order if not graph.is_lazy[op]])
