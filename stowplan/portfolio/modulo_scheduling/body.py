"""What the heuristics look up again and again about a loop body on its machine: lists, and flat arrays for compiled code.

None of the lists depends on the initiation interval (II).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from stowplan.compiled import Ints2D, Ints3D
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
    leaves: bool = False
    """Whether it goes to the other end, or comes from it."""


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
        incoming: list[list[Value]] = [[] for _ in range(self.count)]
        outgoing: list[list[Value]] = [[] for _ in range(self.count)]
        self.loops: list[tuple[int, Value]] = []
        """Values from an instruction to itself."""
        for source, target, distance, clocks in structure.precedences:
            if source == target:
                self.loops.append((source, Value(target, distance, clocks)))
            else:
                incoming[target].append(Value(source, distance, clocks))
                outgoing[source].append(Value(target, distance, clocks, leaves=True))
        #: Of each instruction, to and from others; those that come first.
        self.values = [value + outgoing[number] for number, value in enumerate(incoming)]
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
        apart: list[list[int]] = [[] for _ in self.members]
        for one, two in sorted(pairs):
            apart[one].append(two)
            apart[two].append(one)
        return apart

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
        edges = [precedence for precedence in self.structure.precedences if precedence.source != precedence.target]
        if not edges:
            return [int(clocks) for clocks in height]
        source = np.array([edge.source for edge in edges])
        target = np.array([edge.target for edge in edges])
        weight = np.array([self.latency[edge.source] + self.structure.least_hops(edge) - ii * edge.distance for edge in edges])
        for _ in range(self.count + 1):
            after = height.copy()
            np.maximum.at(after, source, height[target] + weight)
            if (after == height).all():
                break
            height = after
        return [int(clocks) for clocks in height]

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
        others: dict[int, set[int]] = defaultdict(set)
        for edge in self.structure.between:
            one, two = self.group[edge.source], self.group[edge.target]
            if one != two:
                others[one].add(two)
                others[two].add(one)
        return [sorted(others[group]) for group in range(len(self.members))]


def _steps(linked: npt.NDArray[np.bool_]) -> Ints:
    """All-pairs numbers of steps, FAR where there is no way."""
    distance = np.full(linked.shape, FAR, np.int64)
    near = (linked | linked.T).astype(np.float32)
    # There are few tiles: from all of them one step farther at a time.
    front = np.eye(len(linked), dtype=bool)
    steps = 0
    while front.any():
        distance[front] = steps
        steps += 1
        front = (front.astype(np.float32) @ near > 0) & (distance == FAR)
    return distance


class Data(NamedTuple):
    """A loop body for compiled code. G groups, I instructions, T tiles; lists one after the other, with where each begins."""

    link_start: Ints
    """[G + 1]"""
    link: Ints
    """Groups that exchange values with each."""
    link_out: Ints
    """1 where the value goes to that group, 0 where it comes from it."""
    excess: Ints3D
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
    allowed: Ints2D
    """[G, T] 1 where a group may stand."""
    hops: Ints2D
    """[T, T] Clocks from tile to tile; where there is no link, of a way over several."""
    near_start: Ints
    """[T + 1]"""
    near: Ints
    """Tiles that are a link or none away."""
    member_start: Ints
    """[G + 1]"""
    member: Ints
    """Timed instructions of each group."""
    group: Ints
    """[I] Of each instruction."""
    latency: Ints
    """[I]"""
    mixed: int
    """1 where latencies differ, so that results may meet where issues do not."""
    wait_start: Ints
    """[I + 1]"""
    wait: Ints
    """Timed instructions that each waits for, or that wait for it."""
    wait_out: Ints
    """1 where the value goes to that instruction, 0 where it comes from it."""
    wait_distance: Ints
    """Iterations."""
    wait_clocks: Ints
    """Clocks from issue to issue, but for those of the link: latency less what distances give at this II."""
    ii: int


def _lists(parts: Sequence[Sequence[int]]) -> tuple[Ints, Ints]:
    """Where each list begins, and all of them one after the other."""
    start = np.zeros(len(parts) + 1, np.int64)
    start[1:] = np.cumsum([len(part) for part in parts])
    return start, np.array([item for part in parts for item in part], np.int64)


def build(body: Body) -> Data:
    """Tables of a loop body; what depends on its II is set by :func:`at_ii`."""
    links: list[set[tuple[int, int]]] = [set() for _ in body.members]
    for edge in body.structure.between:
        one, two = body.group[edge.source], body.group[edge.target]
        if one != two:
            links[one].add((two, 1))
            links[two].add((one, 0))
    link_start, link = _lists([[other for other, _ in sorted(neighbours)] for neighbours in links])
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
    structure = body.structure
    slotted = set(structure.slotted)
    member_start, member = _lists([[number for number in members if number in slotted] for members in body.members])
    # Other edges can wait: what is on no common cycle moves by whole IIs.
    every: list[list[tuple[int, int, int, int]]] = [[] for _ in range(body.count)]
    for edge in structure.between:
        if structure.component[edge.source] == structure.component[edge.target]:
            every[edge.source].append((edge.target, 1, edge.distance, body.latency[edge.source]))
            every[edge.target].append((edge.source, 0, edge.distance, body.latency[edge.source]))
    wait_start, wait = _lists([[other for other, *_ in waits] for waits in every])
    return Data(
        link_start=link_start,
        link=link,
        link_out=np.array([out for neighbours in links for _, out in sorted(neighbours)], np.int64),
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
        member_start=member_start,
        member=member,
        group=np.array(body.group, np.int64),
        latency=np.array(body.latency, np.int64),
        mixed=int(not structure.has_one_latency),
        wait_start=wait_start,
        wait=wait,
        wait_out=np.array([wait[1] for waits in every for wait in waits], np.int64),
        wait_distance=np.array([wait[2] for waits in every for wait in waits], np.int64),
        wait_clocks=np.array([wait[3] for waits in every for wait in waits], np.int64),
        ii=1,
    )


def at_ii(data: Data, body: Body, ii: int) -> Data:
    """The tables at an initiation interval."""
    return data._replace(
        slots=min(ii, body.problem.machine.instruction_depth),
        wait_clocks=data.wait_clocks - ii * data.wait_distance,
        ii=ii,
    )
