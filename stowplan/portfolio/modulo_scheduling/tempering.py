"""Parallel tempering over placements of a loop body on the tiles (processing elements) of a CGRA.

Parallel tempering (Hukushima and Nemoto, "Exchange Monte Carlo method and application to spin glass simulations", J. Phys. Soc.
Jpn. 65, 1996) keeps several placements, the *replicas*, each at a temperature of its own that does not change. A replica is
changed at random, and a change that makes it worse is accepted the more often the higher the temperature is. Replicas of
neighbouring temperatures are exchanged now and then, so that a placement that is stuck at a low temperature is warmed and gets
away. Unlike simulated annealing, the search needs not know in advance how long it may take, and goes on where it was stopped.

It is meant for machines on which a result may wait for its consumer for any number of clocks. On such a machine, the placement
decides which initiation interval (II) is possible, because an instruction outside all recurrences (cycles of dependences) can
be delayed until its tile has a free slot. A *slot* is a clock modulo the II. The search therefore chooses a tile for each
*group* of instructions that must share one, but an issue time only for the *timed* instructions, whose slots cannot be chosen
afterwards (:attr:`~stowplan.models.modulo_scheduling.structure.Structure.slotted`).

The cost is a sum of five numbers, all 0 if no rule is broken:

- for each pair of groups of which one sends values to the other, the number of missing links: 0 if they share a tile or there
  is a link from the sender's tile to the receiver's; otherwise the number of links on the shortest path between the two tiles,
  whatever the directions of its links, minus 1, but at least 1;
- the number of pairs of groups that must be on different tiles and share one;
- for each tile, the number of instructions beyond its slots (the II, or the size of its instruction memory if that is smaller),
  plus 1 if its groups need more data memory than it has;
- for each value on a recurrence, the number of clocks by which it arrives too late;
- the number of pairs of timed instructions of one tile that are issued in the same slot, plus, if latencies differ, the number
  of pairs whose results are complete in the same slot.

A *move* changes the tile of a group, or the issue time of a timed instruction, or both. The arrays are those of
:class:`stowplan.portfolio.modulo_scheduling.body.Data`. The functions raise no errors.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from stowplan.compiled import Ints2D, njit, njit_inner
from stowplan.parameters import Parameters, parameters
from stowplan.portfolio.modulo_scheduling.body import FAR, Body, Data, Ints, at_ii
from stowplan.portfolio.random_numbers import random_below


class TemperingParameters(Parameters, frozen=True):
    """Parameters of parallel tempering."""

    first: float = 0.5
    """First temperature of the annealing with which the search begins, in units of the cost."""
    last: float = 0.05
    """Last temperature of this annealing, in units of the cost."""
    cold: float = 0.08
    """Lowest temperature of the replicas, in units of the cost."""
    hot: float = 0.3
    """Highest temperature of the replicas, in units of the cost."""
    replicas: int = 5
    """Number of replicas. The ratio of neighbouring temperatures is the same for all."""
    sweep: int = 50
    """Number of moves of a replica, divided by the number of groups, between two exchanges."""


PARAMS = parameters(TemperingParameters, __name__)


# The next three numbers are tuned.
#: A move of a group with timed instructions changes only a time and not the tile with this probability, in per cent.
_KEEP_TILE = 30

#: With this probability, in per cent, the new tile of a group is chosen from the tile of a group with which it exchanges values
#: and the tiles with a link to or from that tile. Otherwise it is chosen from all tiles.
_NEAR = 70

#: With this probability, in per cent, a group of the new tile moves to the old tile in exchange. It applies if a group without
#: timed instructions leads to too many instructions on the new tile, or if the new slot of a timed instruction is occupied.
_EXCHANGE = 50


class State(NamedTuple):
    """A placement, and counts that follow from it. There are G groups, I instructions and T tiles."""

    tile: Ints
    """[G] tile of each group."""
    time: Ints
    """[I] issue clock of each instruction; only those of timed instructions are used."""
    issued: Ints2D
    """[T, II] number of timed instructions issued in each slot."""
    done: Ints2D
    """[T, II] number of timed instructions whose results are complete in each slot."""
    load: Ints
    """[T] number of instructions on each tile."""
    held: Ints
    """[T] words of data memory that the groups on each tile need."""
    chance: Ints
    """[1] state of the random number generator."""


@njit_inner
def _random(state: State, below: int) -> int:
    """A random number from 0 to ``below - 1``."""
    return random_below(state.chance, below)


@njit_inner
def _tile_cost_at(data: Data, state: State, group: int, tile: int) -> int:
    """The cost of a group on ``tile`` if all other groups stay on their tiles.

    It is the number of missing links between this group and other groups, plus the number of groups on the tile that must not
    share a tile with this one.
    """
    total = 0
    for at in range(data.link_start[group], data.link_start[group + 1]):
        total += data.excess[data.link_out[at], tile, state.tile[data.link[at]]]
    for at in range(data.apart_start[group], data.apart_start[group + 1]):
        total += state.tile[data.apart[at]] == tile
    return total


@njit_inner
def _late_at(data: Data, state: State, number: int, tile: int, time: int, inside: bool) -> int:
    """The sum of the clocks by which values to and from an instruction would be late if it were issued at ``time`` on ``tile``.

    ``inside`` says whether values within its own group count, too.
    """
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
def _group_late_at(data: Data, state: State, group: int, tile: int, chosen: int, time: int) -> int:
    """The sum of the clocks by which values to and from a group would be late, if it were on ``tile`` and its instruction
    ``chosen`` were issued at ``time``.

    Of the values within the group, only those of ``chosen`` count. If ``chosen`` is -1, no time changes.
    """
    total = 0
    for at in range(data.member_start[group], data.member_start[group + 1]):
        number = data.member[at]
        total += _late_at(data, state, number, tile, time if number == chosen else state.time[number], number == chosen)
    return total


@njit_inner
def _remove_group(data: Data, state: State, group: int) -> int:
    """Remove a group's timed instructions from their slots; returns the number of colliding pairs that this resolves."""
    total, tile = 0, state.tile[group]
    for at in range(data.member_start[group], data.member_start[group + 1]):
        number = data.member[at]
        issue, done = state.time[number] % data.ii, (state.time[number] + data.latency[number]) % data.ii
        state.issued[tile, issue] -= 1
        state.done[tile, done] -= 1
        total += state.issued[tile, issue] + data.mixed * state.done[tile, done]
    return total


