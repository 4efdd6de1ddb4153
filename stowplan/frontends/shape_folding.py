"""Shapes of an ONNX graph that follow from numbers which follow from other shapes, where onnx's own inference leaves them open.

It hands on numbers through a few operators of the newest operator sets only. Here short lists of numbers that are constant, or
that follow from fixed shapes, are computed by onnx's reference evaluator, node by node, and onnx infers again with them. Of a
choice whose condition is known so, what is chosen stands in its place. Graphs that nodes run are inferred as models.
"""

from __future__ import annotations

import contextlib
import math
from typing import Any

from stowplan.frontends import onnx_bodies
from stowplan.frontends.onnx_sizes import is_fixed

#: What shapes are computed with. All but those that repeat make lists no longer than their longest operand.
_REPEATING = ("ConstantOfShape", "Expand", "Range", "Tile")
_FOLDED = (
    "Abs Add And Cast Ceil Concat Constant Div Equal Floor Gather Greater GreaterOrEqual Identity Less LessOrEqual Max Min "
    "Mod Mul Neg Not Or Pow ReduceMax ReduceMin ReduceProd ReduceSum Reshape Shape Size Slice Split Sqrt Squeeze Sub Transpose "
    "Unsqueeze Where"
)
#: Numbers of a list, at most.
_MOST = 4096


def inferred(model: Any, *, forget: bool = False) -> Any:
    """A model with all shapes that can be inferred.

    ``forget`` has shapes that it declares, but for its inputs, count only where none can be.
    """
    from onnx import shape_inference

    declared: dict[str, Any] = {}
    if forget:
        for value in (*model.graph.value_info, *model.graph.output):
            declared[value.name] = type(value.type).FromString(value.type.SerializeToString())
        del model.graph.value_info[:]
        for value in model.graph.output:
            value.type.tensor_type.ClearField("shape")
    model = shape_inference.infer_shapes(model, data_prop=True)
    _Walk(model, declared).complete()
    return model


