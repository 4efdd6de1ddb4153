"""Graphs whose tensors are to be packed into an arena, among the inputs: ONNX models, exported programs and HLO for the target
``arena``, and TensorFlow Lite models.
"""

from __future__ import annotations

import math
from pathlib import Path

import msgspec

from stowplan.errors import InputError
from stowplan.frontends.arena.tflite_file import ALIGNMENT, is_tflite, read_tflite
from stowplan.frontends.format import InputFormat, Opened, Source, TargetFamily
from stowplan.frontends.options import ReadOptions
from stowplan.log import warn_unmodelled
from stowplan.models.operator_order.problem import Problem as OrderProblem
from stowplan.models.packing.problem import Buffer, Problem

TARGET = "arena"

#: Operators of TensorFlow Lite whose reference kernels ask the runtime for memory of their own: SVDF, MEAN, LSTM,
#: TRANSPOSE_CONV, SUM, REDUCE_MAX, REDUCE_MIN, MIRROR_PAD, ADD_N, REDUCE_ALL.
_WITH_SCRATCH = frozenset({27, 40, 44, 67, 74, 82, 89, 100, 106, 140})

_TARGETS = TargetFamily.of_one(
    "graphs for an arena",
    "packing",
    TARGET,
    "offsets of its tensors in one arena",
    "offsets for the tensors of a graph in its own order, in the least memory",
)


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
    from stowplan.models.operator_order.structure import build, stable_order

    plain = msgspec.structs.replace(graph, ops=tuple(msgspec.structs.replace(op, in_place=()) for op in graph.ops))
    structure = build(plain)
    begin, end = (moments.tolist() for moments in structure.lives(stable_order(structure)))
    tensors = [plain.tensors[number] for number in structure.tensor.tolist()]
    buffers = tuple(
        Buffer(id=tensor.id, lower=low, upper=high, size=tensor.size, alignment=math.lcm(tensor.alignment, alignment))
        for tensor, low, high in zip(tensors, begin, end, strict=True)
        if low < high
    )
    return Problem(name=graph.name, buffers=buffers, capacity=capacity)


def _open(source: Source, options: ReadOptions) -> Opened:
    _TARGETS.load(str(options.target))
    if is_tflite(source.path):
        model = read_tflite(source.path, options.capacity, options.replace_offline_plan)
        for position, operator in enumerate(model.subgraphs[0].operators):
            if operator.code in _WITH_SCRATCH:
                text = "its kernel asks for scratch memory that is not planned: the arena may have to be larger"
                warn_unmodelled(f"{text} ('stowplan tflm' plans it)", f"operator {position}")
        return Opened(model.problem)
    from stowplan.frontends.formats import format_of
    from stowplan.frontends.operator_order.format import TARGET as ORDER

    as_graph = Source(source.path, source.data, ORDER)
    graph = format_of(as_graph).open(as_graph, ReadOptions(target=ORDER)).problem
    if not isinstance(graph, OrderProblem):
        raise InputError("found no graph of operators, expected an ONNX model, an exported program or HLO", source=source.path)
    return Opened(arena_problem(graph, options.capacity))


def _claims(source: Source) -> bool | None:
    return True if is_tflite(Path(source.path)) else None


FORMAT = InputFormat(
    what="a graph for an arena",
    suffixes=(".tflite",),
    accepts=lambda source: frozenset({"target", "capacity"} | ({"replace_offline_plan"} if is_tflite(source.path) else set())),
    matches=lambda source: source.data is None and (source.target == TARGET or is_tflite(source.path)),
    open=_open,
    targets=_TARGETS,
    claims=_claims,
)
