"""Constructive heuristics as generators, so that a caller can look at the clock between two pieces of work.

The loops over tensors are compiled.

Where a problem allows stalls, the production-style greedy that plans with them is often worse than the one that plans without
(:func:`without_stalls`), and a plan without stalls is valid either way: the better one is what policies are judged against.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import msgspec
import numpy as np

from stowplan.compiled import njit, values
from stowplan.models.memory_mapping.problem import Problem
from stowplan.parameters import Parameters, parameters
from stowplan.portfolio.memory_mapping.arrays import Data, Floats, Ints, build
from stowplan.portfolio.memory_mapping.machine import BEST_FIT, gain, insert_best, insert_first, new_state, repack
from stowplan.portfolio.memory_mapping.state import ENTER, STAY, State


class GreedyParameters(Parameters, frozen=True):
    """Parameters of the greedy."""

    piece: int = 32
    """Tensors inserted between two looks at the clock."""


PARAMS = parameters(GreedyParameters, __name__)


Built = Iterator[State]


def sizes(data: Data) -> Floats:
    """Bytes of each tensor, at least one; ``[N]``."""
    return np.maximum(1.0, np.array(values(data.tensors, "bytes")[:-1], np.float64))


def densities(data: Data, by: int) -> Floats:
    """What each tensor saves at most, over (0) bytes, (1) bytes times lifetime, (2) one, (3) bytes times its root."""
    gains, lifetimes = (np.zeros(len(data.tensors) - 1) for _ in range(2))
    measure(data, new_state(data), gains, lifetimes)
    size = sizes(data)
    cost: Floats = (size, size * lifetimes, np.ones_like(size), size * np.sqrt(lifetimes))[by]
    return gains / cost


def production_greedy(data: Data) -> Built:
    """What production compilers do: by benefit density, best fit, latest prefetch that hides, eviction; then repacked, again.

    The second pass offers the tensors that found no place a memory packed afresh.
    """
    state = new_state(data)
    order = by_density(data, 1)
    for _ in range(2):
        for start in range(0, len(order), PARAMS.piece):
            construct(data, state, order, start, PARAMS.piece, False, BEST_FIT)
            yield state
        slots = _largest_first(data, state)
        if not repack(data, state, slots, slots.copy()):
            break
    yield state


def best_insertion(data: Data, by: int) -> Built:
    """Every tensor in the best of several ways, in the order of one of the :func:`densities`."""
    return inserted(data, new_state(data), by_density(data, by))


def inserted(data: Data, state: State, order: Ints, policy: int = BEST_FIT) -> Built:
    """Every tensor of an order in its best way, into a state that may have others."""
    for start in range(0, len(order), PARAMS.piece):
        construct(data, state, order, start, PARAMS.piece, True, policy)
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
    placed: Ints = state.order[: state.totals[0].placed].copy()
    size, start, end = (np.array(values(state.slots, name), np.int64)[placed] for name in ("bytes", "start", "end"))
    return placed[np.argsort(size * (start - end), kind="stable")]


@njit
def measure(data: Data, state: State, gains: Floats, lifetimes: Floats) -> None:
    """Fill two columns of [N]: what each tensor's accesses would save one by one, and the time from its first to its last (ps).

    Both are of the present state, in which the tensors have no residencies. The gain is 0 for a tensor that can have none.
    """
    for tensor in range(len(gains)):
        first, last = data.tensors[tensor].first_access, data.tensors[tensor + 1].first_access
        lifetimes[tensor] = 1.0
        if first == last or data.tensors[tensor].bytes > data.capacity:
            continue
        for access in range(first, last):
            gains[tensor] += gain(data, state, access)
        begin = state.began[data.accesses[first].low]
        lifetimes[tensor] = max(1.0, float(state.began[data.accesses[last - 1].high] - begin))


@njit
def construct(data: Data, state: State, order: Ints, start: int, count: int, best: bool, policy: int) -> None:
    """Insert the tensors ``order[start:start + count]``: each in its best way, or in the manner of production compilers.

    In the first case ``policy`` says which of the places that are free is taken, and also ways are tried that are rarely the
    best, stalls among them.
    """
    for position in range(start, min(start + count, len(order))):
        if state.first_slot[order[position]] < 0:
            if best:
                insert_best(data, state, order[position], policy, True, 0, 0)
            else:
                insert_first(data, state, order[position])


#: Name of the greedy that plans without stalls.
WITHOUT_STALLS = "greedy, no stalls"


def without_stalls(problem: Problem, stop: Callable[[], bool] = lambda: False) -> tuple[str, float]:
    """Name and objective of the production-style greedy that plans without stalls; infinite where it was stopped."""
    data = build(msgspec.structs.replace(problem, stalls="forbidden"))
    state, is_complete = run(production_greedy(data), stop)
    return WITHOUT_STALLS, int(state.totals[0].total) if is_complete else math.inf


@njit
def follow(data: Data, state: State, fast: Floats, keep: Floats, sure: Floats, least: float, trust: float) -> None:
    """Permit what a hint says: a tensor enters where it is fast to at least ``least``, and stays where it is kept to that.

    ``fast``, ``keep`` and ``sure`` are of the accesses of :mod:`stowplan.models.memory_mapping.accesses`: of those that the
    tables have as one, the first says whether it enters and the last whether it stays. Where ``sure`` is less than ``trust``
    everything is permitted.
    """
    number = -1
    for access in range(len(state.permits)):
        first, last = data.accesses[access].first_use, data.accesses[access + 1].first_use
        state.permits[access] = 0
        for position in range(first, last):
            if position > first and data.access_uses[position].step == data.access_uses[position - 1].step:
                continue
            number += 1
            doubts = sure[number] < trust
            if position == first and (doubts or fast[number] >= least):
                state.permits[access] |= ENTER
            state.permits[access] &= ENTER
            if doubts or keep[number] >= least:
                state.permits[access] |= STAY


@njit
def permitted_gains(data: Data, state: State, gains: Floats) -> None:
    """Fill [N]: what the accesses at which a tensor may enter, or to which it may stay, would save one by one (ps).

    The tensors have no residencies in the present state.
    """
    for tensor in range(len(gains)):
        first, last = data.tensors[tensor].first_access, data.tensors[tensor + 1].first_access
        gains[tensor] = 0.0
        stays = False
        for access in range(first, last):
            stays = (stays and state.permits[access - 1] & STAY != 0) or state.permits[access] & ENTER != 0
            if stays:
                gains[tensor] += gain(data, state, access)


@njit
def lowest_places(data: Data, fast: Floats, place: Floats, sure: Floats, trust: float, lowest: Floats) -> None:
    """Lower [N] to the least place that a hint has for each tensor, of those of its accesses that it has in fast memory.

    The other arguments are as for :func:`follow`.
    """
    number = -1
    for tensor in range(len(lowest)):
        first = data.accesses[data.tensors[tensor].first_access].first_use
        last = data.accesses[data.tensors[tensor + 1].first_access].first_use
        for position in range(first, last):
            if position > first and data.access_uses[position].step == data.access_uses[position - 1].step:
                continue
            number += 1
            if sure[number] >= trust and fast[number] >= 0.5:
                lowest[tensor] = min(lowest[tensor], place[number])
