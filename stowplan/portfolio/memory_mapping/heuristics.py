"""Constructive heuristics as generators, so that a caller can look at the clock between two pieces of work."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from stowplan.portfolio.memory_mapping.arrays import Data, Ints
from stowplan.portfolio.memory_mapping.construct import Floats, construct, measure, repack
from stowplan.portfolio.memory_mapping.engine import new_state
from stowplan.portfolio.memory_mapping.space import BEST_FIT
from stowplan.portfolio.memory_mapping.state import State

#: Tensors inserted between two looks at the clock.
PIECE = 32

Built = Iterator[State]


def densities(data: Data, by: int) -> Floats:
    """What each tensor saves at most, over (0) bytes, (1) bytes times lifetime, (2) one, (3) bytes times its root."""
    gains, lifetimes = (np.zeros(len(data.tensors) - 1) for _ in range(2))
    measure(data, new_state(data), gains, lifetimes)
    size = np.array([max(1, data.tensors[tensor].bytes) for tensor in range(len(gains))], np.float64)
    cost: Floats = (size, size * lifetimes, np.ones_like(size), size * np.sqrt(lifetimes))[by]
    return gains / cost


def production_greedy(data: Data) -> Built:
    """What production compilers do: by benefit density, best fit, latest prefetch that hides, eviction; then repacked, again.

    The second pass offers the tensors that found no place a memory packed afresh.
    """
    state = new_state(data)
    order = by_density(data, 1)
    for _ in range(2):
        for start in range(0, len(order), PIECE):
            construct(data, state, order, start, PIECE, False, BEST_FIT, False)
            yield state
        slots = _largest_first(data, state)
        if not repack(data, state, slots, slots.copy()):
            break
    yield state


def best_insertion(data: Data, by: int) -> Built:
    """Every tensor in the best of several ways, in the order of one of the :func:`densities`."""
    state = new_state(data)
    order = by_density(data, by)
    for start in range(0, len(order), PIECE):
        construct(data, state, order, start, PIECE, True, BEST_FIT, False)
        yield state
    yield state


def run(built: Built, stop: Callable[[], bool]) -> tuple[State, bool]:
    """Take a heuristic as far as time allows: what it has built, and whether it came to its end."""
    for state in built:
        last = state
        if stop():
            return last, False
    return last, True


def constructive(data: Data) -> Iterator[tuple[str, Built]]:
    """All constructive heuristics, by name, the production-style greedy first."""
    yield "greedy", production_greedy(data)
    for by in (1, 3, 0, 2):
        yield "insertion", best_insertion(data, by)


def by_density(data: Data, by: int) -> Ints:
    """Tensors of which something may be saved, the densest first: see :func:`densities`."""
    keys = densities(data, by)
    order = np.argsort(-keys, kind="stable")
    return order[keys[order] > 0]


def _largest_first(data: Data, state: State) -> Ints:
    """Slots in use, those that take most memory for most steps first."""
    placed = [int(state.order[position]) for position in range(state.totals[0].placed)]
    rows = state.slots
    placed.sort(key=lambda slot: rows[slot].bytes * (rows[slot].start - rows[slot].end))
    return np.array(placed, np.int64)
