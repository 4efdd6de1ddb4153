"""Reads ONNX models as graphs of operators and tensors.

Weights are *stored*: they exist before the program runs, and do not count as tensors. Values that are computed from weights and
constants alone count as stored as well, and so do values that depend only on shapes, which are fixed.

The nodes ``If``, ``Loop`` and ``Scan`` run graphs of their own, which are called bodies here. They are modelled as in
TensorFlow Lite Micro. The results of such a node are live from its start. Its operands, and the values that its bodies use from
the graph around them, are live to its end. Each body runs once and has tensors of its own for its inputs. Its results are live
to its end, where they are copied.
"""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from stowplan.deadline import check_reading
from stowplan.errors import InputError, naming
from stowplan.frontends import load_facts
from stowplan.frontends.onnx_file import OnnxFile, read_onnx_file
from stowplan.frontends.onnx_shapes import bodies_of, captured
from stowplan.frontends.options import NO_USER_SIZES, UserSizes
from stowplan.graph.graph import Graph, Op, Tensor
from stowplan.log import warn_unmodelled
from stowplan.models.operator_order.structure import build

#: Names of four sorts of operators: those whose first result is a view of their first operand, those that work element by
#: element, those whose results depend on shapes alone, and those that draw random numbers.
_VIEWS, _IN_PLACE, _OF_SHAPES, _RANDOM = (
    frozenset(load_facts("onnx")["order"][use].split()) for use in ("views", "in_place", "of_shapes", "random")
)


def read_onnx(path: str | Path, user_sizes: UserSizes = NO_USER_SIZES, *, flat: bool = False, in_place: bool = True) -> Graph:
    """Reads the graph of an ONNX file: its nodes in their order, and the tensors between them.

    Parameters
    ----------
    path
        Path of a plain or gzip file; external files with weights need not exist.
    user_sizes
        Values that the user gives for sizes that the model does not fix.
    flat
        Whether the nodes of bodies are operators as well, for plans that keep the order. Otherwise the node that runs bodies is
        a single operator, which needs the peak of its bodies in addition to its results.
    in_place
        Whether the result of an element-wise operator may be written over an operand.

    Raises
    ------
    MissingDependencyError
        The package onnx is not installed.
    InputError
        The file cannot be read or is no ONNX model, its shapes are not fixed, or a value is read before it is written or has
        two writers.
    TimeLimitError
        The time limit for reading inputs is over.
    """
    with naming(path):
        reader = _Reader(read_onnx_file(path, user_sizes, with_bodies=True), in_place)
        graph = reader.read()
        return graph if flat or not reader.spans else _collapsed(graph, reader.spans)


