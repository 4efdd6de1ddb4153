"""Simulated annealing over places, for delays without a limit: a tile for each group of instructions that share one, and times.

There the initiation interval (II) is decided by places: whatever is on no cycle waits for a free slot. So times are only looked
for where others depend on them (:attr:`~stowplan.models.modulo_scheduling.structure.Structure.slotted`: on recurrences, and
everywhere where latencies differ). What breaks a rule counts: links that values lack, groups that must be apart on one tile,
more instructions or words than a tile has room for, clocks by which values on recurrences are late, and pairs of timed
instructions in one slot.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from stowplan.compiled import Ints2D, njit, njit_inner
from stowplan.parameters import Parameters, parameters
from stowplan.portfolio.modulo_scheduling.body import FAR, Body, Data, Ints, at_ii, build
from stowplan.portfolio.random_numbers import random_below


class AnnealingParameters(Parameters, frozen=True):
    """Parameters of annealing."""

    hot: float = 0.5
    """Broken rules that the first temperature is worth."""
    cold: float = 0.05
    """Broken rules that the last temperature is worth."""
    chunk: int = 100
    """Moves a group between two looks at the clock."""


PARAMS = parameters(AnnealingParameters, __name__)


#: How often what has a time keeps its tile.
_STAY = 30

#: How often a move goes next to a neighbour, and how often one into a full tile is an exchange.
_BESIDE, _EXCHANGE = 70, 50


class State(NamedTuple):
    """A placement, and what follows from it."""

    tile: Ints
    """[G]"""
    time: Ints
    """[I] Of timed instructions."""
    issued: Ints2D
    """[T, II] Timed instructions in each slot."""
    done: Ints2D
    """[T, II] Their results."""
    load: Ints
    """[T] Instructions."""
    held: Ints
    """[T] Words."""
    chance: Ints
    """[1] State of the random numbers."""


@njit_inner
def _random(state: State, below: int) -> int:
    """A random number from 0 to below - 1."""
    return random_below(state.chance, below)


@njit_inner
def _broken_at(data: Data, state: State, group: int, tile: int) -> int:
    """Rules of places that a group breaks on a tile: links and groups apart; the others where they stand."""
    total = 0
    for at in range(data.link_start[group], data.link_start[group + 1]):
        total += data.excess[data.link_out[at], tile, state.tile[data.link[at]]]
    for at in range(data.apart_start[group], data.apart_start[group + 1]):
        total += state.tile[data.apart[at]] == tile
    return total


@njit_inner
def _late_at(data: Data, state: State, number: int, tile: int, time: int, inside: bool) -> int:
    """Clocks by which values to and from an instruction are late; ``inside`` counts those of its own group, too."""
    total = 0
    group = data.group[number]
    for at in range(data.wait_start[number], data.wait_start[number + 1]):
        other = data.wait[at]
        there = data.group[other]
        if there == group:
            if not inside:
                continue
            hops = 0
        elif data.wait_out[at]:
            hops = data.hops[tile, state.tile[there]]
        else:
            hops = data.hops[state.tile[there], tile]
        late = (time - state.time[other] if data.wait_out[at] else state.time[other] - time) + data.wait_clocks[at] + hops
        total += max(0, late)
    return total


@njit_inner
def _times_at(data: Data, state: State, group: int, tile: int, chosen: int, time: int) -> int:
    """Clocks by which a group is late on a tile, one of its members issued at ``time``."""
    total = 0
    for at in range(data.member_start[group], data.member_start[group + 1]):
        number = data.member[at]
        total += _late_at(data, state, number, tile, time if number == chosen else state.time[number], number == chosen)
    return total


@njit_inner
def _leave(data: Data, state: State, group: int) -> int:
    """Take a group out of its slots; returns how many pairs were in one."""
    total, tile = 0, state.tile[group]
    for at in range(data.member_start[group], data.member_start[group + 1]):
        number = data.member[at]
        issue, done = state.time[number] % data.ii, (state.time[number] + data.latency[number]) % data.ii
        state.issued[tile, issue] -= 1
        state.done[tile, done] -= 1
        total += state.issued[tile, issue] + data.mixed * state.done[tile, done]
    return total


@njit_inner
def _enter(data: Data, state: State, group: int) -> int:
    """Put a group into its slots; returns how many pairs are in one."""
    total, tile = 0, state.tile[group]
    for at in range(data.member_start[group], data.member_start[group + 1]):
        number = data.member[at]
        issue, done = state.time[number] % data.ii, (state.time[number] + data.latency[number]) % data.ii
        total += state.issued[tile, issue] + data.mixed * state.done[tile, done]
        state.issued[tile, issue] += 1
        state.done[tile, done] += 1
    return total


@njit_inner
def _time(data: Data, state: State, number: int, tile: int) -> int:
    """A time to go to: mostly one at which nothing is late, where there is one."""
    low, high = -FAR, FAR
    group = data.group[number]
    for at in range(data.wait_start[number], data.wait_start[number + 1]):
        other = data.wait[at]
        there = tile if data.group[other] == group else state.tile[data.group[other]]
        if data.wait_out[at]:
            high = min(high, state.time[other] - data.wait_clocks[at] - data.hops[tile, there])
        else:
            low = max(low, state.time[other] + data.wait_clocks[at] + data.hops[there, tile])
    if low == -FAR and high == FAR:
        return int(state.time[number] + _random(state, data.ii))
    if low == -FAR:
        low = high - data.ii + 1
    elif high == FAR:
        high = low + data.ii - 1
    if low > high:
        low, high = high, low
    return int(low + _random(state, min(high - low + 1, 2 * data.ii)))


@njit_inner
def _overfull(data: Data, load: int, words: int) -> int:
    """What a tile has too much: instructions, and 1 for words."""
    return max(0, load - data.slots) + (words > data.room)


@njit
def cost(data: Data, state: State) -> int:
    """Rules that a placement breaks; also counts anew what stands on each tile."""
    state.load[:] = 0
    state.held[:] = 0
    total = 0
    for group in range(len(state.tile)):
        tile = state.tile[group]
        state.load[tile] += data.size[group]
        state.held[tile] += data.words[group]
        for at in range(data.link_start[group], data.link_start[group + 1]):
            if data.link_out[at]:
                total += data.excess[1, tile, state.tile[data.link[at]]]
        for at in range(data.apart_start[group], data.apart_start[group + 1]):
            total += data.apart[at] > group and state.tile[data.apart[at]] == tile
    state.issued[:] = 0
    state.done[:] = 0
    for group in range(len(state.tile)):
        tile = state.tile[group]
        total += _enter(data, state, group)
        for at in range(data.member_start[group], data.member_start[group + 1]):
            number = data.member[at]
            for edge in range(data.wait_start[number], data.wait_start[number + 1]):
                if data.wait_out[edge]:
                    other = data.wait[edge]
                    way = data.wait_clocks[edge] + data.hops[tile, state.tile[data.group[other]]]
                    total += max(0, state.time[number] + way - state.time[other])
    for tile in range(len(state.load)):
        total += _overfull(data, state.load[tile], state.held[tile])
    return total


@njit_inner
def _target(data: Data, state: State, group: int) -> int:
    """A tile to go to: mostly one that a neighbour's is near."""
    first, last = data.link_start[group], data.link_start[group + 1]
    if last > first and _random(state, 100) < _BESIDE:
        at = state.tile[data.link[first + _random(state, last - first)]]
        return int(data.near[data.near_start[at] + _random(state, data.near_start[at + 1] - data.near_start[at])])
    return _random(state, len(state.load))


