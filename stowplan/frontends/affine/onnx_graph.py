"""Affine programs from ONNX graphs. Weights need not be there; shapes, and what shapes are computed from, must be.

Operands that broadcast (``Add`` of a matrix and a row) are read through a broadcasting load: no tensor is repeated for them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from stowplan.deadline import check_reading
from stowplan.errors import InputError
from stowplan.frontends.affine.builder import Builder, Variable
from stowplan.frontends.onnx_file import OnnxFile, attributes, is_external, missing_text, read_onnx_file
from stowplan.hardware.affine import rules
from stowplan.hardware.affine.check import check
from stowplan.hardware.affine.expression import constant, index
from stowplan.hardware.affine.program import UNSPREAD, Load, Option, Piece, Program

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
    """Checked program of an ONNX file.

    Parameters
    ----------
    path
        Plain or gzip.
    float_bytes
        Size of all floating-point numbers, bytes; None for their own.

    Raises
    ------
    MissingDependencyError
        There is no onnx.
    InputError
        Not an ONNX model, shapes that are not fixed, or a slice or pad whose numbers are not in the file; names the operator.
    """
    found = read_onnx_file(path)
    try:
        return _Walk(found, float_bytes).program()
    except InputError as error:
        raise error.within(path) from None


class _Walk:
    """State of one walk through a graph whose shapes have been inferred."""

    def __init__(self, file: OnnxFile, float_bytes: int | None):
        self._graph, self._onnx, self._missing = file.graph, file.onnx, file.missing
        self._float_bytes = float_bytes
        graph = file.graph
        self._builder = Builder(file.name)
        self._shapes: dict[str, tuple[int, ...] | None] = {}
        self._item_bytes: dict[str, int] = {}
        self._values: dict[str, Variable] = {}
        self._stored: dict[str, Any] = {}
        """Tensors of constants, and arrays once something has asked for their numbers."""
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
            check_reading()
            options = attributes(node, self._onnx)
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
        self._stored[name] = tensor

    def _numbers(self, name: str) -> Any:
        """Array of a constant, None where its numbers are not in the file: weights that were stripped, or stand in another."""
        found = self._stored.get(name)
        if isinstance(found, self._onnx.TensorProto):
            try:
                found = None if is_external(found, self._onnx) else self._onnx.numpy_helper.to_array(found)
            except (TypeError, ValueError, AttributeError, KeyError):
                found = None
            self._stored[name] = found
        return found

    def _shape(self, name: str) -> tuple[int, ...]:
        shape = self._shapes.get(name)
        if shape is None:
            message = "found no fixed shape, expected one: export the model with fixed shapes"
            raise InputError(message + missing_text(self._missing), place=f"value {name}")
        if any(size < 1 for size in shape):
            raise InputError(f"found the shape {list(shape)}, expected sizes of at least 1", place=f"value {name}")
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
            return self._whole(node, attribute)
        name = node.input[at] if len(node.input) > at else ""
        found = self._numbers(name)
        if found is None:
            message = f"found {node.op_type} by numbers that are not in the file (input {name!r}), expected constants"
            only = {name: self._missing[name]} if name in self._missing else {}
            raise InputError(message + missing_text(only), place=self._place(node))
        return self._whole(node, found.reshape(-1).tolist())

    def _whole(self, node: Any, found: Any) -> list[int]:
        if not isinstance(found, Iterable) or isinstance(found, bytes) or not all(isinstance(each, int) for each in found):
            raise InputError(f"found {found!r}, expected whole numbers", place=self._place(node))
        return list(found)

    def _ints(
        self, node: Any, options: dict[str, Any], name: str, count: int, default: Sequence[int] | None = None
    ) -> list[int]:
        """``count`` whole numbers of an attribute."""
        given = options.get(name, default)
        if given is None:
            raise InputError(f"found no {name}, expected {count} numbers", place=self._place(node))
        found = self._whole(node, given)
        if len(found) != count:
            raise InputError(f"found {name} {found}, expected {count} numbers", place=self._place(node))
        return found

    def _axis(self, node: Any, axis: Any, rank: int) -> int:
        """A dimension below ``rank``; negative ones count from the end."""
        if not isinstance(axis, int) or not -rank <= axis < rank:
            raise InputError(f"found the axis {axis!r}, expected -{rank} to {rank - 1}", place=self._place(node))
        return axis % rank

    def _inputs(self, node: Any, least: int) -> list[Variable]:
        """The first ``least`` inputs, which an operator cannot do without."""
        if len(node.input) < least or not all(node.input[:least]):
            found = [name for name in node.input if name]
            raise InputError(f"found {len(found)} inputs, expected {least} or more", place=self._place(node))
        return [self._variable(name) for name in node.input[:least]]

    def _expect(self, node: Any, holds: bool, found: object, expected: str) -> None:
        if not holds:
            raise InputError(f"found {found}, expected {expected}", place=self._place(node))

    def _place(self, node: Any) -> str:
        return f"operator {next((name for name in node.output if name), node.name)}"

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
        value = next(iter(options.values()), None)
        if isinstance(value, self._onnx.TensorProto):
            self._store(name, value)
        elif isinstance(value, int | float | list | tuple):
            import numpy as np

            self._stored[name] = np.array(value)
            self._shapes[name] = self._stored[name].shape
        else:
            self._expect(node, isinstance(value, bytes | self._onnx.SparseTensorProto), "no value", "one")

    def _reshape(self, node: Any, options: dict[str, Any]) -> None:
        name = node.output[0]
        self._values[name] = self._builder.reshape(self._inputs(node, 1)[0], self._shape(name), name)

    def _transpose(self, node: Any, options: dict[str, Any]) -> None:
        source = self._inputs(node, 1)[0]
        rank = len(source.shape)
        order = self._ints(node, options, "perm", rank, range(rank - 1, -1, -1))
        self._expect(node, sorted(order) == list(range(rank)), f"perm {order}", f"an order of {rank} dimensions")
        self._values[node.output[0]] = self._builder.transpose(source, order, node.output[0])

    def _slice(self, node: Any, options: dict[str, Any]) -> None:
        source = self._inputs(node, 1)[0]
        rank = len(source.shape)
        starts = self._integers(node, 1, options.get("starts"))
        ends = self._integers(node, 2, options.get("ends"))
        named = options.get("axes") is not None or (len(node.input) > 3 and node.input[3])
        axes = self._integers(node, 3, options.get("axes")) if named else list(range(len(starts)))
        steps = self._integers(node, 4) if len(node.input) > 4 and node.input[4] else [1] * len(starts)
        counts = {len(starts), len(ends), len(axes), len(steps)}
        self._expect(
            node, len(counts) == 1 and 0 not in steps, f"a slice by {axes} in steps {steps}", "as many numbers of each"
        )
        backwards = []
        begin, end, step = [0] * rank, list(source.shape), [1] * rank
        for at, start, stop, by in zip(axes, starts, ends, steps, strict=True):
            axis = self._axis(node, at, rank)
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
        source = self._inputs(node, 1)[0]
        axis = self._axis(node, options.get("axis", 0), len(source.shape))
        names = [name for name in node.output if name]
        shapes = [self._shape(name) for name in names]
        self._expect(node, all(len(shape) == len(source.shape) for shape in shapes), "parts of another rank", "the operand's")
        parts = self._builder.split(source, [shape[axis] for shape in shapes], axis, names[0])
        self._values.update(zip(names, parts, strict=True))

    def _concatenate(self, node: Any, options: dict[str, Any]) -> None:
        sources = self._inputs(node, max(1, len(node.input)))
        rank = len(sources[0].shape)
        self._expect(node, all(len(each.shape) == rank for each in sources), "inputs of different ranks", "one rank")
        axis = self._axis(node, options.get("axis"), rank)
        self._values[node.output[0]] = self._builder.concatenate(sources, axis, node.output[0])

    def _pad(self, node: Any, options: dict[str, Any]) -> None:
        source = self._inputs(node, 1)[0]
        mode = options.get("mode", b"constant")
        if mode not in (b"constant", "constant"):
            self._opaque(node)
            return
        rank = len(source.shape)
        pads = self._integers(node, 1, options.get("pads"))
        axes = self._integers(node, 3) if len(node.input) > 3 and node.input[3] else list(range(rank))
        self._expect(node, len(pads) == 2 * len(axes), f"pads {pads}", f"{2 * len(axes)} numbers")
        low, high = [0] * rank, [0] * rank
        for at, each in enumerate(axes):
            axis = self._axis(node, each, rank)
            low[axis], high[axis] = pads[at], pads[at + len(axes)]
        given = options.get("value", 0.0)
        self._expect(node, isinstance(given, int | float), repr(given), "a number to pad with")
        value: Variable | float = float(given)
        if len(node.input) > 2 and node.input[2]:
            found = self._numbers(node.input[2])
            known = found is not None and found.size == 1 and found.dtype.kind in "biuf"
            value = float(found.reshape(-1)[0]) if known else self._variable(node.input[2])
            if isinstance(value, Variable):
                self._expect(node, not value.shape, f"a value of shape {list(value.shape)} to pad with", "a single one")
        self._values[node.output[0]] = self._builder.pad(source, low, high, None, value, node.output[0])

    def _expand(self, node: Any, options: dict[str, Any]) -> None:
        source, shape = self._inputs(node, 1)[0], self._shape(node.output[0])
        behind = len(shape) - len(source.shape)
        self._expect(node, behind >= 0, f"a shape of {len(shape)} dimensions", f"{len(source.shape)} or more")
        dimensions = range(behind, len(shape))
        self._values[node.output[0]] = self._builder.broadcast(source, shape, dimensions, node.output[0])

    def _tile(self, node: Any, options: dict[str, Any]) -> None:
        source = self._inputs(node, 1)[0]
        times = self._integers(node, 1)
        self._expect(node, len(times) == len(source.shape), f"repeats {times}", f"{len(source.shape)} numbers")
        self._values[node.output[0]] = self._builder.tile(source, times, node.output[0])

    def _gather(self, node: Any, options: dict[str, Any]) -> None:
        """One element of a dimension by a constant is a slice; all else is a table read at run-time indices."""
        table = self._inputs(node, 1)[0]
        self._expect(node, len(node.input) > 1 and bool(node.input[1]), "no indices", "an input of them")
        axis = self._axis(node, options.get("axis", 0), len(table.shape))
        found = self._numbers(node.input[1])
        if found is not None and found.size == 1 and found.dtype.kind in "iu":
            start = self._axis(node, int(found.reshape(-1)[0]), table.shape[axis])
            begin = [start if at == axis else 0 for at in range(len(table.shape))]
            end = [start + 1 if at == axis else size for at, size in enumerate(table.shape)]
            part = self._builder.slice(table, begin, end, name=f"{node.output[0]}/part")
            self._values[node.output[0]] = self._builder.reshape(part, self._shape(node.output[0]), node.output[0])
            return
        rows = self._variable(node.input[1])
        grown = len(rows.shape) - 1
        rank = len(self._shape(node.output[0]))
        self._expect(node, rank == len(table.shape) + grown, f"a result of {rank} dimensions", str(len(table.shape) + grown))
        options_of = [(at, UNSPREAD, at if at < axis else at + grown) for at in range(len(table.shape)) if at != axis]
        self._operator(node, [table, rows], [*options_of, (UNSPREAD,) * 3], dynamic=(0,))

    # Operators that compute

    def _elementwise(self, node: Any, options: dict[str, Any]) -> None:
        shape = self._shape(node.output[0])
        loads = [self._broadcasting(node, self._variable(name), shape) for name in node.input if name]
        self._operator(node, loads, rules.elementwise(len(shape), len(loads)), op=node.op_type.lower())

    def _broadcasting(self, node: Any, source: Variable, shape: tuple[int, ...]) -> Load:
        behind = len(shape) - len(source.shape)
        fits = behind >= 0 and all(one in (1, two) for one, two in zip(source.shape, shape[behind:], strict=True))
        self._expect(node, fits, f"an operand of shape {list(source.shape)}", f"one that broadcasts to {list(shape)}")
        indices = tuple(constant(0) if size == 1 else index(at) for at, size in enumerate(source.shape, behind))
        return Load(shape, (Piece(source.name, indices),))

    def _matmul(self, node: Any, options: dict[str, Any]) -> None:
        left, right = self._inputs(node, 2)
        one, two = len(left.shape), len(right.shape)
        self._expect(node, one > 0 and two > 0, "an operand without dimensions", "one or more")
        contracting = [(one - 1, max(0, two - 2))]
        # Leading dimensions that both have go along; those of one side alone are free.
        shared = min(one, two) - 2
        batch = [(one - 3 - at, two - 3 - at) for at in reversed(range(max(0, shared)))]
        rank = len(self._shape(node.output[0]))
        if any(left.shape[first] != right.shape[second] for first, second in batch) or rank != one + two - 2 - len(batch):
            self._opaque(node)
            return
        ways = rules.matmul(one, two, contracting, batch)
        attributes = {"contracting": contracting, "batch": batch}
        self._operator(node, [left, right], ways, op="matmul", attributes=attributes, restricted=True)

    def _gemm(self, node: Any, options: dict[str, Any]) -> None:
        left, right = self._inputs(node, 2)
        ranks = [len(left.shape), len(right.shape), len(self._shape(node.output[0]))]
        self._expect(node, ranks == [2, 2, 2], f"operands and result of ranks {ranks}", "matrices")
        contracting = [(0 if options.get("transA", 0) else 1, 1 if options.get("transB", 0) else 0)]
        ways: Sequence[Option] = rules.matmul(2, 2, contracting)
        operands: list[Variable | Load] = [left, right]
        if len(node.input) > 2 and node.input[2]:
            shape = self._shape(node.output[0])
            bias = self._variable(node.input[2])
            operands.append(self._broadcasting(node, bias, shape))
            ways = [(*way[:2], way[2], way[2]) for way in ways]
        self._operator(node, operands, ways, op="gemm", restricted=True)

    def _convolution(self, node: Any, options: dict[str, Any]) -> None:
        operands: list[Variable | Load] = [*self._inputs(node, 2)]
        ways: Sequence[Option] = rules.convolution(1, 1, 1)
        ranks = [len(self._shape(name)) for name in (*node.input[:2], node.output[0])]
        self._expect(
            node, ranks[0] > 1 and len(set(ranks)) == 1, f"operands and result of ranks {ranks}", "one rank of 2 or more"
        )
        if len(node.input) > 2 and node.input[2]:
            bias = self._variable(node.input[2])
            self._expect(node, len(bias.shape) == 1, f"a bias of shape {list(bias.shape)}", "one dimension")
            operands.append(bias)
            ways = [(*way[:2], 0, way[2]) for way in ways]
        spatial = ranks[0] - 2
        pads = self._ints(node, options, "pads", 2 * spatial, [0] * 2 * spatial)
        place = tuple(range(spatial + 2))
        attributes = {
            "layout": (place,) * 3,
            "strides": self._ints(node, options, "strides", spatial, [1] * spatial),
            "pads": list(zip(pads[:spatial], pads[spatial:], strict=True)),
            "base": [1] * spatial,
            "dilations": self._ints(node, options, "dilations", spatial, [1] * spatial),
            "groups": self._whole(node, [options.get("group", 1)])[0],
        }
        self._operator(node, operands, ways, op="convolution", attributes=attributes, restricted=True)

    def _pool(self, node: Any, options: dict[str, Any]) -> None:
        data = self._inputs(node, 1)[0]
        self._expect(node, len(data.shape) > 1, f"an operand of shape {list(data.shape)}", "two dimensions or more")
        window = (1, 1, *self._ints(node, options, "kernel_shape", len(data.shape) - 2))
        self._pooled(node, data, window)

    def _global_pool(self, node: Any, options: dict[str, Any]) -> None:
        data = self._inputs(node, 1)[0]
        self._expect(node, len(data.shape) > 1, f"an operand of shape {list(data.shape)}", "two dimensions or more")
        self._pooled(node, data, (1, 1, *(max(2, size) for size in data.shape[2:])))

    def _pooled(self, node: Any, data: Variable, window: tuple[int, ...]) -> None:
        rank = len(self._shape(node.output[0]))
        self._expect(node, rank == len(data.shape), f"a result of {rank} dimensions", f"{len(data.shape)}, as the operand has")
        self._operator(node, [data], rules.pool(window), op="pool", restricted=True)

    def _batch_normalization(self, node: Any, options: dict[str, Any]) -> None:
        """Element by element; scale, offset, mean and variance go along the channels."""
        data, *others = self._inputs(node, 5)
        self._expect(node, len(data.shape) > 1, f"an operand of shape {list(data.shape)}", "two dimensions or more")
        for each in others:
            self._expect(node, len(each.shape) == 1, f"a scale or mean of shape {list(each.shape)}", "one dimension")
        loads = [Load(data.shape, (Piece(each.name, (index(1),)),)) for each in others]
        ways = rules.elementwise(len(data.shape), 1 + len(loads))
        self._operator(node, [data, *loads], ways)

    def _along_axis(self, node: Any, options: dict[str, Any]) -> None:
        data = self._inputs(node, 1)[0]
        rank = len(data.shape)
        axis = self._axis(node, options.get("axis", -1), rank)
        last = rank if "Layer" in node.op_type or "RMS" in node.op_type else axis + 1
        others = [self._broadcasting(node, self._variable(name), data.shape) for name in node.input[1:] if name]
        free = [at for at in range(rank) if not axis <= at < last]
        ways = [(*(at,) * (1 + len(others)), at) for at in (*free, UNSPREAD)]
        self._operator(node, [data, *others], ways)

    def _reduce(self, node: Any, options: dict[str, Any]) -> None:
        data = self._inputs(node, 1)[0]
        rank = len(data.shape)
        given = options.get("axes") is not None or (len(node.input) > 1 and node.input[1])
        found = self._integers(node, 1, options.get("axes")) if given else list(range(rank))
        axes = [self._axis(node, axis, rank) for axis in found]
        ways = rules.reduction(rank, axes)
        if options.get("keepdims", 1):
            ways = tuple((way[0], way[0] if way[0] not in axes else UNSPREAD) for way in ways)
        attributes = {"dimensions": axes, "kind": _REDUCTIONS[node.op_type]}
        self._operator(node, [data], ways, op="reduce", attributes=attributes)

    def _opaque(self, node: Any) -> None:
        """What nothing is known of: all in one bank, read at indices unknown."""
        operands = [self._variable(name) for name in node.input if name]
        self._operator(node, operands, rules.unspread(len(operands), 1), dynamic=tuple(range(len(operands))))
