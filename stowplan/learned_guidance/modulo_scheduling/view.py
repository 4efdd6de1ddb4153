"""Static features of a loop body for policies of modulo scheduling: nodes, edges and distances.

They do not depend on the initiation interval or on places, so a graph network computes the embeddings once for all mappings.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array
from scipy.sparse.csgraph import shortest_path

from stowplan.errors import InputError
from stowplan.learned_guidance.modulo_scheduling.body import least_clocks, recurrence_paths
from stowplan.models.modulo_scheduling.bounds import least_ii
from stowplan.models.modulo_scheduling.problem import Problem
from stowplan.models.modulo_scheduling.structure import Structure

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]

#: Distances in graph and machine are capped at this number of steps.
MOST_STEPS = 15

#: Classes of operations. They make no difference to the machine, but tell a policy the purpose of a node.
CLASSES = {
    "multiply": ("mul", "madd", "div", "exp"),
    "add": ("add", "sub", "neg", "min", "max"),
    "logic": ("and", "or", "xor", "not", "shl", "shr", "extend", "concatenate"),
    "choice": ("lt", "gt", "eq", "compare", "select", "merge", "branch"),
    "load": ("load", "input"),
    "store": ("store", "output"),
    "constant": ("parameter", "constant"),
    "copy": ("copy",),
}
_CLASS = {op: number for number, ops in enumerate(CLASSES.values()) for op in ops}

#: First columns of a node. One column for each class of operations follows, and one for all other operations. Counts and sizes
#: are scaled to numbers of about 1.
#:
#: - ``height``, ``depth``: clocks from the issue to the last one after it, and from the first one to it, as parts of the
#:   longest path; ``slack``: 1 minus both
#: - ``producers``, ``consumers``, ``siblings``: numbers of such instructions; ``reach``: instructions at most two edges away
#: - ``recurrent``: whether it is on a recurrence; ``self_loop``: whether it passes a value to itself
#: - ``carried_in``, ``carried_out``: whether it reads a value of an earlier iteration, or makes one for a later iteration
#: - ``source``, ``sink``: whether it has no producer, or no consumer, in its own iteration
#: - ``apart``: number of groups that must be on other tiles; ``group``: size of its own group; ``words``: memory of this group
#: - ``variables``: number of its variables; ``bound``: whether one of them has a fixed tile; ``pinned``: whether it has a pin
NODE_COLUMNS = (
    "height", "depth", "slack", "producers", "consumers", "recurrent", "self_loop", "carried_in", "carried_out",
    "source", "sink", "siblings", "apart", "variables", "group", "words", "bound", "pinned", "reach",
)  # fmt: skip
NODE_FEATURES = len(NODE_COLUMNS) + len(CLASSES) + 1

#: Number of columns of an edge: its distance (capped), and whether it is in a recurrence, whether it carries data over links,
#: and whether it joins instructions of a group.
EDGE_FEATURES = 4


class View:
    """Static data of a problem with N instructions and T tiles as arrays. Instructions are indices; the instructions of a group
    must share a tile.

    ``hops[from, to]`` is the clocks between two tiles, -1 if there is no link. ``steps[T, T]`` is the least number of links
    between tiles, and ``near[N, N]`` the least number of edges between instructions, in any direction, at most
    :data:`MOST_STEPS`.
    """

    def __init__(self, problem: Problem):
        self.problem = problem
        self.structure = structure = Structure(problem)
        machine = problem.machine
        self.count, self.tiles, self.latency = structure.count, machine.tiles, machine.latency
        self.least_ii = least_ii(problem, structure)
        """A lower bound on the initiation interval."""
        self.clocks = least_clocks(structure)
        self.hops: Ints = np.array([[-1 if clocks is None else clocks for clocks in row] for row in problem.hops], np.int64)
        self.steps = _steps(self.hops >= 0)
        self.group: Ints = np.array(structure.group, np.int64)
        self.size: Ints = np.array([len(members) for members in structure.members], np.int64)
        self.words: Ints = np.array(structure.words, np.int64)
        self.room = max(1, machine.memories * machine.memory_depth)
        """Words of memory of each tile."""
        self.slots = min(machine.spoke_depth, machine.instruction_depth)
        groups = len(structure.members)
        linked = np.zeros((groups, groups), bool)
        for edge in structure.between:
            linked[structure.group[edge.source], structure.group[edge.target]] = True
        self.near: Ints = np.ascontiguousarray(_steps(linked)[np.ix_(self.group, self.group)])
        self.apart: npt.NDArray[np.bool_] = np.zeros((groups, groups), bool)
        """[groups, groups] Whether two groups are on different tiles in every plan."""
        for one, two in structure.apart:
            self.apart[one, two] = self.apart[two, one] = True
        self.source: Ints = np.array([edge.source for edge in structure.between], np.int64)
        self.target: Ints = np.array([edge.target for edge in structure.between], np.int64)
        self.related = self._find_relatives()
        self.allowed: npt.NDArray[np.bool_] = np.zeros((groups, self.tiles), bool)
        """[groups, T] Tiles allowed for a group."""
        for number, tiles in enumerate(structure.allowed):
            self.allowed[number, list(tiles)] = True
        self.heights, self.depths = self._levels()
        """[N] clocks from each issue to the last one after it, and from the first one to it."""
        self.path = int(max((self.heights + self.depths).max(initial=0), 1)) + self.latency
        self.nodes = self._nodes()
        self.edges, self.edge_features = self._edges()
        key = int(problem.digest[:11], 16)
        self.key: npt.NDArray[np.int32] = np.array([key >> 22, key & ((1 << 22) - 1)], np.int32)
        """Identifies the graph, as two numbers that float32 represents exactly."""

    def _find_relatives(self) -> tuple[Ints, Ints, Ints]:
        """Return the ends of rows, the relatives of each instruction (neighbours by edges, and siblings), and their relations.

        A relation is a sum of 1 (the relative consumes its value), 2 (the relative produces one of its operands) and 4 (they
        must be on different tiles).
        """
        related: list[dict[int, int]] = [{} for _ in range(self.count)]
        for source, target in zip(self.source.tolist(), self.target.tolist(), strict=True):
            related[source][target] = related[source].get(target, 0) | 1
            related[target][source] = related[target].get(source, 0) | 2
        for family in self.structure.families:
            for one in family:
                for two in family:
                    if one != two:
                        related[one][two] = related[one].get(two, 0) | 4
        ends = np.cumsum([len(row) for row in related], dtype=np.int64) if related else np.zeros(0, np.int64)
        others = np.array([other for row in related for other in sorted(row)], np.int64)
        relations = np.array([row[other] for row in related for other in sorted(row)], np.int64)
        return ends, others, relations

    def _levels(self) -> tuple[Ints, Ints]:
        """Return the clocks from each issue to the last one after it, and from the first one to it, within an iteration."""
        latencies = self.problem.latencies
        weight = np.array(
            [latencies[edge.source] + self.structure.least_hops(edge) for edge in self.structure.between], np.int64
        )
        within = np.array([edge.distance == 0 for edge in self.structure.between], bool)
        source, target, weight = self.source[within], self.target[within], weight[within]
        heights, depths = np.zeros(self.count, np.int64), np.zeros(self.count, np.int64)
        for _ in range(self.count):
            before = heights.sum() + depths.sum()
            np.maximum.at(heights, source, heights[target] + weight)
            np.maximum.at(depths, target, depths[source] + weight)
            if heights.sum() + depths.sum() == before:
                break
        return heights, depths

    def cycles(self, ii: int) -> tuple[Ints, Ints]:
        """The clocks [N, N] of paths within recurrences at an initiation interval, with and without links, as
        :func:`~stowplan.learned_guidance.modulo_scheduling.body.recurrence_paths` returns them."""
        paths: dict[int, tuple[Ints, Ints]] = self.__dict__.setdefault("_cycles", {})
        if ii not in paths:
            paths[ii] = recurrence_paths(self.structure, max(ii, self.least_ii))
        return paths[ii]

    def _nodes(self) -> Floats:
        """Return the columns of nodes, ``[N, NODE_FEATURES]``."""
        structure, problem = self.structure, self.problem
        features = np.zeros((self.count, NODE_FEATURES), np.float32)
        if not self.count:
            return features
        recurrent = np.zeros(self.count)
        recurrent[structure.recurrent] = 1.0
        looped, carried_in, carried_out = np.zeros(self.count), np.zeros(self.count), np.zeros(self.count)
        has_producer, has_consumer = np.zeros(self.count), np.zeros(self.count)
        for edge in problem.edges:
            if edge.source == edge.target:
                looped[edge.source] = 1.0
            elif edge.distance:
                carried_out[edge.source] = carried_in[edge.target] = 1.0
            else:
                has_consumer[edge.source] = has_producer[edge.target] = 1.0
        producers = np.bincount(self.target, minlength=self.count)
        consumers = np.bincount(self.source, minlength=self.count)
        siblings = np.zeros(self.count)
        for family in structure.families:
            siblings[family] += len(family) - 1
        variables = [len(instruction.variables) for instruction in problem.instructions]
        bound = {variable.id for variable in problem.variables if variable.tile is not None}
        pinned = np.zeros(self.count)
        pinned[[problem.number[pin.instruction] for pin in problem.pins]] = 1.0
        path = float(max((self.heights + self.depths).max(), 1))
        columns = (
            self.heights / path,
            self.depths / path,
            1.0 - (self.heights + self.depths) / path,
            producers / 4,
            consumers / 4,
            recurrent,
            looped,
            carried_in,
            carried_out,
            1.0 - has_producer,
            1.0 - has_consumer,
            siblings / 4,
            self.apart[self.group].sum(axis=1) / 8,
            np.minimum(variables, 4) / 2,
            np.log2(self.size[self.group]) / 4,
            np.log1p(self.words[self.group]) / np.log1p(self.room),
            [float(any(name in bound for name in instruction.variables)) for instruction in problem.instructions],
            pinned,
            (self.near <= 2).sum(axis=1) / 16,
        )
        features[:, : len(NODE_COLUMNS)] = np.stack([np.asarray(column, np.float32) for column in columns], axis=1)
        for number, instruction in enumerate(problem.instructions):
            features[number, len(NODE_COLUMNS) + _CLASS.get(instruction.op, len(CLASSES))] = 1.0
        return features

    def _edges(self) -> tuple[npt.NDArray[np.int16], Floats]:
        """Return producers and consumers [E, 2] and the columns of edges, including those between neighbours in a group."""
        rows: list[tuple[int, int, float, float, float, float]] = []
        component = self.structure.component
        for edge in self.structure.between:
            closes = float(component[edge.source] == component[edge.target])
            rows.append((edge.source, edge.target, min(edge.distance, 4) / 2, closes, 1.0, 0.0))
        # Edges over the asynchronous fabric need neither a link nor a shared tile.
        rows += [
            (edge.source, edge.target, min(edge.distance, 4) / 2, 0.0, 0.0, 0.0)
            for edge in self.problem.edges
            if edge.asynchronous and edge.source != edge.target
        ]
        for members in self.structure.members:
            rows += [(one, two, 0.0, 0.0, 0.0, 1.0) for one, two in pairwise(members)]
        table = np.array(rows, np.float32).reshape(-1, 2 + EDGE_FEATURES)
        return table[:, :2].astype(np.int16), np.ascontiguousarray(table[:, 2:])


def _steps(linked: npt.NDArray[np.bool_]) -> Ints:
    """Return the least numbers of steps between all pairs, in any direction, at most :data:`MOST_STEPS`."""
    if not len(linked):
        return np.zeros((0, 0), np.int64)
    steps = shortest_path(csr_array(linked.astype(float)), directed=False, unweighted=True)
    return np.minimum(np.where(np.isfinite(steps), steps, MOST_STEPS), MOST_STEPS).astype(np.int64)


#: Views of the last problems, by digest; and the largest number of them.
_VIEWS: OrderedDict[str, View] = OrderedDict()
_MAX_VIEWS = 512


def view_of(problem: Problem) -> View:
    """Return the view of a problem. The views of the last problems are cached."""
    view = _VIEWS.pop(problem.digest, None) or View(problem)
    _VIEWS[problem.digest] = view
    if len(_VIEWS) > _MAX_VIEWS:
        _VIEWS.popitem(last=False)
    return view


@dataclass(frozen=True)
class Limits:
    """Sizes of the padded arrays of an observation, which all problems of an environment must fit into."""

    nodes: int
    """Number of instructions."""
    edges: int
    """Number of edges, as in ``View.edges``."""
    tiles: int
    """Number of tiles."""
    slots: int
    """Number of slots, that is, the largest initiation interval."""

    @classmethod
    def of(cls, problems: list[Problem] | tuple[Problem, ...], slots: int | None = None) -> Limits:
        """Return the smallest limits for these problems. There must be at least one problem. ``slots`` is the largest II; by
        default, the largest one for which a spoke RAM has room."""
        views = [view_of(problem) for problem in problems]
        return cls(
            nodes=max(1, *(view.count for view in views)),
            edges=max(1, *(len(view.edges) for view in views)),
            tiles=max(view.tiles for view in views),
            slots=slots or max(problem.machine.spoke_depth for problem in problems),
        )

    def check(self, view: View, ii: int) -> None:
        """Raise InputError if a mapping at this II does not fit the limits."""
        sizes = {"nodes": view.count, "edges": len(view.edges), "tiles": view.tiles, "slots": ii}
        for name, value in sizes.items():
            if value > getattr(self, name):
                raise InputError(
                    f"found {value} {name}, expected {getattr(self, name)} at most, as the observation has room for"
                )
