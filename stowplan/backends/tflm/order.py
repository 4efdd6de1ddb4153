"""Orders of a model's operators that need less memory than the file's.

Each subgraph is a problem of operator order. What is inside an operator, its scratch memory and the subgraphs that it calls,
counts as a tensor that it writes and nobody reads.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from stowplan.backends.search import Search
from stowplan.backends.tflm.overlap import Pair
from stowplan.backends.tflm.scratch import Scratch, rounded
from stowplan.errors import InputError
from stowplan.frontends.graph.tflite import TfliteGraphs
from stowplan.frontends.tflite.model import ALIGNMENT, Operator, Scopes, Subgraph, TfliteModel
from stowplan.models.operator_order.bounds import forced_loads
from stowplan.models.operator_order.problem import Problem, of_graph
from stowplan.models.operator_order.structure import build


@dataclass(frozen=True)
class Ordered:
    """The operators of all subgraphs in an order."""

    orders: Mapping[int, tuple[int, ...]]
    """Of each subgraph that has another order than the file's: places in the file."""
    bound: int
    """Bytes that live at once in any order, at least."""

    def subgraphs(self, model: TfliteModel) -> list[Subgraph]:
        """The subgraphs as they run."""
        subgraphs = list(model.subgraphs)
        for graph, order in self.orders.items():
            subgraphs[graph] = replace(subgraphs[graph], operators=tuple(subgraphs[graph].operators[at] for at in order))
        return subgraphs


def ordered(model: TfliteModel, scratch: Scratch, search: Search | None) -> Ordered:
    """The order of least peak; of graphs in which nothing lower is possible, or was found, that of the file.

    Parameters
    ----------
    search
        How to look for that of each graph; None keeps the order of the file, and gives the bound alone.
    """
    return _Orders(model, scratch, search).run()


def predecessors(model: TfliteModel, graph: int) -> list[set[int]]:
    """For each operator of a subgraph, by its place in the file, those that must run before it, directly.

    Raises
    ------
    InputError
        A tensor that several operators write: their order says what it holds.
    """
    problem = _Orders(model, {}, None).problem(graph)
    writers = {tensor: number for number, op in enumerate(problem.ops) for tensor in op.writes}
    before = [{writers[tensor] for tensor in op.reads if tensor in writers} for op in problem.ops]
    for first, second in problem.precedences:
        before[second].add(first)
    return before


class _Graph(NamedTuple):
    """A subgraph in the best order that was found."""

    order: tuple[int, ...]
    peak: int
    bound: int


class _Orders:
    def __init__(self, model: TfliteModel, scratch: Scratch, search: Search | None):
        self._model, self._scratch, self._search = model, scratch, search
        self._found: dict[int, _Graph] = {}
        self._graphs = TfliteGraphs(model)

    def run(self) -> Ordered:
        """All subgraphs that run."""
        bound = self._order(0).bound
        orders = {graph: of_graph.order for graph, of_graph in self._found.items()}
        return Ordered({graph: order for graph, order in orders.items() if list(order) != sorted(order)}, bound)

    def _order(self, graph: int) -> _Graph:
        if graph not in self._found:
            self._found[graph] = self._ordered(graph)
        return self._found[graph]

    def _ordered(self, graph: int) -> _Graph:
        operators = self._model.subgraphs[graph].operators
        given = tuple(range(len(operators)))
        inside = [self._inside(graph, at, operator) for at, operator in enumerate(operators)]
        reached, least = [peak for peak, _ in inside], [bound for _, bound in inside]
        try:
            problem, floor = self.problem(graph, reached), self.problem(graph, least)
        except InputError:
            # Tensors that several operators write: their order says what they hold.
            return _Graph(given, sum(reached), 0)
        # Inputs are there together, whether somebody reads them or not.
        start = sum(self._model.tensors[number].size for number in {*self._model.subgraphs[graph].inputs})
        bound = max(start, int(forced_loads(build(floor)).max(initial=0)))
        order, peak = given, max(start, build(problem).peak(given))
        if peak > bound and self._search is not None:
            result = self._search.solve(problem)
            if result.plan is not None and result.plan.objective < peak:
                order, peak = result.plan.order, result.plan.objective
            if reached == least:
                bound = max(bound, min(peak, result.bound or 0))
        return _Graph(order, peak, bound)

    def _inside(self, graph: int, position: int, operator: Operator) -> tuple[int, int]:
        """Bytes inside an operator in the orders that were found, and the least."""
        own = sum(map(rounded, self._scratch.get((graph, position), ())))
        called = [self._order(callee) for callee in operator.calls]
        return own + max((order.peak for order in called), default=0), own + max((order.bound for order in called), default=0)

    def problem(self, graph: int, inside: Sequence[int] = ()) -> Problem:
        """That of a subgraph, with bytes inside its operators where they matter."""
        return of_graph(self._graphs.graph(graph, inside))


