"""What the heuristics look up again and again about a loop body on its machine.

None of it depends on the initiation interval (II).
"""

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from stowplan.models.modulo_scheduling.bounds import critical_path, least_ii, unrefuted_iis
from stowplan.models.modulo_scheduling.problem import Problem
from stowplan.models.modulo_scheduling.structure import Structure

Ints: TypeAlias = npt.NDArray[np.int64]

#: Stands for a way that there is none of, and for no limit.
FAR = 1 << 30


class Value(NamedTuple):
    """A value, or a wait for one, as seen from one of its ends."""

    other: int
    """Instruction at the other end."""
    distance: int
    clocks: int | None = None
    """Nominal clocks over the asynchronous fabric; None over links."""


class Body:
    """Derived facts. Instructions by number; groups are instructions that must share a tile."""

    def __init__(self, problem: Problem):
        self.problem = problem
        self.structure = structure = Structure(problem)
        machine = problem.machine
        self.count, self.tiles = structure.count, machine.tiles
        #: Of each instruction; and the longest.
        self.latency, self.longest = problem.latencies, max(problem.latencies, default=0)
        #: IIs that no bound refutes, ascending, and the least of them.
        self.iis = unrefuted_iis(problem, structure).iis
        self.least_ii = min(self.iis, default=least_ii(problem, structure))
        self.path = critical_path(problem, structure)
        self.group, self.members, self.words = structure.group, structure.members, structure.words
        self.room = machine.memories * machine.memory_depth
        #: ``[from][to]`` clocks over one link at most, FAR where there is none.
        self.hops = [[FAR if clocks is None else clocks for clocks in row] for row in machine.one_link]
        #: Least number of links between tiles, whatever their direction, ``[tiles, tiles]``.
        self.steps = _steps(np.array(self.hops) < FAR)
        self.incoming: list[list[Value]] = [[] for _ in range(self.count)]
        self.outgoing: list[list[Value]] = [[] for _ in range(self.count)]
        self.loops: list[tuple[int, Value]] = []
        """Values from an instruction to itself."""
        for source, target, distance, clocks in structure.precedences:
            if source == target:
                self.loops.append((source, Value(target, distance, clocks)))
            else:
                self.incoming[target].append(Value(source, distance, clocks))
                self.outgoing[source].append(Value(target, distance, clocks))
        self.allowed = [list(tiles) for tiles in structure.allowed]
        self.apart = self._apart()
        self.nearness = self._nearness()
        self.pins = {problem.number[pin.instruction]: pin for pin in problem.pins}
        delay = problem.rules.max_delay
        self.max_delay = FAR if delay is None else delay
        timed = any(pin.time is not None or pin.slot is not None for pin in problem.pins)
        #: Whether times follow from places, save on cycles.
        self.places_decide = delay is None and not timed

    def between(self, least: int, above: int) -> tuple[int, ...]:
        """IIs from ``least`` up to, and without, ``above`` that nothing refutes beforehand, ascending."""
        return tuple(ii for ii in self.iis if least <= ii < above)

    def _apart(self) -> list[list[int]]:
        """For each group the groups that stand on other tiles: siblings, and one start chosen for each flow."""
        pairs = set(self.structure.apart)
        starts = sorted({self.group[choices[0]] for choices in self.structure.start_choices})
        pairs |= {(one, two) for at, one in enumerate(starts) for two in starts[at + 1 :]}
        found: list[list[int]] = [[] for _ in self.members]
        for one, two in sorted(pairs):
            found[one].append(two)
            found[two].append(one)
        return found

    def _nearness(self) -> Ints:
        """``[groups, groups]``: edges between them, whatever their direction: two tiles are no more links apart than that."""
        size = len(self.members)
        linked = np.zeros((size, size), bool)
        for edge in self.structure.between:
            linked[self.group[edge.source], self.group[edge.target]] = True
        return _steps(linked)

    def heights(self, ii: int) -> list[int]:
        """Clocks from each issue to the end of the loop body, at an II that recurrences allow (Rau 1994, HeightR)."""
        height = np.array(self.latency, np.int64)
        edges = [each for each in self.structure.precedences if each.source != each.target]
        if not edges:
            return [int(each) for each in height]
        source = np.array([edge.source for edge in edges])
        target = np.array([edge.target for edge in edges])
        weight = np.array([self.latency[edge.source] + self.structure.least_hops(edge) - ii * edge.distance for edge in edges])
        for _ in range(self.count + 1):
            after = height.copy()
            np.maximum.at(after, source, height[target] + weight)
            if (after == height).all():
                break
            height = after
        return [int(each) for each in height]

    def may_fit(self, ii: int) -> bool:
        """Whether pins can hold, and values that instructions give to themselves come in time but not too early."""
        for pin in self.pins.values():
            if pin.slot is not None and (pin.slot >= ii or (pin.time is not None and pin.time % ii != pin.slot)):
                return False
        for number, value in self.loops:
            wait = ii * value.distance - self.latency[number] - (value.clocks or 0)
            if wait < 0 or (value.clocks is None and wait > self.max_delay):
                return False
        return True

    def neighbours(self) -> list[list[int]]:
        """For each group the groups that it exchanges values with."""
        found: dict[int, set[int]] = defaultdict(set)
        for edge in self.structure.between:
            one, two = self.group[edge.source], self.group[edge.target]
            if one != two:
                found[one].add(two)
                found[two].add(one)
        return [sorted(found[group]) for group in range(len(self.members))]


def _steps(linked: npt.NDArray[np.bool_]) -> Ints:
    """All-pairs numbers of steps, FAR where there is no way."""
    found = np.full(linked.shape, FAR, np.int64)
    near = (linked | linked.T).astype(np.float32)
    # There are few tiles: from all of them one step farther at a time.
    front = np.eye(len(linked), dtype=bool)
    steps = 0
    while front.any():
        found[front] = steps
        steps += 1
        front = (front.astype(np.float32) @ near > 0) & (found == FAR)
    return found
