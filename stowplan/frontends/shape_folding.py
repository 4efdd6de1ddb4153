"""Shapes of an ONNX graph that follow from numbers which follow from other shapes, where onnx's own inference leaves them open.

It hands on numbers through a few operators of the newest operator sets only. Here short lists of numbers that are constant, or
that follow from fixed shapes, are computed by onnx's reference evaluator, node by node, and onnx infers again with them.
"""

from __future__ import annotations

import contextlib
import math
from typing import Any

#: What shapes are computed with. All but those that repeat make lists no longer than their longest operand.
_REPEATING = ("ConstantOfShape", "Expand")
_FOLDED = (
    "Abs Add And Cast Ceil Concat Constant Div Equal Floor Gather Greater Identity Less Max Min Mod Mul Neg Not Or ReduceProd "
    "Reshape Shape Size Slice Squeeze Sub Unsqueeze Where"
)
#: Numbers of a list, at most.
_MOST = 4096


def complete(model: Any) -> None:
    """Fill in shapes of a model that have been left open by onnx's inference."""
    from onnx import defs, helper, numpy_helper, shape_inference

    graph = model.graph
    types = {value.name: value.type for value in (*graph.input, *graph.value_info, *graph.output)}
    types |= {tensor.name: helper.make_tensor_type_proto(tensor.data_type, tensor.dims) for tensor in graph.initializer}
    if all(is_fixed(types.get(name)) for node in graph.node for name in node.output if name):
        return
    opsets = {opset.domain: opset.version for opset in model.opset_import}
    numbers: dict[str, Any] = {}
    short = [tensor for tensor in graph.initializer if math.prod(tensor.dims) <= _MOST]
    for node in (*(helper.make_node("Constant", [], [tensor.name], value=tensor) for tensor in short), *graph.node):
        # Nodes that onnx refuses keep what is known of them; constants may have been left out, or stand in another file.
        with contextlib.suppress(Exception):
            if not all(is_fixed(types.get(name)) for name in node.output if name):
                schema = defs.get_schema(node.op_type, opsets[node.domain], node.domain)
                given = {name: types[name] for name in node.input if name in types}
                data = {name: numpy_helper.from_array(numbers[name]) for name in node.input if name in numbers}
                inferred = shape_inference.infer_node_outputs(schema, node, given, data, opset_imports=[*model.opset_import])
                types |= {name: kind for name, kind in inferred.items() if is_fixed(kind) or name not in types}
            numbers |= _folded(node, opsets, types, numbers)
    for value in (*graph.value_info, *graph.output):
        value.type.CopyFrom(types[value.name])
    told = {value.name for value in (*graph.input, *graph.initializer, *graph.value_info, *graph.output)}
    graph.value_info.extend(helper.make_value_info(name, kind) for name, kind in types.items() if name not in told)


def is_fixed(kind: Any) -> bool:
    """Whether a type is that of a tensor with a fixed shape."""
    shape = None if kind is None or not kind.tensor_type.HasField("shape") else kind.tensor_type.shape
    return shape is not None and all(size.HasField("dim_value") for size in shape.dim)


def _folded(node: Any, opsets: dict[str, int], types: dict[str, Any], numbers: dict[str, Any]) -> dict[str, Any]:
    """Numbers that a node computes, where they are constant and few."""
    import numpy as np
    from onnx.reference import ReferenceEvaluator

    if node.domain or node.op_type not in (*_FOLDED.split(), *_REPEATING):
        return {}
    names = [name for name in node.input if name]
    if node.op_type in ("Shape", "Size") and is_fixed(types[names[0]]):
        shape = [size.dim_value for size in types[names[0]].tensor_type.shape.dim]
        feeds = {names[0]: np.broadcast_to(np.int8(0), shape)}
    elif all(name in numbers and numbers[name].ndim <= 1 for name in names):
        feeds = {name: numbers[name] for name in names}
    else:
        return {}
    if node.op_type in _REPEATING and math.prod(abs(int(size)) for size in feeds[names[-1]]) > _MOST:
        return {}
    arrays = ReferenceEvaluator(node, opsets=opsets).run(None, feeds)
    return {name: array for name, array in zip(node.output, arrays, strict=True) if array.size <= _MOST}
