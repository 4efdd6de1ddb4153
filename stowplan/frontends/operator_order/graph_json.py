"""Graph files: tensors by their bytes, operators with what they read and write, in JSON.

``{"name": ..., "tensors": [bytes, ...], "ops": [{"name": ..., "reads": [...], "writes": [...], "kind": ...}], "inputs": [...],
"outputs": [...]}``; tensors go by their place in the list.
"""

from __future__ import annotations

import re
from collections import Counter

import msgspec

from stowplan import files
from stowplan.errors import naming
from stowplan.frontends.format import InputFormat, Opened, Source
from stowplan.frontends.options import ReadOptions
from stowplan.models.operator_order.problem import Op, Problem, Tensor

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


def _open(source: Source, options: ReadOptions) -> Opened:
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


FORMAT = InputFormat(
    what="a graph of operators and tensors",
    suffixes=(".json",),
    accepts=lambda source: frozenset(),
    matches=lambda source: source.data is not None and is_graph_file(source.data),
    open=_open,
)
