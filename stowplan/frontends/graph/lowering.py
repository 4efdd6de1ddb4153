"""Makes packing problems from a graph whose operators keep their order: packing in one arena, or in banks of different cost.

The other lowerings of graphs are with their problems: operator order (:func:`stowplan.models.operator_order.problem.of_graph`)
and rematerialization (:func:`stowplan.models.rematerialization.problem.of_graph`). Tensors and operators are named by their
numbers, which are their positions in the graph. A *view* is a tensor that shares the bytes of another one, its *base*.
"""

from __future__ import annotations

import math
from typing import Any, TypeVar

import numpy as np
from msgspec import UNSET
from msgspec.structs import replace

from stowplan.graph.rules import GraphRules
from stowplan.hardware.memories import MemoryTarget
from stowplan.models.banked_packing import problem as banked
from stowplan.models.operator_order.structure import build, stable_order
from stowplan.models.packing.problem import Buffer, Part, Problem

AnyGraph = TypeVar("AnyGraph", bound=GraphRules)

#: Offsets in an arena are multiples of this many bytes, as in TensorFlow Lite Micro.
ALIGNMENT = 16


def arena_problem(
    graph: GraphRules, capacity: int | None = None, alignment: int = ALIGNMENT, *, in_place: bool = False
) -> Problem:
    """Makes the packing problem of a graph, which has one buffer for each tensor that has bytes of its own.

    Views become *parts* of the buffer of their base (:class:`~stowplan.models.packing.problem.Part`), which have offsets in it
    but are not placed by themselves. Results that are written over operands become parts of the operand's buffer.

    The life span of a buffer is counted in operators. They are in the order of the file, except where they cannot run in this
    order.

    Parameters
    ----------
    graph
        The graph.
    capacity
        Bytes of the arena; None asks for the smallest arena.
    alignment
        All offsets are multiples of this many bytes, and of the alignment of the tensor.
    in_place
        Whether results are written over operands that no operator needs any more, as the pairs ``in_place`` of the graph allow.
        The runtime must do this as well; few runtimes promise it.

    Raises
    ------
    InputError
        The problem breaks a rule of :class:`~stowplan.models.packing.problem.Problem`, for example because the capacity is
        negative.
    """
    structure = build(graph if in_place else without_pairs(graph))
    order = stable_order(structure)
    begin, end = (moments.tolist() for moments in structure.lives(order))
    in_place_pairs = sorted(structure.reused_storages(order), key=lambda pair: begin[pair[1]])
    # For each tensor with bytes of its own, the tensor whose buffer it uses.
    host = dict(zip(structure.tensor.tolist(), structure.tensor.tolist(), strict=True))
    for operand, result in structure.tensor[np.array(in_place_pairs, np.int64).reshape(-1, 2)].tolist():
        host[result] = host[operand]
    for operand, result in reversed(in_place_pairs):
        # Pairs are visited in reverse, so that the first tensor of a chain of pairs gets the life spans of all of them.
        end[operand], end[result] = end[result], begin[result]
    tensors = [graph.tensors[number] for number in structure.tensor.tolist()]
    buffers = tuple(
        Buffer(id=tensor.id, lower=low, upper=high, size=tensor.size, alignment=math.lcm(tensor.alignment, alignment))
        for tensor, low, high in zip(tensors, begin, end, strict=True)
        if low < high
    )
    buffer_ids, returned = {buffer.id for buffer in buffers}, {*graph.results}
    parts = []
    for number, tensor in enumerate(graph.tensors):
        buffer = graph.tensors[host[graph.base[number]]].id
        if tensor.id not in buffer_ids and (buffer in buffer_ids or number in returned):
            offset = graph.base_offset[number]
            parts.append(Part(id=tensor.id, buffer=buffer if buffer in buffer_ids else None, offset=offset, size=tensor.size))
    results = tuple(graph.tensors[number].id for number in graph.results)
    return Problem(name=graph.name, buffers=buffers, capacity=capacity, parts=tuple(parts) or UNSET, results=results or UNSET)


def without_pairs(graph: AnyGraph) -> AnyGraph:
    """Returns the graph without pairs ``in_place`` of operands and results that may share bytes."""
    any_graph: Any = graph
    changed: AnyGraph = replace(any_graph, ops=tuple(replace(op, in_place=()) for op in any_graph.ops))
    return changed


def traffic(graph: GraphRules) -> dict[int, int]:
    """For each tensor that has bytes of its own, by its number, the number of bytes that are read and written there.

    An operator reads or writes each of its tensors once and completely. If it reads a view, the size of the view is added to
    the bytes of its base; a view that it writes does not count. The caller of the graph writes its inputs and reads its
    results, or its outputs if the results are not known.
    """
    total = dict.fromkeys(graph.base, 0)
    for op in graph.ops:
        for tensor in (*op.reads, *op.writes):
            if tensor not in op.writes or graph.tensors[tensor].alias_of is None:
                total[graph.base[tensor]] += graph.tensors[tensor].size
    # Tensors that only have to stay, such as parameters that the caller keeps, are not read at the end.
    for tensor in (*graph.inputs, *dict.fromkeys(graph.results or graph.outputs)):
        total[graph.base[tensor]] += graph.tensors[tensor].size
    return total


def banks_problem(graph: GraphRules, target: MemoryTarget, *, in_place: bool = False) -> banked.Problem:
    """Makes the banked packing problem of a graph, which asks for a bank and an offset of each tensor with bytes of its own.

    The cost of a tensor depends on its number of uses, each of which reads or writes all of its bytes. This number is the bytes
    that are read and written there (:func:`traffic`) over the size of the tensor, rounded up.

    Parameters
    ----------
    graph
        The graph.
    target
        The memories of the device.
    in_place
        See :func:`arena_problem`.

    Raises
    ------
    InputError
        The problem breaks a rule of :class:`~stowplan.models.banked_packing.problem.Problem`.
    """
    arena = arena_problem(graph, alignment=1, in_place=in_place)
    host = {part.id: part.buffer for part in arena.parts or ()}
    bytes_of: dict[str, int] = {}
    for number, total in traffic(graph).items():
        name = graph.tensors[number].id
        name = host.get(name) or name
        bytes_of[name] = bytes_of.get(name, 0) + total
    buffers = tuple(
        banked.Buffer(
            id=buffer.id,
            lower=buffer.lower,
            upper=buffer.upper,
            size=buffer.size,
            alignment=buffer.alignment,
            uses=-(-bytes_of[buffer.id] // max(1, buffer.size)),
        )
        for buffer in arena.buffers
    )
    banks = tuple(
        banked.Bank(
            name=bank.name,
            capacity=int(bank.capacity),
            cost=bank.cost,
            alignment=int(bank.alignment),
            reserved=int(bank.reserved),
        )
        for bank in target.banks
    )
    return banked.Problem(name=graph.name, buffers=buffers, banks=banks, parts=arena.parts, results=arena.results)
