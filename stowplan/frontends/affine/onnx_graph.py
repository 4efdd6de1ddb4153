"""Makes affine programs from ONNX graphs.

The values of weights need not be in the file. All shapes must be fixed, and the values of constants on which shapes, slices and
paddings depend must be in the file.

Operators that move data become loop nests. Operators that compute get a bank rule, which lists the ways in which operands and
results may be spread over the banks of an on-chip memory. An operand that is broadcast, as in the ``Add`` of a matrix and a
row, is read through a broadcasting load, so that no tensor is repeated for it.

A handler adds one node to the program; ``options`` are the attributes of the node. Handlers for nodes that move data are in
:data:`MOVEMENT`, and handlers for those that compute are in :data:`OPERATORS`. A handler raises InputError, which names the
node, if an operand or attribute does not fit.

A ``Walk`` (:mod:`.onnx_walk`) has the program so far. A ``Variable`` (:mod:`.access`) stands for a tensor of the program. A
``Load`` (:mod:`stowplan.hardware.affine.program`) says which element of a tensor an operator reads for each index. In bank
rules, the *options* of an operator (``ways`` in this module) have the dimension along which each operand and result is spread,
or :data:`~stowplan.hardware.affine.program.UNSPREAD`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from stowplan.deadline import check_reading
from stowplan.errors import naming
from stowplan.frontends import load_facts
from stowplan.frontends.affine.access import Variable
from stowplan.frontends.affine.onnx_walk import Handler, Walk
from stowplan.frontends.onnx_file import OnnxFile, read_onnx_file
from stowplan.frontends.options import NO_USER_SIZES, UserSizes
from stowplan.hardware.affine import rules
from stowplan.hardware.affine.check import check
from stowplan.hardware.affine.expression import constant, index
from stowplan.hardware.affine.program import UNSPREAD, Load, Option, Piece, Program

_KNOWN = load_facts("onnx")["banks"]


def _constant(walk: Walk, node: Any, options: dict[str, Any]) -> None:
    """Records the value of a constant; it adds no statement to the program."""
    name = node.output[0]
    value = next(iter(options.values()), None)
    if isinstance(value, walk.onnx.TensorProto):
        walk.file.store(name, value)
    elif isinstance(value, int | float | list | tuple):
        import numpy as np

        walk.keep(name, np.array(value))
    else:
        walk.expect(node, isinstance(value, bytes | walk.onnx.SparseTensorProto), "no value", "one")


def _reshape(walk: Walk, node: Any, options: dict[str, Any]) -> None:
    """Adds an operator that only changes the shape, such as ``Flatten`` or ``Identity``."""
    name = node.output[0]
    if any(node.input[2:]):
        # Of these operators, only a Dropout has a third operand: it is in training mode, and changes its elements.
        walk.opaque(node)
        return
    walk.values[name] = walk.builder.reshape(walk.inputs(node, 1)[0], walk.shape(name), name)


def _transpose(walk: Walk, node: Any, options: dict[str, Any]) -> None:
    source = walk.inputs(node, 1)[0]
    rank = len(source.shape)
    order = walk.ints(node, options, "perm", rank, range(rank - 1, -1, -1))
    walk.expect(node, sorted(order) == list(range(rank)), f"perm {order}", f"an order of {rank} dimensions")
    walk.values[node.output[0]] = walk.builder.transpose(source, order, node.output[0])


def _slice(walk: Walk, node: Any, options: dict[str, Any]) -> None:
    source = walk.inputs(node, 1)[0]
    rank = len(source.shape)
    starts = walk.integers(node, 1, options.get("starts"))
    ends = walk.integers(node, 2, options.get("ends"))
    named = options.get("axes") is not None or walk.has(node, 3)
    axes = walk.integers(node, 3, options.get("axes")) if named else list(range(len(starts)))
    steps = walk.integers(node, 4) if walk.has(node, 4) else [1] * len(starts)
    counts = {len(starts), len(ends), len(axes), len(steps)}
    walk.expect(node, len(counts) == 1 and 0 not in steps, f"a slice by {axes} in steps {steps}", "as many numbers of each")
    backwards = []
    begin, end, step = [0] * rank, list(source.shape), [1] * rank
    for at, start, stop, by in zip(axes, starts, ends, steps, strict=True):
        axis = walk.axis(node, at, rank)
        size = source.shape[axis]
        begin[axis], end[axis], step[axis] = slice(start, stop, by).indices(size)
        if by < 0:
            # A slice with a negative step is a slice of the reversed tensor.
            backwards.append(axis)
            begin[axis], end[axis], step[axis] = size - 1 - begin[axis], size - 1 - end[axis], -by
    name = node.output[0]
    if backwards:
        source = walk.builder.reverse(source, backwards, f"{name}/reversed")
    walk.values[name] = walk.builder.slice(source, begin, end, step, name)


def _split(walk: Walk, node: Any, options: dict[str, Any]) -> None:
    source = walk.inputs(node, 1)[0]
    axis = walk.axis(node, options.get("axis", 0), len(source.shape))
    names = [name for name in node.output if name]
    shapes = [walk.shape(name) for name in names]
    walk.expect(node, all(len(shape) == len(source.shape) for shape in shapes), "parts of another rank", "the operand's")
    parts = walk.builder.split(source, [shape[axis] for shape in shapes], axis, names[0])
    walk.values.update(zip(names, parts, strict=True))


def _concatenate(walk: Walk, node: Any, options: dict[str, Any]) -> None:
    sources = walk.inputs(node, max(1, len(node.input)))
    rank = len(sources[0].shape)
    walk.expect(node, all(len(source.shape) == rank for source in sources), "inputs of different ranks", "one rank")
    axis = walk.axis(node, options.get("axis"), rank)
    walk.values[node.output[0]] = walk.builder.concatenate(sources, axis, node.output[0])


def _pad(walk: Walk, node: Any, options: dict[str, Any]) -> None:
    source = walk.inputs(node, 1)[0]
    mode = options.get("mode", b"constant")
    if mode not in (b"constant", "constant"):
        walk.opaque(node)
        return
    rank = len(source.shape)
    pads = walk.integers(node, 1, options.get("pads"))
    axes = walk.integers(node, 3) if walk.has(node, 3) else list(range(rank))
    walk.expect(node, len(pads) == 2 * len(axes), f"pads {pads}", f"{2 * len(axes)} numbers")
    low, high = [0] * rank, [0] * rank
    for at, dimension in enumerate(axes):
        axis = walk.axis(node, dimension, rank)
        low[axis], high[axis] = pads[at], pads[at + len(axes)]
    padding = options.get("value", 0.0)
    walk.expect(node, isinstance(padding, int | float), repr(padding), "a number to pad with")
    value: Variable | float = float(padding)
    if walk.has(node, 2):
        fill = walk.numbers(node.input[2])
        is_constant = fill is not None and fill.size == 1 and fill.dtype.kind in "biuf"
        value = float(fill.reshape(-1)[0]) if is_constant else walk.variable(node.input[2])
        if isinstance(value, Variable):
            walk.expect(node, not value.shape, f"a value of shape {list(value.shape)} to pad with", "a single one")
    walk.values[node.output[0]] = walk.builder.pad(source, low, high, None, value, node.output[0])


def _expand(walk: Walk, node: Any, options: dict[str, Any]) -> None:
    source, shape = walk.inputs(node, 1)[0], walk.shape(node.output[0])
    new_dimensions = len(shape) - len(source.shape)
    walk.expect(node, new_dimensions >= 0, f"a shape of {len(shape)} dimensions", f"{len(source.shape)} or more")
    dimensions = range(new_dimensions, len(shape))
    walk.values[node.output[0]] = walk.builder.broadcast(source, shape, dimensions, node.output[0])


def _tile(walk: Walk, node: Any, options: dict[str, Any]) -> None:
    source = walk.inputs(node, 1)[0]
    times = walk.integers(node, 1)
    walk.expect(node, len(times) == len(source.shape), f"repeats {times}", f"{len(source.shape)} numbers")
    walk.values[node.output[0]] = walk.builder.tile(source, times, node.output[0])


def _gather(walk: Walk, node: Any, options: dict[str, Any]) -> None:
    """Adds a gather. With a single constant index it is a slice; otherwise it is an operator that reads a table at indices that
    are known only at run time."""
    table = walk.inputs(node, 1)[0]
    walk.expect(node, walk.has(node, 1), "no indices", "an input of them")
    axis = walk.axis(node, options.get("axis", 0), len(table.shape))
    indices = walk.numbers(node.input[1])
    if indices is not None and indices.size == 1 and indices.dtype.kind in "iu":
        start = walk.axis(node, int(indices.reshape(-1)[0]), table.shape[axis])
        begin = [start if at == axis else 0 for at in range(len(table.shape))]
        end = [start + 1 if at == axis else size for at, size in enumerate(table.shape)]
        part = walk.builder.slice(table, begin, end, name=f"{node.output[0]}/part")
        walk.values[node.output[0]] = walk.builder.reshape(part, walk.shape(node.output[0]), node.output[0])
        return
    rows = walk.variable(node.input[1])
    added = len(rows.shape) - 1
    rank = len(walk.shape(node.output[0]))
    walk.expect(node, rank == len(table.shape) + added, f"a result of {rank} dimensions", str(len(table.shape) + added))
    ways = [(at, UNSPREAD, at if at < axis else at + added) for at in range(len(table.shape)) if at != axis]
    walk.operator(node, [table, rows], [*ways, (UNSPREAD,) * 3], dynamic=(0,))


#: The handlers of operators that move data, by the name of the operator.
MOVEMENT: dict[str, Handler] = {
    "Constant": _constant,
    "Transpose": _transpose,
    "Slice": _slice,
    "Split": _split,
    "Concat": _concatenate,
    "Pad": _pad,
    "Expand": _expand,
    "Tile": _tile,
    "Gather": _gather,
    **dict.fromkeys(_KNOWN["shapes_only"].split(), _reshape),
}


#: The name in the program of the operation by which each reduction combines elements.
_REDUCTIONS = {"ReduceMean": "mean", "ReduceSum": "add", "ReduceMax": "maximum", "ReduceMin": "minimum"}


def _elementwise(walk: Walk, node: Any, options: dict[str, Any]) -> None:
    shape = walk.shape(node.output[0])
    loads = [_broadcasting(walk, node, walk.variable(name), shape) for name in node.input if name]
    walk.operator(node, loads, rules.elementwise(len(shape), len(loads)), op=node.op_type.lower())


def _broadcasting(walk: Walk, node: Any, source: Variable, shape: tuple[int, ...]) -> Load:
    """A load of ``source`` that broadcasts it to ``shape``; raises InputError if it does not broadcast to this shape."""
    new_dimensions = len(shape) - len(source.shape)
    fits = new_dimensions >= 0 and all(one in (1, two) for one, two in zip(source.shape, shape[new_dimensions:], strict=True))
    walk.expect(node, fits, f"an operand of shape {list(source.shape)}", f"one that broadcasts to {list(shape)}")
    indices = tuple(constant(0) if size == 1 else index(at) for at, size in enumerate(source.shape, new_dimensions))
    return Load(shape, (Piece(source.name, indices),))


def _matmul(walk: Walk, node: Any, options: dict[str, Any]) -> None:
    left, right = walk.inputs(node, 2)
    one, two = len(left.shape), len(right.shape)
    walk.expect(node, one > 0 and two > 0, "an operand without dimensions", "one or more")
    contracting = [(one - 1, max(0, two - 2))]
    # The last two dimensions of an operand are those of its matrices. Of the dimensions before them, those that both operands
    # have are batch dimensions, and those that only one operand has are free, that is, dimensions of the result as well.
    shared = min(one, two) - 2
    batch = [(one - 3 - at, two - 3 - at) for at in reversed(range(max(0, shared)))]
    rank = len(walk.shape(node.output[0]))
    if any(left.shape[first] != right.shape[second] for first, second in batch) or rank != one + two - 2 - len(batch):
        walk.opaque(node)
        return
    ways = rules.matmul(one, two, contracting, batch)
    attributes = {"contracting": contracting, "batch": batch}
    walk.operator(node, [left, right], ways, op="matmul", attributes=attributes, restricted=True)


def _gemm(walk: Walk, node: Any, options: dict[str, Any]) -> None:
    """Adds a product of two matrices, and a bias as a third operand, which is spread as the result is."""
    left, right = walk.inputs(node, 2)
    ranks = [len(left.shape), len(right.shape), len(walk.shape(node.output[0]))]
    walk.expect(node, ranks == [2, 2, 2], f"operands and result of ranks {ranks}", "matrices")
    contracting = [(0 if options.get("transA", 0) else 1, 1 if options.get("transB", 0) else 0)]
    ways: Sequence[Option] = rules.matmul(2, 2, contracting)
    operands: list[Variable | Load] = [left, right]
    if walk.has(node, 2):
        shape = walk.shape(node.output[0])
        bias = walk.variable(node.input[2])
        operands.append(_broadcasting(walk, node, bias, shape))
        ways = [(*way[:2], way[2], way[2]) for way in ways]
    walk.operator(node, operands, ways, op="gemm", restricted=True)


def _convolution(walk: Walk, node: Any, options: dict[str, Any]) -> None:
    operands: list[Variable | Load] = [*walk.inputs(node, 2)]
    ways: Sequence[Option] = rules.convolution(1, 1, 1)
    ranks = [len(walk.shape(name)) for name in (*node.input[:2], node.output[0])]
    walk.expect(node, ranks[0] > 1 and len(set(ranks)) == 1, f"operands and result of ranks {ranks}", "one rank of 2 or more")
    if walk.has(node, 2):
        bias = walk.variable(node.input[2])
        walk.expect(node, len(bias.shape) == 1, f"a bias of shape {list(bias.shape)}", "one dimension")
        operands.append(bias)
        ways = [(*way[:2], 0, way[2]) for way in ways]
    spatial = ranks[0] - 2
    pads = walk.ints(node, options, "pads", 2 * spatial, [0] * 2 * spatial)
    place = tuple(range(spatial + 2))
    attributes = {
        "layout": (place,) * 3,
        "strides": walk.ints(node, options, "strides", spatial, [1] * spatial),
        "pads": list(zip(pads[:spatial], pads[spatial:], strict=True)),
        "base": [1] * spatial,
        "dilations": walk.ints(node, options, "dilations", spatial, [1] * spatial),
        "groups": walk.whole(node, [options.get("group", 1)])[0],
    }
    walk.operator(node, operands, ways, op="convolution", attributes=attributes, restricted=True)


def _pool(walk: Walk, node: Any, options: dict[str, Any]) -> None:
    data = walk.inputs(node, 1)[0]
    walk.expect(node, len(data.shape) > 1, f"an operand of shape {list(data.shape)}", "two dimensions or more")
    if node.op_type.startswith("Global"):
        # A pooled dimension of size 1 counts as a window of 2, because dimensions with a window of 1 may be spread over banks.
        window = [max(2, size) for size in data.shape[2:]]
    else:
        window = walk.ints(node, options, "kernel_shape", len(data.shape) - 2)
    rank = len(walk.shape(node.output[0]))
    walk.expect(node, rank == len(data.shape), f"a result of {rank} dimensions", f"{len(data.shape)}, as the operand has")
    walk.operator(node, [data], rules.pool((1, 1, *window)), op="pool", restricted=True)


def _batch_normalization(walk: Walk, node: Any, options: dict[str, Any]) -> None:
    """Adds an element-wise operator, which reads scale, offset, mean and variance at the index of the channel."""
    data, *others = walk.inputs(node, 5)
    walk.expect(node, len(data.shape) > 1, f"an operand of shape {list(data.shape)}", "two dimensions or more")
    for other in others:
        walk.expect(node, len(other.shape) == 1, f"a scale or mean of shape {list(other.shape)}", "one dimension")
    loads = [Load(data.shape, (Piece(other.name, (index(1),)),)) for other in others]
    ways = rules.elementwise(len(data.shape), 1 + len(loads))
    walk.operator(node, [data, *loads], ways)


def _along_axis(walk: Walk, node: Any, options: dict[str, Any]) -> None:
    """Adds an operator such as ``Softmax``, which combines elements along some dimensions. These dimensions are not spread."""
    data = walk.inputs(node, 1)[0]
    rank = len(data.shape)
    # Before version 13, Softmax reduced all dimensions from the axis on.
    is_flat = node.op_type in ("Softmax", "LogSoftmax") and walk.file.opset < 13
    axis = walk.axis(node, options.get("axis", 1 if is_flat else -1), rank)
    last = rank if is_flat or "Layer" in node.op_type or "RMS" in node.op_type else axis + 1
    others = [_broadcasting(walk, node, walk.variable(name), data.shape) for name in node.input[1:] if name]
    free = [at for at in range(rank) if not axis <= at < last]
    ways = [(*(at,) * (1 + len(others)), at) for at in (*free, UNSPREAD)]
    walk.operator(node, [data, *others], ways)


def _reduce(walk: Walk, node: Any, options: dict[str, Any]) -> None:
    data = walk.inputs(node, 1)[0]
    rank = len(data.shape)
    has_axes = options.get("axes") is not None or walk.has(node, 1)
    dimensions = walk.integers(node, 1, options.get("axes")) if has_axes else list(range(rank))
    axes = [walk.axis(node, axis, rank) for axis in dimensions]
    ways = rules.reduction(rank, axes)
    if options.get("keepdims", 1):
        ways = tuple((way[0], way[0] if way[0] not in axes else UNSPREAD) for way in ways)
    attributes = {"dimensions": axes, "kind": _REDUCTIONS[node.op_type]}
    walk.operator(node, [data], ways, op="reduce", attributes=attributes)


#: The handlers of operators that compute, by the name of the operator.
OPERATORS: dict[str, Handler] = {
    "MatMul": _matmul,
    "Gemm": _gemm,
    "Conv": _convolution,
    **dict.fromkeys(("MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool"), _pool),
    "BatchNormalization": _batch_normalization,
    **dict.fromkeys(_KNOWN["elementwise"].split(), _elementwise),
    **dict.fromkeys(_REDUCTIONS, _reduce),
    **dict.fromkeys(_KNOWN["along_axis"].split(), _along_axis),
}


_HANDLERS = MOVEMENT | OPERATORS


def read_affine_onnx(path: str | Path, float_bytes: int | None = None, user_sizes: UserSizes = NO_USER_SIZES) -> Program:
    """Reads and checks the program of an ONNX file.

    Parameters
    ----------
    path
        Path of a plain or gzip file.
    float_bytes
        Size of all floating-point numbers in bytes; None for that of the file.
    user_sizes
        Values that the user gives for sizes that the model does not fix.

    Raises
    ------
    MissingDependencyError
        The package onnx is not installed.
    InputError
        The file cannot be read or is no ONNX model, a shape is not fixed, an operator has a wrong operand or attribute, or the
        numbers of a slice or a padding are not in the file; the message names the operator.
    TimeLimitError
        The time limit for reading inputs is over.
    """
    with naming(path):
        return _program(read_onnx_file(path, user_sizes), float_bytes)


def _program(file: OnnxFile, float_bytes: int | None) -> Program:
    """Adds all nodes of a graph in their order, and returns the checked program."""
    walk = Walk(file, float_bytes)
    for node in file.graph.node:
        check_reading()
        options = file.attributes(node)
        handler = _HANDLERS.get(node.op_type)
        if handler is not None:
            handler(walk, node, options)
        else:
            walk.opaque(node)
    outputs = [walk.variable(output.name).name for output in file.graph.output]
    program = walk.builder.program(tuple(dict.fromkeys(outputs)))
    check(program)
    return program
