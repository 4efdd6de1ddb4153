"""Plans which values of a forward pass are saved for the backward pass, within a budget of bytes.

This module does not import jax.

Each part of a program, such as the body of a scan or a repeated block, has a graph of its forward pass. A value that the
backward pass reads is either saved, or computed again from saved values and from the inputs of the part, which are always
available. Saved bytes are limited, and recomputation costs time. Both are multiplied by the number of times that the part runs.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Collection, Iterator, Sequence

import msgspec

from stowplan.models.rematerialization.cuts import Moments
from stowplan.models.rematerialization.problem import Op, Problem, Tensor
from stowplan.models.rematerialization.stages import Stages
from stowplan.models.rematerialization.structure import build

#: The time of all nodes together, in units of cost of the rematerialization problem.
_TOTAL_COST = 1 << 40

#: A solution is almost optimal if its recomputation exceeds its bound by at most this share of the time of all nodes. Then the
#: greedy plan is not computed for comparison, because that takes seconds.
_SMALL_GAP = 1e-4

#: Time limit in seconds for one integer program. The search for a policy solves up to one for each preview, one after the
#: other.
PLAN_LIMIT = 20.0


class Node(msgspec.Struct, frozen=True):
    """An equation of the forward pass."""

    seconds: float
    """Time of one run in seconds, by the roofline model, from floating-point operations and bytes."""
    inputs: tuple[int, ...] = ()
    """Indices of the nodes that it reads, all of them earlier; inputs of the part are not included."""
    name: str = ""
    """Name of its value; empty if the value has none, so that no policy can save it."""
    bytes: int = 0
    """Size of the named value in bytes; 0 without a name."""
    traits: tuple[str, ...] = ()
    """Jax's own policies that save the value; they are words of this list:

    - ``names``: the program itself has named the value
    - ``dots``: the value is the result of a matrix product
    - ``dots_no_batch``: it is the result of a matrix product without batch dimensions
    """
    line: str = ""
    """Description of where its value is computed: shape, operator, file and line."""
    flops: int = 0
    """Floating-point operations of its matrix products; 0 if it has none."""


class Graph(msgspec.Struct, frozen=True):
    """The forward pass of one part of a program."""

    times: int
    """How often the part runs: iterations of a scan, or repetitions of a block."""
    nodes: tuple[Node, ...]
    """The equations, in the order in which they run."""
    needed: tuple[tuple[int, int], ...]
    """Indices of the nodes whose values the backward pass reads, each with the number of bytes of the value."""

    @property
    def needed_bytes(self) -> int:
        """Bytes that are saved without a policy."""
        return self.times * sum(size for _, size in self.needed)

    def named(self, trait: str) -> list[str]:
        """Returns the names of the values that one of jax's own policies saves; ``trait`` is a word of ``Node.traits``."""
        return [node.name for node in self.nodes if trait in node.traits]

    @property
    def with_own_names(self) -> Graph:
        """The same graph without the names that stowplan has given to values; names of the program itself are kept."""
        nodes = [
            node if "names" in node.traits else msgspec.structs.replace(node, name="", bytes=0, traits=())
            for node in self.nodes
        ]
        return msgspec.structs.replace(self, nodes=tuple(nodes))


class Recomputation(msgspec.Struct, frozen=True):
    """The effect of saving the values with certain names, and recomputing all other values that the backward pass needs."""

    seconds: float
    """Time of recomputation in one training step, in seconds."""
    bytes: int
    """Bytes of the saved values that are read, in the backward pass or by a recomputation."""
    saved: tuple[str, ...]
    """Names of the saved values that are read, in alphabetical order."""
    flops: int = 0
    """Floating-point operations of recomputation in one training step."""


def recomputed(graphs: Sequence[Graph], saved: Collection[str]) -> Recomputation:
    """Computes the effect of saving the values of these names. Names that no value has are ignored."""
    seconds, size, flops, names = 0.0, 0, 0, dict[str, None]()
    for graph in graphs:
        unvisited, seen = [node for node, _ in graph.needed], set[int]()
        while unvisited:
            number = unvisited.pop()
            if number in seen:
                continue
            seen.add(number)
            node = graph.nodes[number]
            if node.name and node.name in saved:
                size += graph.times * node.bytes
                names[node.name] = None
            else:
                seconds += graph.times * node.seconds
                flops += graph.times * node.flops
                unvisited += node.inputs
    return Recomputation(seconds, size, tuple(sorted(names)), flops)