@njit_inner
def _add_group(data: Data, state: State, group: int) -> int:
    """Add a group's timed instructions to their slots; returns the number of colliding pairs that this creates."""
    total, tile = 0, state.tile[group]
    for at in range(data.member_start[group], data.member_start[group + 1]):
        number = data.member[at]
        issue, done = state.time[number] % data.ii, (state.time[number] + data.latency[number]) % data.ii
        total += state.issued[tile, issue] + data.mixed * state.done[tile, done]
        state.issued[tile, issue] += 1
        state.done[tile, done] += 1
    return total


@njit_inner
def _random_time(data: Data, state: State, number: int, tile: int) -> int:
    """A random new time for an instruction on a tile; if possible, one at which no value to or from it is late."""
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
def _count_excess(data: Data, load: int, words: int) -> int:
    """Number of instructions beyond a tile's slots, plus 1 if its groups need more words of data memory than it has."""
    return max(0, load - data.slots) + (words > data.room)


@njit
def cost(data: Data, state: State) -> int:
    """The cost of a placement; also recomputes all fields of the state except ``tile``, ``time`` and ``chance``."""
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
        total += _add_group(data, state, group)
        for at in range(data.member_start[group], data.member_start[group + 1]):
            number = data.member[at]
            for edge in range(data.wait_start[number], data.wait_start[number + 1]):
                if data.wait_out[edge]:
                    other = data.wait[edge]
                    way = data.wait_clocks[edge] + data.hops[tile, state.tile[data.group[other]]]
                    total += max(0, state.time[number] + way - state.time[other])
    for tile in range(len(state.load)):
        total += _count_excess(data, state.load[tile], state.held[tile])
    return total


@njit_inner
def _random_target(data: Data, state: State, group: int) -> int:
    """A random new tile for a group; usually one close to a group with which it exchanges values."""
    first, last = data.link_start[group], data.link_start[group + 1]
    if last > first and _random(state, 100) < _NEAR:
        at = state.tile[data.link[first + _random(state, last - first)]]
        return int(data.near[data.near_start[at] + _random(state, data.near_start[at + 1] - data.near_start[at])])
    return _random(state, len(state.load))


