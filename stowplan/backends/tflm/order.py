"""Finds orders of a model's operators that need less memory than the order in the file.

For each subgraph, a problem of *operator order* asks for the order with the lowest peak. The *peak* of a subgraph in an order
is the largest number of bytes that are live at once while it runs. A *scratch buffer* is temporary memory of an operator. The
*bytes inside* an operator are the bytes of its scratch buffers plus the largest peak of the subgraphs that it calls. They count
as a tensor that the operator writes and that no operator reads.
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
class OperatorOrder:
    """An order of the operators of all subgraphs."""

    orders: Mapping[int, tuple[int, ...]]
    """From a subgraph to the positions of its operators in the file, in the order in which they run; only subgraphs that are
    reordered."""
    bound: int
    """A lower bound on the peak of the first subgraph, in bytes, over all orders; 0 if nothing is proven."""

    def subgraphs(self, model: TfliteModel) -> list[Subgraph]:
        """Returns the model's subgraphs with their operators in this order."""
        subgraphs = list(model.subgraphs)
        for graph, order in self.orders.items():
            subgraphs[graph] = replace(subgraphs[graph], operators=tuple(subgraphs[graph].operators[at] for at in order))
        return subgraphs


def find_order(model: TfliteModel, scratch: Scratch, search: Search | None) -> OperatorOrder:
    """Finds an order with a low peak. A subgraph keeps the order of the file if no better one is found.

    It also keeps this order if several of its operators write the same tensor.

    Parameters
    ----------
    scratch
        Sizes of scratch buffers in bytes, by the operator's position in the file.
    search
        Options of the search for each subgraph; None keeps the order of the file, and only computes the bound.
    """
    return _OrderSearch(model, scratch, search).solve_all()


def predecessors(model: TfliteModel, graph: int) -> list[set[int]]:
    """Returns the operators on which each operator of a subgraph depends directly, by their positions in the file.

    ``graph`` is the index of the subgraph. The list has a set for each operator, in the order of the file.

    Raises
    ------
    InputError
        Several operators write the same tensor, so that they must keep their order.
    """
    problem = _OrderSearch(model, {}, None).problem(graph)
    writers = {tensor: number for number, op in enumerate(problem.ops) for tensor in op.writes}
    before = [{writers[tensor] for tensor in op.reads if tensor in writers} for op in problem.ops]
    for first, second in problem.precedences:
        before[second].add(first)
    return before


class _OrderedGraph(NamedTuple):
    """A subgraph in the best order that was found, with the peak of this order and a lower bound for all orders, in bytes."""

    order: tuple[int, ...]
    peak: int
    bound: int


class _OrderSearch:
    """Orders the subgraphs of a model; a subgraph that an operator calls is ordered before the subgraph of the operator."""

    def __init__(self, model: TfliteModel, scratch: Scratch, search: Search | None):
        self._model, self._scratch, self._search = model, scratch, search
        self._found: dict[int, _OrderedGraph] = {}
        self._graphs = TfliteGraphs(model)

    def solve_all(self) -> OperatorOrder:
        """Order all subgraphs that the model runs."""
        bound = self._order(0).bound
        orders = {graph: ordered.order for graph, ordered in self._found.items()}
        return OperatorOrder({graph: order for graph, order in orders.items() if list(order) != sorted(order)}, bound)

    def _order(self, graph: int) -> _OrderedGraph:
        """Returns a subgraph in its best order, which is computed once."""
        if graph not in self._found:
            self._found[graph] = self._solve(graph)
        return self._found[graph]

    def _solve(self, graph: int) -> _OrderedGraph:
        """Searches for the best order of a subgraph, and computes a lower bound for all orders."""
        operators = self._model.subgraphs[graph].operators
        file_order = tuple(range(len(operators)))
        bytes_inside = [self._bytes_inside(graph, at, operator) for at, operator in enumerate(operators)]
        found_peaks, least_peaks = [peak for peak, _ in bytes_inside], [bound for _, bound in bytes_inside]
        try:
            problem, least_problem = self.problem(graph, found_peaks), self.problem(graph, least_peaks)
        except InputError:
            # Several operators write the same tensor, so that they keep their order.
            return _OrderedGraph(file_order, sum(found_peaks), 0)
        # All inputs are live together at the start, even those that nothing reads.
        input_bytes = sum(self._model.tensors[number].size for number in {*self._model.subgraphs[graph].inputs})
        bound = max(input_bytes, int(forced_loads(build(least_problem)).max(initial=0)))
        order, peak = file_order, max(input_bytes, build(problem).peak(file_order))
        if peak > bound and self._search is not None:
            result = self._search.solve(problem)
            if result.plan is not None and result.plan.objective < peak:
                order, peak = result.plan.order, result.plan.objective
            if found_peaks == least_peaks:
                bound = max(bound, min(peak, result.bound or 0))
        return _OrderedGraph(order, peak, bound)

    def _bytes_inside(self, graph: int, position: int, operator: Operator) -> tuple[int, int]:
        """Returns the bytes inside an operator, and a lower bound on them.

        The bytes hold for the orders that were found for the subgraphs that the operator calls, and the bound holds for all
        orders of these subgraphs.
        """
        scratch = sum(map(rounded, self._scratch.get((graph, position), ())))
        called = [self._order(callee) for callee in operator.calls]
        return scratch + max((order.peak for order in called), default=0), scratch + max(
            (order.bound for order in called), default=0
        )

    def problem(self, graph: int, bytes_inside: Sequence[int] = ()) -> Problem:
        """Returns the problem of operator order of a subgraph.

        ``bytes_inside`` has a number for each operator; if it is empty, all are 0. Raises InputError if several operators write
        the same tensor.
        """
        return of_graph(self._graphs.graph(graph, bytes_inside))