@njit_inner
def _shift(data: Data, state: State, group: int, tile: int) -> None:
    """Put a group onto another tile."""
    old = state.tile[group]
    state.load[old] -= data.size[group]
    state.held[old] -= data.words[group]
    state.load[tile] += data.size[group]
    state.held[tile] += data.words[group]
    state.tile[group] = tile


@njit
def moves(data: Data, state: State, count: int, now: int, hot: float, cold: float) -> int:
    """Try moves, at temperatures that fall from ``hot`` to ``cold``; stops early where no rule is broken. Returns the cost."""
    groups = len(state.tile)
    temperature, ratio = hot, (cold / hot) ** (1.0 / count)
    for _ in range(count):
        if now == 0:
            break
        temperature *= ratio
        group = _random(state, groups)
        timed = data.member_start[group + 1] - data.member_start[group]
        old, new = state.tile[group], _target(data, state, group)
        chosen, before_time, time = -1, 0, 0
        if timed:
            if _random(state, 100) < _STAY:
                new = old
            chosen = data.member[data.member_start[group] + _random(state, timed)]
            before_time = state.time[chosen]
            time = _time(data, state, chosen, new)
        if (new == old and (chosen < 0 or time == before_time)) or not data.allowed[group, new]:
            continue
        before = _broken_at(data, state, group, old) + (
            _overfull(data, state.load[old], state.held[old]) + _overfull(data, state.load[new], state.held[new])
        )
        change = _broken_at(data, state, group, new)
        if timed:
            before += _times_at(data, state, group, old, chosen, before_time) + _leave(data, state, group)
            change += _times_at(data, state, group, new, chosen, time)
            state.time[chosen] = time
        _shift(data, state, group, new)
        other = -1
        if new != old and timed == 0 and state.load[new] > data.slots and _random(state, 100) < _EXCHANGE:
            # One of those that stand there goes the other way.
            first = _random(state, groups)
            for step in range(groups):
                occupant = (first + step) % groups
                if state.tile[occupant] == new and occupant != group:
                    other = occupant if data.allowed[occupant, old] else -1
                    break
        elif new != old and timed and state.issued[new, time % data.ii] and _random(state, 100) < _EXCHANGE:
            # The one in that slot goes the other way.
            for number in range(len(state.time)):
                occupant = data.group[number]
                if state.tile[occupant] == new and occupant != group and state.time[number] % data.ii == time % data.ii:
                    other = occupant if data.allowed[occupant, old] else -1
                    break
        if other >= 0:
            before += _broken_at(data, state, other, new) + _times_at(data, state, other, new, -1, 0)
            before += _leave(data, state, other)
            change += _broken_at(data, state, other, old) + _times_at(data, state, other, old, -1, 0)
            _shift(data, state, other, old)
            change += _enter(data, state, other)
        change += _enter(data, state, group)
        change += _overfull(data, state.load[old], state.held[old]) + _overfull(data, state.load[new], state.held[new]) - before
        if change <= 0 or (_random(state, 1 << 30) + 1) / (1 << 30) < math.exp(-change / temperature):
            now += change
        else:
            _leave(data, state, group)
            if other >= 0:
                _leave(data, state, other)
                _shift(data, state, other, new)
                _enter(data, state, other)
            _shift(data, state, group, old)
            if timed:
                state.time[chosen] = before_time
            _enter(data, state, group)
    return int(now)


