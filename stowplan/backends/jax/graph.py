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

from stowplan.models.mip.matrix import Options, Program
from stowplan.models.mip.with_highs import solve

#: Part of the objective that all saved bytes are together: of plans of equal time the one of fewer bytes.
_BYTES = 1e-3

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
    """Names to save within so many bytes, so that least time is spent again: an integer program, started from the greedy plan.

    Parameters
    ----------
    budget
        Bytes.
    time_limit
        Seconds for the solver; its best so far counts.
    """
    greedy = plan_greedily(graphs, budget)
    all_again, all_bytes = recomputed(graphs, ()).seconds, _nameable_bytes(graphs)
    if budget <= 0 or not all_again or not all_bytes:
        return greedy
    program = Program()
    save: dict[str, int] = {}
    size: list[tuple[int, float]] = []
    for graph in graphs:
        again = [program.column(cost=graph.times * node.seconds / all_again) for node in graph.nodes]
        for node in graph.nodes:
            if node.name:
                share = graph.times * node.bytes / all_bytes
                if node.name not in save:
                    save[node.name] = program.column(cost=_BYTES * share)
                size.append((save[node.name], graph.times * node.bytes / budget))

        def there(number: int, again: list[int] = again, graph: Graph = graph) -> list[tuple[int, float]]:
            name = graph.nodes[number].name
            return [(again[number], 1.0), *([(save[name], 1.0)] if name else [])]

        for number, _ in graph.needed:
            program.add_row(there(number), lower=1.0)
        for number, node in enumerate(graph.nodes):
            for source in node.inputs:
                program.add_row([*there(source), (again[number], -1.0)], lower=0.0)
    program.add_row(size, upper=1.0)
    outcome = solve(program.model("saved"), Options(time_limit=time_limit))
    if outcome.values is None:
        return greedy
    values = outcome.values
    solved = recomputed(graphs, {name for name, column in save.items() if values[column] > 0.5})
    return min(greedy, solved, key=lambda result: (result.bytes > budget, result.seconds, result.bytes))


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


def _nameable_bytes(graphs: Sequence[Graph]) -> int:
    return sum(graph.times * node.bytes for graph in graphs for node in graph.nodes if node.name)