@njit_inner
def _move_group(data: Data, state: State, group: int, tile: int) -> None:
    """Move a group to another tile. ``issued`` and ``done`` are not updated."""
    old = state.tile[group]
    state.load[old] -= data.size[group]
    state.held[old] -= data.words[group]
    state.load[tile] += data.size[group]
    state.held[tile] += data.words[group]
    state.tile[group] = tile


@njit
def moves(data: Data, state: State, count: int, now: int, hot: float, cold: float) -> int:
    """Try ``count`` moves, at least 1, at temperatures that fall from ``hot`` to ``cold``; returns the new cost.

    ``now`` is the cost of the state at the start. Temperatures are in units of the cost. The function ends early once the cost
    is 0.
    """
    groups = len(state.tile)
    temperature, ratio = hot, (cold / hot) ** (1.0 / count)
    for _ in range(count):
        if now == 0:
            break
        temperature *= ratio
        group = _random(state, groups)
        timed = data.member_start[group + 1] - data.member_start[group]
        old, new = state.tile[group], _random_target(data, state, group)
        chosen, before_time, time = -1, 0, 0
        if timed:
            if _random(state, 100) < _KEEP_TILE:
                new = old
            chosen = data.member[data.member_start[group] + _random(state, timed)]
            before_time = state.time[chosen]
            time = _random_time(data, state, chosen, new)
        if (new == old and (chosen < 0 or time == before_time)) or not data.allowed[group, new]:
            continue
        before = _tile_cost_at(data, state, group, old) + (
            _count_excess(data, state.load[old], state.held[old]) + _count_excess(data, state.load[new], state.held[new])
        )
        change = _tile_cost_at(data, state, group, new)
        if timed:
            before += _group_late_at(data, state, group, old, chosen, before_time) + _remove_group(data, state, group)
            change += _group_late_at(data, state, group, new, chosen, time)
            state.time[chosen] = time
        _move_group(data, state, group, new)
        other = -1
        if new != old and timed == 0 and state.load[new] > data.slots and _random(state, 100) < _EXCHANGE:
            # A group on the new tile moves to the old one in exchange.
            first = _random(state, groups)
            for step in range(groups):
                occupant = (first + step) % groups
                if state.tile[occupant] == new and occupant != group:
                    other = occupant if data.allowed[occupant, old] else -1
                    break
        elif new != old and timed and state.issued[new, time % data.ii] and _random(state, 100) < _EXCHANGE:
            # The group of an instruction in the same slot moves to the old tile in exchange.
            for at in range(len(data.member)):
                number = data.member[at]
                occupant = data.group[number]
                if state.tile[occupant] == new and occupant != group and state.time[number] % data.ii == time % data.ii:
                    other = occupant if data.allowed[occupant, old] else -1
                    break
        if other >= 0:
            before += _tile_cost_at(data, state, other, new) + _group_late_at(data, state, other, new, -1, 0)
            before += _remove_group(data, state, other)
            change += _tile_cost_at(data, state, other, old) + _group_late_at(data, state, other, old, -1, 0)
            _move_group(data, state, other, old)
            change += _add_group(data, state, other)
        change += _add_group(data, state, group)
        change += (
            _count_excess(data, state.load[old], state.held[old])
            + _count_excess(data, state.load[new], state.held[new])
            - before
        )
        if change <= 0 or (_random(state, 1 << 30) + 1) / (1 << 30) < math.exp(-change / temperature):
            now += change
        else:
            _remove_group(data, state, group)
            if other >= 0:
                _remove_group(data, state, other)
                _move_group(data, state, other, new)
                _add_group(data, state, other)
            _move_group(data, state, group, old)
            if timed:
                state.time[chosen] = before_time
            _add_group(data, state, group)
    return int(now)


class Replica(NamedTuple):
    """A placement and its cost."""

    state: State
    cost: int


