"""Graphs whose operators are to be ordered, among the inputs: ONNX models, exported PyTorch programs and HLO.

The target ``order`` says so: the same files mean other problems for other targets.
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import msgspec

from stowplan import files
from stowplan.errors import naming
from stowplan.frontends.formats import InputFormat, Opened, Source, TargetFamily
from stowplan.frontends.network.onnx_model import is_onnx
from stowplan.frontends.operator_order.torch_export import is_exported, read_exported
from stowplan.frontends.options import ReadOptions, named_inputs
from stowplan.models.operator_order.problem import Op, Problem, Tensor

TARGET = "order"


def read_graph(path: Path, options: ReadOptions, *, flat: bool = False) -> Problem:
    """Problem of a file; ``flat`` for plans that keep the order (:func:`~.onnx_graph.read_onnx_order`)."""
    from stowplan.frontends.operator_order.hlo_graph import read_hlo_order
    from stowplan.frontends.operator_order.onnx_graph import read_onnx_order

    in_place = options.in_place != "none"
    if is_onnx(path):
        problem = read_onnx_order(path, options.told_sizes, flat=flat, in_place=in_place)
    else:
        # Plans that keep the order share bytes in place only where that is asked for.
        shares = options.in_place == "elementwise" if flat else in_place
        problem = read_exported(path, options.told_sizes.dims) if is_exported(path) else read_hlo_order(path, in_place=shares)
        problem = problem if in_place else without_pairs(problem)
    if options.keep:
        with naming(path):
            numbers = named_inputs(options.keep, ((problem.tensors[number].id, number) for number in problem.inputs))
        problem = msgspec.structs.replace(problem, outputs=tuple(dict.fromkeys((*problem.outputs, *numbers))))
    return problem


def without_pairs(problem: Problem) -> Problem:
    """The problem in which no result takes the bytes of an operand."""
    return msgspec.structs.replace(problem, ops=tuple(msgspec.structs.replace(op, in_place=()) for op in problem.ops))


def graph_options(path: Path) -> frozenset[str]:
    """Names of the options that say how a graph is read."""
    if is_onnx(path):
        return frozenset({"dim", "shape", "keep", "in_place"})
    return frozenset({"dim", "keep", "in_place"} if is_exported(path) else {"in_place"})


def _claims(source: Source) -> bool | None:
    return True if is_exported(Path(source.path)) else None


FORMAT = InputFormat(
    what="a graph to order",
    suffixes=(".onnx", ".pt2", ".hlo", ".hlo.txt"),
    accepts=lambda source: graph_options(source.path) | {"target"},
    matches=lambda source: source.data is None and (source.target == TARGET or is_exported(source.path)),
    open=lambda source, options: Opened(read_graph(source.path, options)),
    targets=TargetFamily.of_one(
        "graphs to order",
        "operator order",
        TARGET,
        "an order of its operators, and offsets",
        "the order of operators, and offsets, for the least memory",
    ),
    claims=_claims,
)


#: A file that is one says both, and no format.
_MARKS = (re.compile(rb'"ops"\s*:\s*\['), re.compile(rb'"tensors"\s*:\s*\['))


class _Op(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    reads: tuple[int, ...] = ()
    writes: tuple[int, ...] = ()
    kind: str = ""


class _Graph(msgspec.Struct, forbid_unknown_fields=True):
    tensors: tuple[int, ...]
    ops: tuple[_Op, ...]
    inputs: tuple[int, ...] = ()
    outputs: tuple[int, ...] = ()
    name: str = ""


def is_graph_file(data: bytes) -> bool:
    """Whether JSON is such a file."""
    return files.peek_format(data) is None and all(mark.search(data) for mark in _MARKS)


def _open_graph_file(source: Source, options: ReadOptions) -> Opened:
    path = source.path
    graph = files.decode_json(source.data or b"", _Graph, "a graph of operators", path)
    counts = Counter(op.name for op in graph.ops)
    with naming(path):
        problem = Problem(
            name=graph.name or path.name.split(".")[0],
            tensors=tuple(Tensor(id=f"t{number}", size=size) for number, size in enumerate(graph.tensors)),
            ops=tuple(
                Op(
                    id=op.name if counts[op.name] == 1 else f"{op.name}#{number}",
                    reads=tuple(dict.fromkeys(op.reads)),
                    writes=tuple(dict.fromkeys(op.writes)),
                    kind=op.kind,
                )
                for number, op in enumerate(graph.ops)
            ),
            inputs=graph.inputs,
            outputs=tuple(dict.fromkeys(graph.outputs)),
        )
    return Opened(problem)


GRAPH_FILE = InputFormat(
    what="a graph of operators and tensors",
    suffixes=(".json",),
    accepts=lambda source: frozenset(),
    matches=lambda source: source.data is not None and is_graph_file(source.data),
    open=_open_graph_file,
)
