"""Iterative modulo scheduling with placement: list scheduling that evicts conflicting instructions.

The method follows B. R. Rau, "Iterative modulo scheduling" (MICRO 1994). Instructions are scheduled by descending height, the
time from their issue to the end of the loop body. Each gets the first free slot at which its operands are available; a *slot*
is a clock modulo the initiation interval. If there is none, the instruction is placed *by force*: the instructions that
conflict with it are *evicted* and scheduled again. Three things are not in Rau's algorithm. A place is a tile (a processing
element) and a slot. Values travel only over direct links. And a tile costs more if it is farther from the tiles of related
instructions than values between them can travel. A *group* is a set of instructions that must share a tile. A *value* goes from
one instruction to another, and a *pin* is the user's constraint on a tile, a time or a slot (:mod:`.body`). A *port limit* is
the largest number of memory accesses from some tiles in one slot. Nothing in this module raises an error, except as stated.
"""

from __future__ import annotations

import heapq
import random
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from stowplan.parameters import Parameters, parameters
from stowplan.portfolio.modulo_scheduling.body import FAR, Body, Ints, Value

Floats: TypeAlias = NDArray[np.float64]


class MapperParameters(Parameters, frozen=True):
    """Parameters of the list scheduler."""

    near_weight: float = 6.0
    """Cost of a missing link, in clocks, when tiles are compared."""
    far_weight: float = 2 / 3
    """Number of evictions that count as much as one of these clocks when an instruction is placed by force."""
    any_tile: float = 0.15
    """Fraction of the forced placements that use a random tile, so that the same evictions do not repeat."""


PARAMS = parameters(MapperParameters, __name__)


