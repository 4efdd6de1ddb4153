"""Sets of operators that have run, compiled: what a step costs, steps that are safe to take at once, search and beam over sets.

What is live depends on the set alone, not on the order it ran in, so that orders are paths through sets and the least peak is a
path whose worst step is best. Let D be such a set and f(D) its live bytes. f is submodular: what a step frees more of, it never
frees less of after others. So a chain of steps S from D, each of which depends on the one before, may be taken at once if it
costs no new peak and ends with f(D + S) <= f(D), being above f(D) until then: every order goes on no worse after it. Single
steps that free at least what they write are the shortest such chains, and what a step of a chain makes possible may be taken
with it where it frees at least what it writes. Operators that need nothing and write one storage (``lazy``) run right before
the first that reads it.

All is the same backwards in time (:mod:`.graph`).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from stowplan.compiled import njit
from stowplan.portfolio.operator_order.graph import Graph, Ints

Bits = NDArray[np.uint64]
Bytes = NDArray[np.int64]

#: Steps of a chain at most.
CHAIN = 96

RUNNING, FOUND, EXHAUSTED, FULL = 0, 1, 2, 3

#: Fields of ``state`` of :func:`search`.
CLOSED, NODES, HEAP, MOVES, BOUND, GOAL, POPS = range(7)


@njit
def weigh(g: Graph, rem: Ints, op: int) -> Any:
    """(bytes that come, bytes that go, bytes saved in place) where ``op`` runs next; ``rem`` [storages] as it stands."""
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


@njit
def run(
    g: Graph, rem: Ints, waits: Ints, bits: Bits, ready: Ints, count: int, moves: Ints, moved: int, op: int, allowed: Ints
) -> Any:
    """Let ``op`` run; returns the new lengths of ``ready`` and ``moves``."""
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


@njit
def undo(g: Graph, rem: Ints, waits: Ints, bits: Bits, moves: Ints, moved: int, back_to: int) -> int:
    """Take back the last moves."""
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


@njit
def is_done(bits: Bits, op: int) -> bool:
    """Whether an operator has run."""
    return bool((bits[op >> 6] >> np.uint64(op & 63)) & np.uint64(1))


@njit
def restore(g: Graph, bits: Bits, rem: Ints, waits: Ints, ready: Ints, allowed: Ints) -> Any:
    """Fill ``rem``, ``waits`` and ``ready`` for a set; returns the live bytes and the length of ``ready``."""
    n = len(waits)
    rem[:] = g.rem
    waits[:] = g.waits
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


@njit
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
    """Take all safe steps that need at most ``most`` bytes; returns live bytes, the lengths of ``ready`` and of ``moves``."""
    again = True
    while again:
        again = False
        i = 0
        while i < count:
            op = ready[i]
            gone = is_done(bits, op)
            if not gone:
                come, go, saved = weigh(g, rem, op)
                if come <= go and live + come - saved <= most:
                    count, moved = run(g, rem, waits, bits, ready, count, moves, moved, op, allowed)
                    live += come - go
                    gone = again = True
            if gone:
                count -= 1
                ready[i] = ready[count]
            else:
                i += 1
        if again:
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
                # What became possible and frees at least what it writes.
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
                again = True
                break
            moved = undo(g, rem, waits, bits, moves, moved, old_moved)
            count = old_count
    return live, count, moved


@njit
def _before(key: Bytes, done: Ints, live: Bytes, one: int, other: int) -> bool:
    """Whether a node is looked at before another: of a lower peak, then farther on, then with less live."""
    if key[one] != key[other]:
        return bool(key[one] < key[other])
    if done[one] != done[other]:
        return bool(done[one] > done[other])
    return bool(live[one] < live[other])


@njit
def _push(heap: Ints, size: int, node: int, key: Bytes, done: Ints, live: Bytes) -> int:
    at = size
    while at > 0:
        up = (at - 1) >> 1
        if not _before(key, done, live, node, heap[up]):
            break
        heap[at] = heap[up]
        at = up
    heap[at] = node
    return size + 1


@njit
def _pop(heap: Ints, size: int, key: Bytes, done: Ints, live: Bytes) -> int:
    """Move the first node behind the heap; returns the new size."""
    first, size = heap[0], size - 1
    node = heap[size]
    at = 0
    while True:
        child = 2 * at + 1
        if child >= size:
            break
        if child + 1 < size and _before(key, done, live, heap[child + 1], heap[child]):
            child += 1
        if not _before(key, done, live, heap[child], node):
            break
        heap[at] = heap[child]
        at = child
    heap[at] = node
    heap[size] = first
    return size


@njit
def search(
    g: Graph,
    allowed: Ints,
    goal: int,
    upper: int,
    pops: int,
    random: Bits,
    state: Bytes,
    closed_bits: Bits,
    closed: Ints,
    node_key: Bytes,
    node_live: Bytes,
    node: Ints,
    node_hash: Bits,
    heap: Ints,
    pool: Ints,
    closed_table: Ints,
    node_table: Ints,
) -> int:
    """Best first over sets, by the peak so far; the peak of the first node is a bound for all orders.

    ``goal`` operators have run at the end; orders of ``upper`` bytes or more are left out. What is kept between calls:
    ``state`` (fields above), ``closed_bits`` [sets, words] and ``closed`` [sets, 3] (parent set, first move, moves),
    ``node_key``, ``node_live`` and ``node`` [nodes, 3] (operators done, parent set, operator), ``node_hash`` [nodes, 2],
    ``heap``, ``pool`` of moves, and two hash tables.
    """
    n, words = len(g.waits), closed_bits.shape[1]
    rem, waits, ready = np.empty(len(g.rem), np.int64), np.empty(n, np.int64), np.empty(n + 1, np.int64)
    moves, bits = np.empty(n + 1, np.int64), np.empty(words, np.uint64)
    done_column = node[:, 0]
    closed_mask, node_mask = len(closed_table) - 1, len(node_table) - 1
    for _ in range(pops):
        if state[HEAP] == 0:
            state[BOUND] = upper
            return EXHAUSTED
        at = heap[0]
        most = node_key[at]
        if most >= upper:
            state[BOUND] = upper
            return EXHAUSTED
        state[BOUND] = max(state[BOUND], most)
        if state[CLOSED] + 1 >= len(closed_bits) or state[NODES] + n >= len(node_key) or state[MOVES] + n >= len(pool):
            return FULL
        state[POPS] += 1
        state[HEAP] = _pop(heap, state[HEAP], node_key, done_column, node_live)
        parent, op = node[at, 1], node[at, 2]
        bits[:] = closed_bits[parent]
        live, count = restore(g, bits, rem, waits, ready, allowed)
        moved = 0
        if op >= 0:
            come, go, saved = weigh(g, rem, op)
            count, moved = run(g, rem, waits, bits, ready, count, moves, moved, op, allowed)
            live += come - go
        live, count, moved = settle(g, rem, waits, bits, ready, count, moves, moved, live, most, allowed)
        one_hash = np.uint64(0)
        done = 0
        for i in range(n):
            if is_done(bits, i):
                one_hash ^= random[i, 0]
                done += 1
        slot = np.int64(one_hash & np.uint64(closed_mask))
        seen = False
        while closed_table[slot] >= 0 and not seen:
            other = closed_table[slot]
            seen = True
            for w in range(words):
                if closed_bits[other, w] != bits[w]:
                    seen = False
                    break
            slot = (slot + 1) & closed_mask
        if seen and op >= 0:
            continue
        here = state[CLOSED]
        state[CLOSED] += 1
        closed_table[slot] = here
        closed_bits[here] = bits
        closed[here, 0], closed[here, 1], closed[here, 2] = parent, state[MOVES], moved
        for i in range(moved):
            pool[state[MOVES] + i] = moves[i]
        state[MOVES] += moved
        if done == goal:
            state[GOAL] = here
            return FOUND
        hash_one, hash_two = one_hash, np.uint64(0)
        for i in range(n):
            if is_done(bits, i):
                hash_two ^= random[i, 1]
        for i in range(count):
            op = ready[i]
            if is_done(bits, op):
                continue
            come, go, saved = weigh(g, rem, op)
            key = max(most, live + come - saved)
            if key >= upper:
                continue
            child_one, child_two, more = hash_one ^ random[op, 0], hash_two ^ random[op, 1], 1
            for k in range(g.touch_start[op], g.touch_start[op + 1]):
                x = g.touch[k]
                maker = g.maker[x]
                if rem[x] == g.total[x] and maker >= 0 and maker != op:
                    child_one ^= random[maker, 0]
                    child_two ^= random[maker, 1]
                    more += 1
            slot = np.int64(child_one & np.uint64(node_mask))
            known = False
            while node_table[slot] >= 0:
                other = node_table[slot]
                if node_hash[other, 0] == child_one and node_hash[other, 1] == child_two:
                    known = node_key[other] <= key
                    break
                slot = (slot + 1) & node_mask
            if known:
                continue
            new = state[NODES]
            state[NODES] += 1
            node_table[slot] = new
            node_hash[new, 0], node_hash[new, 1] = child_one, child_two
            node_key[new], node_live[new] = key, live + come - go
            node[new, 0], node[new, 1], node[new, 2] = done + more, here, op
            state[HEAP] = _push(heap, state[HEAP], new, node_key, done_column, node_live)
    return RUNNING


@njit
def beam_level(
    g: Graph,
    allowed: Ints,
    floor: int,
    upper: int,
    weight: float,
    width: int,
    noise: NDArray[np.float64],
    random: Bits,
    bits: Bits,
    key: Bytes,
    hashes: Bits,
    next_bits: Bits,
    next_key: Bytes,
    next_hashes: Bits,
    back: Ints,
    moves: Ints,
    since: int,
    wide: int,
    child: Ints,
    child_key: Bytes,
    child_score: NDArray[np.float64],
    table: Bits,
) -> Any:
    """One level of a beam: every set of ``wide`` takes its safe steps, and the best ``width`` of what may follow are the next.

    ``back`` [sets, 4] gets (parent, first move, moves, operator) for each next set; moves are appended from ``since``. Returns
    the number of the next sets, the length of ``moves``, and the number of a set that is complete, -1 where none is.
    """
    n = len(g.waits)
    rem, waits, ready = np.empty(len(g.rem), np.int64), np.empty(n, np.int64), np.empty(n + 1, np.int64)
    scratch, settled = np.empty(n + 1, np.int64), np.empty((wide, 2), np.int64)
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
        next_bits[0] = bits[complete]
        next_key[0] = key[complete]
        back[0, 0], back[0, 1], back[0, 2] = complete, settled[complete, 0], settled[complete, 1]
        back[0, 3] = -1
        return 1, since, 0
    order = np.argsort(child_score[:children])
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
        next_bits[made] = bits[at]
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


@njit
def refill(state: Bytes, random: Bits, closed_bits: Bits, node_hash: Bits, closed_table: Ints, node_table: Ints) -> None:
    """Fill the hash tables of a search anew; of equal nodes the later one counts, which has the lower peak."""
    closed_mask, node_mask = len(closed_table) - 1, len(node_table) - 1
    for at in range(1, state[CLOSED]):
        mixed = np.uint64(0)
        for op in range(len(random)):
            if is_done(closed_bits[at], op):
                mixed ^= random[op, 0]
        slot = np.int64(mixed & np.uint64(closed_mask))
        while closed_table[slot] >= 0:
            slot = (slot + 1) & closed_mask
        closed_table[slot] = at
    for at in range(1, state[NODES]):
        slot = np.int64(node_hash[at, 0] & np.uint64(node_mask))
        while node_table[slot] >= 0:
            other = node_table[slot]
            if node_hash[other, 0] == node_hash[at, 0] and node_hash[other, 1] == node_hash[at, 1]:
                break
            slot = (slot + 1) & node_mask
        node_table[slot] = at
