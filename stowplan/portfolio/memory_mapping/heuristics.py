"""Constructive heuristics as generators, so that a caller can look at the clock between two pieces of work."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from stowplan.portfolio.memory_mapping.arrays import Data, Ints
from stowplan.portfolio.memory_mapping.engine import BEST_FIT, State, new_state
from stowplan.portfolio.memory_mapping.search import construct, construct_first, densities, repack

#: Tensors inserted between two looks at the clock.
PIECE = 32

Built = Iterator[tuple[Ints, State]]


def production_greedy(data: Data) -> Built:
    """What production compilers do: by benefit density, best fit, latest prefetch that hides, eviction; then repacked, again.

    The second pass offers the tensors that found no place a memory packed afresh.
    """
    buffer, state = new_state(data)
    order = _by(data, state, 1)
    for _ in range(2):
        for start in range(0, len(order), PIECE):
            construct_first(data, state, start, PIECE, order)
            yield buffer, state
        if not repack(data, state):
            break
    yield buffer, state


def best_insertion(data: Data, by: int) -> Built:
    """Every tensor in the best of several ways, in the order of one of the densities of :func:`densities`."""
    buffer, state = new_state(data)
    order = _by(data, state, by)
    for start in range(0, len(order), PIECE):
        construct(data, state, BEST_FIT, False, start, PIECE, order)
        yield buffer, state
    yield buffer, state


def run(built: Built, stop: Callable[[], bool]) -> tuple[Ints, State, bool]:
    """Take a heuristic as far as time allows: what it has built, and whether it came to its end."""
    for buffer, state in built:
        last = buffer, state
        if stop():
            return *last, False
    return *last, True


def constructive(data: Data) -> Iterator[tuple[str, Built]]:
    """All constructive heuristics, by name, the production-style greedy first."""
    yield "greedy", production_greedy(data)
    for by in (1, 3, 0, 2):
        yield "insertion", best_insertion(data, by)


def _by(data: Data, state: State, by: int) -> Ints:
    keys = densities(data, state, by)
    order = np.argsort(-keys, kind="stable")
    return order[keys[order] > 0]
