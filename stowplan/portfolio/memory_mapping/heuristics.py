"""Constructive heuristics as generators, so that a caller can look at the clock between two pieces of work."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from stowplan.compiled import mark_warm
from stowplan.models.memory_mapping.problem import Piece, Problem, Step, Tensor, Use
from stowplan.portfolio.memory_mapping.arrays import Data, Ints, build
from stowplan.portfolio.memory_mapping.construct import Floats, construct, measure, repack
from stowplan.portfolio.memory_mapping.engine import new_state
from stowplan.portfolio.memory_mapping.search import new_search, restart, ruin_and_recreate
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
    order = _by(data, 1)
    for _ in range(2):
        for start in range(0, len(order), PIECE):
            construct(data, state, order, start, PIECE, False)
            yield state
        slots = _largest_first(data, state)
        if not repack(data, state, slots, slots.copy()):
            break
    yield state


def best_insertion(data: Data, by: int) -> Built:
    """Every tensor in the best of several ways, in the order of one of the :func:`densities`."""
    state = new_state(data)
    order = _by(data, by)
    for start in range(0, len(order), PIECE):
        construct(data, state, order, start, PIECE, True)
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


def _by(data: Data, by: int) -> Ints:
    keys = densities(data, by)
    order = np.argsort(-keys, kind="stable")
    return order[keys[order] > 0]


def _largest_first(data: Data, state: State) -> Ints:
    """Slots in use, those that take most memory for most steps first."""
    placed = [int(state.order[position]) for position in range(state.totals[0].placed)]
    rows = state.slots
    placed.sort(key=lambda slot: rows[slot].bytes * (rows[slot].start - rows[slot].end))
    return np.array(placed, np.int64)


def warm_up() -> None:
    """Compile everything, where it has not been, by solving a problem of two steps."""
    step = Step("step", "add", 1, (Use(0, False, 1),), (Piece(1, (1,), (0,)),))
    data = build(
        Problem(
            name="warm-up",
            target="none",
            cost_model="none",
            capacity=1,
            steps=(step, step),
            tensors=(Tensor("tensor", 1, 1, 1, is_input=True),),
        )
    )
    for _, steps in constructive(data):
        state, _ = run(steps, lambda: False)
    search = new_search(data, state, densities(data, 1), seed=0)
    ruin_and_recreate(data, state, search, 1, 0.0)
    restart(data, state, search.best, int(search.status[0].best_count))
    mark_warm()
