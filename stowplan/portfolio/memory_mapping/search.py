"""Constructive heuristics, and a ruin-and-recreate search, over the compiled partial plan.

The search follows the idea of Schrimpf et al., "Record breaking optimization results using the ruin and recreate principle"
(J. Comput. Phys. 159, 2000): take some tensors out, put them and others back in a random order, keep what is no worse.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from stowplan.portfolio.compiled import njit
from stowplan.portfolio.memory_mapping.arrays import ACCESS, HIGH, LOW, SIZE, Data, Ints
from stowplan.portfolio.memory_mapping.engine import (
    BEST_FIT,
    END,
    FIRST_FIT,
    HIGH_FIT,
    OFFSET,
    PLACED,
    START,
    TENSOR,
    TOTAL,
    State,
    access_gain,
    find_offset,
    insert_sorted,
    remove_tensor,
    replay,
)
from stowplan.portfolio.memory_mapping.insert import COPY, DEFINE, EAGER, insert_best, insert_tensor

Floats = NDArray[np.float64]


@njit
def potential(data: Data, state: State, tensor: int) -> float:
    """What a tensor's accesses would save one by one (ps), in the present state."""
    total = 0
    for access in range(data.tensors[tensor, ACCESS], data.tensors[tensor + 1, ACCESS]):
        gain = access_gain(data, state, access)
        if gain > 0:
            total += gain
    return float(total)


@njit
def lifetime(data: Data, state: State, tensor: int) -> float:
    """Time from a tensor's first access to its last (ps of the last replay); at least 1."""
    first, last = data.tensors[tensor, ACCESS], data.tensors[tensor + 1, ACCESS]
    return max(1.0, float(state.begins[data.accesses[last - 1, HIGH]] - state.begins[data.accesses[first, LOW]]))


@njit
def densities(data: Data, state: State, by: int) -> Floats:
    """Sort key of every tensor: its potential over (0) bytes, (1) bytes times lifetime, (2) one, (3) bytes times its root."""
    tensors = len(data.tensors) - 1
    keys = np.zeros(tensors, np.float64)
    for tensor in range(tensors):
        if data.tensors[tensor, ACCESS] == data.tensors[tensor + 1, ACCESS] or data.tensors[tensor, SIZE] > data.capacity:
            continue
        gain = potential(data, state, tensor)
        if by == 0:
            keys[tensor] = gain / data.tensors[tensor, SIZE]
        elif by == 1:
            keys[tensor] = gain / (float(data.tensors[tensor, SIZE]) * lifetime(data, state, tensor))
        elif by == 2:
            keys[tensor] = gain
        else:
            keys[tensor] = gain / (float(data.tensors[tensor, SIZE]) * np.sqrt(lifetime(data, state, tensor)))
    return keys


@njit
def construct(data: Data, state: State, policy: int, thorough: bool, start: int, count: int, order: Ints) -> None:
    """Insert the tensors ``order[start:start + count]``, each in its best way."""
    for position in range(start, min(start + count, len(order))):
        if state.head[order[position]] < 0:
            insert_best(data, state, order[position], policy, thorough, 0.0, 0)


@njit
def construct_first(data: Data, state: State, start: int, count: int, order: Ints) -> None:
    """Insert tensors in the manner of production compilers: the first way that saves anything is taken.

    Written fast if it fits and copied out at once where slow memory needs it; else copied in before each use, at the latest
    time that hides the copy; best fit.
    """
    for position in range(start, min(start + count, len(order))):
        tensor = order[position]
        if state.head[tensor] >= 0:
            continue
        base = state.counts[TOTAL]
        for mode in (DEFINE | COPY | EAGER, COPY):
            if insert_tensor(data, state, tensor, mode, BEST_FIT, 0):
                total = replay(data, state)
                if total < base:
                    state.counts[TOTAL] = total
                    break
                remove_tensor(data, state, tensor)
            replay(data, state)


@njit
def repack(data: Data, state: State) -> bool:
    """Give every residency a new offset, longest and largest first; False, and nothing changed, where they do not fit so."""
    placed = state.counts[PLACED]
    slots = state.order[:placed].copy()
    old = np.empty(placed, np.int64)
    keys = np.empty(placed, np.float64)
    for index in range(placed):
        slot = slots[index]
        old[index] = state.slots[slot, OFFSET]
        keys[index] = -float(data.tensors[state.slots[slot, TENSOR], SIZE]) * (
            state.slots[slot, END] - state.slots[slot, START]
        )
    state.counts[PLACED] = 0
    for index in np.argsort(keys, kind="mergesort"):
        slot = slots[index]
        size = data.tensors[state.slots[slot, TENSOR], SIZE]
        offset = find_offset(data, state, state.slots[slot, START], state.slots[slot, END], size, FIRST_FIT)
        if offset < 0:
            state.counts[PLACED] = 0
            for again in range(placed):
                state.slots[slots[again], OFFSET] = old[again]
                insert_sorted(state, slots[again])
            return False
        state.slots[slot, OFFSET] = offset
        insert_sorted(state, slot)
    return True