class Mapper:
    """A partial schedule at one initiation interval.

    Parameters
    ----------
    body
        The loop body.
    ii
        The initiation interval.
    chance
        Source of random numbers.
    tiles
        Tile of each group, if the placement is fixed and only times are searched; None if tiles are searched as well.
    liking
        ``[groups, tiles]`` bonus in clocks of each tile for each group, for example from a hint; None for no bonus.
    """

    def __init__(
        self,
        body: Body,
        ii: int,
        chance: random.Random,
        tiles: Sequence[int] | None = None,
        *,
        liking: Floats | None = None,
    ):
        self.body, self.ii = body, ii
        self._chance = chance
        self._liking = liking
        self._allowed = body.allowed if tiles is None else [[tile] for tile in tiles]
        self.slots = min(ii, body.problem.machine.instruction_depth)
        self.tile: Ints = np.full(len(body.members), -1, np.int64)
        """[groups] tile of each group, -1 if it has none."""
        self.time: dict[int, int] = {}
        """Issue clock of each placed instruction."""
        self._taken: dict[tuple[int, int], int] = {}
        """The instruction that is issued in each (tile, slot)."""
        self._results: dict[tuple[int, int], int] = {}
        """The instruction whose result is available in each (tile, slot)."""
        self._limits, self._accesses = body.structure.port_limits, set(body.problem.accesses)
        self._asked: dict[tuple[int, int], list[int]] = defaultdict(list)
        """Memory accesses by port limit and slot."""
        self._need = body.structure.words_at(ii)
        self._most_wait = body.longest_wait(ii)
        registers = body.problem.machine.registers
        self._has_output_registers = bool(registers and registers.output)
        self._load = [0] * body.tiles
        self._words = [0] * body.tiles
        self._placed = [0] * len(body.members)
        self._last: dict[int, int] = {}
        self.steps = 0
        """Number of placements so far."""

    def run(self, order: Sequence[float], budget: int, stop: Callable[[], bool]) -> bool:
        """Place the remaining instructions by descending ``order``; returns whether the schedule is complete.

        ``order`` has a number for each instruction. The result is False if the II suits no plan (:meth:`.body.Body.may_fit`),
        if ``budget`` placements do not suffice, or if ``stop`` returned True, which is asked at every 32nd placement.
        """
        if not self.body.may_fit(self.ii):
            return False
        waiting = [(-order[number], number) for number in range(self.body.count) if number not in self.time]
        heapq.heapify(waiting)
        while waiting:
            if budget <= 0 or (self.steps % 32 == 0 and stop()):
                return False
            number = heapq.heappop(waiting)[1]
            if number in self.time:
                continue
            budget -= 1
            self.steps += 1
            place = self._best_place(number)
            for other in self._place_and_evict(number, *place) if place is not None else self._place_by_force(number):
                heapq.heappush(waiting, (-order[other], other))
        return True

    def unschedule(self, numbers: Sequence[int]) -> None:
        """Remove instructions from the schedule, to be placed again."""
        for number in numbers:
            if number in self.time:
                self._remove(number)

    def adopt(self, tiles: Sequence[int], times: Sequence[int]) -> None:
        """Start from a valid schedule at this II, given by the tiles and the issue clocks of all instructions."""
        for number, time in enumerate(times):
            self._place_and_evict(number, tiles[number], time)

    @property
    def tiles(self) -> list[int]:
        """Tile of each instruction; -1 for an instruction whose group has no tile."""
        return [int(self.tile[group]) for group in self.body.group]

    @property
    def times(self) -> list[int]:
        """Issue clock of each instruction of a complete schedule; raises KeyError if one is not placed."""
        return [self.time[number] for number in range(self.body.count)]

    # Choosing a place

    def _best_place(self, number: int) -> tuple[int, int] | None:
        """The best (tile, time) without a conflict; None if there is none."""
        body, group = self.body, self.body.group[number]
        if self.tile[group] >= 0:
            tile = int(self.tile[group])
            time = self._first_time(number, tile)
            return None if time is None else (tile, time)
        barred = {int(self.tile[other]) for other in body.apart[group]}
        distance = self._distances(group)
        best, place = float(FAR), None
        for tile in self._allowed[group]:
            if tile in barred or self._words[tile] + self._need[group] > body.room:
                continue
            if self._load[tile] + len(body.members[group]) > self.slots or not self._is_linked(group, tile):
                continue
            time = self._first_time(number, tile)
            if time is None:
                continue
            cost = self._cost(time, float(distance[tile]))
            if cost < best:
                best, place = cost, (tile, time)
        return place

    def _cost(self, time: int, distance: float) -> float:
        """The cost of a place in clocks, with random noise below 1 to break ties."""
        return self._chance.random() + (time + distance)

    def _distances(self, group: int) -> Floats:
        """[tiles] the cost in clocks of each tile for a group: that of missing links to related groups, minus the bonus."""
        placed = np.flatnonzero((self.tile >= 0) & (self.body.nearness[group] < FAR))
        excess = self.body.steps[:, self.tile[placed]] - self.body.nearness[group, placed]
        distances: Floats = PARAMS.near_weight * np.maximum(excess, 0).sum(axis=1)
        return distances if self._liking is None else distances - self._liking[group]

    def _is_linked(self, group: int, tile: int) -> bool:
        """Whether there are links between a tile and the tiles of all placed neighbours of a group."""
        for number in self.body.members[group]:
            for value in self.body.values[number]:
                other = self.body.group[value.other]
                if other != group and self.tile[other] >= 0 and self._clocks(value, tile) == FAR:
                    return False
        return True

    def _window(self, number: int, tile: int) -> tuple[int, int]:
        """The first and the last clock at which an instruction may be issued on a tile.

        Between them, all values from and to placed instructions arrive in time and wait no longer than allowed.
        """
        body, ii = self.body, self.ii
        low, high = 0, FAR
        for value in body.values[number]:
            if value.other in self.time:
                at, clocks = self.time[value.other], self._clocks(value, tile)
                if value.leaves:
                    due = at - body.latency[number] + ii * value.distance - clocks
                    low, high = max(low, due - self._longest_wait(value)), min(high, due)
                else:
                    ready = at + body.latency[value.other] - ii * value.distance + clocks
                    low, high = max(low, ready), min(high, ready + self._longest_wait(value))
        return low, high

    def _clocks(self, value: Value, tile: int) -> int:
        """Clocks that a value travels between a tile and the tile of its other end; FAR if there is no link."""
        if value.clocks is not None:
            return value.clocks
        other, hops = int(self.tile[self.body.group[value.other]]), self.body.hops
        return hops[tile][other] if value.leaves else hops[other][tile]

    def _longest_wait(self, value: Value) -> int:
        """The largest number of clocks that a value may wait; FAR for any number."""
        return self._most_wait if value.clocks is None else FAR

    def _port_slots(self, number: int, tile: int, time: int) -> list[tuple[int, int]]:
        """Pairs (number of the port limit, slot) of the limits on memory accesses that count an instruction at this place."""
        if number not in self._accesses:
            return []
        done = (time + self.body.latency[number]) % self.ii
        return [(which, done) for which, limit in enumerate(self._limits) if tile in limit.tiles]

    def _first_time(self, number: int, tile: int) -> int | None:
        """The first clock in the window at which an instruction can be issued without a conflict; None if there is none."""
        low, high = self._window(number, tile)
        if low >= FAR // 2:
            return None
        pin = self.body.pins.get(number)
        for time in range(low, min(high, low + self.ii - 1) + 1):
            issue = time
            if pin is not None and pin.time is not None:
                if not low <= pin.time <= high:
                    return None
                issue = pin.time
            if pin is not None and pin.slot is not None and issue % self.ii != pin.slot:
                continue
            done = tile, (issue + self.body.latency[number]) % self.ii
            if (tile, issue % self.ii) in self._taken or done in self._results or self._overwritten(number, tile, issue):
                continue
            if all(len(self._asked[key]) < self._limits[key[0]].most for key in self._port_slots(number, tile, issue)):
                return issue
        return None

    def _overwritten(self, number: int, tile: int, time: int) -> list[int]:
        """The placed instructions that conflict with an instruction at this place because of output registers, ascending.

        Either its result would overwrite their values, or their results would overwrite a value that it writes or reads.
        """
        body, ii = self.body, self.ii
        if not self._has_output_registers:
            return []
        conflicts: set[int] = set()
        for value in body.values[number]:
            if value.other not in self.time:
                continue
            other = int(self.tile[body.group[value.other]])
            if other == tile:
                continue
            ends = (time, self.time[value.other]) if value.leaves else (self.time[value.other], time)
            writer, home = (number, tile) if value.leaves else (value.other, other)
            ready = ends[0] + body.latency[writer]
            for clock in range(ready + 1, min(ends[1] + ii * value.distance, ready + ii - 1) + 1):
                conflicts.add(self._results.get((home, clock % ii), number))
        done = (time + body.latency[number]) % ii
        for slot in range(ii):
            writer = self._results.get((tile, slot), number)
            for value in body.values[writer] if writer != number else ():
                if value.leaves and value.other in self.time and self.tile[body.group[value.other]] != tile:
                    wait = self.time[value.other] + ii * value.distance - self.time[writer] - body.latency[writer]
                    if wait >= (done - slot) % ii:
                        conflicts.add(writer)
        return sorted(conflicts - {number})

    # Placing by force

    def _place_by_force(self, number: int) -> list[int]:
        """Place an instruction where it causes few evictions, at a later clock than before; returns the evicted
        instructions."""
        body, group = self.body, self.body.group[number]
        tiles = self._allowed[group]
        if self._chance.random() < PARAMS.any_tile:
            tile = self._chance.choice(tiles)
        else:
            distance = self._distances(group)
            cost = [
                PARAMS.far_weight * float(distance[tile]) + self._estimate_evictions(group, tile) + 2.0 * self._chance.random()
                for tile in tiles
            ]
            tile = tiles[cost.index(min(cost))]
        low, _ = self._window(number, tile) if self._is_linked(group, tile) else (0, 0)
        # As in Rau's algorithm, the time is later than at the last placement of this instruction, so that two instructions do
        # not evict each other for ever.
        time = max(low, self._last.get(number, -1) + 1) if low < FAR // 2 else self._last.get(number, -1) + 1
        pin = body.pins.get(number)
        if pin is not None and pin.slot is not None:
            time += (pin.slot - time) % self.ii
        if pin is not None and pin.time is not None:
            time = pin.time
        return self._place_and_evict(number, tile, time)

    def _estimate_evictions(self, group: int, tile: int) -> float:
        """An estimate of the evictions if a group were placed on a tile."""
        count = float(self._load[tile] >= self.slots)
        count += sum(len(self.body.members[other]) for other in self.body.apart[group] if self.tile[other] == tile)
        for number in self.body.members[group]:
            for value in self.body.values[number]:
                count += self.tile[self.body.group[value.other]] >= 0 and self._clocks(value, tile) == FAR
        return count

    def _place_and_evict(self, number: int, tile: int, time: int) -> list[int]:
        """Place an instruction and evict all instructions that conflict with it; returns the evicted instructions."""
        body, group = self.body, self.body.group[number]
        evicted: list[int] = []

        def remove(others: Sequence[int]) -> None:
            for other in others:
                if other in self.time and other != number:
                    self._remove(other)
                    evicted.append(other)

        if self.tile[group] != tile:
            remove(body.members[group])
            for other in body.apart[group]:
                if self.tile[other] == tile:
                    remove(body.members[other])
            here = [other for other in range(len(body.members)) if self.tile[other] == tile]
            self._chance.shuffle(here)
            while here and (self._words[tile] + self._need[group] > body.room):
                remove(body.members[here.pop()])
        issue, done = (tile, time % self.ii), (tile, (time + body.latency[number]) % self.ii)
        for occupant in (self._taken.get(issue), self._results.get(done)):
            if occupant is not None:
                remove([occupant])
        if self._load[tile] >= self.slots:
            remove([self._chance.choice([other for (at, _), other in sorted(self._taken.items()) if at == tile])])
        for value in body.values[number]:
            if value.other in self.time:
                at = self.time[value.other]
                wait = at - time - body.latency[number] if value.leaves else time - at - body.latency[value.other]
                wait += self.ii * value.distance - self._clocks(value, tile)
                if not 0 <= wait <= self._longest_wait(value):
                    remove([value.other])
        remove(self._overwritten(number, tile, time))
        for key in self._port_slots(number, tile, time):
            while len(self._asked[key]) >= self._limits[key[0]].most:
                remove([self._chance.choice(self._asked[key])])
            self._asked[key].append(number)
        if self._placed[group] == 0:
            self._words[tile] += self._need[group]
        self.tile[group] = tile
        self._placed[group] += 1
        self._load[tile] += 1
        self._taken[issue] = self._results[done] = number
        self.time[number] = time
        self._last[number] = time
        return evicted

    def _remove(self, number: int) -> None:
        """Remove an instruction from the schedule."""
        group = self.body.group[number]
        tile = int(self.tile[group])
        time = self.time.pop(number)
        del self._taken[tile, time % self.ii]
        for key in self._port_slots(number, tile, time):
            self._asked[key].remove(number)
        del self._results[tile, (time + self.body.latency[number]) % self.ii]
        self._load[tile] -= 1
        self._placed[group] -= 1
        if self._placed[group] == 0:
            self._words[tile] -= self._need[group]
            self.tile[group] = -1
