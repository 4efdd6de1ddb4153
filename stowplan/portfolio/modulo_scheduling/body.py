"""Derived data of a loop body on its machine that the heuristics look up often: lists, and flat arrays for compiled code.

The machine has *tiles* (processing elements) with *links* between them; values may also be sent over a second network whose
latency is not fixed, the *asynchronous fabric*. A *group* is a set of instructions that must share a tile. A *flow* is a set of
instructions that values over links connect. *Siblings* are groups that must be on different tiles, such as those of the
consumers of one producer. A *recurrence* is a cycle of dependences, from one iteration to a later one. The lists do not depend
on the initiation interval (*II*), the number of clocks from the start of one iteration to the start of the next. A *slot* is a
clock modulo the II. A *pin* fixes the tile, the time or the slot of an instruction. The functions raise no errors.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from stowplan.compiled import Ints2D, Ints3D
from stowplan.models.modulo_scheduling.bounds import critical_path, least_ii, unrefuted_iis
from stowplan.models.modulo_scheduling.problem import Problem
from stowplan.models.modulo_scheduling.structure import Structure

Ints: TypeAlias = npt.NDArray[np.int64]

#: A number of clocks or links that stands for "no path" and for "no limit".
FAR = 1 << 30


class Value(NamedTuple):
    """A value that goes from one instruction to another, or another dependence, as seen from one of the two instructions."""

    other: int
    """Number of the instruction at the other end."""
    distance: int
    """Number of iterations by which the target's iteration is later than the source's."""
    clocks: int | None = None
    """Nominal number of clocks over the asynchronous fabric; None if the value goes over links."""
    leaves: bool = False
    """Whether the value goes to the other end; otherwise it comes from there."""


class Body:
    """Derived data of a loop body. Instructions, groups and tiles are identified by their numbers."""

    def __init__(self, problem: Problem):
        self.problem = problem
        self.structure = structure = Structure(problem)
        machine = problem.machine
        #: The number of instructions, and that of tiles.
        self.count, self.tiles = structure.count, machine.tiles
        #: The latency of each instruction in clocks, and the longest of them.
        self.latency, self.longest = problem.latencies, max(problem.latencies, default=0)
        #: The IIs that no bound refutes, ascending, and the least of them.
        self.iis = unrefuted_iis(problem, structure).iis
        self.least_ii = min(self.iis, default=least_ii(problem, structure))
        #: A lower bound of the latency of an iteration, in clocks.
        self.path = critical_path(problem, structure)
        #: The group of each instruction, the instructions of each group, and the words of memory that each group needs.
        self.group, self.members, self.words = structure.group, structure.members, structure.words
        #: Words of data memory of a tile.
        self.room = machine.memories * machine.memory_depth
        #: ``[from][to]`` clocks of a value over at most one link, FAR if there is no such link.
        self.hops = [[FAR if clocks is None else clocks for clocks in row] for row in machine.one_link]
        #: ``[tiles, tiles]`` least number of links between two tiles, whatever the directions of the links.
        self.steps = _steps(np.array(self.hops) < FAR)
        incoming: list[list[Value]] = [[] for _ in range(self.count)]
        outgoing: list[list[Value]] = [[] for _ in range(self.count)]
        self.loops: list[tuple[int, Value]] = []
        """Pairs (instruction, value) for values from an instruction to itself."""
        for source, target, distance, clocks in structure.precedences:
            if source == target:
                self.loops.append((source, Value(target, distance, clocks)))
            else:
                incoming[target].append(Value(source, distance, clocks))
                outgoing[source].append(Value(target, distance, clocks, leaves=True))
        #: The values of each instruction, those that come from other instructions first.
        self.values = [value + outgoing[number] for number, value in enumerate(incoming)]
        #: The tiles on which each group may be.
        self.allowed = [list(tiles) for tiles in structure.allowed]
        self.apart = self._apart()
        self.nearness = self._nearness()
        #: The user's constraints on the tile, time or slot of instructions, by instruction.
        self.pins = {problem.number[pin.instruction]: pin for pin in problem.pins}
        timed = any(pin.time is not None or pin.slot is not None for pin in problem.pins)
        #: Whether the times of all instructions that are on no recurrence can be chosen after the placement, because values may
        #: wait for any number of clocks and no pin fixes a time.
        self.places_decide = not problem.limits_waits and not timed

    @cached_property
    def arrays(self) -> Data:
        """The loop body as arrays for compiled code, without an II (:func:`build`)."""
        return build(self)

    def longest_wait(self, ii: int) -> int:
        """The largest number of clocks that a value over links may wait at an II; FAR for any number."""
        limit = self.problem.longest_wait(ii)
        return FAR if limit is None else limit

    def between(self, least: int, above: int) -> tuple[int, ...]:
        """The IIs in ``[least, above)`` that no bound refutes, ascending."""
        return tuple(ii for ii in self.iis if least <= ii < above)

    def _apart(self) -> list[list[int]]:
        """For each group, the groups that must be on other tiles.

        They are its siblings. The hardware starts one instruction of each flow at a set time, and no tile may have two such
        instructions. Therefore the groups of the first possible start instruction of each flow must be on different tiles, too.
        """
        pairs = set(self.structure.apart)
        starts = sorted({self.group[choices[0]] for choices in self.structure.start_choices})
        pairs |= {(one, two) for at, one in enumerate(starts) for two in starts[at + 1 :]}
        apart: list[list[int]] = [[] for _ in self.members]
        for one, two in sorted(pairs):
            apart[one].append(two)
            apart[two].append(one)
        return apart

    def _nearness(self) -> Ints:
        """``[groups, groups]`` number of edges on a shortest path between two groups, whatever the directions of the edges.

        An edge connects two groups of which one sends values to the other. In a valid plan, the tiles of the two groups are at
        most this number of links apart.
        """
        size = len(self.members)
        linked = np.zeros((size, size), bool)
        for edge in self.structure.between:
            linked[self.group[edge.source], self.group[edge.target]] = True
        return _steps(linked)

    def heights(self, ii: int) -> list[int]:
        """The *height* of each instruction: the least number of clocks from its issue to the end of the loop body (Rau 1994).

        The II must be feasible for all recurrences; otherwise the numbers have no meaning.
        """
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
        """Whether a plan with this II is possible as far as pins and values from an instruction to itself are concerned.

        The pins must permit the II, and the values must arrive in time and wait no longer than allowed.
        """
        for pin in self.pins.values():
            if pin.slot is not None and (pin.slot >= ii or (pin.time is not None and pin.time % ii != pin.slot)):
                return False
        for number, value in self.loops:
            wait = ii * value.distance - self.latency[number] - (value.clocks or 0)
            if wait < 0 or (value.clocks is None and wait > self.longest_wait(ii)):
                return False
        return True

    def neighbours(self) -> list[list[int]]:
        """For each group, the groups with which it exchanges values."""
        others: dict[int, set[int]] = defaultdict(set)
        for edge in self.structure.between:
            one, two = self.group[edge.source], self.group[edge.target]
            if one != two:
                others[one].add(two)
                others[two].add(one)
        return [sorted(others[group]) for group in range(len(self.members))]


def _steps(linked: npt.NDArray[np.bool_]) -> Ints:
    """``[nodes, nodes]`` number of edges on a shortest path between two nodes of a graph, FAR if there is no path.

    ``linked`` is the adjacency matrix; the directions of edges do not matter.
    """
    distance = np.full(linked.shape, FAR, np.int64)
    near = (linked | linked.T).astype(np.float32)
    # The breadth-first search starts from all nodes at once, as there are few of them.
    front = np.eye(len(linked), dtype=bool)
    steps = 0
    while front.any():
        distance[front] = steps
        steps += 1
        front = (front.astype(np.float32) @ near > 0) & (distance == FAR)
    return distance


class Data(NamedTuple):
    """A loop body as arrays for compiled code. There are G groups, I instructions and T tiles.

    Row i of a list of lists ``x`` is ``x[x_start[i] : x_start[i + 1]]``. A *timed* instruction is one whose slot cannot be
    chosen after the placement (:attr:`~stowplan.models.modulo_scheduling.structure.Structure.slotted`).
    """

    link_start: Ints
    """[G + 1] index of each group's first entry in ``link`` and ``link_out``."""
    link: Ints
    """Groups that exchange values with each group."""
    link_out: Ints
    """1 if the value goes to the group in ``link``, 0 if it comes from there."""
    excess: Ints3D
    """[2, T, T] number of missing links between a first and a second tile. Index 1 is for a value from the first tile to the
    second, index 0 for a value in the opposite direction. It is 0 for equal tiles and tiles with a direct link in this
    direction."""
    apart_start: Ints
    """[G + 1] index of each group's first entry in ``apart``."""
    apart: Ints
    """Groups that must be on another tile than each group."""
    size: Ints
    """[G] number of instructions of each group."""
    words: Ints
    """[G] words of data memory that each group needs."""
    slots: int
    """Largest number of instructions on a tile: the II, or the size of the instruction memory if that is smaller."""
    room: int
    """Words of data memory of a tile."""
    allowed: Ints2D
    """[G, T] 1 if the group may be on the tile, otherwise 0."""
    hops: Ints2D
    """[T, T] clocks of a value from tile to tile. If there is no direct link, it is an estimate: two clocks for each link of a
    shortest path."""
    near_start: Ints
    """[T + 1] index of each tile's first entry in ``near``."""
    near: Ints
    """For each tile, the tile itself and the tiles with a link to or from it."""
    member_start: Ints
    """[G + 1] index of each group's first entry in ``member``."""
    member: Ints
    """Timed instructions of each group."""
    group: Ints
    """[I] group of each instruction."""
    latency: Ints
    """[I] latency of each instruction in clocks."""
    mixed: int
    """1 if latencies differ, so that two results may be complete in the same slot although the issues are not; otherwise 0."""
    wait_start: Ints
    """[I + 1] index of each instruction's first entry in the lists ``wait``, ``wait_out``, ``wait_distance`` and
    ``wait_clocks``."""
    wait: Ints
    """Instructions on the same recurrence that each instruction waits for, or that wait for it."""
    wait_out: Ints
    """1 if the value goes to the instruction in ``wait``, 0 if it comes from there."""
    wait_distance: Ints
    """Number of iterations between the two instructions."""
    wait_clocks: Ints
    """Least number of clocks from issue to issue without those of the link: the latency minus the II times the distance. It may
    be negative. :func:`build` leaves out the II, which :func:`at_ii` subtracts."""
    ii: int
    """The initiation interval."""