class Tempering:
    """Searches for placements of a loop body at one initiation interval (II).

    The II must be one that pins and values from an instruction to itself permit (:meth:`.body.Body.may_fit`).
    """

    def __init__(self, body: Body, ii: int, seed: Sequence[int]):
        self.body, self.ii = body, ii
        self._chance = np.random.default_rng(seed)
        self._data = at_ii(body.arrays, body, ii)
        steps = max(1, PARAMS.replicas - 1)
        self._temperatures = [PARAMS.cold * (PARAMS.hot / PARAMS.cold) ** (step / steps) for step in range(PARAMS.replicas)]
        """Temperatures of the replicas, ascending."""
        self._replicas: list[Replica] = []
        """A replica at each temperature; none before the first search."""
        self._rounds = 0

    def search(
        self, count: int, stop: Callable[[], bool], on_moves: Callable[[int], None]
    ) -> tuple[list[int], dict[int, int]] | None:
        """Go on to search for a placement that breaks no rule, with about ``count`` moves.

        Returns the tile of each group, and the issue clock of each timed instruction by its number. The result is None if no
        such placement was found before ``stop`` returned True or the moves were made. After each sweep, ``on_moves`` is called
        with the number of moves that it may have made; the last sweep ends early once no rule is broken.
        """
        sweep, done = PARAMS.sweep * len(self.body.members), 0
        if not self._replicas:
            first = self._anneal(count, sweep, stop, on_moves)
            if first.cost == 0:
                return self._places(first)
            self._replicas = [Replica(self._copy(first.state), first.cost) for _ in self._temperatures]
            return None
        while done < count:
            for number, temperature in enumerate(self._temperatures):
                if stop():
                    return None
                state, now = self._replicas[number]
                self._replicas[number] = Replica(state, moves(self._data, state, sweep, now, temperature, temperature))
                on_moves(sweep)
                done += sweep
                if self._replicas[number].cost == 0:
                    return self._places(self._replicas[number])
            self._exchange()
        return None

    def _anneal(self, count: int, sweep: int, stop: Callable[[], bool], on_moves: Callable[[int], None]) -> Replica:
        """The placement from which all replicas start: that of simulated annealing with ``count`` moves."""
        body, height = self.body, self.body.heights(self.ii)
        state = State(
            tile=np.array([self._chance.choice(tiles) for tiles in body.allowed], np.int64),
            time=max(height) - np.array(height, np.int64),
            issued=np.zeros((body.tiles, self.ii), np.int64),
            done=np.zeros((body.tiles, self.ii), np.int64),
            load=np.zeros(body.tiles, np.int64),
            held=np.zeros(body.tiles, np.int64),
            chance=np.array([self._chance.integers(1, 1 << 62)], np.int64),
        )
        now, done, ratio = cost(self._data, state), 0, (PARAMS.last / PARAMS.first)
        while done < count and now and not stop():
            part = min(sweep, count - done)
            hot, cold = PARAMS.first * ratio ** (done / count), PARAMS.first * ratio ** ((done + part) / count)
            now = moves(self._data, state, part, now, hot, cold)
            on_moves(part)
            done += part
        return Replica(state, now)

    def _copy(self, state: State) -> State:
        """The same placement with another state of the random number generator."""
        chance = np.array([self._chance.integers(1, 1 << 62)], np.int64)
        return State(*(array.copy() for array in state))._replace(chance=chance)

    def _places(self, replica: Replica) -> tuple[list[int], dict[int, int]]:
        """The result of :meth:`search` for a replica that breaks no rule."""
        times = {number: int(replica.state.time[number]) for number in self.body.structure.slotted}
        return replica.state.tile.tolist(), times

    def _exchange(self) -> None:
        """Exchange neighbouring replicas at random, so that each temperature keeps its distribution of placements.

        Pairs are disjoint: those whose lower number is even, and in the next round those whose lower number is odd.
        """
        replicas = self._replicas
        for low in range(self._rounds % 2, len(replicas) - 1, 2):
            cold, hot = self._temperatures[low : low + 2]
            gain = (1 / cold - 1 / hot) * (replicas[low].cost - replicas[low + 1].cost)
            if gain >= 0 or self._chance.random() < math.exp(gain):
                replicas[low], replicas[low + 1] = replicas[low + 1], replicas[low]
        self._rounds += 1
