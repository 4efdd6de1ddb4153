"""ONNX operators that compute, with the ways that each may be spread over banks.

Operands that broadcast (``Add`` of a matrix and a row) are read through a broadcasting load: no tensor is repeated for them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stowplan.frontends.affine.access import Variable
from stowplan.frontends.affine.onnx_walk import Handler, Walk
from stowplan.hardware.affine import rules
from stowplan.hardware.affine.expression import constant, index
from stowplan.hardware.affine.program import UNSPREAD, Load, Option, Piece

_REDUCTIONS = {"ReduceMean": "mean", "ReduceSum": "add", "ReduceMax": "maximum", "ReduceMin": "minimum"}


def _elementwise(walk: Walk, node: Any, options: dict[str, Any]) -> None:
    shape = walk.shape(node.output[0])
    loads = [_broadcasting(walk, node, walk.variable(name), shape) for name in node.input if name]
    walk.operator(node, loads, rules.elementwise(len(shape), len(loads)), op=node.op_type.lower())


def _broadcasting(walk: Walk, node: Any, source: Variable, shape: tuple[int, ...]) -> Load:
    behind = len(shape) - len(source.shape)
    fits = behind >= 0 and all(one in (1, two) for one, two in zip(source.shape, shape[behind:], strict=True))
    walk.expect(node, fits, f"an operand of shape {list(source.shape)}", f"one that broadcasts to {list(shape)}")
    indices = tuple(constant(0) if size == 1 else index(at) for at, size in enumerate(source.shape, behind))
    return Load(shape, (Piece(source.name, indices),))


def _matmul(walk: Walk, node: Any, options: dict[str, Any]) -> None:
    left, right = walk.inputs(node, 2)
    one, two = len(left.shape), len(right.shape)
    walk.expect(node, one > 0 and two > 0, "an operand without dimensions", "one or more")
    contracting = [(one - 1, max(0, two - 2))]
    # Leading dimensions that both have go along; those of one side alone are free.
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
    left, right = walk.inputs(node, 2)
    ranks = [len(left.shape), len(right.shape), len(walk.shape(node.output[0]))]
    walk.expect(node, ranks == [2, 2, 2], f"operands and result of ranks {ranks}", "matrices")
    contracting = [(0 if options.get("transA", 0) else 1, 1 if options.get("transB", 0) else 0)]
    ways: Sequence[Option] = rules.matmul(2, 2, contracting)
    operands: list[Variable | Load] = [left, right]
    if len(node.input) > 2 and node.input[2]:
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
    if len(node.input) > 2 and node.input[2]:
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
    window = (1, 1, *walk.ints(node, options, "kernel_shape", len(data.shape) - 2))
    _pooled(walk, node, data, window)


def _global_pool(walk: Walk, node: Any, options: dict[str, Any]) -> None:
    data = walk.inputs(node, 1)[0]
    walk.expect(node, len(data.shape) > 1, f"an operand of shape {list(data.shape)}", "two dimensions or more")
    _pooled(walk, node, data, (1, 1, *(max(2, size) for size in data.shape[2:])))


def _pooled(walk: Walk, node: Any, data: Variable, window: tuple[int, ...]) -> None:
    rank = len(walk.shape(node.output[0]))
    walk.expect(node, rank == len(data.shape), f"a result of {rank} dimensions", f"{len(data.shape)}, as the operand has")
    walk.operator(node, [data], rules.pool(window), op="pool", restricted=True)


def _batch_normalization(walk: Walk, node: Any, options: dict[str, Any]) -> None:
    """Element by element; scale, offset, mean and variance go along the channels."""
    data, *others = walk.inputs(node, 5)
    walk.expect(node, len(data.shape) > 1, f"an operand of shape {list(data.shape)}", "two dimensions or more")
    for each in others:
        walk.expect(node, len(each.shape) == 1, f"a scale or mean of shape {list(each.shape)}", "one dimension")
    loads = [Load(data.shape, (Piece(each.name, (index(1),)),)) for each in others]
    ways = rules.elementwise(len(data.shape), 1 + len(loads))
    walk.operator(node, [data, *loads], ways)


def _along_axis(walk: Walk, node: Any, options: dict[str, Any]) -> None:
    data = walk.inputs(node, 1)[0]
    rank = len(data.shape)
    axis = walk.axis(node, options.get("axis", -1), rank)
    last = rank if "Layer" in node.op_type or "RMS" in node.op_type else axis + 1
    others = [_broadcasting(walk, node, walk.variable(name), data.shape) for name in node.input[1:] if name]
    free = [at for at in range(rank) if not axis <= at < last]
    ways = [(*(at,) * (1 + len(others)), at) for at in (*free, UNSPREAD)]
    walk.operator(node, [data, *others], ways)


def _reduce(walk: Walk, node: Any, options: dict[str, Any]) -> None:
    data = walk.inputs(node, 1)[0]
    rank = len(data.shape)
    given = options.get("axes") is not None or (len(node.input) > 1 and node.input[1])
    found = walk.integers(node, 1, options.get("axes")) if given else list(range(rank))
    axes = [walk.axis(node, axis, rank) for axis in found]
    ways = rules.reduction(rank, axes)
    if options.get("keepdims", 1):
        ways = tuple((way[0], way[0] if way[0] not in axes else UNSPREAD) for way in ways)
    attributes = {"dimensions": axes, "kind": _REDUCTIONS[node.op_type]}
    walk.operator(node, [data], ways, op="reduce", attributes=attributes)


_ELEMENTWISE = """
    Abs Add And Cast CastLike Ceil Celu Clip Cos Div Elu Equal Erf Exp Floor Gelu Greater GreaterOrEqual HardSigmoid HardSwish
    LeakyRelu Less LessOrEqual Log Max Mean Min Mish Mod Mul Neg Not Or PRelu Pow Reciprocal Relu Round Selu Sigmoid Sign Sin
    Softplus Sqrt Sub Sum Swish Tan Tanh ThresholdedRelu Where Xor"""
#: Normalisations and the like, along dimensions that must be in one place: those from ``axis`` on.
_ALONG_AXIS = ("Softmax", "LogSoftmax", "LayerNormalization", "RMSNormalization", "LpNormalization")

OPERATORS: dict[str, Handler] = {
    "MatMul": _matmul,
    "Gemm": _gemm,
    "Conv": _convolution,
    "MaxPool": _pool,
    "AveragePool": _pool,
    "GlobalAveragePool": _global_pool,
    "GlobalMaxPool": _global_pool,
    "BatchNormalization": _batch_normalization,
    **dict.fromkeys(_ELEMENTWISE.split(), _elementwise),
    **dict.fromkeys(_REDUCTIONS, _reduce),
    **dict.fromkeys(_ALONG_AXIS, _along_axis),
}
