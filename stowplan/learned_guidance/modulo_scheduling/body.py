"""The data of a loop body that all its mappings share: the order in which instructions are placed, the constraints of
recurrences, and tables for compiled code.

A mapping gives each instruction a *place*, that is, a tile and a slot.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from stowplan.errors import InputError
from stowplan.learned_guidance.modulo_scheduling.compiled import FAR, Ahead, Tables
from stowplan.models.modulo_scheduling.bounds import recurrence_mii
from stowplan.models.modulo_scheduling.problem import TIME_LIMIT, Problem
from stowplan.models.modulo_scheduling.structure import Structure

Ints: TypeAlias = npt.NDArray[np.int64]

#: Number of clocks that stands for the distance between tiles that no links connect.
MOST_CLOCKS = 1 << 20

#: Entry of a table of paths for two instructions that no path connects.
NO_PATH = -(1 << 40)


class Body:
    """The data of a problem that its mappings share at all initiation intervals.

    Raises
    ------
    InputError
        If values may pass through tiles, because places alone then do not determine their routes; or if values wait in
        registers, because the mask of legal places does not count registers.
    """

    def __init__(self, problem: Problem):
        if problem.rules.pass_through:
            raise InputError(
                "found the rule pass_through, expected single links: a mapping is built of tiles and slots alone",
                place="rules.pass_through",
            )
        if problem.machine.registers:
            raise InputError("found registers, expected a machine without: values wait there", place="machine.registers")
        self.problem = problem
        self.structure = structure = Structure(problem)
        machine, rules = problem.machine, problem.rules
        self.count, self.tiles = structure.count, machine.tiles
        self.order = topological_order(problem)
        self.max_delay = FAR if rules.max_delay is None else rules.max_delay
        self.room = machine.memories * machine.memory_depth
        """Words of memory of each tile."""
        timed = any(pin.time is not None or pin.slot is not None for pin in problem.pins)
        self.places_decide = rules.max_delay is None and not timed
        """Whether the places of instructions determine their times, except for instructions on a cycle of edges."""
        self.tables = _tables(problem, structure)
        nothing = np.zeros((0, 0), np.int64)
        self.no_ahead = Ahead(nothing, nothing, nothing)
        self._aheads: dict[int, Ahead] = {}
        self._tables_at: dict[int, Tables] = {}

    def tables_at(self, ii: int) -> Tables:
        """Return the tables with the entries that depend on the initiation interval ``ii``; they are cached."""
        if ii not in self._tables_at:
            fits = self.tables.fits.copy()
            for source, target, distance, clocks in self.structure.precedences:
                if source == target:
                    wait = ii * distance - int(self.tables.latency[source]) - (clocks or 0)
                    fits[source] &= wait >= 0 and (clocks is not None or wait <= self.max_delay)
            words = np.array(self.structure.words_at(ii), np.int64)
            self._tables_at[ii] = self.tables._replace(words=words, fits=fits)
        return self._tables_at[ii]

    def ahead(self, ii: int) -> Ahead:
        """Return the constraints of recurrences that are partly placed, at the initiation interval ``ii``; they are cached.
        They are empty if there is no recurrence, or if the interval is too short for one."""
        if ii not in self._aheads:
            structure = self.structure
            constraints = self.no_ahead
            if structure.recurrent and ii >= recurrence_mii(self.problem, structure):
                constraints = Ahead(*recurrence_paths(structure, ii), least_clocks(structure))
            self._aheads[ii] = constraints
        return self._aheads[ii]


def _tables(problem: Problem, structure: Structure) -> Tables:
    """The tables with the entries that do not depend on the interval."""
    count, groups = structure.count, len(structure.members)
    tiles, limits = problem.machine.tiles, structure.port_limits
    ends: list[list[tuple[int, int, int, bool]]] = [[] for _ in range(count)]
    for source, target, distance, nominal in structure.precedences:
        clocks = -1 if nominal is None else nominal
        if source != target:
            ends[target].append((source, distance, clocks, False))
            ends[source].append((target, distance, clocks, True))
    ends = [sorted(set(instruction_ends)) for instruction_ends in ends]
    flat = [end for instruction_ends in ends for end in instruction_ends]
    apart = np.zeros((groups, groups), bool)
    for one, two in structure.apart:
        apart[one, two] = apart[two, one] = True
    for family in (*structure.families, *([structure.sources] if problem.rules.starts == "source" else [])):
        within = [structure.group[number] for number in family]
        for group in {group for group in within if within.count(group) > 1}:
            apart[group, group] = True
    choices = structure.start_choices if problem.rules.starts == "flow" else []
    flow_sources = np.zeros((len(choices), groups), bool)
    for flow, numbers in enumerate(choices):
        flow_sources[flow, [structure.group[number] for number in numbers]] = True
    arcs: list[set[tuple[int, bool]]] = [set() for _ in range(groups)]
    for edge in structure.between:
        one, two = structure.group[edge.source], structure.group[edge.target]
        if one != two:
            arcs[one].add((two, True))
            arcs[two].add((one, False))
    flat_arcs = [arc for group_arcs in arcs for arc in sorted(group_arcs)]
    latency = np.array(problem.latencies, np.int64)
    least, most, slot = np.zeros(count, np.int64), TIME_LIMIT - 1 - latency, np.full(count, -1, np.int64)
    for pin in problem.pins:
        number = problem.number[pin.instruction]
        if pin.time is not None:
            least[number], most[number] = pin.time, min(pin.time, most[number])
        if pin.slot is not None:
            slot[number] = pin.slot
    hops = [[FAR if clocks is None else clocks for clocks in row] for row in problem.hops]
    return Tables(
        hops=np.array(hops, np.int64),
        latency=latency,
        first_edge=np.cumsum([0, *map(len, ends)]).astype(np.int64),
        other=np.array([end[0] for end in flat], np.int64),
        distance=np.array([end[1] for end in flat], np.int64),
        clocks=np.array([end[2] for end in flat], np.int64),
        is_output=np.array([end[3] for end in flat], bool),
        group=np.array(structure.group, np.int64),
        size=np.array([len(members) for members in structure.members], np.int64),
        words=np.array(structure.words, np.int64),
        apart=apart,
        first_arc=np.cumsum([0, *map(len, arcs)]).astype(np.int64),
        arc_other=np.array([arc[0] for arc in flat_arcs], np.int64),
        arc_is_output=np.array([arc[1] for arc in flat_arcs], bool),
        flow_sources=flow_sources,
        least_time=least,
        most_time=most,
        pinned_slot=slot,
        fits=np.ones(count, bool),
        is_access=np.isin(np.arange(count), problem.accesses),
        port_tiles=np.array([[t in limit.tiles for t in range(tiles)] for limit in limits], bool).reshape(-1, tiles),
        port_most=np.array([limit.most for limit in limits], np.int64),
    )


def topological_order(problem: Problem) -> npt.NDArray[np.int64]:
    """Return the indices [N] of the instructions in an order in which producers precede consumers over edges of distance 0.

    The search is depth first from the instructions that end the longest chains. An instruction therefore follows soon after its
    producers, so these are not spread over the machine before their consumer is placed.
    """
    count = len(problem.instructions)
    producers: list[list[int]] = [[] for _ in range(count)]
    is_last = [True] * count
    for edge in problem.edges:
        if edge.distance == 0 and edge.source not in producers[edge.target]:
            producers[edge.target].append(edge.source)
            is_last[edge.source] = False
    order: list[int] = []
    depth = [-1] * count

    def visit(root: int, add: bool) -> None:
        # The stack is explicit, because a chain may be longer than Python's recursion limit.
        stack = [(root, False)]
        while stack:
            number, after = stack.pop()
            if after:
                depth[number] = 1 + max((depth[producer] for producer in producers[number]), default=-1)
                if add:
                    order.append(number)
            elif not seen[number]:
                seen[number] = True
                stack.append((number, True))
                # The deepest producer is visited first, so it is pushed last.
                stack += [
                    (producer, False)
                    for producer in sorted(producers[number], key=lambda producer: (depth[producer], -producer))
                ]

    seen = [False] * count
    for number in range(count):
        visit(number, add=False)
    seen = [False] * count
    for number in sorted((last for last in range(count) if is_last[last]), key=lambda last: (-depth[last], last)):
        visit(number, add=True)
    return np.array(order, np.int64)


def recurrence_paths(structure: Structure, ii: int) -> tuple[Ints, Ints]:
    """Return the clocks [N, N] that paths within recurrences need from issue to issue at an initiation interval.

    The first array includes the least clocks of links, the second excludes links. An entry is :data:`NO_PATH` if the two
    instructions are not in one recurrence. The interval must be at least ``recurrence_mii``.
    """
    problem, component = structure.problem, structure.component
    within = [edge for edge in structure.between if component[edge.source] == component[edge.target]]
    both = []
    for counts in (True, False):
        paths = np.full((structure.count, structure.count), NO_PATH, np.int64)
        for edge in within:
            clocks = problem.latencies[edge.source] - ii * edge.distance + (structure.least_hops(edge) if counts else 0)
            paths[edge.source, edge.target] = max(paths[edge.source, edge.target], clocks)
        for middle in structure.recurrent:
            np.maximum(paths, paths[:, middle, None] + paths[None, middle], out=paths)
        both.append(np.where(paths < NO_PATH // 2, NO_PATH, paths))
    return both[0], both[1]


def least_clocks(structure: Structure) -> Ints:
    """Return the least clocks [T, T] between tiles over any number of links; :data:`MOST_CLOCKS` if no links connect them."""
    ways = structure.problem.machine.any_links
    return np.array([[MOST_CLOCKS if clocks is None else clocks for clocks in row] for row in ways], np.int64)
