"""The arena of a TensorFlow Lite Micro model for one order of its operators: its buffers, and where the runtime places them.

The *head* of the arena has activations and scratch buffers; it is the part that is planned. The runtime counts time in
*scopes*: scope 0 is the start of the first subgraph, and each operator, and each subgraph that an operator calls, begins a new
one. A live range is a first and a last scope. A *scratch buffer* is temporary memory of an operator. A *packing problem* asks
for the offsets of buffers with sizes and live ranges. An operator is given by the number of its subgraph and its position
there, in the file or in the order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from stowplan.backends.search import Search
from stowplan.backends.tflm import greedy
from stowplan.backends.tflm import scratch as scratch_memory
from stowplan.backends.tflm.overlap import Pair
from stowplan.frontends.tflite.model import ALIGNMENT, AT_RUNTIME, Scopes, TfliteModel
from stowplan.models.packing.bounds import load_bound
from stowplan.models.packing.plan import Plan
from stowplan.models.packing.problem import Buffer, Overlap, Problem
from stowplan.portfolio.packing import arrays
from stowplan.portfolio.packing.orders import PEAK
from stowplan.portfolio.packing.search import HeuristicSearch

#: Maximum number of rounds of the quick local search. If the search does not reach the target, :func:`stowplan.solve` runs all
#: of its methods for packing.
_MAX_CLIMBS = 60


class Placement(NamedTuple):
    """Where the runtime places tensors and scratch buffers."""

    head: int
    """Size of the head in bytes."""
    offsets: list[int]
    """[tensors] The offsets in bytes to write into the model; ``AT_RUNTIME`` (-1) for a tensor whose offset the runtime shall
    choose."""
    scratch: dict[tuple[int, int], list[tuple[int, int]]]
    """(offset, size) in bytes of the scratch buffers of each operator, by the operator's position in the file."""
    problem: Problem
    """The packing problem, in which each scratch buffer is a buffer."""
    plan: Plan
    """The same placement as a plan of the problem."""
    pairs: Sequence[Pair]
    """The pairs of tensors that may share bytes in this order."""
    bound: int = 0
    """A proven lower bound in bytes on the head in this order; 0 if none was searched for."""