#: Maximum numbers of tries of the local search: in total, and in a row without an improvement.
_MAX_TRIES, _PATIENCE = 2000, 400


def improve_order(
    model: TfliteModel,
    start: OperatorOrder,
    loads: Callable[[OperatorOrder], Sequence[int]],
    lower_bound: int,
    seed: int,
    should_stop: Callable[[], bool],
) -> OperatorOrder:
    """Searches for an order of the first subgraph with a lower load than ``start`` by moving single operators.

    The *load* of an order is the largest number of bytes that must be live at once.

    Parameters
    ----------
    start
        The order to begin with. It is returned if no better one is found, or if several operators of the first subgraph write
        the same tensor.
    loads
        A function of an order that returns, for each moment, a lower bound on the bytes that are live. The load is the largest
        of these numbers.
    lower_bound
        A number of bytes that every order needs; the search ends when it is reached.
    seed
        Seed of the random numbers that choose the moves.
    should_stop
        A function that says whether to end the search.
    """
    operators = model.subgraphs[0].operators
    try:
        before = predecessors(model, 0)
    except InputError:
        return start
    order, generator = list(start.orders.get(0, range(len(operators)))), random.Random(seed)

    def evaluate(moved: Sequence[int]) -> tuple[OperatorOrder, tuple[int, int]]:
        other = OperatorOrder({**start.orders, 0: tuple(moved)}, start.bound)
        bytes_at_steps = loads(other)
        return other, (max(bytes_at_steps, default=0), sum(size * size for size in bytes_at_steps))

    best, score = evaluate(order)
    first, unsuccessful = score[0], 0
    for _ in range(_MAX_TRIES):
        if not order or unsuccessful == _PATIENCE or score[0] <= lower_bound or should_stop():
            break
        unsuccessful += 1
        at = generator.randrange(len(order))
        low = 1 + max((place for place in range(at) if order[place] in before[order[at]]), default=-1)
        high = next((place for place in range(at + 1, len(order)) if order[at] in before[order[place]]), len(order))
        to = generator.randrange(low, high)
        if to == at:
            continue
        moved = [*order[:at], *order[at + 1 :]]
        moved.insert(to, order[at])
        other, new_score = evaluate(moved)
        if new_score <= score:
            unsuccessful = 0 if new_score < score else unsuccessful
            best, score, order = other, new_score, moved
    return best if score[0] < first else start


def lower_bound(model: TfliteModel, lives: Scopes, scratch: Scratch, pairs: Sequence[Pair]) -> int:
    """Returns a lower bound in bytes on the head over all orders, if some pairs of tensors may share bytes.

    The *head* is the part of the arena that has tensors and scratch buffers. The bound is the largest number of bytes that an
    operator needs while it runs:

    - the bytes of its tensors and scratch buffers
    - minus the bytes that its result may share with operands
    - plus the bytes of all other tensors that are live at that time in every order. They share no bytes then, except for copies
      and their originals, which are therefore left out.

    Parameters
    ----------
    lives
        Live ranges of tensors and operators in the order of the file. Only two sets are used: the operators that run, and the
        tensors that are read before they are written.
    scratch
        Sizes of scratch buffers in bytes, by the operator's position in the file.
    pairs
        The pairs of tensors that may share bytes (:mod:`stowplan.backends.tflm.overlap`).
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
            # Copies of one tensor may have the same offset.
            operator_bytes = sum(tensors[number].size for number in touched if touched.isdisjoint(copies.get(number, ())))
            shared = 0
            for pair in sharing.get((graph, position), ()):
                # Offsets are multiples of the alignment.
                beyond = 0 if pair.distance is None else pair.distance - tensors[pair.operand].content
                gap = -(-beyond // ALIGNMENT) * ALIGNMENT
                size = tensors[pair.result].size
                shared += max(0, min(size, tensors[pair.operand].size, size - gap))
            saved = min([shared, *(tensors[number].size for number in operator.writes[:1])])
            most = max(most, operator_bytes - saved + others[position] + sum(map(rounded, scratch.get((graph, position), ()))))
    return most


def _forced_others(model: TfliteModel, graph: int, ignored: set[int]) -> list[int]:
    """Returns [operators] the bytes of the tensors that an operator does not use, but that are live while it runs in every
    order.

    The tensors with the indices ``ignored`` do not count.
    """
    tensors = tuple(replace(tensor, size=0) if at in ignored else tensor for at, tensor in enumerate(model.tensors))
    operators = model.subgraphs[graph].operators
    try:
        problem = _OrderSearch(replace(model, tensors=tensors), {}, None).problem(graph)
    except InputError:
        # Several operators write the same tensor.
        return [0] * len(operators)
    loads = forced_loads(build(problem)).tolist()
    return [
        load - sum(problem.tensors[at].size for at in {*op.reads, *op.writes})
        for load, op in zip(loads, problem.ops, strict=False)
    ]
