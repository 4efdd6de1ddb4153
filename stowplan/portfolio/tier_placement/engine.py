"""Compiled code for tier placement: the state of a map, annealing with ejections, and Greedy-DP of the EGRL paper.

A *tier* is one memory of a chip's memory hierarchy; tier 0 is the slowest. A *map* assigns a tier to every tensor. It is
*valid* if no tier is *overfull*, that is, holds more bytes at some step than its capacity. A *move* changes the tiers of a few
tensors and may *eject* others from a tier that becomes overfull, into slower tiers. Arrays are those of
:class:`stowplan.portfolio.tier_placement.arrays.Data`. Greedy-DP is the baseline of Khadka et al., "Optimizing memory placement
using evolutionary graph reinforcement learning" (ICLR 2021). The functions raise no errors.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from stowplan.compiled import Ints2D, njit, njit_inner
from stowplan.portfolio.random_numbers import random_below
from stowplan.portfolio.tier_placement.arrays import Data, Ints

#: A move moves at most TOGETHER tensors to a new tier, and ejects at most EJECTIONS others to make space for them.
TOGETHER, EJECTIONS = 4, 8


class State(NamedTuple):
    """A map with derived data. There are T tiers, n layers, m tensors and L leaves (n rounded up to a power of two)."""

    tier: Ints
    """[m] tier of each tensor."""
    moved: Ints
    """[n] picoseconds that each layer spends on reads and writes."""
    top: Ints2D
    """[T, 2 L] a segment tree over the steps for each tier. A node stands for a range of steps. Its number is the largest
    number of bytes of outputs at a step of the range, without the bytes that are counted at its ancestors."""
    every: Ints2D
    """[T, L + 1] for each inner node of that tree, the bytes that are counted at the node. They are the bytes of outputs that
    are live at every step of the node's range, but not at every step of its parent's range."""
    stored: Ints
    """[T] bytes of weights in each tier."""
    listed: Ints2D
    """[T, m] the weights in each tier, unordered."""
    many: Ints
    """[T] number of weights in each tier."""
    place: Ints
    """[m] index of each weight in its row of ``listed``."""
    undo: Ints2D
    """[2, TOGETHER + EJECTIONS] tensors that the current move has changed, and their tiers before the move."""
    stamp: Ints
    """[m + 1] number of the last move that changed each tensor; the last entry is the number of the current move."""
    chance: Ints
    """[1] state of the random number generator."""


def start(data: Data, tier: Ints, seed: int) -> State:
    """The state of a map ``tier`` [m], which need not be valid; ``seed`` is the seed of the random numbers."""
    tiers, layers, tensors = len(data.capacity), len(data.compute), len(data.size)
    leaves = 1 << max(0, (layers - 1).bit_length())
    state = State(
        tier=np.zeros(tensors, np.int64),
        moved=data.external.copy(),
        top=np.zeros((tiers, 2 * leaves), np.int64),
        every=np.zeros((tiers, leaves + 1), np.int64),
        stored=np.zeros(tiers, np.int64),
        listed=np.zeros((tiers, tensors), np.int64),
        many=np.zeros(tiers, np.int64),
        place=np.zeros(tensors, np.int64),
        undo=np.zeros((2, TOGETHER + EJECTIONS), np.int64),
        stamp=np.zeros(tensors + 1, np.int64),
        # The state of the generator must not be 0. The seed is mixed, so that similar seeds give different sequences.
        chance=np.array([(seed * 0x9E3779B97F4A7C15 + 0x1F123BB5) % (1 << 61) + 1], np.int64),
    )
    fill(data, state, tier)
    return state


@njit
def fill(data: Data, state: State, tier: Ints) -> None:
    """Add all tensors of a map to an empty state."""
    for i in range(len(tier)):
        state.tier[i] = tier[i]
        _add_or_remove(data, state, i, tier[i], 1)
        for k in range(data.touch[i], data.touch[i + 1]):
            state.moved[data.touched[k]] += data.cost[k, tier[i]]


@njit
def latency(data: Data, state: State) -> int:
    """Latency of the map (ps)."""
    total = data.fixed
    for step in range(len(data.compute)):
        total += max(data.compute[step], state.moved[step])
    return int(total)


@njit_inner
def _random(state: State, below: int) -> int:
    """A random number from 0 to ``below - 1``."""
    return random_below(state.chance, below)


@njit_inner
def _add_or_remove(data: Data, state: State, i: int, t: int, sign: int) -> None:
    """Add tensor i to tier t (``sign`` 1) or remove it (-1), without changing latencies."""
    amount = sign * data.size[i]
    if data.is_weight[i]:
        state.stored[t] += amount
        if sign > 0:
            state.place[i] = state.many[t]
            state.listed[t, state.many[t]] = i
            state.many[t] += 1
        else:
            state.many[t] -= 1
            other = state.listed[t, state.many[t]]
            state.listed[t, state.place[i]] = other
            state.place[other] = state.place[i]
        return
    top, every = state.top[t], state.every[t]
    leaves = len(top) // 2
    left, right = data.layer[i] + leaves, data.last[i] + leaves + 1
    first, final = left >> 1, (right - 1) >> 1
    while left < right:
        if left & 1:
            top[left] += amount
            if left < leaves:
                every[left] += amount
            left += 1
        if right & 1:
            right -= 1
            top[right] += amount
            if right < leaves:
                every[right] += amount
        left >>= 1
        right >>= 1
    while first >= 1:
        top[first] = max(top[2 * first], top[2 * first + 1]) + every[first]
        if final != first:
            top[final] = max(top[2 * final], top[2 * final + 1]) + every[final]
        first >>= 1
        final >>= 1


@njit_inner
def _overfull(data: Data, state: State, t: int) -> bool:
    """Whether the capacity of tier t is exceeded at some step."""
    return bool(state.stored[t] + state.top[t, 1] > data.capacity[t])


@njit
def fits_capacities(data: Data, state: State) -> bool:
    """Whether the map is valid: no capacity is ever exceeded."""
    valid = True
    for t in range(len(data.capacity)):
        valid &= not _overfull(data, state, t)
    return valid


@njit_inner
def _fullest_step(state: State, t: int) -> int:
    """Step with the most bytes of outputs in tier t."""
    top = state.top[t]
    leaves, node = len(top) // 2, 1
    while node < leaves:
        node = 2 * node + (1 if top[2 * node + 1] > top[2 * node] else 0)
    return node - leaves


@njit_inner
def _shift(data: Data, state: State, i: int, t: int) -> int:
    """Move tensor i to tier t, even if that makes the tier overfull; returns the change of the latency (ps).

    The change is negative if the network becomes faster.
    """
    before = state.tier[i]
    _add_or_remove(data, state, i, before, -1)
    _add_or_remove(data, state, i, t, 1)
    state.tier[i] = t
    change = 0
    for k in range(data.touch[i], data.touch[i + 1]):
        step = data.touched[k]
        old = state.moved[step]
        new = old + data.cost[k, t] - data.cost[k, before]
        state.moved[step] = new
        change += max(data.compute[step], new) - max(data.compute[step], old)
    return change


@njit_inner
def _choose_ejected(data: Data, state: State, t: int) -> int:
    """A tensor to eject from the overfull tier t; -1 if none is found.

    It is, of a few random tensors, the one whose ejection into the next slower tier costs the least latency for each byte. Only
    weights and outputs that are live at the fullest step are drawn, because only they make space. Tensors that the current move
    has changed are left out.
    """
    step = _fullest_step(state, t)
    chosen, least = -1, math.inf
    outputs = data.live[step + 1] - data.live[step]
    # Three weights and three outputs are drawn, or six outputs if there are no weights.
    for draw in range(6):
        if draw % 2 == 0 and state.many[t]:
            i = state.listed[t, _random(state, state.many[t])]
        else:
            i = data.alive[data.live[step] + _random(state, outputs)]
        if state.tier[i] != t or data.size[i] == 0 or state.stamp[i] == state.stamp[-1]:
            continue
        loss = 0
        for k in range(data.touch[i], data.touch[i + 1]):
            old = state.moved[data.touched[k]]
            new = old + data.cost[k, max(0, t - 1)] - data.cost[k, t]
            compute = data.compute[data.touched[k]]
            loss += max(compute, new) - max(compute, old)
        rate = loss / data.size[i]
        if rate < least:
            chosen, least = i, rate
    return chosen


@njit_inner
def _record(state: State, changed: int, i: int) -> int:
    """Record the tier of tensor i, which is about to change, so that the move can be undone.

    ``changed`` is the number of records of this move before. Returns the new number.
    """
    state.undo[0, changed] = i
    state.undo[1, changed] = state.tier[i]
    state.stamp[i] = state.stamp[-1]
    return changed + 1


@njit_inner
def _make_room(data: Data, state: State, changed: int, most: int) -> tuple[int, int, bool]:
    """Eject tensors from overfull tiers into slower ones, as long as the move has changed fewer than ``most`` tensors.

    ``changed`` is the number of tensors that it has changed before. Returns the new number, the change of the latency (ps), and
    whether no tier is overfull now.
    """
    change = 0
    for back in range(len(data.capacity)):
        t = len(data.capacity) - 1 - back
        while _overfull(data, state, t):
            i = _choose_ejected(data, state, t) if t > 0 and changed < most else -1
            if i < 0:
                return changed, change, False
            changed = _record(state, changed, i)
            # The tensor goes to the fastest slower tier with space, or to tier 0, which is checked last.
            down = t - 1
            change += _shift(data, state, i, down)
            while down > 0 and _overfull(data, state, down):
                down -= 1
                change += _shift(data, state, i, down)
    return changed, change, True


@njit
def anneal(
    data: Data, state: State, moves: int, ejections: int, temperature: float, now: int, best: int, best_tier: Ints
) -> tuple[int, int]:
    """Metropolis walk over valid maps; returns the latencies (ps) of the last map and of the best.

    A move changes the tier of one tensor. In half of the moves, a layer that reads or writes this tensor is chosen, and some of
    its other tensors change as well, because a layer is only as fast as all of its tensors together. If a move overfills a
    tier, up to ``ejections`` (at most :data:`EJECTIONS`) other tensors are ejected into slower tiers. If ``ejections`` is 0,
    only one tensor changes.

    ``now`` is the latency (ps) of the state, which must be valid, and ``best`` that of the best map so far. ``best_tier`` [m]
    is written when a map is better than that. ``moves`` is the number of moves, valid or not. ``temperature`` is in ps and must
    be positive. With a single tier or no tensor, nothing is done.
    """
    tensors, tiers = len(data.size), len(data.capacity)
    if tiers < 2 or tensors == 0:
        return now, best
    for _ in range(moves):
        i = _random(state, tensors)
        t = _random(state, tiers - 1)
        if t >= state.tier[i]:
            t += 1
        if data.size[i] > data.capacity[t]:
            continue
        state.stamp[-1] += 1
        changed = _record(state, 0, i)
        change = _shift(data, state, i, t)
        if ejections and _random(state, 2):
            step = data.touched[data.touch[i] + _random(state, data.touch[i + 1] - data.touch[i])]
            for k in range(data.use[step], data.use[step + 1]):
                j = data.used[k]
                if changed < TOGETHER and state.stamp[j] != state.stamp[-1] and state.tier[j] != t and _random(state, 2):
                    changed = _record(state, changed, j)
                    change += _shift(data, state, j, t)
        changed, more, fits = _make_room(data, state, changed, changed + ejections)
        change += more
        if fits and (change <= 0 or (_random(state, 1 << 30) + 1) / (1 << 30) < math.exp(-change / temperature)):
            now += change
            if now < best:
                best = now
                for k in range(tensors):
                    best_tier[k] = state.tier[k]
        else:
            for k in range(changed - 1, -1, -1):
                _shift(data, state, state.undo[0, k], state.undo[1, k])
    return now, best


@njit
def greedy_pass(data: Data, state: State, weights: Ints, outputs: Ints, begin: int, end: int) -> int:
    """Greedy-DP of the EGRL paper (section 4) over the layers ``[begin, end)``; returns the number of maps tried.

    For each layer, all T x T choices of tiers for its weights and its output are tried while all other tensors are fixed, and
    the best valid choice is made. If no choice is better than the present one, nothing changes. There are T choices for a layer
    without weights. ``weights`` [n] and ``outputs`` [n] are the tensors of each layer, -1 for a layer without weights.
    """
    tiers, evaluations = len(data.capacity), 0
    for layer in range(begin, end):
        i, j = weights[layer], outputs[layer]
        old_i, old_j = state.tier[i] if i >= 0 else 0, state.tier[j]
        keep_i, keep_j, least, now = old_i, old_j, 0, 0
        for a in range(tiers if i >= 0 else 1):
            for b in range(tiers):
                if i >= 0:
                    now += _shift(data, state, i, a)
                now += _shift(data, state, j, b)
                evaluations += 1
                if now < least and fits_capacities(data, state):
                    keep_i, keep_j, least = a, b, now
        if i >= 0:
            _shift(data, state, i, keep_i)
        _shift(data, state, j, keep_j)
    return evaluations


@njit
def place_anywhere(data: Data, state: State, order: Ints) -> None:
    """Move tensors, in this order, from tier 0 to the slowest other tier with space, as long as tier 0 is overfull.

    All tensors are in tier 0 before. It may still be overfull afterwards, if no other tier has space.
    """
    for i in order:
        if _overfull(data, state, 0):
            for t in range(1, len(data.capacity)):
                _shift(data, state, i, t)
                if not _overfull(data, state, t):
                    break
                _shift(data, state, i, 0)


@njit
def mean_loss(data: Data, state: State) -> float:
    """The mean increase of the latency (ps) if a tensor moves to the next slower tier; it scales the temperature.

    Only tensors whose move makes the network slower count. If there are none, the result is 1.
    """
    total, number = 0.0, 0
    for i in range(len(data.size)):
        t = state.tier[i]
        if t > 0:
            change = _shift(data, state, i, t - 1)
            _shift(data, state, i, t)
            if change > 0:
                total += change
                number += 1
    return total / number if number else 1.0


@njit
def repair(data: Data, state: State) -> bool:
    """Eject tensors from overfull tiers until none is overfull; returns whether that succeeds.

    The choice of the tensors is random, so that it may fail although a valid map exists.
    """
    for _ in range(len(data.size)):
        state.stamp[-1] += 1
        changed, _, fits = _make_room(data, state, 0, TOGETHER + EJECTIONS)
        if fits:
            return True
        if changed == 0:
            return False
    return False