def _lists(parts: Sequence[Sequence[int]]) -> tuple[Ints, Ints]:
    """Returns a list of lists as two arrays: the index at which each list begins, and all items."""
    start = np.zeros(len(parts) + 1, np.int64)
    start[1:] = np.cumsum([len(part) for part in parts])
    return start, np.array([item for part in parts for item in part], np.int64)


def build(body: Body) -> Data:
    """The arrays of a loop body, without an II. :func:`at_ii` sets the fields that depend on the II."""
    links: list[set[tuple[int, int]]] = [set() for _ in body.members]
    for edge in body.structure.between:
        one, two = body.group[edge.source], body.group[edge.target]
        if one != two:
            links[one].add((two, 1))
            links[two].add((one, 0))
    link_start, link = _lists([[other for other, _ in sorted(neighbours)] for neighbours in links])
    apart_start, apart = _lists(body.apart)
    hops = np.array(body.hops)
    # The number of links beyond the first one; at least 1 if there is no direct link in the required direction.
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
    # Only edges (values or other dependences) within a recurrence constrain times. Other instructions can be delayed by
    # multiples of the II.
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
    """The arrays for an initiation interval, from the arrays that :func:`build` returns."""
    return data._replace(
        slots=min(ii, body.problem.machine.instruction_depth),
        wait_clocks=data.wait_clocks - ii * data.wait_distance,
        ii=ii,
    )
