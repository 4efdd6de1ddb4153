"""A model of the planner of TensorFlow Lite Micro: where the runtime places buffers, and how large its head is.

The *head* is the part of the runtime's arena that has activations and scratch buffers, the temporary memory of operators. The
module follows the runtime's rules. A buffer with a planned offset is placed at this offset. All other buffers follow by
decreasing size; of two buffers of equal size, the one that was requested later comes first. Each is placed in the lowest gap
that is large enough between those buffers that are placed already and that are live at the same time. Time is counted in
*scopes*: each operator, and each subgraph that an operator calls, begins a new one.

The module also places *preserved inputs*, whose bytes nothing overwrites during an inference, above all other buffers. The user
names them by ``--keep``.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import msgspec

from stowplan.errors import InputError
from stowplan.frontends.options import named_inputs
from stowplan.frontends.tflite.model import ALIGNMENT, TfliteModel
from stowplan.models.packing.plan import Plan
from stowplan.models.packing.problem import Buffer, Problem


class Request(NamedTuple):
    """A buffer that the runtime requests from its planner. It requests those of all tensors first, then all scratch buffers."""

    size: int
    """Size in bytes, a multiple of the runtime's alignment."""
    first: int
    """The first scope in which the buffer is live."""
    last: int
    """The last scope in which the buffer is live."""
    offset: int | None = None
    """The planned offset in bytes; None leaves it to the runtime's planner."""


def place(requests: Sequence[Request]) -> list[int]:
    """Returns the offset in bytes of each request."""
    fixed = [number for number, request in enumerate(requests) if request.offset is not None]
    free = [number for number, request in reversed(list(enumerate(requests))) if request.offset is None]
    free.sort(key=lambda number: -requests[number].size)
    offsets = [0] * len(requests)
    # For each placed request, in the order of offsets: its offset, how many were placed before it, and its index.
    placed: list[tuple[int, int, int]] = []
    for rank, number in enumerate([*fixed, *free]):
        size, first, last, offset = requests[number]
        if offset is None:
            offset = 0
            for start, _, other in placed:
                if requests[other].first <= last and first <= requests[other].last:
                    if start - offset >= size:
                        break
                    offset = max(offset, start + requests[other].size)
        offsets[number] = offset
        insort(placed, (offset, rank, number))
    return offsets


def head(requests: Sequence[Request], offsets: Sequence[int]) -> int:
    """Returns the size of the head in bytes if the requested buffers have these offsets."""
    return max((offset + request.size for offset, request in zip(offsets, requests, strict=True)), default=0)


def preserved_inputs(model: TfliteModel, names: Sequence[str]) -> list[int]:
    """Returns the indices of the tensors of the inputs with these names; inputs that are not in the head are left out.

    Raises
    ------
    InputError
        A name is not the name of an input or is the name of several inputs, or it names an input that keeps the offset that it
        has in the file.
    """
    inputs = model.subgraphs[0].inputs
    kept = dict.fromkeys(named_inputs(names, ((model.tensors[number].own_name, number) for number in inputs)))
    for number in kept:
        if number in model.fixed:
            raise InputError(f"found --keep {model.tensors[number].own_name}, whose offset stays, expected one that is planned")
    return [number for number in kept if model.tensors[number].is_planned]


def without_tensors(model: TfliteModel, kept: Sequence[int]) -> TfliteModel:
    """Returns the model in which the tensors with these indices have no bytes in the arena.

    Its packing problem has no buffers for them. It does not say which buffers the model returns, because these tensors may be
    among them.
    """
    tensors = list(model.tensors)
    for number in kept:
        tensors[number] = replace(tensors[number], size=0, is_planned=False)
    numbers = [*model.planned, *[None] * (len(model.problem.buffers) - len(model.planned))]
    buffers = [buffer for number, buffer in zip(numbers, model.problem.buffers, strict=True) if number not in kept]
    problem = msgspec.structs.replace(model.problem, buffers=tuple(buffers), parts=(), results=())
    planned = tuple(number for number in model.planned if number not in kept)
    return replace(model, tensors=tuple(tensors), planned=planned, problem=problem)


def stack_on_head(
    model: TfliteModel, kept: Sequence[int], problem: Problem, plan: Plan, head: int
) -> tuple[Problem, Plan, list[int]]:
    """Adds preserved tensors above a head, one after the other; they are live all the time.

    Parameters
    ----------
    model
        The model with all its tensors.
    kept
        Indices of the preserved tensors, at least one.
    problem, plan
        The packing problem of all other buffers, and its plan.
    head
        Bytes of the head of that plan.

    Returns
    -------
    (Problem, Plan, list of int)
        The packing problem and its plan with these tensors, and the offsets of these tensors. The end of the last one is the
        new head.
    """
    end = max((buffer.upper for buffer in problem.buffers), default=1)
    buffers, offsets, at = list(problem.buffers), list(plan.offsets), -(-head // ALIGNMENT) * ALIGNMENT
    for number in kept:
        tensor = model.tensors[number]
        buffers.append(Buffer(id=tensor.name, lower=0, upper=end, size=tensor.size, alignment=ALIGNMENT))
        offsets.append(at)
        at += tensor.size
    problem = msgspec.structs.replace(problem, buffers=tuple(buffers))
    height = max(offset + buffer.size for offset, buffer in zip(offsets, buffers, strict=True))
    return problem, Plan(problem=problem.digest, objective=height, offsets=tuple(offsets)), offsets[len(plan.offsets) :]
