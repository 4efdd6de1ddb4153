"""Beam search for an order: many sets of operators side by side, each step the best of what may follow."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from stowplan.portfolio.operator_order import kernel
from stowplan.portfolio.operator_order.graph import Graph

#: Children of a level at most, for each set.
_CHILDREN = 64


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
        Its peak, and the operators in the graph's direction; None where the beam came to no end, or was stopped.
    """
    n = len(graph.waits)
    words = max(1, (n + 63) // 64)
    random = np.random.default_rng(20_240_607).integers(1, 1 << 63, (max(1, n), 2), np.int64).astype(np.uint64)
    noise = np.zeros(n) if chance is None else chance.normal(0.0, 0.05, n)
    allowed = np.ones(n, np.int64) if among is None else np.zeros(n, np.int64)
    allowed[[] if among is None else list(among)] = 1
    bits, after = np.zeros((width, words), np.uint64), np.zeros((width, words), np.uint64)
    key, after_key = np.full(width, floor, np.int64), np.zeros(width, np.int64)
    hashes, after_hashes = np.zeros((width, 2), np.uint64), np.zeros((width, 2), np.uint64)
    many = width * _CHILDREN
    child, child_key, child_score = np.zeros((many, 2), np.int64), np.zeros(many, np.int64), np.zeros(many)
    table = np.zeros(1 << (2 * many).bit_length(), np.uint64)
    for op in done:
        bits[0, op >> 6] |= np.uint64(1) << np.uint64(op & 63)
    backs: list[np.ndarray] = []
    moves: list[np.ndarray] = []
    wide = 1
    while not should_stop():
        back, level_moves = np.zeros((width, 4), np.int64), np.zeros(wide * (n + 1), np.int64)
        made, used, complete = kernel.beam_level(
            graph, allowed, floor, upper, weight, width, noise, random, bits, key, hashes, after, after_key, after_hashes,
            back, level_moves, 0, wide, child, child_key, child_score, table,
        )  # fmt: skip
        if made == 0:
            return None
        backs.append(back[:made].copy())
        moves.append(level_moves[:used].copy())
        bits, after, key, after_key, hashes, after_hashes = after, bits, after_key, key, after_hashes, hashes
        wide = made
        if complete >= 0:
            return int(key[0]), _follow(graph, backs, moves, set(done))
    return None


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
    found: list[int] = []
    for op in order:
        if op in done:
            continue
        for storage in graph.touch[graph.touch_start[op] : graph.touch_start[op + 1]]:
            maker = int(graph.maker[storage])
            if maker >= 0 and maker != op and maker not in done:
                done.add(maker)
                found.append(maker)
        done.add(op)
        found.append(op)
    return found


def normalize(graph: Graph, order: list[int]) -> list[int]:
    """An order of all operators with the lazy ones as late as they can be, which is never worse."""
    return complete_lazy(graph, [op for op in order if not graph.is_lazy[op]])
