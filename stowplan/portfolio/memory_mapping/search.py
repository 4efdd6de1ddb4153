"""Ruin-and-recreate search on the compiled partial plan (:mod:`.state`).

The method is that of Schrimpf et al., "Record breaking optimization results using the ruin and recreate principle" (J. Comput.
Phys. 159, 2000). A *round* removes some tensors from fast memory, inserts these and other tensors in a random order, and keeps
the result unless it is much worse. A *residency* is the stay of a tensor in fast memory, and a *slot* is its row in a table.
The *map of memory* lists all residencies by offset. The functions raise no errors.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from stowplan.compiled import njit, njit_inner, njit_once, records
from stowplan.portfolio.memory_mapping.arrays import Data, Floats, Ints
from stowplan.portfolio.memory_mapping.machine import (
    BEST_FIT,
    FIRST_FIT,
    HIGH_FIT,
    insert_best,
    note,
    remove,
    reopen,
    replay,
)
from stowplan.portfolio.memory_mapping.state import SlotRow, State

#: Largest number of tensors that a round removes and inserts.
MOST = 64

#: Random numbers are less than this, the modulus of Lehmer's generator, which is prime.
RANDOM = (1 << 31) - 1


class Status:
    """The numbers of a search."""

    random: int
    """State of the random number generator, in [1, RANDOM)."""
    best: int
    """Objective of the best plan (ps)."""
    best_count: int
    """Number of residencies of the best plan."""
    saved_count: int
    """Number of residencies that were removed in this round."""
    rounds: int
    """Number of rounds so far."""


class Search(NamedTuple):
    """The data of a search apart from the state of the plan. There are S slots and N tensors."""

    status: Sequence[Status]
    """[1] numbers of the search."""
    best: Sequence[SlotRow]
    """[S] residencies of the best plan."""
    saved: Sequence[SlotRow]
    """[S] residencies that were removed in this round."""
    chosen: Ints
    """[MOST] tensors that this round removes or inserts."""
    rank: Floats
    """[MOST] rank of each chosen tensor; tensors with the highest ranks are inserted first."""
    density: Floats
    """[N] the time that each tensor saves, divided by the bytes and the time that it takes (:func:`.heuristics.densities`); 0
    if it saves nothing."""


def new_search(data: Data, state: State, density: Floats, seed: int) -> Search:
    """A search that starts from the plan of a state. ``density`` [N] is that of :attr:`Search.density`."""
    search = Search(
        status=records(Status, 1),
        best=records(SlotRow, len(state.slots)),
        saved=records(SlotRow, len(state.slots)),
        chosen=np.zeros(MOST, np.int64),
        rank=np.zeros(MOST, np.float64),
        density=density,
    )
    search.status[0].random = 1 + (seed * 2654435761 + 88172645463325252) % (RANDOM - 1)
    save_best(state, search)
    return search


@njit
def save_best(state: State, search: Search) -> None:
    """Save the plan of the state as the best one."""
    status = search.status[0]
    status.best = state.totals[0].total
    status.best_count = 0
    for position in range(state.totals[0].placed):
        note(state.slots[state.order[position]], search.best[position])
        status.best_count += 1


@njit_inner
def random_below(search: Search, limit: int) -> int:
    """A random integer in [0, limit), by Lehmer's generator. Its state is part of the search, so that runs are repeatable."""
    status = search.status[0]
    status.random = status.random * 48271 % RANDOM
    return status.random % limit


# ---------------------------------------------------------------------------------------------------------------- ruin


@njit_inner
def _choose(state: State, search: Search, count: int, position: int) -> int:
    """Choose the tensor of the residency at ``position`` in the map of memory, and append it to the ``count`` chosen tensors.

    Returns the new number of chosen tensors.
    """
    search.chosen[count] = state.slots[state.order[position]].tensor
    return count + 1


@njit_once
def _pick_window(data: Data, state: State, search: Search, most: int, width: int) -> int:
    """Choose at most ``most`` tensors with a residency within ``width`` steps of a random step; returns their number.

    A tensor with several residencies may be chosen several times.
    """
    centre = random_below(search, data.horizon)
    low, high = max(0, centre - width), min(data.horizon, centre + width)
    placed = state.totals[0].placed
    offset = random_below(search, max(1, placed))
    count = 0
    for index in range(placed):
        position = (index + offset) % placed
        row = state.slots[state.order[position]]
        if row.start < high and row.end > low and count < most and random_below(search, 4) > 0:
            count = _choose(state, search, count, position)
    return count


@njit_once
def _pick_band(state: State, search: Search, most: int) -> int:
    """Choose tensors whose residencies are close to a random residency, in time and in memory; returns their number."""
    placed = state.totals[0].placed
    if placed == 0:
        return 0
    centre = random_below(search, placed)
    low, high = state.slots[state.order[centre]].start - 2, state.slots[state.order[centre]].end + 2
    count = 0
    for distance in range(placed):
        for side in range(2):
            position = centre + distance if side else centre - 1 - distance
            if 0 <= position < placed and count < most:
                row = state.slots[state.order[position]]
                if row.start < high and row.end > low:
                    count = _choose(state, search, count, position)
        if count == most:
            break
    return count