class Annealing:
    """Placements of one loop body at one II after the other, with times of the instructions that others' places depend on."""

    def __init__(self, body: Body, seed: int):
        self.body = body
        self._chance = np.random.default_rng(seed)
        self._base = build(body)

    def place(
        self, ii: int, count: int, stop: Callable[[], bool], on_moves: Callable[[int], None]
    ) -> tuple[list[int], dict[int, int]] | None:
        """Places that break no rule, after ``count`` moves at most; None where none came up.

        Returns a tile for each group, and a time for each instruction of :attr:`Structure.slotted`. ``on_moves`` is told of
        moves as they are made.
        """
        body, chunk = self.body, PARAMS.chunk * len(self.body.members)
        if not body.may_fit(ii):
            return None
        data, height = at_ii(self._base, body, ii), body.heights(ii)
        state = State(
            tile=np.array([self._chance.choice(tiles) for tiles in body.allowed], np.int64),
            time=max(height) - np.array(height, np.int64),
            issued=np.zeros((body.tiles, ii), np.int64),
            done=np.zeros((body.tiles, ii), np.int64),
            load=np.zeros(body.tiles, np.int64),
            held=np.zeros(body.tiles, np.int64),
            chance=np.array([self._chance.integers(1, 1 << 62)], np.int64),
        )
        now, made, falls = cost(data, state), 0, (PARAMS.cold / PARAMS.hot)
        while made < count and now and not stop():
            part = min(chunk, count - made)
            hot, cold = PARAMS.hot * falls ** (made / count), PARAMS.hot * falls ** ((made + part) / count)
            now = moves(data, state, part, now, hot, cold)
            made += part
            on_moves(part)
        if now:
            return None
        return state.tile.tolist(), {number: int(state.time[number]) for number in body.structure.slotted}