def plan(graphs: Sequence[Graph], budget: int, time_limit: float = PLAN_LIMIT) -> Recomputation:
    """Chooses the names to save within a budget, so that recomputation takes little time.

    This is a problem of *rematerialization*: which values to keep and which to compute again. Memory is limited only at one
    moment, between the forward and the backward pass, and the values that are live then are saved. The model is an integer
    program (:mod:`stowplan.models.rematerialization.stages`). If the solver ends before its time limit, no other choice of
    names recomputes in less time.

    Parameters
    ----------
    graphs
        The parts of the program. Values with equal names are either all saved or all recomputed.
    budget
        Bytes that may be saved. If it is 0 or less, or if no value has a name, nothing is saved.
    time_limit
        Seconds for the solver. Unless it has found an almost optimal solution, the greedy plan is computed as well, and the
        better one of the two is returned.
    """
    if budget <= 0 or not recomputed(graphs, ()).seconds or not any(node.name for graph in graphs for node in graph.nodes):
        return plan_greedily(graphs, budget)
    problem, values = _problem(graphs, budget)
    structure = build(problem)
    storage = {tensor: value for value, tensor in enumerate(structure.tensor)}
    border = len(problem.ops) - 2
    program = Stages(structure, Moments(structure), budget, [border])
    for tensors in values.values():
        program.tie(0, [storage[tensor] for tensor in tensors])
    solution = program.solve(time_limit=time_limit)
    if not solution.live:
        return plan_greedily(graphs, budget)
    best = recomputed(graphs, {name for name, tensors in values.items() if storage[tensors[0]] in solution.live[0]})
    for name in sorted(best.saved, key=lambda name: -problem.tensors[values[name][0]].size):
        # A value whose recomputation costs no time is not saved.
        fewer = recomputed(graphs, {*best.saved} - {name})
        best = fewer if fewer.seconds <= best.seconds else best
    if solution.cost is not None and solution.bound is not None and solution.cost - solution.bound <= _SMALL_GAP * _TOTAL_COST:
        return best
    greedy = plan_greedily(graphs, budget)
    return min(greedy, best, key=lambda result: (result.bytes > budget, result.seconds, result.bytes))


def _problem(graphs: Sequence[Graph], budget: int) -> tuple[Problem, dict[str, list[int]]]:
    """Builds the rematerialization problem of the parts' forward passes.

    Each node is an operator with two tensors: its value, and a tensor of no bytes that says that the node ran. Then comes an
    operator ``border``, which forces all nodes to run before it, and one operator for all backward passes.

    Returns
    -------
    (Problem, dict)
        The problem, and a dictionary from each name to the indices of its tensors. A value without a name is made larger than
        the budget, so that it is never saved.
    """
    total = sum(graph.times * node.seconds for graph in graphs for node in graph.nodes)
    tensors, ops, needed = list[Tensor](), list[Op](), list[int]()
    run_tensors: list[int] = []
    values: dict[str, list[int]] = {}

    def add_tensor(size: int) -> int:
        tensors.append(Tensor(id=str(len(tensors)), size=size))
        return len(tensors) - 1

    for graph in graphs:
        tensor_of_node: list[int] = []
        for node in graph.nodes:
            tensor_of_node.append(add_tensor(graph.times * node.bytes if node.name else budget + 1))
            run_tensors.append(add_tensor(0))
            cost = round(_TOTAL_COST * graph.times * node.seconds / total)
            ops.append(
                Op(
                    id=str(len(ops)),
                    reads=tuple(tensor_of_node[at] for at in node.inputs),
                    writes=(tensor_of_node[-1], run_tensors[-1]),
                    cost=cost,
                )
            )
            if node.name:
                values.setdefault(node.name, []).append(tensor_of_node[-1])
        needed += [tensor_of_node[number] for number, _ in graph.needed]
    ops.append(Op(id="border", reads=tuple(run_tensors), writes=(add_tensor(0),), once=True))
    ops.append(Op(id="backward", reads=(len(tensors) - 1, *needed), once=True))
    return Problem(tensors=tuple(tensors), ops=tuple(ops), limit=budget), values


def plan_greedily(graphs: Sequence[Graph], budget: int) -> Recomputation:
    """Returns the greedy plan within a budget of bytes: the values that save the most seconds per byte are saved first."""
    return list(greedy_plans(graphs, budget))[-1]


def greedy_plans(graphs: Sequence[Graph], budget: float = math.inf) -> Iterator[Recomputation]:
    """Yields the plan that saves nothing, and then a plan after each name that the greedy heuristic adds within the budget.

    Each plan recomputes for less time than the plan before it, and usually saves more bytes.
    """
    best = recomputed(graphs, ())
    yield best
    names = dict.fromkeys(node.name for graph in graphs for node in graph.nodes if node.name)
    waiting = [(-math.inf, name) for name in names]
    while waiting:
        _, name = heapq.heappop(waiting)
        result = recomputed(graphs, (*best.saved, name))
        gain = (best.seconds - result.seconds) / max(1, result.bytes - best.bytes)
        if gain <= 0 or result.bytes > budget:
            continue
        if waiting and -gain > waiting[0][0]:
            heapq.heappush(waiting, (-gain, name))
        else:
            best = result
            yield best
