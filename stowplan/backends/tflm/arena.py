"""The arena of a model in one order of its operators: its buffers, and where the runtime puts them."""

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

#: Climbs by simple orders before a search with all candidates.
_CLIMBS = 60


class Placed(NamedTuple):
    """Where the runtime puts what it is asked for."""

    head: int
    offsets: list[int]
    """Of each tensor, in the model."""
    scratch: dict[tuple[int, int], list[tuple[int, int]]]
    """Offset and size of each piece of scratch memory, by the operator's place in the file."""
    problem: Problem
    plan: Plan
    """The same as buffers, a piece of scratch memory each."""
    pairs: Sequence[Pair]
    """Tensors of it that may share bytes."""
    bound: int = 0
    """No offsets take less in this order, as far as that was looked for."""


class Arena:
    """The buffers of a model in one order; ``names`` are places of operators in the file by those in this order.

    Of ``pairs`` those count whose operand dies in this order as the result is born.
    """

    def __init__(
        self,
        model: TfliteModel,
        lives: Scopes,
        scratch: scratch_memory.Scratch,
        names: Mapping[tuple[int, int], tuple[int, int]] | None = None,
        pairs: Sequence[Pair] = (),
    ):
        self._model, self._lives = model, lives
        self._tensors = [number for number, tensor in enumerate(model.tensors) if tensor.is_planned]
        self._unused = [number for number in self._tensors if lives.last[number] < 0]
        self.floor = max((model.tensors[number].size for number in self._unused), default=0)
        """Bytes of the largest tensor that no operator has, which is placed all the same."""
        spans = {(names or {}).get(at, at): span for at, span in sorted(lives.operators.items())}
        # In the order in which operators are prepared.
        self._scratch = {at: (scratch[at], span) for at, span in spans.items() if scratch.get(at)}
        self._pairs: list[Pair] = []
        for pair in pairs:
            one, other = sorted((pair.operand, pair.result), key=lives.first.__getitem__)
            is_there = {one, other} <= {*model.planned} - lives.unwritten
            if is_there and pair.is_copy and lives.first[other] <= lives.last[one]:
                self._pairs.append(pair._replace(operand=one, result=other))
            # An operator that runs several times has several scopes.
            elif is_there and lives.last[one] == lives.first[other] and spans.get(pair.place) == (lives.first[other],) * 2:
                self._pairs.append(pair)
        self.problem = self._problem(lambda sizes: sizes)

    def _problem(self, pieces: Callable[[tuple[int, ...]], tuple[int, ...]]) -> Problem:
        """Tensors, scratch memory in pieces, and what is fixed."""
        lives, count, tensors = self._lives, len(self._model.planned), self._model.tensors
        shared: dict[int, list[Overlap]] = {}
        for _, operand, result, distance, _ in self._pairs:
            # What rounding has added to the operand lies beyond its end.
            added = tensors[operand].size - tensors[operand].content
            least = None if distance is None else distance + added
            shared.setdefault(result, []).append(Overlap(operand=tensors[operand].name, distance=least))
        buffers = [
            msgspec.structs.replace(
                buffer,
                lower=lives.first[number],
                upper=lives.last[number] + 1,
                overlaps=tuple(shared[number]) if number in shared else msgspec.UNSET,
            )
            for number, buffer in zip(self._model.planned, self._model.problem.buffers, strict=False)
        ]
        for (graph, position), (sizes, (first, last)) in self._scratch.items():
            for number, size in enumerate(pieces(tuple(map(scratch_memory.rounded, sizes)))):
                name = f"scratch {graph}:{position} {number}"
                buffers.append(Buffer(id=name, lower=first, upper=last + 1, size=size, alignment=ALIGNMENT))
        return Problem(name=self._model.name, buffers=(*buffers, *self._model.problem.buffers[count:]))

    def placed(self, packed: Sequence[int]) -> Placed:
        """What the runtime does with these offsets of the planned tensors; of none with those that the file has."""
        model = self._model
        offsets = [at if number in model.fixed else AT_RUNTIME for number, at in enumerate(model.offsets)]
        if packed:
            # Nobody reads or writes what is unused, and the runtime places it all the same.
            offsets = [0 if number in self._unused and at == AT_RUNTIME else at for number, at in enumerate(offsets)]
            for number, at in zip(model.planned, packed, strict=False):
                offsets[number] = at
        requests = []
        for number in self._tensors:
            fixed = None if offsets[number] == AT_RUNTIME else offsets[number]
            requests.append(
                greedy.Request(model.tensors[number].size, self._lives.first[number], self._lives.last[number], fixed)
            )
        for sizes, span in self._scratch.values():
            requests += [greedy.Request(scratch_memory.rounded(size), *span) for size in sizes]
        places = greedy.place(requests)
        of_tensor = dict(zip(self._tensors, places, strict=False))
        rest = places[len(self._tensors) :]
        pieces = zip(rest, (request.size for request in requests[len(self._tensors) :]), strict=True)
        scratch = {at: [next(pieces) for _ in sizes] for at, (sizes, _) in self._scratch.items()}
        of_buffers = [*(of_tensor[number] for number in model.planned), *rest]
        of_buffers += [buffer.offset or 0 for buffer in self.problem.buffers[len(of_buffers) :]]
        height = max((at + buffer.size for at, buffer in zip(of_buffers, self.problem.buffers, strict=True)), default=0)
        plan = Plan(problem=self.problem.digest, objective=height, offsets=tuple(of_buffers))
        return Placed(greedy.head(requests, places), offsets, scratch, self.problem, plan, self._pairs)

    def best(self, search: Search, bound: int) -> Placed:
        """The best that is found. An operator's scratch memory is kept free in one piece: the runtime finds room in it."""
        problem = self._problem(lambda sizes: (sum(sizes),))
        load = load_bound(problem)
        offsets, proven = _packed(problem, search, max(bound, load))
        is_whole = all(len(sizes) == 1 for sizes, _ in self._scratch.values())
        return self.placed(offsets)._replace(bound=max(load, proven if is_whole else 0))


def _packed(problem: Problem, search: Search, target: int) -> tuple[Sequence[int], int]:
    """Offsets of the lowest height that is found, in a moment or by all candidates of packing; and what no height is below."""
    data = arrays.build(problem)
    best: list[Plan] = []
    bound = 0
    if problem.buffers and data.is_plain:

        def keep(_: int, offsets: arrays.Ints, __: str) -> None:
            best.append(arrays.export_plan(problem, data, offsets))

        climbing = HeuristicSearch(data, target // data.unit, 0, keep, lambda: False)
        climbing.climb_orders(range(PEAK + 1), "orders", _CLIMBS)
    if not best or min(plan.objective for plan in best) > target:
        result = search.solve(problem)
        bound = result.bound or 0
        if result.plan is not None:
            best.append(result.plan)
    return min(best, key=lambda plan: plan.objective).offsets if best else (), bound