class _Walk:
    """Goes through the nodes of a model's graph, in order."""

    def __init__(self, model: Any, declared: dict[str, Any]):
        from onnx import helper

        graph = model.graph
        self._model, self._graph, self._declared = model, graph, declared
        self._opsets = {opset.domain: opset.version for opset in model.opset_import}
        # Graphs that nodes run may return what they are given.
        self.types = {value.name: value.type for value in (*graph.output, *graph.value_info, *graph.input)}
        self.types |= {
            tensor.name: helper.make_tensor_type_proto(tensor.data_type, tensor.dims) for tensor in graph.initializer
        }
        self.numbers: dict[str, Any] = {}
        """Of short lists that are constant, by name."""

    def complete(self) -> None:
        """Fill in shapes that have been left open by onnx's inference."""
        from onnx import helper

        graph = self._graph
        nodes = list(graph.node)
        has_bodies = any(onnx_bodies.bodies_of(node) for node in nodes)
        if not has_bodies and all(is_fixed(self.types.get(name)) for node in nodes for name in node.output if name):
            return
        short = [tensor for tensor in graph.initializer if math.prod(tensor.dims) <= _MOST]
        for tensor in short:
            self._take(helper.make_node("Constant", [], [tensor.name], value=tensor))
        taken = {*self.types, *(name for node in nodes for name in node.output)}
        pending, done = nodes[::-1], []
        while pending:
            node = pending.pop()
            branch = onnx_bodies.chosen(node, self.numbers)
            if branch is not None:
                inlined = onnx_bodies.inlined(node, branch, taken)
                graph.initializer.extend(inlined.initializer)
                graph.sparse_initializer.extend(inlined.sparse_initializer)
                self._declared |= {value.name: value.type for value in (*inlined.value_info, *inlined.output)}
                constants = [helper.make_node("Constant", [], [each.name], value=each) for each in inlined.initializer]
                for constant in constants:
                    self._take(constant)
                pending.extend(reversed(inlined.node))
                continue
            if onnx_bodies.bodies_of(node):
                onnx_bodies.infer(node, self._model, self.types, self.numbers, inferred)
            self._take(node)
            done.append(node)
        if has_bodies:
            del graph.node[:]
            graph.node.extend(done)
        for value in (*graph.value_info, *graph.output):
            value.type.CopyFrom(self.types[value.name])
        told = {value.name for value in (*graph.input, *graph.initializer, *graph.value_info, *graph.output)}
        graph.value_info.extend(helper.make_value_info(name, kind) for name, kind in self.types.items() if name not in told)

    def _take(self, node: Any) -> None:
        """What is known of a node's results."""
        from onnx import defs, numpy_helper, shape_inference

        types, numbers = self.types, self.numbers
        names = [name for name in node.output if name]
        # Nodes that onnx refuses keep what is known of them; constants may have been left out, or stand in another file.
        with contextlib.suppress(Exception):
            if not all(is_fixed(types.get(name)) for name in names):
                schema = defs.get_schema(node.op_type, self._opsets[node.domain], node.domain)
                given = {name: types[name] for name in node.input if name in types}
                data = {name: numpy_helper.from_array(numbers[name]) for name in node.input if name in numbers}
                found = shape_inference.infer_node_outputs(schema, node, given, data, opset_imports=[*self._model.opset_import])
                types |= {name: kind for name, kind in found.items() if is_fixed(kind) or name not in types}
        for name in names:
            if not is_fixed(types.get(name)) and is_fixed(self._declared.get(name)):
                types[name] = self._typed(node, name)
        with contextlib.suppress(Exception):
            numbers |= self._folded(node)

    def _typed(self, node: Any, name: str) -> Any:
        """A declared type; of elements of which nothing is known, the first operand's."""
        kind = type(self._declared[name]).FromString(self._declared[name].SerializeToString())
        for other in (name, *node.input):
            if not kind.tensor_type.elem_type and other in self.types:
                kind.tensor_type.elem_type = self.types[other].tensor_type.elem_type
        return kind

    def _folded(self, node: Any) -> dict[str, Any]:
        """Numbers that a node computes, where they are constant and few."""
        import numpy as np
        from onnx import helper
        from onnx.reference import ReferenceEvaluator

        if node.domain or node.op_type not in (*_FOLDED.split(), *_REPEATING):
            return {}
        types, numbers = self.types, self.numbers
        names = [name for name in node.input if name]
        if node.op_type in ("Shape", "Size") and is_fixed(types[names[0]]):
            shape = [size.dim_value for size in types[names[0]].tensor_type.shape.dim]
            feeds = {names[0]: np.broadcast_to(np.int8(0), shape)}
        elif all(name in numbers for name in names) and _is_short([numbers[name] for name in names]):
            feeds = {name: numbers[name] for name in names}
        else:
            return {}
        if node.op_type in _REPEATING and _length(node.op_type, list(feeds.values())) > _MOST:
            return {}
        # Of a node alone the newest version would be run.
        given, made = ([helper.make_tensor_value_info(name, 0, None) for name in of] for of in (feeds, node.output))
        model = helper.make_model(helper.make_graph([node], "node", given, made), opset_imports=self._model.opset_import)
        arrays = ReferenceEvaluator(model).run(None, feeds)
        return {name: array for name, array in zip(node.output, arrays, strict=True) if array.size <= _MOST}


def _is_short(operands: list[Any]) -> bool:
    """Whether what operators make of operands is short; tables may be repeated for one another."""
    return all(operand.ndim <= 1 for operand in operands) or math.prod(operand.size for operand in operands) <= _MOST**2 // 16


def _length(kind: str, operands: list[Any]) -> float:
    """Numbers that an operator repeats its operands to."""
    if kind == "Range":
        start, limit, step = (float(operand) for operand in operands)
        return abs((limit - start) / step) if step else math.inf
    return math.prod(abs(int(size)) for size in operands[-1]) * (operands[0].size if kind == "Tile" else 1)
