"""What the models need to know of a problem beside its data: groups, families, flows, recurrences. Not for the verifier."""

from __future__ import annotations

from collections import defaultdict
from functools import cached_property

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from stowplan.models.modulo_scheduling.problem import Edge, Problem


class Structure:
    """Derived facts, each computed once. Instructions by number."""

    def __init__(self, problem: Problem):
        self.problem = problem
        self.count = len(problem.instructions)

    def _components(self, pairs: list[tuple[int, int]], connection: str) -> list[int]:
        if not self.count:
            return []
        source, target = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
        graph = coo_array((np.ones(len(pairs)), (source, target)), shape=(self.count, self.count))
        labels = connected_components(graph, directed=True, connection=connection)[1]
        # Renumbered by first appearance, so that numbers do not depend on how the library walks.
        order: dict[int, int] = {}
        return [order.setdefault(int(label), len(order)) for label in labels]

    @cached_property
    def between(self) -> list[Edge]:
        """Edges between two different instructions."""
        return [edge for edge in self.problem.edges if edge.source != edge.target]

    @cached_property
    def group(self) -> list[int]:
        """Group of each instruction: those that must share a tile because of variables have the same."""
        users: dict[str, list[int]] = defaultdict(list)
        for number, instruction in enumerate(self.problem.instructions):
            for name in instruction.variables:
                users[name].append(number)
        return self._components([(numbers[0], each) for numbers in users.values() for each in numbers[1:]], "weak")

    @cached_property
    def members(self) -> list[list[int]]:
        """Instructions of each group."""
        found: list[list[int]] = [[] for _ in range(max(self.group, default=-1) + 1)]
        for number, group in enumerate(self.group):
            found[group].append(number)
        return found

    @cached_property
    def words(self) -> list[int]:
        """Words of tile memory that each group's variables take."""
        size = {variable.id: variable.words for variable in self.problem.variables}
        return [
            sum(size[name] for name in {name for each in members for name in self.problem.instructions[each].variables})
            for members in self.members
        ]

    @cached_property
    def demands(self) -> list[dict[int, str]]:
        """For each group the tiles it must be on, each with its reason; more than one cannot be."""
        found: list[dict[int, str]] = [{} for _ in self.members]
        bound = {variable.id: variable.tile for variable in self.problem.variables}
        for number, instruction in enumerate(self.problem.instructions):
            for name in instruction.variables:
                tile = bound[name]
                if tile is not None:
                    found[self.group[number]].setdefault(tile, f"{instruction.id} uses {name}, in the memory of tile {tile}")
        for pin in self.problem.pins:
            if pin.tile is not None:
                reason = f"{pin.instruction} is fixed on tile {pin.tile}"
                found[self.group[self.problem.number[pin.instruction]]].setdefault(pin.tile, reason)
        return found

    @cached_property
    def allowed(self) -> list[tuple[int, ...]]:
        """For each group the tiles it may stand on, ascending; none where demands contradict each other."""
        found = []
        for members, demands in zip(self.members, self.demands, strict=True):
            tiles = set(range(self.problem.machine.tiles))
            for tile in demands:
                tiles &= {tile}
            for number in members:
                tiles &= set(own) if (own := self.problem.instructions[number].tiles) is not None else tiles
            found.append(tuple(sorted(tiles)))
        return found

    @cached_property
    def has_one_latency(self) -> bool:
        """Whether all instructions take equally long: then results are apart where issues are."""
        return len(set(self.problem.latencies)) <= 1

    @cached_property
    def slotted(self) -> list[int]:
        """Instructions whose slots decide more than their own times: the rest can wait for any free slot of its tile.

        Those on cycles; and all of them where results of different latencies may meet.
        """
        return self.recurrent if self.has_one_latency else list(range(self.count))

    @cached_property
    def families(self) -> list[list[int]]:
        """Sets of two or more instructions that stand on different tiles, as siblings."""
        rule = self.problem.rules.siblings
        found: dict[tuple[int, int], set[int]] = defaultdict(set)
        for edge in self.problem.edges:
            if rule != "none":
                found[0, edge.source].add(edge.target)
            if rule == "consumers_and_producers":
                found[1, edge.target].add(edge.source)
        return sorted({tuple(sorted(each)): sorted(each) for each in found.values() if len(each) > 1}.values())

    @cached_property
    def sources(self) -> list[int]:
        """Instructions that nothing within their iteration wakes."""
        woken = {edge.target for edge in self.problem.edges if edge.distance == 0}
        return [number for number in range(self.count) if number not in woken]

    @cached_property
    def flow(self) -> list[int]:
        """Flow of each instruction."""
        return self._components([(edge.source, edge.target) for edge in self.problem.edges], "weak")

    @cached_property
    def start_choices(self) -> list[list[int]]:
        """Sets of instructions; one of each is a start."""
        if self.problem.rules.starts == "source":
            return [[number] for number in self.sources]
        found: dict[int, list[int]] = defaultdict(list)
        for number in self.sources:
            found[self.flow[number]].append(number)
        return [found[flow] for flow in sorted(found)]

    @cached_property
    def component(self) -> list[int]:
        """Strongly connected component of each instruction."""
        return self._components([(edge.source, edge.target) for edge in self.between], "strong")

    @cached_property
    def recurrent(self) -> list[int]:
        """Instructions on a cycle of two or more."""
        size: dict[int, int] = defaultdict(int)
        for each in self.component:
            size[each] += 1
        return [number for number, each in enumerate(self.component) if size[each] > 1]

    @cached_property
    def apart(self) -> set[tuple[int, int]]:
        """Pairs of groups, smaller first, that stand on different tiles in any plan."""
        found: set[tuple[int, int]] = set()
        for family in self.families:
            found |= self._pairs(family)
        if self.problem.rules.starts == "source":
            found |= self._pairs(self.sources)
        bound = [(group, set(tiles)) for group, tiles in enumerate(self.allowed) if len(tiles) < self.problem.machine.tiles]
        for group, tiles in bound:
            found |= {(group, other) for other, there in bound if group < other and not tiles & there}
        return found

    def _pairs(self, numbers: list[int]) -> set[tuple[int, int]]:
        groups = sorted({self.group[number] for number in numbers})
        return {(one, two) for at, one in enumerate(groups) for two in groups[at + 1 :]}

    def least_hops(self, edge: Edge) -> int:
        """Clocks that any plan needs between the tiles of an edge."""
        one, two = sorted((self.group[edge.source], self.group[edge.target]))
        if (one, two) not in self.apart:
            return 0
        return min((link.clocks for link in self.problem.machine.links), default=0)