#: Orders that are tried, and those in a row that bring nothing.
_TRIES, _PATIENCE = 2000, 400


def improved(
    model: TfliteModel,
    start: Ordered,
    loads: Callable[[Ordered], Sequence[int]],
    floor: int,
    seed: int,
    should_stop: Callable[[], bool],
) -> Ordered:
    """An order of a lower load than ``start``; that one where none was found.

    Parameters
    ----------
    loads
        Bytes taken at each moment of an order, at least.
    floor
        Bytes that every order takes.
    """
    operators = model.subgraphs[0].operators
    try:
        before = predecessors(model, 0)
    except InputError:
        return start
    order, chance = list(start.orders.get(0, range(len(operators)))), random.Random(seed)

    def tried(moved: Sequence[int]) -> tuple[Ordered, tuple[int, int]]:
        other = Ordered({**start.orders, 0: tuple(moved)}, start.bound)
        taken = loads(other)
        return other, (max(taken, default=0), sum(size * size for size in taken))

    best, worth = tried(order)
    first, stale = worth[0], 0
    for _ in range(_TRIES):
        if not order or stale == _PATIENCE or worth[0] <= floor or should_stop():
            break
        stale += 1
        at = chance.randrange(len(order))
        low = 1 + max((place for place in range(at) if order[place] in before[order[at]]), default=-1)
        high = next((place for place in range(at + 1, len(order)) if order[at] in before[order[place]]), len(order))
        to = chance.randrange(low, high)
        if to == at:
            continue
        moved = [*order[:at], *order[at + 1 :]]
        moved.insert(to, order[at])
        other, its_worth = tried(moved)
        if its_worth <= worth:
            stale = 0 if its_worth < worth else stale
            best, worth, order = other, its_worth, moved
    return best if worth[0] < first else start


def floor(model: TfliteModel, lives: Scopes, scratch: Scratch, pairs: Sequence[Pair]) -> int:
    """Bytes that every order takes: those of one operator's tensors and scratch memory, less what its result may share.

    With them those of tensors that it does not touch, and that live while it runs in every order: these share nothing then.
    Copies are left out of these, for they may be where others of their kind are.
    """
    sharing: dict[tuple[int, int], list[Pair]] = {}
    copies: dict[int, set[int]] = {}
    for pair in pairs:
        if pair.is_copy:
            copies.setdefault(pair.result, set()).add(pair.operand)
        else:
            sharing.setdefault(pair.place, []).append(pair)
    tensors, most = model.tensors, 0
    shared_by_copies = {*copies, *(number for operands in copies.values() for number in operands)}
    for graph, subgraph in enumerate(model.subgraphs):
        others = _forced_others(model, graph, {*lives.unwritten, *shared_by_copies})
        for position, operator in enumerate(subgraph.operators):
            if (graph, position) not in lives.operators:
                continue
            touched = {*operator.reads, *operator.writes}.intersection(model.planned).difference(lives.unwritten)
            # Copies of one tensor may be at one place.
            taken = sum(tensors[number].size for number in touched if touched.isdisjoint(copies.get(number, ())))
            shared = 0
            for pair in sharing.get((graph, position), ()):
                # Offsets are multiples of the alignment.
                beyond = 0 if pair.distance is None else pair.distance - tensors[pair.operand].content
                apart = -(-beyond // ALIGNMENT) * ALIGNMENT
                size = tensors[pair.result].size
                shared += max(0, min(size, tensors[pair.operand].size, size - apart))
            own = min([shared, *(tensors[number].size for number in operator.writes[:1])])
            most = max(most, taken - own + others[position] + sum(map(rounded, scratch.get((graph, position), ()))))
    return most


def _forced_others(model: TfliteModel, graph: int, left_out: set[int]) -> list[int]:
    """Bytes that live while each operator of a subgraph runs, in every order, and that it does not touch."""
    tensors = tuple(replace(tensor, size=0) if at in left_out else tensor for at, tensor in enumerate(model.tensors))
    operators = model.subgraphs[graph].operators
    try:
        problem = _Orders(replace(model, tensors=tensors), {}, None).problem(graph)
    except InputError:
        # Tensors that several operators write.
        return [0] * len(operators)
    every = forced_loads(build(problem)).tolist()
    return [
        load - sum(problem.tensors[at].size for at in {*op.reads, *op.writes})
        for load, op in zip(every, problem.ops, strict=False)
    ]
