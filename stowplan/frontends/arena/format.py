"""Graphs whose tensors are to be packed into an arena, among the inputs: ONNX models, exported programs and HLO for the target
``arena``, and TensorFlow Lite models.
"""

from __future__ import annotations

from pathlib import Path

from stowplan.errors import InputError
from stowplan.frontends.arena.tflite_file import is_tflite, read_tflite
from stowplan.frontends.format import InputFormat, Opened, Source, TargetFamily, TargetRow
from stowplan.frontends.options import ReadOptions

TARGET = "arena"


def _open(source: Source, options: ReadOptions) -> Opened:
    _load(str(options.target))
    if is_tflite(source.path):
        return Opened(read_tflite(source.path, options.capacity).problem)
    from stowplan.frontends.arena.from_order import arena_problem
    from stowplan.frontends.formats import format_of
    from stowplan.frontends.operator_order.format import TARGET as ORDER
    from stowplan.models.operator_order.problem import Problem

    as_graph = Source(source.path, source.data, ORDER)
    graph = format_of(as_graph).open(as_graph, ReadOptions(target=ORDER)).problem
    if not isinstance(graph, Problem):
        raise InputError("found no graph of operators, expected an ONNX model, an exported program or HLO", source=source.path)
    return Opened(arena_problem(graph, options.capacity))


def _load(target: str) -> str:
    if target != TARGET:
        raise InputError(f"found target {target!r}, expected {TARGET}")
    return target


def _claims(source: Source) -> bool | None:
    return True if is_tflite(Path(source.path)) else None


FORMAT = InputFormat(
    what="a graph for an arena",
    suffixes=(".tflite",),
    accepts=lambda source: frozenset({"target", "capacity"}),
    matches=lambda source: source.data is None and (source.target == TARGET or is_tflite(source.path)),
    open=_open,
    targets=TargetFamily(
        "graphs for an arena",
        "packing",
        TARGET,
        "offsets of its tensors in one arena",
        _load,
        lambda: [TargetRow(TARGET, "any", "offsets for the tensors of a graph in its own order, in the least memory")],
    ),
    claims=_claims,
)
