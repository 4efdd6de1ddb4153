"""Affine programs from ONNX graphs. Weights need not be there; shapes, and what shapes are computed from, must be.

Operands that broadcast (``Add`` of a matrix and a row) are read through a broadcasting load: no tensor is repeated for them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from stowplan.errors import InputError
from stowplan.hardware.affine import rules
from stowplan.hardware.affine.check import check
from stowplan.hardware.affine.expression import constant, index
from stowplan.hardware.affine.program import UNSPREAD, Load, Option, Piece, Program
from stowplan.hardware.frontends.affine.builder import Builder, Variable
from stowplan.hardware.frontends.onnx_file import read_onnx_file

_ELEMENTWISE_NAMES = """
    Abs Add And Cast CastLike Ceil Celu Clip Cos Div Elu Equal Erf Exp Floor Gelu Greater GreaterOrEqual HardSigmoid HardSwish
    LeakyRelu Less LessOrEqual Log Max Mean Min Mish Mod Mul Neg Not Or PRelu Pow Reciprocal Relu Round Selu Sigmoid Sign Sin
    Softplus Sqrt Sub Sum Swish Tan Tanh ThresholdedRelu Where Xor"""
_ELEMENTWISE = frozenset(_ELEMENTWISE_NAMES.split())
_REDUCTIONS = {"ReduceMean": "mean", "ReduceSum": "add", "ReduceMax": "maximum", "ReduceMin": "minimum"}
#: Names of ONNX's floating-point types, and the type of what has none.
_FLOATS = re.compile("FLOAT|BFLOAT16|DOUBLE|UNDEFINED")
#: Operators that change no element, only the shape.
_SHAPES_ONLY = ("Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity", "Dropout")
#: Normalisations and the like, along dimensions that must be in one place: those from ``axis`` on.
_ALONG_AXIS = ("Softmax", "LogSoftmax", "LayerNormalization", "RMSNormalization", "LpNormalization")


def read_affine_onnx(path: str | Path, float_bytes: int | None = None) -> Program:
    """Checked program of a plain or gzip ONNX file.

    ``float_bytes`` is the size of all floating-point numbers, None for their own.

    Raises
    ------
    MissingDependencyError
        There is no onnx.
    InputError
        Not an ONNX model, shapes that are not fixed, or a slice or pad whose numbers are not in the file; names the operator.
    """
    found = read_onnx_file(path)
    try:
        return _Walk(found.graph, found.onnx, found.name, float_bytes).program()
    except InputError as error:
        raise error.within(path) from None


class _Walk:
    """State of one walk through a graph whose shapes have been inferred."""

    def __init__(self, graph: Any, onnx: Any, name: str, float_bytes: int | None):
        self._graph, self._onnx, self._float_bytes = graph, onnx, float_bytes
        self._builder = Builder(name)
        self._shapes: dict[str, tuple[int, ...] | None] = {}
        self._item_bytes: dict[str, int] = {}
        self._values: dict[str, Variable] = {}
        self._numbers: dict[str, Any] = {}
        """Arrays of constants that are in the file."""
        for each in (*graph.input, *graph.value_info, *graph.output):
            self._know(each)
        for each in graph.initializer:
            self._store(each.name, each)
        self._handlers: dict[str, Callable[[Any, dict[str, Any]], None]] = {
            "Constant": self._constant,
            "Transpose": self._transpose,
            "Slice": self._slice,
            "Split": self._split,
            "Concat": self._concatenate,
            "Pad": self._pad,
            "Expand": self._expand,
            "Tile": self._tile,
            "MatMul": self._matmul,
            "Gemm": self._gemm,
            "Conv": self._convolution,
            "MaxPool": self._pool,
            "AveragePool": self._pool,
            "GlobalAveragePool": self._global_pool,
            "GlobalMaxPool": self._global_pool,
            "BatchNormalization": self._batch_normalization,
            "Gather": self._gather,
            **dict.fromkeys(_SHAPES_ONLY, self._reshape),
            **dict.fromkeys(_REDUCTIONS, self._reduce),
            **dict.fromkeys(_ALONG_AXIS, self._along_axis),
        }

    def program(self) -> Program:
        for node in self._graph.node:
            options = {each.name: self._onnx.helper.get_attribute_value(each) for each in node.attribute}
            if node.op_type in ("If", "Loop", "Scan"):
                raise InputError(f"found a {node.op_type}, expected a graph without control flow", place=self._place(node))
            handler = self._handlers.get(node.op_type)
            if handler is not None:
                handler(node, options)
            elif node.op_type in _ELEMENTWISE:
                self._elementwise(node, options)
            else:
                self._opaque(node)
        outputs = [self._variable(each.name).name for each in self._graph.output]
        program = self._builder.program(tuple(dict.fromkeys(outputs)))
        check(program)
        return program

    # Values

    def _know(self, value: Any) -> None:
        kind = value.type.tensor_type
        fixed = kind.HasField("shape") and all(each.HasField("dim_value") for each in kind.shape.dim)
        self._shapes[value.name] = tuple(each.dim_value for each in kind.shape.dim) if fixed else None
        self._item_bytes[value.name] = self._bytes_of(kind.elem_type)

    def _bytes_of(self, kind: int | None) -> int:
        """Bytes of an element of an ONNX type; what has none is taken for a number in single precision."""
        types = self._onnx.TensorProto.DataType
        if self._float_bytes is not None and (kind not in types.values() or _FLOATS.match(types.Name(kind))):
            return self._float_bytes
        try:
            return max(1, int(self._onnx.helper.tensor_dtype_to_np_dtype(kind).itemsize))
        except (KeyError, TypeError):
            return 4

    def _store(self, name: str, tensor: Any) -> None:
        self._shapes[name] = tuple(tensor.dims)
        self._item_bytes[name] = self._bytes_of(tensor.data_type)
        try:
            self._numbers[name] = self._onnx.numpy_helper.to_array(tensor)
        except (TypeError, ValueError, AttributeError, OSError):
            # Weights that were stripped, or stand in another file.
            return

    def _shape(self, name: str) -> tuple[int, ...]:
        shape = self._shapes.get(name)
        if shape is None:
            raise InputError("found no fixed shape, expected one: export the model with fixed shapes", place=f"value {name}")
        return shape

    def _variable(self, name: str) -> Variable:
        found = self._values.get(name)
        if found is None:
            # Graph inputs, weights and constants, where something reads them.
            found = self._values[name] = self._builder.input(
                name, self._shape(name), self._item_bytes.get(name, self._bytes_of(None))
            )
        return found

    def _integers(self, node: Any, at: int, attribute: Any = None) -> list[int]:
        """Whole numbers given as an attribute, or as an input that is a constant."""
        if attribute is not None:
            return [int(each) for each in attribute]
        name = node.input[at] if len(node.input) > at else ""
        if name not in self._numbers:
            message = f"found {node.op_type} by numbers that are not in the file (input {name!r}), expected constants"
            raise InputError(message, place=self._place(node))
        return [int(each) for each in self._numbers[name].reshape(-1)]

    def _place(self, node: Any) -> str:
        return f"operator {node.output[0] or node.name}"

    def _operator(
        self,
        node: Any,
        operands: Sequence[Variable | Load],
        options: Sequence[Option],
        *,
        op: str = "",
        attributes: dict[str, Any] | None = None,
        restricted: bool = False,
        dynamic: Sequence[int] = (),
    ) -> None:
        names = [name for name in node.output if name]
        # What only training needs has no shape at times, and no reader.
        names = [name for name in names if self._shapes.get(name) is not None] or names[:1]
        count = len(names)
        results = self._builder.operator(
            op or node.op_type,
            operands,
            [self._shape(name) for name in names],
            [(*way, *(way[-1],) * (count - 1)) for way in options] if count > 1 else options,
            attributes=attributes,
            restricted=restricted,
            name=names[0],
            dynamic=dynamic,
            item_bytes=[self._item_bytes.get(name, self._bytes_of(None)) for name in names],
        )
        self._values.update(zip(names, results, strict=True))

    # Operators that move data

    def _constant(self, node: Any, options: dict[str, Any]) -> None:
        name = node.output[0]
        if "value" in options:
            self._store(name, options["value"])
        else:
            import numpy as np

            key = next(iter(options))
            self._numbers[name] = np.array(options[key])
            self._shapes[name] = self._numbers[name].shape

    def _reshape(self, node: Any, options: dict[str, Any]) -> None:
        name = node.output[0]
        self._values[name] = self._builder.reshape(self._variable(node.input[0]), self._shape(name), name)

    def _transpose(self, node: Any, options: dict[str, Any]) -> None:
        source = self._variable(node.input[0])
        order = list(options.get("perm", range(len(source.shape) - 1, -1, -1)))
        self._values[node.output[0]] = self._builder.transpose(source, order, node.output[0])

    def _slice(self, node: Any, options: dict[str, Any]) -> None:
        source = self._variable(node.input[0])
        rank = len(source.shape)
        starts = self._integers(node, 1, options.get("starts"))
        ends = self._integers(node, 2, options.get("ends"))
        named = options.get("axes") is not None or (len(node.input) > 3 and node.input[3])
        axes = self._integers(node, 3, options.get("axes")) if named else list(range(len(starts)))
        steps = self._integers(node, 4) if len(node.input) > 4 and node.input[4] else [1] * len(starts)
        backwards = []
        begin, end, step = [0] * rank, list(source.shape), [1] * rank
        for at, start, stop, by in zip(axes, starts, ends, steps, strict=True):
            axis = at % rank
            size = source.shape[axis]
            begin[axis], end[axis], step[axis] = slice(start, stop, by).indices(size)
            if by < 0:
                # The same elements of the reversed tensor, forwards.
                backwards.append(axis)
                begin[axis], end[axis], step[axis] = size - 1 - begin[axis], size - 1 - end[axis], -by
        name = node.output[0]
        if backwards:
            source = self._builder.reverse(source, backwards, f"{name}/reversed")
        self._values[name] = self._builder.slice(source, begin, end, step, name)

    def _split(self, node: Any, options: dict[str, Any]) -> None:
        source = self._variable(node.input[0])
        axis = int(options.get("axis", 0)) % len(source.shape)
        sizes = [self._shape(name)[axis] for name in node.output]
        parts = self._builder.split(source, sizes, axis, node.output[0])
        self._values.update(zip(node.output, parts, strict=True))

    def _concatenate(self, node: Any, options: dict[str, Any]) -> None:
        sources = [self._variable(name) for name in node.input]
        axis = int(options["axis"]) % len(sources[0].shape)
        self._values[node.output[0]] = self._builder.concatenate(sources, axis, node.output[0])

    def _pad(self, node: Any, options: dict[str, Any]) -> None:
        source = self._variable(node.input[0])
        mode = options.get("mode", b"constant")
        if mode not in (b"constant", "constant"):
            self._opaque(node)
            return
        rank = len(source.shape)
        pads = self._integers(node, 1, options.get("pads"))
        axes = self._integers(node, 3) if len(node.input) > 3 and node.input[3] else list(range(rank))
        low, high = [0] * rank, [0] * rank
        for at, axis in enumerate(axes):
            low[axis % rank], high[axis % rank] = pads[at], pads[at + len(axes)]
        value: Variable | float = float(options.get("value", 0.0))
        if len(node.input) > 2 and node.input[2]:
            number = self._numbers.get(node.input[2])
            value = self._variable(node.input[2]) if number is None else float(number.reshape(-1)[0])
        self._values[node.output[0]] = self._builder.pad(source, low, high, None, value, node.output[0])

    def _expand(self, node: Any, options: dict[str, Any]) -> None:
        source, shape = self._variable(node.input[0]), self._shape(node.output[0])
        behind = len(shape) - len(source.shape)
        dimensions = range(behind, len(shape))
        self._values[node.output[0]] = self._builder.broadcast(source, shape, dimensions, node.output[0])

    def _tile(self, node: Any, options: dict[str, Any]) -> None:
        source = self._variable(node.input[0])
        self._values[node.output[0]] = self._builder.tile(source, self._integers(node, 1), node.output[0])

    def _gather(self, node: Any, options: dict[str, Any]) -> None:
        """One element of a dimension by a constant is a slice; all else is a table read at run-time indices."""
        table = self._variable(node.input[0])
        axis = int(options.get("axis", 0)) % len(table.shape)
        number = self._numbers.get(node.input[1])
        if number is not None and number.size == 1:
            start = int(number.reshape(-1)[0]) % table.shape[axis]
            begin = [start if at == axis else 0 for at in range(len(table.shape))]
            end = [start + 1 if at == axis else size for at, size in enumerate(table.shape)]
            part = self._builder.slice(table, begin, end, name=f"{node.output[0]}/part")
            self._values[node.output[0]] = self._builder.reshape(part, self._shape(node.output[0]), node.output[0])
            return
        rows = self._variable(node.input[1])
        grown = len(rows.shape) - 1
        options_of = [(at, UNSPREAD, at if at < axis else at + grown) for at in range(len(table.shape)) if at != axis]
        self._operator(node, [table, rows], [*options_of, (UNSPREAD,) * 3], dynamic=(0,))

    # Operators that compute

    def _elementwise(self, node: Any, options: dict[str, Any]) -> None:
        shape = self._shape(node.output[0])
        names = [name for name in node.input if name]
        loads = [self._broadcasting(self._variable(name), shape) for name in names]
        self._operator(node, loads, rules.elementwise(len(shape), len(loads)), op=node.op_type.lower())

    def _broadcasting(self, source: Variable, shape: tuple[int, ...]) -> Load:
        behind = len(shape) - len(source.shape)
        indices = tuple(constant(0) if size == 1 else index(at) for at, size in enumerate(source.shape, behind))
        return Load(shape, (Piece(source.name, indices),))

    def _matmul(self, node: Any, options: dict[str, Any]) -> None:
        left, right = (self._variable(name) for name in node.input)
        one, two = len(left.shape), len(right.shape)
        contracting = [(one - 1, max(0, two - 2))]
        # Leading dimensions that both have go along; those of one side alone are free.
        shared = min(one, two) - 2
        batch = [(one - 3 - at, two - 3 - at) for at in reversed(range(max(0, shared)))]
        if any(left.shape[first] != right.shape[second] for first, second in batch):
            self._opaque(node)
            return
        ways = rules.matmul(one, two, contracting, batch)
        attributes = {"contracting": contracting, "batch": batch}
        self._operator(node, [left, right], ways, op="matmul", attributes=attributes, restricted=True)

    def _gemm(self, node: Any, options: dict[str, Any]) -> None:
        left, right = self._variable(node.input[0]), self._variable(node.input[1])
        contracting = [(0 if options.get("transA", 0) else 1, 1 if options.get("transB", 0) else 0)]
        ways: Sequence[Option] = rules.matmul(2, 2, contracting)
        operands: list[Variable | Load] = [left, right]
        if len(node.input) > 2 and node.input[2]:
            shape = self._shape(node.output[0])
            bias = self._variable(node.input[2])
            operands.append(self._broadcasting(bias, shape))
            ways = [(*way[:2], way[2], way[2]) for way in ways]
        self._operator(node, operands, ways, op="gemm", restricted=True)

    def _convolution(self, node: Any, options: dict[str, Any]) -> None:
        operands: list[Variable | Load] = [self._variable(node.input[0]), self._variable(node.input[1])]
        ways: Sequence[Option] = rules.convolution(1, 1, 1)
        if len(node.input) > 2 and node.input[2]:
            operands.append(self._variable(node.input[2]))
            ways = [(*way[:2], 0, way[2]) for way in ways]
        spatial = len(self._shape(node.output[0])) - 2
        pads = list(options.get("pads", [0] * 2 * spatial))
        place = tuple(range(spatial + 2))
        attributes = {
            "layout": (place,) * 3,
            "strides": list(options.get("strides", [1] * spatial)),
            "pads": list(zip(pads[:spatial], pads[spatial:], strict=True)),
            "base": [1] * spatial,
            "dilations": list(options.get("dilations", [1] * spatial)),
            "groups": int(options.get("group", 1)),
        }
        self._operator(node, operands, ways, op="convolution", attributes=attributes, restricted=True)

    def _pool(self, node: Any, options: dict[str, Any]) -> None:
        window = (1, 1, *options["kernel_shape"])
        self._operator(node, [self._variable(node.input[0])], rules.pool(window), op="pool", restricted=True)

    def _global_pool(self, node: Any, options: dict[str, Any]) -> None:
        shape = self._shape(node.input[0])
        window = (1, 1, *(max(2, size) for size in shape[2:]))
        self._operator(node, [self._variable(node.input[0])], rules.pool(window), op="pool", restricted=True)

    def _batch_normalization(self, node: Any, options: dict[str, Any]) -> None:
        """Element by element; scale, offset, mean and variance go along the channels."""
        data = self._variable(node.input[0])
        others = [self._variable(name) for name in node.input[1:5]]
        loads = [Load(data.shape, (Piece(each.name, (index(1),)),)) for each in others]
        ways = rules.elementwise(len(data.shape), 1 + len(loads))
        self._operator(node, [data, *loads], ways)

    def _along_axis(self, node: Any, options: dict[str, Any]) -> None:
        data = self._variable(node.input[0])
        rank = len(data.shape)
        axis = int(options.get("axis", -1)) % rank
        last = rank if "Layer" in node.op_type or "RMS" in node.op_type else axis + 1
        others = [self._broadcasting(self._variable(name), data.shape) for name in node.input[1:] if name]
        free = [at for at in range(rank) if not axis <= at < last]
        ways = [(*(at,) * (1 + len(others)), at) for at in (*free, UNSPREAD)]
        self._operator(node, [data, *others], ways)

    def _reduce(self, node: Any, options: dict[str, Any]) -> None:
        data = self._variable(node.input[0])
        rank = len(data.shape)
        given = options.get("axes") is not None or (len(node.input) > 1 and node.input[1])
        axes = [axis % rank for axis in self._integers(node, 1, options.get("axes"))] if given else list(range(rank))
        ways = rules.reduction(rank, axes)
        if options.get("keepdims", 1):
            ways = tuple((way[0], way[0] if way[0] not in axes else UNSPREAD) for way in ways)
        attributes = {"dimensions": axes, "kind": _REDUCTIONS[node.op_type]}
        self._operator(node, [data], ways, op="reduce", attributes=attributes)

    def _opaque(self, node: Any) -> None:
        """What nothing is known of: all in one bank, read at indices unknown."""
        operands = [self._variable(name) for name in node.input if name]
        self._operator(node, operands, rules.unspread(len(operands), 1), dynamic=tuple(range(len(operands))))