@njit_once
def _pick_random(state: State, search: Search, most: int) -> int:
    """Choose random tensors in fast memory; returns their number."""
    placed = state.totals[0].placed
    count = 0
    for _ in range(min(most, placed)):
        count = _choose(state, search, count, random_below(search, placed))
    return count


@njit_once
def _ruin(data: Data, state: State, search: Search) -> int:
    """Choose some tensors and remove them, after saving their residencies; returns their number.

    Of eight rounds, about four choose tensors by time (:func:`_pick_window`), three by time and place in memory
    (:func:`_pick_band`), and one at random.
    """
    most = 2 + random_below(search, 14)
    kind = random_below(search, 8)
    if kind < 4:
        count = _pick_window(data, state, search, most, 1 + random_below(search, 1 + min(data.horizon, 40)))
    elif kind < 7:
        count = _pick_band(state, search, most)
    else:
        count = _pick_random(state, search, min(most, 4))
    status = search.status[0]
    status.saved_count = 0
    for position in range(count):
        index = state.first_slot[search.chosen[position]]
        while index >= 0:
            note(state.slots[index], search.saved[status.saved_count])
            status.saved_count += 1
            index = state.slots[index].next
        remove(data, state, search.chosen[position])
    return count


# ------------------------------------------------------------------------------------------------------------ recreate


@njit_once
def _add_waiting(data: Data, state: State, search: Search, count: int, most: int) -> int:
    """Choose at most ``most`` tensors in slow memory whose lives overlap those of the ``count`` chosen ones.

    Returns the new number of chosen tensors.
    """
    low, high = data.horizon, 0
    for position in range(count):
        tensor = search.chosen[position]
        low = min(low, data.accesses[data.tensors[tensor].first_access].low)
        high = max(high, data.accesses[data.tensors[tensor + 1].first_access - 1].high)
    if count == 0:
        low, high = 0, data.horizon
    tensors = len(search.density)
    begin = random_below(search, tensors)
    end = min(MOST, count + most)
    for index in range(tensors):
        tensor = (begin + index) % tensors
        if count < end and search.density[tensor] > 0.0 and state.first_slot[tensor] < 0:
            first, last = data.tensors[tensor].first_access, data.tensors[tensor + 1].first_access
            if data.accesses[first].low < high and data.accesses[last - 1].high > low:
                search.chosen[count] = tensor
                count += 1
    return count


@njit_once
def _shuffle(search: Search, count: int) -> None:
    """Sort the ``count`` chosen tensors by descending density times noise."""
    spread = 1 + random_below(search, 3)
    for position in range(count):
        tensor = search.chosen[position]
        rank = search.density[tensor]
        for _ in range(spread):
            rank *= 0.25 + random_below(search, 1024) / 512.0
        at = position
        while at > 0 and search.rank[at - 1] < rank:
            search.rank[at] = search.rank[at - 1]
            search.chosen[at] = search.chosen[at - 1]
            at -= 1
        search.rank[at] = rank
        search.chosen[at] = tensor


@njit_once
def _recreate(data: Data, state: State, search: Search, count: int) -> None:
    """Insert the ``count`` chosen tensors, with a random policy for offsets and other random choices."""
    _shuffle(search, count)
    policy = random_below(search, 4)
    policy = FIRST_FIT if policy == 0 else HIGH_FIT if policy == 1 else BEST_FIT
    thorough = random_below(search, 4) == 0
    skip = 1 if random_below(search, 8) == 0 else 0
    # With latency tables, two tensors may save time only together. In some rounds, an insertion may therefore cost time. The
    # round is accepted or rejected as a whole.
    loss = 0
    if len(data.table) > 0 and random_below(search, 2) == 0:
        loss = state.totals[0].total >> (9 + random_below(search, 6))
    for position in range(count):
        if state.first_slot[search.chosen[position]] < 0:
            insert_best(data, state, search.chosen[position], policy, thorough, loss, skip)


@njit
def ruin_and_recreate(data: Data, state: State, search: Search, rounds: int, allowed: float) -> None:
    """Run some rounds of the search.

    A round that makes the plan worse is undone, unless the loss is at most ``allowed`` (ps) times the cube of a random number
    in [0, 1). The best plan so far is in ``search.best``; the plan of ``state`` may be worse.
    """
    status, totals = search.status[0], state.totals[0]
    for _ in range(rounds):
        before = totals.total
        count = _ruin(data, state, search)
        replay(data, state)
        count = _add_waiting(data, state, search, count, 2 + random_below(search, 12))
        _recreate(data, state, search, count)
        status.rounds += 1
        if totals.total < status.best:
            save_best(state, search)
        elif totals.total > before + allowed * (random_below(search, RANDOM) / RANDOM) ** 3:
            for position in range(count):
                remove(data, state, search.chosen[position])
            reopen(data, state, search.saved, status.saved_count)
            replay(data, state)
