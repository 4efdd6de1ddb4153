"""Constructive heuristics, which insert one tensor after the other into fast memory.

They are generators that yield between two pieces of work, so that a caller can check the time. The loops over tensors are
compiled.

If a problem allows stalls, the greedy in the style of production compilers is often worse with stalls than without
(:func:`without_stalls`). A plan without stalls is valid in both cases, so learned policies are compared with the better of the
two.
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
    """Parameters of the constructive heuristics."""

    piece: int = 32
    """Tensors inserted between two yields."""


PARAMS = parameters(GreedyParameters, __name__)


#: A heuristic that is under way: yields its state between two pieces of work.
Built = Iterator[State]


def sizes(data: Data) -> Floats:
    """Bytes of each tensor [N], at least 1."""
    return np.maximum(1.0, np.array(values(data.tensors, "bytes")[:-1], np.float64))


def densities(data: Data, by: int) -> Floats:
    """The benefit density of each tensor [N]: the most that it can save (ps), divided by a measure of the memory that it takes.

    The measure is, depending on ``by``: (0) its bytes, (1) bytes times lifetime, (2) 1, (3) bytes times the root of the
    lifetime.
    """
    gains, lifetimes = (np.zeros(len(data.tensors) - 1) for _ in range(2))
    measure(data, new_state(data), gains, lifetimes)
    size = sizes(data)
    cost: Floats = (size, size * lifetimes, np.ones_like(size), size * np.sqrt(lifetimes))[by]
    return gains / cost


def production_greedy(data: Data) -> Built:
    """The greedy in the style of production compilers, which is the baseline.

    Tensors are inserted by benefit density, at the best-fitting offset, and prefetched as late as the copy can still be hidden.
    Then all residencies are packed anew, and a second pass inserts tensors that found no place before.
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
    """Insert every tensor in the best of several ways, in the order of one of the :func:`densities`."""
    return inserted(data, new_state(data), by_density(data, by))


def inserted(data: Data, state: State, order: Ints, policy: int = BEST_FIT) -> Built:
    """Insert every tensor of an order in its best way, into a state that may already have others."""
    for start in range(0, len(order), PARAMS.piece):
        construct(data, state, order, start, PARAMS.piece, True, policy)
        yield state
    yield state


def run(built: Built, stop: Callable[[], bool]) -> tuple[State, bool]:
    """Run a heuristic as far as time allows; returns its state and whether it finished."""
    for state in built:
        last = state
        if stop():
            return last, False
    return last, True


def constructive(data: Data) -> Iterator[tuple[str, Built]]:
    """All constructive heuristics with their names; the first one is the baseline."""
    yield "greedy", production_greedy(data)
    for by in (1, 3, 0, 2):
        yield "insertion", best_insertion(data, by)


def by_density(data: Data, by: int) -> Ints:
    """The tensors that may save something, those of the largest density first: see :func:`densities`."""
    keys = densities(data, by)
    order = np.argsort(-keys, kind="stable")
    return order[keys[order] > 0]


def _largest_first(data: Data, state: State) -> Ints:
    """The slots in use, by descending size times duration."""
    placed: Ints = state.order[: state.totals[0].placed].copy()
    size, start, end = (np.array(values(state.slots, name), np.int64)[placed] for name in ("bytes", "start", "end"))
    return placed[np.argsort(size * (start - end), kind="stable")]


@njit
def measure(data: Data, state: State, gains: Floats, lifetimes: Floats) -> None:
    """Compute the gain and the lifetime of each tensor [N], in ps.

    The gain is the sum of what each access of the tensor alone would save if it were fast; 0 for a tensor that does not fit.
    The lifetime is the time from its first access to its last. Both refer to the current state, in which no tensor has a
    residency.
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
    """Insert the tensors ``order[start:start + count]``.

    If ``best`` is set, each is inserted in the best of all ways, including some that are rarely the best, such as stalls, and
    ``policy`` chooses among the free offsets. Otherwise tensors are inserted as production compilers do it.
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
    """Name and objective (ps) of the production-style greedy that plans without stalls; infinite if it was stopped."""
    data = build(msgspec.structs.replace(problem, stalls="forbidden"))
    state, is_complete = run(production_greedy(data), stop)
    return WITHOUT_STALLS, int(state.totals[0].total) if is_complete else math.inf


@njit
def follow(data: Data, state: State, fast: Floats, keep: Floats, sure: Floats, least: float, trust: float) -> None:
    """Restrict a state to what a hint says.

    A tensor may enter fast memory at an access whose value of ``fast`` is at least ``least``, and stay there until the next
    access if its value of ``keep`` is at least ``least``. If the confidence ``sure`` is below ``trust``, everything is
    permitted.

    The values of the hint refer to the accesses of :mod:`stowplan.models.memory_mapping.accesses`, several of which may be one
    access in the tables. Of these, the first decides whether the tensor enters and the last whether it stays.
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
    """Compute for each tensor [N] the sum of what its permitted accesses alone would save (ps).

    These are the accesses at which the tensor may enter fast memory or until which it may stay. No tensor has a residency in
    the current state.
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
    """Compute for each tensor [N] the lowest place in memory that a hint suggests at any access that it has in fast memory.

    ``lowest`` starts with upper limits. The other arguments are as for :func:`follow`.
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
