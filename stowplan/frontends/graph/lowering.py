"""Problems of a graph: offsets of its tensors in the order given, in one arena or in banks of unlike cost.

The other lowerings stand with their problems: an order (:func:`stowplan.models.operator_order.problem.of_graph`), and what is
computed again (:func:`stowplan.models.rematerialization.problem.of_graph`).
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

#: Bytes that offsets in an arena are multiples of, as TensorFlow Lite Micro has it.
ALIGNMENT = 16


def arena_problem(
    graph: GraphRules, capacity: int | None = None, alignment: int = ALIGNMENT, *, in_place: bool = False
) -> Problem:
    """Packing problem of a graph: one buffer for each tensor with bytes of its own; views, and results in place, are parts.

    Parameters
    ----------
    capacity
        Bytes of the arena; None asks for the least.
    alignment
        Bytes that all offsets are multiples of, at least.
    in_place
        Whether results take the bytes of operands that are free then, which the runtime must do: they are one buffer. Few
        runtimes promise it.
    """
    structure = build(graph if in_place else without_pairs(graph))
    order = stable_order(structure)
    begin, end = (moments.tolist() for moments in structure.lives(order))
    taken = sorted(structure.reused_storages(order), key=lambda pair: begin[pair[1]])
    host = dict(zip(structure.tensor.tolist(), structure.tensor.tolist(), strict=True))
    for operand, result in structure.tensor[np.array(taken, np.int64).reshape(-1, 2)].tolist():
        host[result] = host[operand]
    for operand, result in reversed(taken):
        # The last first, so that chains end up in their first.
        end[operand], end[result] = end[result], begin[result]
    tensors = [graph.tensors[number] for number in structure.tensor.tolist()]
    buffers = tuple(
        Buffer(id=tensor.id, lower=low, upper=high, size=tensor.size, alignment=math.lcm(tensor.alignment, alignment))
        for tensor, low, high in zip(tensors, begin, end, strict=True)
        if low < high
    )
    kept, returned = {buffer.id for buffer in buffers}, {*graph.results}
    parts = []
    for number, tensor in enumerate(graph.tensors):
        buffer = graph.tensors[host[graph.base[number]]].id
        if tensor.id not in kept and (buffer in kept or number in returned):
            offset = graph.base_offset[number]
            parts.append(Part(id=tensor.id, buffer=buffer if buffer in kept else None, offset=offset, size=tensor.size))
    results = tuple(graph.tensors[number].id for number in graph.results)
    return Problem(name=graph.name, buffers=buffers, capacity=capacity, parts=tuple(parts) or UNSET, results=results or UNSET)


def without_pairs(graph: AnyGraph) -> AnyGraph:
    """The graph in which no result takes the bytes of an operand."""
    given: Any = graph
    made: AnyGraph = replace(given, ops=tuple(replace(op, in_place=()) for op in given.ops))
    return made


def traffic(graph: GraphRules) -> dict[int, int]:
    """Bytes that operators read and write of each tensor with bytes of its own, by its number.

    An operator reads, and writes, each tensor once and whole; of a view only the bytes that it shows. Whoever calls the graph
    writes its inputs and reads what it returns.
    """
    total = dict.fromkeys(graph.base, 0)
    for op in graph.ops:
        for tensor in (*op.reads, *op.writes):
            if tensor not in op.writes or graph.tensors[tensor].alias_of is None:
                total[graph.base[tensor]] += graph.tensors[tensor].size
    # What only has to stay, such as parameters that the caller keeps, nobody reads at the end.
    for tensor in (*graph.inputs, *dict.fromkeys(graph.results or graph.outputs)):
        total[graph.base[tensor]] += graph.tensors[tensor].size
    return total


def banks_problem(graph: GraphRules, target: MemoryTarget, *, in_place: bool = False) -> banked.Problem:
    """Banked packing of a graph: a bank and an offset for each tensor with bytes of its own, by what is read and written of it.

    ``in_place`` as :func:`arena_problem` takes it. A tensor of which parts are read counts as many uses of all its bytes as
    that is at least.
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
