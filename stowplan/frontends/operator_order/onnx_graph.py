"""ONNX models as graphs of operators and the tensors between them. Weights are no tensors here: they stand elsewhere.

What is computed from weights and constants alone is stored, too, and so is what depends on shapes alone, which are fixed.
"""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path
from typing import Any

from stowplan.deadline import check_reading
from stowplan.errors import InputError, naming
from stowplan.frontends.onnx_file import OnnxFile, read_onnx_file
from stowplan.log import warn_unmodelled
from stowplan.models.operator_order.problem import Op, Problem, Tensor

#: The first result is the first operand, looked at in another way.
_VIEWS = frozenset({"Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity", "Dropout"})
#: Element by element: the result may take the place of an operand of its size.
_IN_PLACE_WORDS = (
    "Abs Acos Acosh Add And Asin Asinh Atan Atanh BatchNormalization Cast Ceil Celu Clip Cos Cosh Div Elu Erf Exp "
    "Floor Gelu HardSigmoid HardSwish LeakyRelu Log Max Mean Min Mish Mod Mul Neg Not Or PRelu Pow Reciprocal Relu "
    "Round Selu Sigmoid Sign Sin Sinh Softplus Softsign Sqrt Sub Sum Swish Tan Tanh ThresholdedRelu Where Xor"
)
_IN_PLACE = frozenset(_IN_PLACE_WORDS.split())
#: Results follow from shapes alone.
_OF_SHAPES = frozenset({"Shape", "Size"})


def read_onnx_order(path: str | Path) -> Problem:
    """Problem of an ONNX file: its nodes in their order, and what they hand on.

    Parameters
    ----------
    path
        Plain or gzip; weights need not be there.

    Raises
    ------
    MissingDependencyError
        There is no onnx.
    InputError
        Not an ONNX model, control flow, or shapes that are not fixed.
    """
    with naming(path):
        return _Reader(read_onnx_file(path)).problem()


class _Reader:
    """Walks a graph whose shapes have been inferred."""

    def __init__(self, file: OnnxFile):
        self._graph, self._file = file.graph, file
        self._stored = set(file.stored)
        self._tensors: list[Tensor] = []
        self._number: dict[str, int] = {}
        self._readers = Counter(name for node in file.graph.node for name in set(node.input))
        self._readers.update(output.name for output in file.graph.output)

    def problem(self) -> Problem:
        """The problem."""
        inputs = tuple(self._add(name) for name in self._file.inputs)
        ops: list[Op] = []
        names: set[str] = set()
        for node in self._graph.node:
            check_reading()
            op = self._op(node, names)
            if op is not None:
                ops.append(op)
        outputs = dict.fromkeys(self._number[output.name] for output in self._graph.output if output.name in self._number)
        return Problem(
            name=self._file.name,
            tensors=tuple(self._tensors),
            ops=tuple(ops),
            inputs=inputs,
            outputs=tuple(outputs),
        )

    def _op(self, node: Any, names: set[str]) -> Op | None:
        """An operator; None where what it computes is stored."""
        kind = node.op_type
        if not self._file.is_known(kind):
            warn_unmodelled(
                f"nothing is known of a {kind}: memory of its own is not planned, nor results in place", node.output[0]
            )
        results = [name for name in node.output if name]
        for name in node.input:
            if name and name not in self._number and name not in self._stored:
                raise InputError(f"found {name!r} read before anything writes it, expected nodes in order", place=results[0])
        reads = [self._number[name] for name in dict.fromkeys(node.input) if name in self._number]
        if not reads and node.input and kind not in ("Bernoulli", "Multinomial", "RandomNormalLike", "RandomUniformLike"):
            self._stored |= set(results)
            return None
        if kind in _OF_SHAPES or kind == "Constant":
            self._stored |= set(results)
            return None
        view = None
        # With a third input, a Dropout is one that trains.
        if (
            kind in _VIEWS
            and not any(node.input[2:])
            and node.input[0] in self._number
            and self._bytes(results[0]) == self._size(node.input[0])
        ):
            view = self._number[node.input[0]]
            # The shape it is looked at in, where that is computed, is read all the same.
        writes = tuple(self._add(name, view if at == 0 else None) for at, name in enumerate(results) if self._is_wanted(name))
        name = node.name or results[0]
        while name in names:
            name += "'"
        names.add(name)
        pairs: tuple[tuple[int, int], ...] = ()
        if kind in _IN_PLACE and writes and view is None:
            same = [tensor for tensor in reads if self._size_of(tensor) == self._tensors[writes[0]].size]
            # The one that fewest others read.
            pairs = tuple((operand, writes[0]) for operand in sorted(same, key=self._readers_of)[:1])
        return Op(id=name, reads=tuple(reads), writes=writes, in_place=pairs, kind=kind)

    def _readers_of(self, number: int) -> int:
        return self._readers[self._tensors[number].id]

    def _size_of(self, number: int) -> int:
        base = number
        while (other := self._tensors[base].alias_of) is not None:
            base = other
        return self._tensors[base].size

    def _size(self, name: str) -> int:
        return self._tensors[self._number[name]].size

    def _is_wanted(self, name: str) -> bool:
        """Whether a result is there at all: results that nobody reads need not have a known shape."""
        return name in self._readers or self._file.shapes.get(name) is not None

    def _bytes(self, name: str) -> int:
        shape = self._file.shape(name)
        if any(extent < 0 for extent in shape):
            raise InputError(f"found the shape {list(shape)}, expected no negative lengths", place=name)
        return -(-math.prod(shape) * self._file.bits(name) // 8)

    def _add(self, name: str, view: int | None = None) -> int:
        if name in self._number:
            raise InputError(f"found {name!r} written twice, expected one writer", place=name)
        self._number[name] = len(self._tensors)
        size = self._bytes(name)
        self._tensors.append(Tensor(id=name, size=size, alignment=max(1, self._file.bits(name) // 8), alias_of=view))
        return len(self._tensors) - 1
