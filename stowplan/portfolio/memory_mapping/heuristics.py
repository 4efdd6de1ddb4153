"""Constructive heuristics, which insert one tensor after the other into fast memory.

They are generators that yield between two pieces of work, so that a caller can check the time. The loops over tensors are
compiled. :mod:`.state` describes the tables of a partial plan. A *residency* is the stay of a tensor in fast memory, and its
row in a table is a *slot*. An *access* is all uses of a tensor by one step; it is *fast* if it is served from fast memory. The
*timeline* of a state is the times at which steps begin. A *way* to insert a tensor says, for example, whether it is written to
fast memory or copied there (:mod:`.machine`). In shapes, N is the number of tensors. A *hint* has values in [0, 1] for each
access of a tensor, such as how likely the access is served from fast memory in a good plan. The functions raise no errors.

If a problem allows stalls (waiting for copies), the greedy heuristic in the style of production compilers often makes a worse
plan than if it may not stall (:func:`without_stalls`). A plan without stalls is valid in both cases, so learned policies are
compared with the better of the two plans.
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
    """Number of tensors that are inserted between two yields."""


PARAMS = parameters(GreedyParameters, __name__)


#: A heuristic as a generator, which yields its state between two pieces of work and at the end.
Built = Iterator[State]


def sizes(data: Data) -> Floats:
    """[N] bytes of each tensor, at least 1."""
    return np.maximum(1.0, np.array(values(data.tensors, "bytes")[:-1], np.float64))


def densities(data: Data, by: int) -> Floats:
    """[N] the benefit density of each tensor: an estimate of the time that it can save (ps), divided by a cost.

    ``by`` chooses the cost. With 0 it is the square root of the tensor's bytes times its lifetime (ps), with 1 its bytes times
    its lifetime, with 2 the number 1, and with 3 its bytes times the square root of its lifetime. The lifetime is that of
    :func:`measure`.
    """
    gains, lifetimes = (np.zeros(len(data.tensors) - 1) for _ in range(2))
    measure(data, new_state(data), gains, lifetimes)
    size = sizes(data)
    cost: Floats = (np.sqrt(size * lifetimes), size * lifetimes, np.ones_like(size), size * np.sqrt(lifetimes))[by]
    return gains / cost


def production_greedy(data: Data) -> Built:
    """The greedy heuristic in the style of production compilers, which is the baseline ``greedy``.

    Tensors are inserted by benefit density, at the best-fitting offset, and prefetched as late as the copy can still be hidden.
    Then all residencies get new offsets, and a second pass inserts tensors that found no place before.
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
    """Insert every tensor of an order in its best way, into a state that may already have residencies of other tensors.

    ``policy`` chooses among the free offsets (:func:`.space.find_offset`). Tensors that have a residency already, or that save
    no time, are skipped.
    """
    for start in range(0, len(order), PARAMS.piece):
        construct(data, state, order, start, PARAMS.piece, True, policy)
        yield state
    yield state


def run(built: Built, stop: Callable[[], bool]) -> tuple[State, bool]:
    """Run a heuristic until it ends or ``stop`` returns True; returns its latest state and whether it ended."""
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
    """Returns the tensors that may save time, by descending density; ``by`` chooses the density (:func:`densities`)."""
    keys = densities(data, by)
    order = np.argsort(-keys, kind="stable")
    return order[keys[order] > 0]


def _largest_first(data: Data, state: State) -> Ints:
    """Returns the slots in use, by descending size times length in steps."""
    placed: Ints = state.order[: state.totals[0].placed].copy()
    size, start, end = (np.array(values(state.slots, name), np.int64)[placed] for name in ("bytes", "start", "end"))
    return placed[np.argsort(size * (start - end), kind="stable")]


@njit
def measure(data: Data, state: State, gains: Floats, lifetimes: Floats) -> None:
    """Compute the gain and the lifetime of each tensor, both in ps; ``gains`` [N] and ``lifetimes`` [N] are written.

    The gain is the sum, over the accesses of the tensor, of the time that the access alone would save if it were fast
    (:func:`.timeline.gain`); 0 for a tensor that does not fit. The lifetime is the time from the first access to the last, at
    least 1. Both refer to the timeline of ``state``, in which no tensor has a residency.
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


#: Name of the greedy heuristic that may not stall.
WITHOUT_STALLS = "greedy, no stalls"


def without_stalls(problem: Problem, stop: Callable[[], bool] = lambda: False) -> tuple[str, float]:
    """Name and objective (ps) of the plan that :func:`production_greedy` makes if it may not stall.

    The objective is infinite if ``stop`` ended the heuristic.
    """
    data = build(msgspec.structs.replace(problem, stalls="forbidden"))
    state, is_complete = run(production_greedy(data), stop)
    return WITHOUT_STALLS, int(state.totals[0].total) if is_complete else math.inf


@njit
def follow(data: Data, state: State, fast: Floats, keep: Floats, sure: Floats, least: float, trust: float) -> None:
    """Permit in a state only the residencies that a hint suggests (``State.permits``).

    A tensor may enter fast memory at an access whose value of ``fast`` is at least ``least``, and stay there until the next
    access if its value of ``keep`` is at least ``least``. At accesses whose confidence ``sure`` is below ``trust``, both are
    permitted. All of these numbers are in [0, 1].

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
    """Compute for each tensor the sum of the times that its permitted accesses alone would save (ps); writes ``gains`` [N].

    An access is permitted if the tensor may enter fast memory there or stay until then. No tensor has a residency in ``state``.
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
    """Compute for each tensor the lowest place in memory that a hint suggests, over the accesses that it has in fast memory.

    ``place`` has, for each access, an offset as a fraction of the capacity. ``lowest`` [N] is lowered where a place is below
    its value. The other arguments are as for :func:`follow`. An access counts as in fast memory if its value of ``fast`` is at
    least one half.
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
