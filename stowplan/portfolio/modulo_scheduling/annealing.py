"""Simulated annealing over placements alone, for delays without a limit: a tile for each group of instructions that share one.

There the initiation interval (II) is decided by places: whatever is on no cycle waits for a free slot. So only what breaks a
rule of places counts: links that values lack, groups that must be apart on one tile, more instructions or words than a tile has
room for, and cycles whose links take longer than the II leaves. The cycles are those that a placement was found to break, one
after the other; there are too many to list them beforehand.

Everything compiled but the random numbers is in this file.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from stowplan.compiled import njit, njit_inner
from stowplan.models.modulo_scheduling.differences import positive_cycle
from stowplan.models.modulo_scheduling.machine import Link, Machine
from stowplan.models.modulo_scheduling.problem import Instruction, Operand, Problem
from stowplan.portfolio.modulo_scheduling.body import FAR, Body
from stowplan.portfolio.random_numbers import random_below

Ints: TypeAlias = npt.NDArray[np.int64]

#: Temperatures at begin and end: what one broken rule costs is 1.
HOT, COLD = 0.5, 0.05

#: Moves between two looks at the clock, for each group.
_CHUNK = 100

#: How often a move goes next to a neighbour, and how often one into a full tile is an exchange.
_BESIDE, _EXCHANGE = 70, 50

#: Cycles that are added at once, and kept at most.
_FRESH, _MOST_CYCLES = 8, 400


class Data(NamedTuple):
    """A loop body for compiled code. G groups, T tiles, C cycles; lists one after the other, with where each begins."""

    link_start: Ints
    """[G + 1]"""
    link: Ints
    """Groups that exchange values with each."""
    link_out: Ints
    """1 where the value goes to that group, 0 where it comes from it."""
    excess: Ints
    """[2, T, T] Links that are missing from tile to tile, against and along the direction of a value."""
    apart_start: Ints
    """[G + 1]"""
    apart: Ints
    """Groups on other tiles."""
    size: Ints
    """[G] Instructions."""
    words: Ints
    """[G]"""
    slots: int
    """Instructions of a tile at most."""
    room: int
    """Words of a tile at most."""
    allowed: Ints
    """[G, T] 1 where a group may stand."""
    hops: Ints
    """[T, T] Clocks from tile to tile; where there is no link, of a way over several."""
    near_start: Ints
    """[T + 1]"""
    near: Ints
    """Tiles that are a link or none away."""
    cycle_start: Ints
    """[C + 1]"""
    cycle_from: Ints
    cycle_to: Ints
    """Groups at the ends of each edge of a cycle."""
    slack: Ints
    """[C] Clocks that the links of a cycle may take."""
    on_start: Ints
    """[G + 1]"""
    on: Ints
    """Cycles that each group is on."""


class State(NamedTuple):
    """A placement, and what follows from it."""

    tile: Ints
    """[G]"""
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
    """Rules that a group breaks on a tile: links, groups apart, cycles; the others where they stand."""
    total = 0
    for at in range(data.link_start[group], data.link_start[group + 1]):
        total += data.excess[data.link_out[at], tile, state.tile[data.link[at]]]
    for at in range(data.apart_start[group], data.apart_start[group + 1]):
        total += state.tile[data.apart[at]] == tile
    for at in range(data.on_start[group], data.on_start[group + 1]):
        cycle = data.on[at]
        clocks = -data.slack[cycle]
        for edge in range(data.cycle_start[cycle], data.cycle_start[cycle + 1]):
            one, two = data.cycle_from[edge], data.cycle_to[edge]
            clocks += data.hops[tile if one == group else state.tile[one], tile if two == group else state.tile[two]]
        total += max(0, clocks)
    return total


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
    for cycle in range(len(data.slack)):
        clocks = -data.slack[cycle]
        for edge in range(data.cycle_start[cycle], data.cycle_start[cycle + 1]):
            clocks += data.hops[state.tile[data.cycle_from[edge]], state.tile[data.cycle_to[edge]]]
        total += max(0, clocks)
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
        old, new = state.tile[group], _target(data, state, group)
        if new == old or not data.allowed[group, new]:
            continue
        before = _broken_at(data, state, group, old) + (
            _overfull(data, state.load[old], state.held[old]) + _overfull(data, state.load[new], state.held[new])
        )
        change = _broken_at(data, state, group, new)
        _shift(data, state, group, new)
        other = -1
        if state.load[new] > data.slots and _random(state, 100) < _EXCHANGE:
            # One of those that stand there goes the other way.
            first = _random(state, groups)
            for step in range(groups):
                each = (first + step) % groups
                if state.tile[each] == new and each != group:
                    other = each if data.allowed[each, old] else -1
                    break
        if other >= 0:
            before += _broken_at(data, state, other, new)
            change += _broken_at(data, state, other, old)
            _shift(data, state, other, old)
        change += _overfull(data, state.load[old], state.held[old]) + _overfull(data, state.load[new], state.held[new]) - before
        if change <= 0 or (_random(state, 1 << 30) + 1) / (1 << 30) < math.exp(-change / temperature):
            now += change
        else:
            _shift(data, state, group, old)
            if other >= 0:
                _shift(data, state, other, new)
    return int(now)


class Annealing:
    """Placements of one loop body at one II after the other."""

    def __init__(self, body: Body, seed: int):
        self.body = body
        self._chance = np.random.default_rng(seed)
        self._edges = [(body.group[e.source], body.group[e.target], e) for e in body.structure.between]
        self._cycles: dict[int, list[list[int]]] = {}
        """By II: numbers of edges."""
        self._base = _base(body)

    def place(self, ii: int, count: int, stop: Callable[[], bool], on_moves: Callable[[int], None]) -> list[int] | None:
        """A tile for each group such that no rule of places is broken, after ``count`` moves at most; None where none came up.

        ``on_moves`` is told of moves as they are made.
        """
        body, chunk = self.body, _CHUNK * len(self.body.members)
        tile = np.array([self._chance.choice(tiles) for tiles in body.allowed], np.int64)
        state = State(
            tile,
            np.zeros(body.tiles, np.int64),
            np.zeros(body.tiles, np.int64),
            np.array([self._chance.integers(1, 1 << 62)], np.int64),
        )
        data = self._data(ii)
        now, done, falls = cost(data, state), 0, (COLD / HOT)
        while done < count and not stop():
            part = min(chunk, count - done)
            hot, cold = HOT * falls ** (done / count), HOT * falls ** ((done + part) / count)
            now = moves(data, state, part, now, hot, cold)
            done += part
            on_moves(part)
            if now:
                continue
            broken = self._broken_cycles(ii, state.tile)
            if not broken:
                return [int(each) for each in state.tile]
            known = self._cycles.setdefault(ii, [])
            known += broken
            del known[:-_MOST_CYCLES]
            data = self._data(ii)
            now = cost(data, state)
        return None

    def _data(self, ii: int) -> Data:
        """The body with the cycles that are known at this II."""
        cycles = self._cycles.get(ii, [])
        latency = self.body.latency
        slack = [sum(ii * self._edges[at][2].distance - latency[self._edges[at][2].source] for at in cycle) for cycle in cycles]
        on: list[set[int]] = [set() for _ in self.body.members]
        for number, cycle in enumerate(cycles):
            for at in cycle:
                on[self._edges[at][0]].add(number)
                on[self._edges[at][1]].add(number)
        on_start, on_list = _lists([sorted(each) for each in on])
        cycle_start, flat = _lists(cycles)
        return self._base._replace(
            slots=min(ii, self.body.problem.machine.instruction_depth),
            cycle_start=cycle_start,
            cycle_from=np.array([self._edges[at][0] for at in flat], np.int64),
            cycle_to=np.array([self._edges[at][1] for at in flat], np.int64),
            slack=np.array(slack, np.int64),
            on_start=on_start,
            on=on_list,
        )

    def _broken_cycles(self, ii: int, tile: Ints) -> list[list[int]]:
        """Cycles whose links take too long, as numbers of edges; each on edges that no other has."""
        latency = self.body.latency
        found: list[list[int]] = []
        gone: set[int] = set()
        while len(found) < _FRESH:
            ways = [
                (at, e.source, e.target, latency[e.source] + int(self._base.hops[tile[one], tile[two]]) - ii * e.distance)
                for at, (one, two, e) in enumerate(self._edges)
                if at not in gone
            ]
            cycle = positive_cycle(self.body.count, ways)
            if not cycle:
                break
            found.append(cycle)
            gone.update(cycle)
        return found


def warm_up() -> None:
    """Compile everything, on a loop body of two instructions."""
    link = Link(name="on", rows=1)
    machine = Machine(name="two", rows=2, links=(link,))
    reads = (Operand(instruction="a"), Operand(instruction="b", distance=9))
    body = Body(
        Problem(instructions=(Instruction(id="a", op="add"), Instruction(id="b", op="add", operands=reads)), machine=machine)
    )
    Annealing(body, 0).place(1, 10, lambda: False, lambda count: None)


def _lists(parts: Sequence[Sequence[int]]) -> tuple[Ints, Ints]:
    """Where each list begins, and all of them one after the other."""
    start = np.zeros(len(parts) + 1, np.int64)
    start[1:] = np.cumsum([len(part) for part in parts])
    return start, np.array([each for part in parts for each in part], np.int64)


def _base(body: Body) -> Data:
    links: list[set[tuple[int, int]]] = [set() for _ in body.members]
    for edge in body.structure.between:
        one, two = body.group[edge.source], body.group[edge.target]
        if one != two:
            links[one].add((two, 1))
            links[two].add((one, 0))
    link_start, link = _lists([[other for other, _ in sorted(each)] for each in links])
    apart_start, apart = _lists(body.apart)
    hops = np.array(body.hops)
    # Links beyond one, at least one where there is none.
    excess = np.where(hops < FAR, 0, np.maximum(1, np.minimum(body.steps, 2 * body.tiles) - 1))
    ways = np.where(hops < FAR, hops, 2 * np.minimum(body.steps, 2 * body.tiles))
    near_start, near = _lists(
        [[b for b in range(body.tiles) if hops[a, b] < FAR or hops[b, a] < FAR] for a in range(body.tiles)]
    )
    allowed = np.zeros((len(body.members), body.tiles), np.int64)
    for group, tiles in enumerate(body.allowed):
        allowed[group, list(tiles)] = 1
    none = np.zeros(0, np.int64)
    return Data(
        link_start=link_start,
        link=link,
        link_out=np.array([out for each in links for _, out in sorted(each)], np.int64),
        excess=np.stack((excess.T, excess)).astype(np.int64),
        apart_start=apart_start,
        apart=apart,
        size=np.array([len(members) for members in body.members], np.int64),
        words=np.array(body.words, np.int64),
        slots=0,
        room=body.room,
        allowed=allowed,
        hops=ways.astype(np.int64),
        near_start=near_start,
        near=near,
        cycle_start=np.zeros(1, np.int64),
        cycle_from=none,
        cycle_to=none,
        slack=none,
        on_start=np.zeros(len(body.members) + 1, np.int64),
        on=none,
    )