@njit
def random_below(seed: NDArray[np.uint64], limit: int) -> int:
    """Random integer in [0, limit) by xorshift64*; the state is part of the search, so that a run can be repeated."""
    x = seed[0]
    x ^= x >> np.uint64(12)
    x ^= x << np.uint64(25)
    x ^= x >> np.uint64(27)
    seed[0] = x
    return int((x * np.uint64(2685821657736338717)) >> np.uint64(33)) % limit


@njit
def _pick_window(data: Data, state: State, seed: NDArray[np.uint64], chosen: Ints, most: int, width: int) -> int:
    """Tensors with a residency in, or an unserved access near, a random stretch of the program."""
    centre = random_below(seed, data.horizon)
    low, high = max(0, centre - width), min(data.horizon, centre + width)
    count = 0
    offset = random_below(seed, max(1, state.counts[PLACED]))
    for index in range(state.counts[PLACED]):
        slot = state.order[(index + offset) % state.counts[PLACED]]
        if state.slots[slot, START] < high and state.slots[slot, END] > low and random_below(seed, 4) > 0:
            if count == most:
                break
            chosen[count] = state.slots[slot, TENSOR]
            count += 1
    return count


@njit
def _pick_band(data: Data, state: State, seed: NDArray[np.uint64], chosen: Ints, most: int) -> int:
    """Tensors whose residencies stand near a random one, in time and in memory."""
    placed = state.counts[PLACED]
    if placed == 0:
        return 0
    centre = random_below(seed, placed)
    middle = state.order[centre]
    low, high = state.slots[middle, START] - 2, state.slots[middle, END] + 2
    count = 0
    for distance in range(placed):
        for side in range(2):
            index = centre + distance if side else centre - 1 - distance
            if 0 <= index < placed and count < most:
                slot = state.order[index]
                if state.slots[slot, START] < high and state.slots[slot, END] > low:
                    chosen[count] = state.slots[slot, TENSOR]
                    count += 1
    return count


@njit
def _pick_random(state: State, seed: NDArray[np.uint64], chosen: Ints, most: int) -> int:
    """Tensors anywhere."""
    placed = state.counts[PLACED]
    count = 0
    for _ in range(min(most, placed)):
        chosen[count] = state.slots[state.order[random_below(seed, placed)], TENSOR]
        count += 1
    return count


@njit
def _add_waiting(data: Data, state: State, seed: NDArray[np.uint64], chosen: Ints, count: int, most: int, keys: Floats) -> int:
    """Append tensors with unserved accesses that overlap in time with the chosen ones."""
    low, high = data.horizon, 0
    for index in range(count):
        tensor = chosen[index]
        low = min(low, data.accesses[data.tensors[tensor, ACCESS], LOW])
        high = max(high, data.accesses[data.tensors[tensor + 1, ACCESS] - 1, HIGH])
    if count == 0:
        low, high = 0, data.horizon
    tensors = len(data.tensors) - 1
    begin = random_below(seed, tensors)
    added = 0
    for index in range(tensors):
        tensor = (begin + index) % tensors
        first, last = data.tensors[tensor, ACCESS], data.tensors[tensor + 1, ACCESS]
        if keys[tensor] <= 0.0 or first == last or state.head[tensor] >= 0:
            continue
        if data.accesses[first, LOW] < high and data.accesses[last - 1, HIGH] > low:
            chosen[count + added] = tensor
            added += 1
            if added == most:
                break
    return count + added


@njit
def ruin_and_recreate(data: Data, state: State, seed: NDArray[np.uint64], keys: Floats) -> None:
    """One round: take some tensors out and put them, and others that wait, back in a random order. May end worse."""
    chosen = np.empty(64, np.int64)
    most = 2 + random_below(seed, 14)
    kind = random_below(seed, 8)
    if kind < 4:
        width = 1 + random_below(seed, 1 + min(data.horizon, 40))
        count = _pick_window(data, state, seed, chosen, most, width)
    elif kind < 7:
        count = _pick_band(data, state, seed, chosen, most)
    else:
        count = _pick_random(state, seed, chosen, min(most, 4))
    for index in range(count):
        remove_tensor(data, state, chosen[index])
    state.counts[TOTAL] = replay(data, state)
    count = _add_waiting(data, state, seed, chosen, count, 2 + random_below(seed, 12), keys)
    order_keys = np.empty(count, np.float64)
    spread = 1 + random_below(seed, 3)
    for index in range(count):
        noise = 1.0
        for _ in range(spread):
            noise *= 0.25 + random_below(seed, 1024) / 512.0
        order_keys[index] = -keys[chosen[index]] * noise
    policy = (FIRST_FIT, BEST_FIT, BEST_FIT, HIGH_FIT)[random_below(seed, 4)]
    thorough = random_below(seed, 4) == 0
    skip = 1 if random_below(seed, 8) == 0 else 0
    for index in np.argsort(order_keys, kind="mergesort"):
        tensor = chosen[index]
        if state.head[tensor] < 0:
            insert_best(data, state, tensor, policy, thorough, 0.0, skip)