class Arena:
    """The buffers of a model in one order of its operators.

    Parameters
    ----------
    model
        The model. Preserved inputs, whose bytes nothing may overwrite, have no bytes in it; they are placed above the head
        afterwards.
    scopes
        Live ranges of tensors and operators in this order.
    scratch
        Sizes of scratch buffers in bytes, by the operator's position in the file.
    file_positions
        Maps an operator's position in this order to its position in the file. An operator that is missing has the same position
        in both.
    pairs
        Pairs of tensors that may share bytes (:mod:`stowplan.backends.tflm.overlap`). A pair of an operand and a result is used
        only if, in this order, the operand is live for the last time when the result is created.
    """

    def __init__(
        self,
        model: TfliteModel,
        scopes: Scopes,
        scratch: scratch_memory.Scratch,
        file_positions: Mapping[tuple[int, int], tuple[int, int]] | None = None,
        pairs: Sequence[Pair] = (),
    ):
        self._model, self._scopes = model, scopes
        self._tensors = [number for number, tensor in enumerate(model.tensors) if tensor.is_planned]
        self._unused = [number for number in self._tensors if scopes.last[number] < 0]
        self.lower_bound = max((model.tensors[number].size for number in self._unused), default=0)
        """Bytes of the largest tensor that no operator uses; the runtime places it nevertheless, so the head is no smaller."""
        spans = {(file_positions or {}).get(at, at): span for at, span in sorted(scopes.operators.items())}
        # Scratch buffers are requested in the order in which operators are prepared.
        self._scratch = {at: (scratch[at], span) for at, span in spans.items() if scratch.get(at)}
        self._pairs: list[Pair] = []
        for pair in pairs:
            one, other = sorted((pair.operand, pair.result), key=scopes.first.__getitem__)
            are_planned = {one, other} <= {*model.planned} - scopes.unwritten
            if are_planned and pair.is_copy and scopes.first[other] <= scopes.last[one]:
                self._pairs.append(pair._replace(operand=one, result=other))
            # An operator that runs several times, in a subgraph that is called repeatedly, has a span of several scopes. Its
            # pairs are not used.
            elif (
                are_planned and scopes.last[one] == scopes.first[other] and spans.get(pair.place) == (scopes.first[other],) * 2
            ):
                self._pairs.append(pair)
        self.problem = self._problem(lambda sizes: sizes)

    def _problem(self, pieces: Callable[[tuple[int, ...]], tuple[int, ...]]) -> Problem:
        """Returns the packing problem of tensors, scratch buffers, and buffers with fixed offsets.

        ``pieces`` takes the sizes of an operator's scratch buffers, and returns the sizes of the buffers that represent them in
        the problem.
        """
        scopes, count, tensors = self._scopes, len(self._model.planned), self._model.tensors
        shared: dict[int, list[Overlap]] = {}
        for _, operand, result, distance, _ in self._pairs:
            # The distance of a pair is measured to the end of the operand's elements. In the packing problem, the distance of
            # an overlap is measured to the end of the operand's size, which is rounded up.
            padding = tensors[operand].size - tensors[operand].content
            least = None if distance is None else distance + padding
            shared.setdefault(result, []).append(Overlap(operand=tensors[operand].name, distance=least))
        buffers = [
            msgspec.structs.replace(
                buffer,
                lower=scopes.first[number],
                upper=scopes.last[number] + 1,
                overlaps=tuple(shared[number]) if number in shared else msgspec.UNSET,
            )
            for number, buffer in zip(self._model.planned, self._model.problem.buffers, strict=False)
        ]
        for (graph, position), (sizes, (first, last)) in self._scratch.items():
            for number, size in enumerate(pieces(tuple(map(scratch_memory.rounded, sizes)))):
                name = f"scratch {graph}:{position} {number}"
                buffers.append(Buffer(id=name, lower=first, upper=last + 1, size=size, alignment=ALIGNMENT))
        return Problem(name=self._model.name, buffers=(*buffers, *self._model.problem.buffers[count:]))

    def place(self, planned_offsets: Sequence[int]) -> Placement:
        """Simulates the runtime's planner.

        ``planned_offsets`` are the offsets in bytes of the tensors in ``model.planned``, in the same order. If it is empty, the
        runtime plans these tensors itself, as it does for the original file.
        """
        model = self._model
        offsets = [at if number in model.fixed else AT_RUNTIME for number, at in enumerate(model.offsets)]
        if planned_offsets:
            # The runtime places unused tensors as well. No operator reads or writes them, so offset 0 does no harm.
            offsets = [0 if number in self._unused and at == AT_RUNTIME else at for number, at in enumerate(offsets)]
            for number, at in zip(model.planned, planned_offsets, strict=False):
                offsets[number] = at
        requests = []
        for number in self._tensors:
            fixed = None if offsets[number] == AT_RUNTIME else offsets[number]
            requests.append(
                greedy.Request(model.tensors[number].size, self._scopes.first[number], self._scopes.last[number], fixed)
            )
        for sizes, span in self._scratch.values():
            requests += [greedy.Request(scratch_memory.rounded(size), *span) for size in sizes]
        places = greedy.place(requests)
        of_tensor = dict(zip(self._tensors, places, strict=False))
        scratch_offsets = places[len(self._tensors) :]
        pieces = zip(scratch_offsets, (request.size for request in requests[len(self._tensors) :]), strict=True)
        scratch = {at: [next(pieces) for _ in sizes] for at, (sizes, _) in self._scratch.items()}
        of_buffers = [*(of_tensor[number] for number in model.planned), *scratch_offsets]
        of_buffers += [buffer.offset or 0 for buffer in self.problem.buffers[len(of_buffers) :]]
        height = max((at + buffer.size for at, buffer in zip(of_buffers, self.problem.buffers, strict=True)), default=0)
        plan = Plan(problem=self.problem.digest, objective=height, offsets=tuple(of_buffers))
        return Placement(greedy.head(requests, places), offsets, scratch, self.problem, plan, self._pairs)

    def best(self, search: Search, bound: int) -> Placement:
        """Searches for the placement with the smallest head.

        In the packing problem of this search, all scratch buffers of an operator are one buffer. The runtime chooses their
        offsets itself, in the space that is left for this buffer.

        Parameters
        ----------
        search
            Options of the search.
        bound
            A lower bound on the head in bytes; the search ends when it is reached.
        """
        problem = self._problem(lambda sizes: (sum(sizes),))
        load = load_bound(problem)
        offsets, proven = _pack(problem, search, max(bound, load))
        is_exact = all(len(sizes) == 1 for sizes, _ in self._scratch.values())
        return self.place(offsets)._replace(bound=max(load, proven if is_exact else 0))


def _pack(problem: Problem, search: Search, target: int) -> tuple[Sequence[int], int]:
    """Packs the buffers by a quick local search and, if that does not reach the target height, by :func:`stowplan.solve`.

    Returns
    -------
    (Sequence of int, int)
        The offsets of the packing with the smallest height, and a lower bound on the height of every packing. The bound is 0 if
        only the quick search ran.
    """
    data = arrays.build(problem)
    best: list[Plan] = []
    bound = 0
    if problem.buffers and data.is_plain:

        def keep(_: int, offsets: arrays.Ints, __: str) -> None:
            best.append(arrays.export_plan(problem, data, offsets))

        climbing = HeuristicSearch(data, target // data.unit, 0, keep, lambda: False)
        climbing.climb_orders(range(PEAK + 1), "orders", _MAX_CLIMBS)
    if not best or min(plan.objective for plan in best) > target:
        result = search.solve(problem)
        bound = result.bound or 0
        if result.plan is not None:
            best.append(result.plan)
    return min(best, key=lambda plan: plan.objective).offsets if best else (), bound
