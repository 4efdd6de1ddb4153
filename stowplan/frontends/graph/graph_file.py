"""Reads graphs of operators and tensors in JSON.

A file has the size of each tensor in bytes and, for each operator, the numbers of the tensors that it reads and writes, as in
``{"tensors": [64, 64], "ops": [{"name": "relu", "reads": [0], "writes": [1]}], "inputs": [0], "outputs": [1]}``.
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import msgspec

from stowplan import files
from stowplan.errors import naming
from stowplan.graph.graph import Graph, Op, Tensor

#: A graph file contains both of these keys, and no key ``format``.
_MARKS = (re.compile(rb'"ops"\s*:\s*\['), re.compile(rb'"tensors"\s*:\s*\['))


class _Op(msgspec.Struct, forbid_unknown_fields=True):
    """An operator as JSON has it."""

    name: str
    reads: tuple[int, ...] = ()
    writes: tuple[int, ...] = ()
    kind: str = ""


class _Graph(msgspec.Struct, forbid_unknown_fields=True):
    """A file; ``tensors`` are sizes in bytes, and tensors are named by their positions among them."""

    tensors: tuple[int, ...]
    ops: tuple[_Op, ...]
    inputs: tuple[int, ...] = ()
    outputs: tuple[int, ...] = ()
    name: str = ""


def is_graph_file(data: bytes) -> bool:
    """Whether JSON is a graph file, judging by its keys."""
    return files.peek_format(data) is None and all(mark.search(data) for mark in _MARKS)


def decode_graph(data: bytes, path: Path) -> Graph:
    """Decodes the contents of a graph file.

    Operators that have the same name get names of their own, such as ``relu#3`` for the operator at position 3. ``path`` is
    used for error messages and for the name of a graph without a name.

    Raises
    ------
    InputError
        The contents are no graph file, or the graph breaks a rule (:mod:`stowplan.graph.rules`); the message names the file and
        the field.
    """
    graph = files.decode_json(data, _Graph, "a graph of operators", path)
    counts = Counter(op.name for op in graph.ops)
    with naming(path):
        return Graph(
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
