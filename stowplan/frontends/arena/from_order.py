"""A graph of operators, in the order that it has, as a packing problem: what an embedded runtime's arena must hold."""

from __future__ import annotations

import math

import msgspec

from stowplan.models.operator_order.problem import Problem as OrderProblem
from stowplan.models.operator_order.structure import build, stable_order
from stowplan.models.packing.problem import Buffer, Problem

#: Bytes that offsets are multiples of: what runtimes for microcontrollers align tensors to.
ALIGNMENT = 16


def arena_problem(graph: OrderProblem, capacity: int | None = None, alignment: int = ALIGNMENT) -> Problem:
    """Packing problem of a graph: one buffer for each tensor with bytes of its own, views are parts of theirs.

    No result takes the place of an operand while that is read: runtimes promise that for none.

    Parameters
    ----------
    capacity
        Bytes of the arena; None asks for the least.
    alignment
        Bytes that all offsets are multiples of, at least.
    """
    plain = msgspec.structs.replace(graph, ops=tuple(msgspec.structs.replace(op, in_place=()) for op in graph.ops))
    structure = build(plain)
    begin, end = (each.tolist() for each in structure.lives(stable_order(structure)))
    tensors = [plain.tensors[number] for number in structure.tensor.tolist()]
    buffers = tuple(
        Buffer(id=tensor.id, lower=low, upper=high, size=tensor.size, alignment=math.lcm(tensor.alignment, alignment))
        for tensor, low, high in zip(tensors, begin, end, strict=True)
        if low < high
    )
    return Problem(name=graph.name, buffers=buffers, capacity=capacity)
