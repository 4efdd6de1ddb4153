"""Graphs whose tensors are to be packed into an arena, among the inputs: ONNX models, exported programs and HLO for the target
``arena``, and TensorFlow Lite models.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
from msgspec import UNSET

from stowplan.frontends.arena.tflite_file import ALIGNMENT, is_tflite, read_tflite
from stowplan.frontends.formats import InputFormat, Opened, Source, TargetFamily
from stowplan.frontends.options import ReadOptions
from stowplan.log import warn_unmodelled
from stowplan.models.operator_order.problem import Problem as OrderProblem
from stowplan.models.packing.problem import Buffer, Part, Problem

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


def arena_problem(
    graph: OrderProblem, capacity: int | None = None, alignment: int = ALIGNMENT, *, in_place: bool = False
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
    from stowplan.frontends.operator_order import without_pairs
    from stowplan.models.operator_order.structure import build, stable_order

    structure = build(graph if in_place else without_pairs(graph))
    order = stable_order(structure)
    begin, end = (moments.tolist() for moments in structure.lives(order))
    taken = sorted(structure.taken_places(order), key=lambda pair: begin[pair[1]])
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


def _open(source: Source, options: ReadOptions) -> Opened:
    _TARGETS.load(str(options.target))
    if is_tflite(source.path):
        model = read_tflite(source.path, options.capacity, options.replace_offline_plan, options.keep)
        for position, operator in enumerate(model.subgraphs[0].operators):
            if operator.code in _WITH_SCRATCH:
                text = "its kernel asks for scratch memory that is not planned: the arena may have to be larger"
                warn_unmodelled(f"{text} ('stowplan tflm' plans it)", f"operator {position}")
        return Opened(model.problem)
    from stowplan.frontends.operator_order import read_graph

    in_place = options.in_place == "elementwise"
    return Opened(arena_problem(read_graph(source.path, options, flat=True), options.capacity, in_place=in_place))


def _options(source: Source) -> frozenset[str]:
    from stowplan.frontends.operator_order import graph_options

    own = {"keep", "replace_offline_plan"} if is_tflite(source.path) else graph_options(source.path)
    return frozenset({"target", "capacity", *own})


def _claims(source: Source) -> bool | None:
    return True if is_tflite(Path(source.path)) else None


FORMAT = InputFormat(
    what="a graph for an arena",
    suffixes=(".tflite",),
    accepts=_options,
    matches=lambda source: source.data is None and (source.target == TARGET or is_tflite(source.path)),
    open=_open,
    targets=_TARGETS,
    claims=_claims,
)
