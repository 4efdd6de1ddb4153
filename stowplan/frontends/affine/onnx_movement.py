"""ONNX operators that move data, as loop nests."""

from __future__ import annotations

from typing import Any

from stowplan.frontends.affine.access import Variable
from stowplan.frontends.affine.onnx_walk import Handler, Walk
from stowplan.hardware.affine.program import UNSPREAD


def _constant(walk: Walk, node: Any, options: dict[str, Any]) -> None:
    name = node.output[0]
    value = next(iter(options.values()), None)
    if isinstance(value, walk.onnx.TensorProto):
        walk.store(name, value)
    elif isinstance(value, int | float | list | tuple):
        import numpy as np

        walk.stored[name] = np.array(value)
        walk.shapes[name] = walk.stored[name].shape
    else:
        walk.expect(node, isinstance(value, bytes | walk.onnx.SparseTensorProto), "no value", "one")


def _reshape(walk: Walk, node: Any, options: dict[str, Any]) -> None:
    name = node.output[0]
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
    named = options.get("axes") is not None or (len(node.input) > 3 and node.input[3])
    axes = walk.integers(node, 3, options.get("axes")) if named else list(range(len(starts)))
    steps = walk.integers(node, 4) if len(node.input) > 4 and node.input[4] else [1] * len(starts)
    counts = {len(starts), len(ends), len(axes), len(steps)}
    walk.expect(node, len(counts) == 1 and 0 not in steps, f"a slice by {axes} in steps {steps}", "as many numbers of each")
    backwards = []
    begin, end, step = [0] * rank, list(source.shape), [1] * rank
    for at, start, stop, by in zip(axes, starts, ends, steps, strict=True):
        axis = walk.axis(node, at, rank)
        size = source.shape[axis]
        begin[axis], end[axis], step[axis] = slice(start, stop, by).indices(size)
        if by < 0:
            # The same elements of the reversed tensor, forwards.
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
    walk.expect(node, all(len(each.shape) == rank for each in sources), "inputs of different ranks", "one rank")
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
    axes = walk.integers(node, 3) if len(node.input) > 3 and node.input[3] else list(range(rank))
    walk.expect(node, len(pads) == 2 * len(axes), f"pads {pads}", f"{2 * len(axes)} numbers")
    low, high = [0] * rank, [0] * rank
    for at, each in enumerate(axes):
        axis = walk.axis(node, each, rank)
        low[axis], high[axis] = pads[at], pads[at + len(axes)]
    given = options.get("value", 0.0)
    walk.expect(node, isinstance(given, int | float), repr(given), "a number to pad with")
    value: Variable | float = float(given)
    if len(node.input) > 2 and node.input[2]:
        found = walk.numbers(node.input[2])
        known = found is not None and found.size == 1 and found.dtype.kind in "biuf"
        value = float(found.reshape(-1)[0]) if known else walk.variable(node.input[2])
        if isinstance(value, Variable):
            walk.expect(node, not value.shape, f"a value of shape {list(value.shape)} to pad with", "a single one")
    walk.values[node.output[0]] = walk.builder.pad(source, low, high, None, value, node.output[0])


def _expand(walk: Walk, node: Any, options: dict[str, Any]) -> None:
    source, shape = walk.inputs(node, 1)[0], walk.shape(node.output[0])
    behind = len(shape) - len(source.shape)
    walk.expect(node, behind >= 0, f"a shape of {len(shape)} dimensions", f"{len(source.shape)} or more")
    dimensions = range(behind, len(shape))
    walk.values[node.output[0]] = walk.builder.broadcast(source, shape, dimensions, node.output[0])


def _tile(walk: Walk, node: Any, options: dict[str, Any]) -> None:
    source = walk.inputs(node, 1)[0]
    times = walk.integers(node, 1)
    walk.expect(node, len(times) == len(source.shape), f"repeats {times}", f"{len(source.shape)} numbers")
    walk.values[node.output[0]] = walk.builder.tile(source, times, node.output[0])


def _gather(walk: Walk, node: Any, options: dict[str, Any]) -> None:
    """One element of a dimension by a constant is a slice; all else is a table read at run-time indices."""
    table = walk.inputs(node, 1)[0]
    walk.expect(node, len(node.input) > 1 and bool(node.input[1]), "no indices", "an input of them")
    axis = walk.axis(node, options.get("axis", 0), len(table.shape))
    found = walk.numbers(node.input[1])
    if found is not None and found.size == 1 and found.dtype.kind in "iu":
        start = walk.axis(node, int(found.reshape(-1)[0]), table.shape[axis])
        begin = [start if at == axis else 0 for at in range(len(table.shape))]
        end = [start + 1 if at == axis else size for at, size in enumerate(table.shape)]
        part = walk.builder.slice(table, begin, end, name=f"{node.output[0]}/part")
        walk.values[node.output[0]] = walk.builder.reshape(part, walk.shape(node.output[0]), node.output[0])
        return
    rows = walk.variable(node.input[1])
    grown = len(rows.shape) - 1
    rank = len(walk.shape(node.output[0]))
    walk.expect(node, rank == len(table.shape) + grown, f"a result of {rank} dimensions", str(len(table.shape) + grown))
    options_of = [(at, UNSPREAD, at if at < axis else at + grown) for at in range(len(table.shape)) if at != axis]
    walk.operator(node, [table, rows], [*options_of, (UNSPREAD,) * 3], dynamic=(0,))


#: Operators that change no element, only the shape.
_SHAPES_ONLY = ("Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity", "Dropout")

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
    **dict.fromkeys(_SHAPES_ONLY, _reshape),
}
