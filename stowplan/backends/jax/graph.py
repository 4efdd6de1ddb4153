"""What a backward pass needs of the forward pass before it, and which of it to save: a plan on saved bytes. No jax.

A part of a program (a scan's body, a repeated block) is a graph of its forward pass. What its backward pass needs is either
saved or made again, from what is saved and the part's own inputs, which are there. Saved bytes are limited; what is made again
costs time. Bytes and seconds count as often as the part runs.
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

#: What all time together costs in the program.
_COSTS = 1 << 40

#: Part of all time by which a solution may be above its bound, so that the greedy plan is not asked: it takes seconds.
_GAP = 1e-4

#: Seconds for one integer program.
PLAN_LIMIT = 20.0


class Node(msgspec.Struct, frozen=True):
    """An equation of the forward pass."""

    seconds: float
    inputs: tuple[int, ...] = ()
    """Nodes that it reads, all before it; inputs of the part are not among them."""
    name: str = ""
    """Name of its value, empty where it has none and cannot be saved alone."""
    bytes: int = 0
    """Of that value."""
    traits: tuple[str, ...] = ()
    """Stock policies that save it."""
    line: str = ""
    """Where its value is made, for people: shape, operator, file and line."""
    flops: int = 0
    """Floating-point operations of its matrix products."""


class Graph(msgspec.Struct, frozen=True):
    """The forward pass of one part."""

    times: int
    """How often it runs: iterations of a scan, repetitions of a block."""
    nodes: tuple[Node, ...]
    needed: tuple[tuple[int, int], ...]
    """Nodes that the backward pass reads, and bytes of what it reads of each."""

    @property
    def needed_bytes(self) -> int:
        """What is saved where no policy is set."""
        return self.times * sum(size for _, size in self.needed)

    def named(self, trait: str) -> list[str]:
        """Names of the values that a stock policy saves."""
        return [node.name for node in self.nodes if trait in node.traits]

    @property
    def with_own_names(self) -> Graph:
        """The same where nothing has a name but what the program itself gives one."""
        nodes = [
            node if "names" in node.traits else msgspec.structs.replace(node, name="", bytes=0, traits=())
            for node in self.nodes
        ]
        return msgspec.structs.replace(self, nodes=tuple(nodes))


class Recomputation(msgspec.Struct, frozen=True):
    """What a set of saved names comes to."""

    seconds: float
    """Of what is made again."""
    bytes: int
    """Saved, without what is saved and never read."""
    saved: tuple[str, ...]
    """Names that are read."""
    flops: int = 0
    """Of what is made again."""


def recomputed(graphs: Sequence[Graph], saved: Collection[str]) -> Recomputation:
    """What runs again, and what is kept, where the values of these names are saved."""
    seconds, size, flops, names = 0.0, 0, 0, dict[str, None]()
    for graph in graphs:
        waiting, seen = [node for node, _ in graph.needed], set[int]()
        while waiting:
            number = waiting.pop()
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
                waiting += node.inputs
    return Recomputation(seconds, size, tuple(sorted(names)), flops)


def plan(graphs: Sequence[Graph], budget: int, time_limit: float = PLAN_LIMIT) -> Recomputation:
    """Names to save within so many bytes, so that least time is spent again, and of such sets one of few bytes.

    This is rematerialization with one moment, between the forward pass and the backward pass
    (:mod:`stowplan.models.rematerialization.stages`): what is live there is saved.

    Parameters
    ----------
    budget
        Bytes.
    time_limit
        Seconds for the solver; its best so far counts, or the greedy plan.
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
    drafted = program.solve(time_limit=time_limit)
    if not drafted.live:
        return plan_greedily(graphs, budget)
    solved = recomputed(graphs, {name for name, tensors in values.items() if storage[tensors[0]] in drafted.live[0]})
    for name in sorted(solved.saved, key=lambda name: -problem.tensors[values[name][0]].size):
        # What costs no time to make again is not saved.
        fewer = recomputed(graphs, {*solved.saved} - {name})
        solved = fewer if fewer.seconds <= solved.seconds else solved
    if drafted.cost is not None and drafted.bound is not None and drafted.cost - drafted.bound <= _GAP * _COSTS:
        return solved
    greedy = plan_greedily(graphs, budget)
    return min(greedy, solved, key=lambda result: (result.bytes > budget, result.seconds, result.bytes))


def _problem(graphs: Sequence[Graph], budget: int) -> tuple[Problem, dict[str, list[int]]]:
    """The forward passes, an operator that runs between them and the backward passes, and one for all of these.

    Returns
    -------
    (Problem, dict)
        And the numbers of the tensors of each name. A value without a name is larger than the budget, so that it is not saved.
    """
    total = sum(graph.times * node.seconds for graph in graphs for node in graph.nodes)
    tensors, ops, needed = list[Tensor](), list[Op](), list[int]()
    ran: list[int] = []
    values: dict[str, list[int]] = {}

    def made(size: int) -> int:
        tensors.append(Tensor(id=str(len(tensors)), size=size))
        return len(tensors) - 1

    for graph in graphs:
        own: list[int] = []
        for node in graph.nodes:
            own.append(made(graph.times * node.bytes if node.name else budget + 1))
            ran.append(made(0))
            cost = round(_COSTS * graph.times * node.seconds / total)
            ops.append(Op(id=str(len(ops)), reads=tuple(own[at] for at in node.inputs), writes=(own[-1], ran[-1]), cost=cost))
            if node.name:
                values.setdefault(node.name, []).append(own[-1])
        needed += [own[number] for number, _ in graph.needed]
    ops.append(Op(id="border", reads=tuple(ran), writes=(made(0),), once=True))
    ops.append(Op(id="backward", reads=(len(tensors) - 1, *needed), once=True))
    return Problem(tensors=tuple(tensors), ops=tuple(ops), limit=budget), values


def plan_greedily(graphs: Sequence[Graph], budget: int) -> Recomputation:
    """The control: again and again save what saves most seconds per byte, by gains that are looked at again when they lead."""
    return list(greedy_plans(graphs, budget))[-1]


def greedy_plans(graphs: Sequence[Graph], budget: float = math.inf) -> Iterator[Recomputation]:
    """Nothing saved, and then each plan on the way to the greedy one of a budget: bytes grow, seconds fall."""
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