class _Reader:
    """Reads a graph whose shapes have been inferred. With ``outer``, the graph is a body of a node of the graph that ``outer``
    reads, and the operators and tensors are added to those of ``outer``."""

    def __init__(self, file: OnnxFile, in_place: bool, outer: _Reader | None = None):
        self._graph, self._file, self._in_place = file.graph, file, in_place
        self._stored = set(file.stored) - {value.name for value in file.graph.input if outer is not None}
        self._number: dict[str, int] = {}
        self._tensors: list[Tensor] = []
        self._ops: list[Op] = []
        self._names: set[str] = set()
        self._ids: set[str] = set()
        self._own: set[str] = set()
        """Names of values of this graph; a graph around it may have a value of the same name."""
        self.spans: list[tuple[range, list[int]]] = []
        """For each node that runs bodies, the numbers of all operators that stand for it, and of the tensors of its results."""
        if outer is not None:
            self._stored |= outer._stored
            self._number = dict(outer._number)
            self._tensors, self._ops, self._names, self._ids = outer._tensors, outer._ops, outer._names, outer._ids
        self._readers = Counter(name for node in file.graph.node for name in _uses(node))
        self._readers.update(output.name for output in file.graph.output)

    def read(self) -> Graph:
        """Reads the graph."""
        inputs = tuple(self._add(name) for name in self._file.inputs)
        self._walk()
        outputs = tuple(self._results())
        return Graph(
            name=self._file.name,
            results=tuple(map(self._returned, (output.name for output in self._graph.output))),
            tensors=tuple(self._tensors),
            ops=tuple(self._ops),
            inputs=inputs,
            outputs=outputs,
        )

    def _returned(self, name: str) -> int:
        """The number of the tensor of a result of the model; a stored value becomes a tensor that no operator uses."""
        if name in self._number:
            return self._number[name]
        if name not in self._stored:
            raise InputError("found nothing that writes it, expected an operator", place=f"output {name}")
        return self._add(name)

    def _walk(self) -> None:
        """Adds the operators of all nodes."""
        for node in self._graph.node:
            check_reading()
            op = self._op(node)
            if op is not None:
                self._ops.append(op)

    def _results(self) -> list[int]:
        """Numbers of the tensors that the graph returns, each once; stored values are left out."""
        named = (output.name for output in self._graph.output)
        return list(dict.fromkeys(self._number[name] for name in named if name in self._number))

    def _run(self, node: Any, name: str, reads: list[int]) -> None:
        """Adds a node that runs bodies: an operator for its start, the operators of its bodies, and one for each body's end."""
        begin, bodies = len(self._ops), bodies_of(node)
        results = [self._add(result) for result in node.output if result and self._is_wanted(result)]
        inner = [_Reader(self._file.inside(attribute.g), self._in_place, self) for attribute in bodies]
        body_inputs = [reader._add(value.name) for reader in inner for value in reader._graph.input]
        self._ops.append(Op(id=name, reads=tuple(reads), writes=(*results, *body_inputs), kind=node.op_type))
        if len(node.output) > len(inner[0]._graph.input) - 2 and node.op_type == "Loop":
            warn_unmodelled("what its iterations return is counted for as many as there can be", f"operator {name}")
        for attribute, reader in zip(bodies, inner, strict=True):
            reader._walk()
            used = [*reader._results(), *((*reads, *results) if attribute is bodies[-1] else ())]
            end = _unique(f"{name}.{attribute.name}", self._names)
            self._ops.append(Op(id=end, reads=tuple(dict.fromkeys(used)), kind=f"end of {node.op_type}"))
        self.spans.append((range(begin, len(self._ops)), results))

    def _op(self, node: Any) -> Op | None:
        """The operator of a node; None if its results count as stored, or if it runs bodies, whose operators are then added."""
        kind = node.op_type
        if not self._file.is_known(kind):
            warn_unmodelled(
                f"nothing is known of a {kind}: memory of its own is not planned, nor results in place", node.output[0]
            )
        results = [name for name in node.output if name]
        uses = _uses(node)
        for name in uses:
            if name not in self._number and name not in self._stored:
                raise InputError(f"found {name!r} read before anything writes it, expected nodes in order", place=results[0])
        reads = [self._number[name] for name in uses if name in self._number]
        if bodies_of(node):
            self._run(node, _unique(node.name or results[0], self._names), reads)
            return None
        if not reads and node.input and kind not in _RANDOM:
            self._stored |= set(results)
            return None
        if kind in _OF_SHAPES or kind == "Constant":
            self._stored |= set(results)
            return None
        view = None
        # Of these operators, only a Dropout has a third input. It is in training mode then, and changes its elements.
        if (
            kind in _VIEWS
            and not any(node.input[2:])
            and node.input[0] in self._number
            and self._bytes(results[0]) == self._size(node.input[0])
        ):
            view = self._number[node.input[0]]
            # If the operand with the new shape is computed, it is a tensor, and the operator reads it as well.
        writes = tuple(self._add(name, view if at == 0 else None) for at, name in enumerate(results) if self._is_wanted(name))
        name = _unique(node.name or results[0], self._names)
        pairs: tuple[tuple[int, int], ...] = ()
        if self._in_place and kind in _IN_PLACE and writes and view is None:
            same = [tensor for tensor in reads if self._size_of(tensor) == self._tensors[writes[0]].size]
            # The operand with the fewest readers is overwritten.
            pairs = tuple((operand, writes[0]) for operand in sorted(same, key=self._readers_of)[:1])
        return Op(id=name, reads=tuple(reads), writes=writes, in_place=pairs, kind=kind, has_effects=kind in _RANDOM)

    def _readers_of(self, number: int) -> int:
        """Number of nodes and results of the graph that read the tensor with this number."""
        return self._readers[self._tensors[number].id]

    def _size_of(self, number: int) -> int:
        """Bytes of the base of the tensor with this number."""
        base = number
        while (other := self._tensors[base].alias_of) is not None:
            base = other
        return self._tensors[base].size

    def _size(self, name: str) -> int:
        """Bytes of the tensor of a value."""
        return self._tensors[self._number[name]].size

    def _is_wanted(self, name: str) -> bool:
        """Whether a result becomes a tensor. A result that no node reads becomes one only if its shape is known."""
        return name in self._readers or self._file.shapes.get(name) is not None

    def _bytes(self, name: str) -> int:
        """Bytes of a value; elements of less than a byte are packed."""
        return -(-math.prod(self._file.shape(name)) * self._file.bits(name) // 8)

    def _add(self, name: str, view: int | None = None) -> int:
        """Adds the tensor of a value, as a view of the tensor ``view`` if that is given; returns its number. Raises InputError
        if the graph has a value of this name already, or if the shape is not fixed."""
        if name in self._own:
            raise InputError(f"found {name!r} written twice, expected one writer", place=name)
        self._own.add(name)
        self._number[name] = len(self._tensors)
        self._tensors.append(
            Tensor(
                id=_unique(name, self._ids),
                size=self._bytes(name),
                alignment=max(1, self._file.bits(name) // 8),
                alias_of=view,
                dtype=self._file.type_name(name),
                shape=self._file.shape(name),
            )
        )
        return len(self._tensors) - 1


def _uses(node: Any) -> list[str]:
    """Names of the values that a node reads, including those that its bodies use from the graph around them."""
    inside = [name for attribute in bodies_of(node) for name in captured(attribute.g)]
    return [name for name in dict.fromkeys((*node.input, *inside)) if name]


def _unique(name: str, names: set[str]) -> str:
    """Returns a name that is not among ``names``: ``name``, with apostrophes if needed. It is added to ``names``."""
    while name in names:
        name += "'"
    names.add(name)
    return name


def _collapsed(graph: Graph, spans: list[tuple[range, list[int]]]) -> Graph:
    """Returns a graph in which each node that runs bodies is a single operator, which needs the peak of its bodies.

    ``spans`` is :attr:`_Reader.spans`.
    """
    structure = build(graph)
    lives = list(zip(structure.tensor.tolist(), *structure.lives(range(structure.ops)), strict=True))
    tensors, at = [*graph.tensors], 0
    ops: list[Op] = []
    inside: set[int] = set()
    for span, results in spans:
        ops += graph.ops[at : span.start]
        at = span.stop
        run = [graph.ops[number] for number in span]
        inner_tensors = {tensor for op in run for tensor in op.writes} - {*results}
        inside |= inner_tensors
        change = np.zeros(len(graph.ops) + 1, np.int64)
        for tensor, begin, end in lives:
            if tensor in inner_tensors:
                change[begin] += tensors[tensor].size
                change[end] -= tensors[tensor].size
        reads = dict.fromkeys(
            tensor for op in run for tensor in op.reads if tensor not in inner_tensors and tensor not in results
        )
        scratch = Tensor(id=f"{run[0].id}.scratch", size=int(np.cumsum(change).max()))
        ops.append(Op(id=run[0].id, reads=tuple(reads), writes=(*results, len(tensors)), kind=run[0].kind))
        tensors.append(scratch)
    ops += graph.ops[at:]
    number = {old: new for new, old in enumerate(old for old in range(len(tensors)) if old not in inside)}

    def renumbered(numbers: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(number[old] for old in numbers)

    replace = msgspec.structs.replace
    return replace(
        graph,
        tensors=tuple(
            tensors[old] if (base := tensors[old].alias_of) is None else replace(tensors[old], alias_of=number[base])
            for old in number
        ),
        ops=tuple(
            replace(op, reads=renumbered(op.reads), writes=renumbered(op.writes), in_place=tuple(map(renumbered, op.in_place)))
            for op in ops
        ),
        inputs=renumbered(graph.inputs),
        outputs=renumbered(graph.outputs),
        results=renumbered(graph.results),
    )
