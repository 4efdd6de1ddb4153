"""Infers shapes of an ONNX graph that onnx's own inference leaves unknown because they depend on computed numbers.

Some operators, such as a reshape, take a shape from a tensor of numbers, and these numbers may be computed from other shapes.
Onnx's inference follows such numbers through a few operators of the newest operator sets only. This module computes short lists
of numbers that are constant or follow from fixed shapes, node by node, with onnx's reference evaluator, and onnx infers again
with them. An ``If`` whose condition is known in this way is replaced by the branch that runs.

The graphs that ``If``, ``Loop`` and ``Scan`` run are called bodies here. Their shapes are inferred as those of separate models,
with the types and numbers that are known of the values around them. The values that a loop carries have the shapes with which
they begin, and an iteration must leave these shapes unchanged. If each iteration of a loop appends a part to a result, the
result counts as having as many parts as the loop can have iterations.

A *type* here is a protocol buffer of onnx, with the type of the elements and the shape of a tensor.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping
from typing import Any, NamedTuple, TypeAlias

from stowplan.frontends import load_facts
from stowplan.frontends.onnx_sizes import is_fixed

#: Operators with which models compute shapes, and whose results are therefore computed here. The result of a *folded* operator
#: is no longer than all its operands together, if these have at most one dimension. The result of a *repeating* operator
#: (``Range``, ``Tile`` and those that expand a shape) may be longer.
_REPEATING, _FOLDED = (frozenset(load_facts("onnx")["shapes"][use].split()) for use in ("repeating", "folded"))
#: The largest number of elements of a list of numbers that is computed. Lists that become shapes are much shorter.
_MOST = 4096


#: Types or numbers of values, by the names of the values.
_ByName: TypeAlias = Mapping[str, Any]


class Findings(NamedTuple):
    """Facts that inference finds about the shapes that a model declares. Both fields are lists, because they are sent as
    JSON."""

    contradictions: list[tuple[str, str, list[str]]]
    """One entry for each value whose declaration contradicts the inferred type: its name, the word ``shape`` or ``type``, and a
    list of the declared and the inferred shape or element type, as text."""
    believed: list[str]
    """Names of the values whose shapes are known from their declarations only."""

    def check(self, name: str, declared: Any, inferred: Any) -> bool:
        """Whether a declared type agrees with an inferred one as far as both are known; a contradiction is recorded."""
        from onnx import TensorProto

        both = declared.tensor_type, inferred.tensor_type
        kinds = [kind.elem_type for kind in both]
        shapes = [[size.dim_value if size.HasField("dim_value") else "?" for size in kind.shape.dim] for kind in both]
        if all(kinds) and kinds[0] != kinds[1]:
            self.contradictions.append((name, "type", [TensorProto.DataType.Name(kind) for kind in kinds]))
        elif all(kind.HasField("shape") for kind in both) and not _fit(*shapes):
            self.contradictions.append((name, "shape", [str(shape).replace("'", "") for shape in shapes]))
        else:
            return True
        return False


def inferred(model: Any, findings: Findings) -> Any:
    """Returns a model (a ``ModelProto`` of onnx) with all shapes that can be inferred; ``model`` may be changed.

    Except for inputs, a declared shape is used only if none can be inferred, because it may be outdated. Declared shapes and
    types are compared with inferred ones, and contradictions are added to ``findings``. A shape that cannot be inferred and is
    not declared stays unknown. For a model that is not valid, onnx and protobuf raise errors of many types.
    """
    from onnx import helper, shape_inference

    graph = model.graph
    stored = {tensor.name: helper.make_tensor_type_proto(tensor.data_type, tensor.dims) for tensor in graph.initializer}
    declared = [(value.name, _copied(value.type)) for value in (*graph.input, *graph.value_info, *graph.output)]
    for value in (*graph.value_info, *graph.output):
        if value.type.HasField("tensor_type"):
            value.ClearField("type")
    for value in graph.input:
        value.type.CopyFrom(stored.get(value.name, value.type))
    # For nodes with bodies, onnx's inference would rely on the declarations inside of the bodies, which may be outdated.
    if not any(bodies_of(node) for node in graph.node):
        model = shape_inference.infer_shapes(model, data_prop=True)
    _Walk(model, stored, declared, findings).complete()
    return model


def _fit(one: list[Any], other: list[Any]) -> bool:
    """Whether two shapes can be equal; sizes are integers, or ``?`` if they are not known."""
    return len(one) == len(other) and all("?" in pair or pair[0] == pair[1] for pair in zip(one, other, strict=True))


def _elements(kind: Any) -> int:
    """Number of elements of a tensor; 0 if its shape is not fixed."""
    return math.prod(size.dim_value for size in kind.tensor_type.shape.dim) if is_fixed(kind) else 0


def _copied(kind: Any) -> Any:
    """A copy of a type."""
    return type(kind).FromString(kind.SerializeToString())


class _Walk:
    """Visits the nodes of a model's graph in order and infers the shapes of their results.

    ``stored`` has the types of the weights by their names, and ``declared`` has pairs of a value's name and its declared type.
    """

    def __init__(self, model: Any, stored: _ByName, declared: list[tuple[str, Any]], findings: Findings):
        graph = model.graph
        self._model, self._graph, self._findings = model, graph, findings
        self._declared = declared
        """Names of values with their declared types; those of branches that replace an ``If`` are added."""
        self._opsets = {opset.domain: opset.version for opset in model.opset_import}
        known = (value for value in (*graph.output, *graph.value_info, *graph.input) if value.type.WhichOneof("value"))
        self.types = {value.name: value.type for value in known}
        self.types |= stored
        self.numbers: dict[str, Any] = {}
        """The numbers of each short list that is constant, by its name."""

    def complete(self) -> None:
        """Infers shapes that onnx's inference has left unknown, writes them to the graph, and checks declared shapes."""
        nodes = list(self._graph.node)
        if any(bodies_of(node) or not all(is_fixed(self.types.get(name)) for name in node.output if name) for node in nodes):
            self._fill_in(nodes)
        for value in self._graph.output:
            # The results of a body may be values from around it, whose types are not known here.
            if value.name in self.types:
                value.type.CopyFrom(self.types[value.name])
        for name, kind in self._declared:
            self._findings.check(name, kind, self.types.get(name, kind))

    def _fill_in(self, nodes: list[Any]) -> None:
        """Infers the results of all nodes in order, and writes their types to the graph."""
        from onnx import helper

        graph = self._graph
        has_bodies = any(bodies_of(node) for node in nodes)
        short = [tensor for tensor in graph.initializer if math.prod(tensor.dims) <= _MOST]
        for tensor in short:
            self._infer_node(helper.make_node("Constant", [], [tensor.name], value=tensor))
        used_names = {*self.types, *(name for node in nodes for name in node.output)}
        pending, expanded = nodes[::-1], []
        while pending:
            node = pending.pop()
            branch = chosen(node, self.numbers)
            if branch is not None:
                body = inlined(node, branch, used_names)
                graph.initializer.extend(body.initializer)
                graph.sparse_initializer.extend(body.sparse_initializer)
                self._declared += [(value.name, value.type) for value in (*body.value_info, *body.output)]
                constants = [helper.make_node("Constant", [], [tensor.name], value=tensor) for tensor in body.initializer]
                for constant in constants:
                    self._infer_node(constant)
                pending.extend(reversed(body.node))
                continue
            if bodies_of(node):
                infer_bodies(node, self._model, self.types, self.numbers, self._findings)
            self._infer_node(node)
            expanded.append(node)
        if has_bodies:
            del graph.node[:]
            graph.node.extend(expanded)
        for value in graph.value_info:
            if value.name in self.types:
                value.type.CopyFrom(self.types[value.name])
        declared = {value.name for value in (*graph.input, *graph.initializer, *graph.value_info, *graph.output)}
        graph.value_info.extend(helper.make_value_info(name, kind) for name, kind in self.types.items() if name not in declared)

    def _infer_node(self, node: Any) -> None:
        """Infers the types and numbers of a node's results."""
        from onnx import defs, numpy_helper, shape_inference

        types, numbers = self.types, self.numbers
        names = [name for name in node.output if name]
        # If onnx refuses a node, its results keep the types that are known so far: constants may be missing or in another file.
        with contextlib.suppress(Exception):
            if not all(is_fixed(types.get(name)) for name in names):
                schema: Any = defs.get_schema(node.op_type, self._opsets[node.domain], node.domain)
                operand_types = {name: types[name] for name in node.input if name in types}
                data = {name: numpy_helper.from_array(numbers[name]) for name in node.input if name in numbers}
                inferred = shape_inference.infer_node_outputs(
                    schema, node, operand_types, data, opset_imports=[*self._model.opset_import]
                )
                if schema.has_function or schema.has_context_dependent_function:
                    inferred = self._of_function(node, operand_types) | {
                        name: kind for name, kind in inferred.items() if is_fixed(kind)
                    }
                types |= {name: kind for name, kind in inferred.items() if is_fixed(kind) or name not in types}
        for name in names:
            if not is_fixed(types.get(name)):
                self._use_declaration(node, name)
        with contextlib.suppress(Exception):
            numbers |= self._folded(node)

    def _of_function(self, node: Any, operand_types: _ByName) -> dict[str, Any]:
        """Types of the results of an operator that is defined by a function, which onnx infers only in a complete model."""
        from onnx import helper, shape_inference

        inputs = [helper.make_value_info(name, kind) for name, kind in operand_types.items()]
        outputs = [helper.make_empty_tensor_value_info(name) for name in node.output if name]
        model = helper.make_model(helper.make_graph([node], "node", inputs, outputs), opset_imports=self._model.opset_import)
        results = shape_inference.infer_shapes(model).graph.output
        return {value.name: value.type for value in results if value.type.WhichOneof("value")}

    def _use_declaration(self, node: Any, name: str) -> None:
        """Uses the declared shape of a result whose shape cannot be inferred.

        It is not used if it contradicts the part that was inferred, or if it is too small for the result of a branch of an
        ``If``. If neither inference nor the declaration says what the element type is, it is that of the first operand for
        which it is known.
        """
        at = list(node.output).index(name)
        branch_types = [_results(body)[at] for body in bodies_of(node) if node.op_type == "If"]
        for declared in [kind for other, kind in self._declared if other == name]:
            kind = _copied(self.types.get(name, declared))
            if not declared.tensor_type.HasField("shape") or not Findings([], []).check(name, declared, kind):
                continue
            if not kind.tensor_type.HasField("shape"):
                kind.tensor_type.shape.CopyFrom(declared.tensor_type.shape)
            for size, declared_size in zip(kind.tensor_type.shape.dim, declared.tensor_type.shape.dim, strict=True):
                if declared_size.HasField("dim_value"):
                    size.dim_value = declared_size.dim_value
            for other in (declared, *(self.types[operand] for operand in node.input if operand in self.types)):
                kind.tensor_type.elem_type = kind.tensor_type.elem_type or other.tensor_type.elem_type
            if all(_elements(kind) >= _elements(other) for other in branch_types):
                self.types[name] = kind
                self._findings.believed.append(name)

    def _folded(self, node: Any) -> dict[str, Any]:
        """The numbers that a node computes, by the names of its results, if they are constant and few; otherwise none."""
        import numpy as np
        from onnx import helper
        from onnx.reference import ReferenceEvaluator

        if node.domain or node.op_type not in _FOLDED | _REPEATING:
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
        # The evaluator would run a single node with the newest operator set, so it gets a model with the right version.
        input_values, output_values = (
            [helper.make_tensor_value_info(name, 0, None) for name in of] for of in (feeds, node.output)
        )
        model = helper.make_model(
            helper.make_graph([node], "node", input_values, output_values), opset_imports=self._model.opset_import
        )
        arrays = ReferenceEvaluator(model).run(None, feeds)
        return {name: array for name, array in zip(node.output, arrays, strict=True) if array.size <= _MOST}


def _is_short(operands: list[Any]) -> bool:
    """Whether the results of folded operators on these operands are short enough to be computed.

    Operands of several dimensions may be broadcast against each other. Then the product of the operands' sizes, which limits
    the size of the result, may be 2^20 elements at most.
    """
    return all(operand.ndim <= 1 for operand in operands) or math.prod(operand.size for operand in operands) <= _MOST**2 // 16


def _length(kind: str, operands: list[Any]) -> float:
    """The number of elements that a repeating operator produces; ``kind`` is its ``op_type``. Infinity for a ``Range`` with a
    step of 0."""
    if kind == "Range":
        start, limit, step = (float(operand) for operand in operands)
        return abs((limit - start) / step) if step else math.inf
    return math.prod(abs(int(size)) for size in operands[-1]) * (operands[0].size if kind == "Tile" else 1)


#: A loop with more iterations than this counts as one with an unknown number of iterations: exporters write a huge number for a
#: loop that only its condition ends.
_MOST_ITERATIONS = 1 << 31


def bodies_of(node: Any) -> list[Any]:
    """The attributes of a node that are graphs, which are its bodies."""
    return [attribute for attribute in node.attribute if attribute.HasField("g")]


def captured(graph: Any) -> dict[str, None]:
    """Names of the values that a body, or a body inside of it, uses from the graphs around it."""
    inner_names = {value.name for value in graph.input} | {tensor.name for tensor in graph.initializer}
    inner_names |= {tensor.values.name for tensor in graph.sparse_initializer}
    used: dict[str, None] = {}
    for node in graph.node:
        inner = [name for attribute in bodies_of(node) for name in captured(attribute.g)]
        used |= dict.fromkeys(name for name in (*node.input, *inner) if name and name not in inner_names)
        inner_names |= {*node.output}
    return used | dict.fromkeys(value.name for value in graph.output if value.name not in inner_names)


def chosen(node: Any, numbers: _ByName) -> Any:
    """The branch of an ``If`` that runs; None if the condition is not known, and for all other nodes."""
    if node.op_type != "If" or node.domain not in ("", "ai.onnx") or not node.input or node.input[0] not in numbers:
        return None
    wanted = "then_branch" if bool(numbers[node.input[0]].reshape(-1)[0]) else "else_branch"
    return next((attribute.g for attribute in bodies_of(node) if attribute.name == wanted), None)


def inlined(node: Any, branch: Any, used_names: set[str]) -> Any:
    """Returns a copy of a branch in which names are changed such that its nodes can replace the ``If`` that runs it.

    Parameters
    ----------
    node
        The ``If``. The results of the branch get the names of its outputs.
    branch
        The graph of the branch, which is not changed.
    used_names
        Names that are in use; the new names are added.

    Raises
    ------
    ValueError
        The branch does not have as many results as the node.
    """
    from onnx import compose, helper

    graph = type(branch).FromString(branch.SerializeToString())
    results = {name for inner in graph.node for name in inner.output}
    inner_names = results | {tensor.name for tensor in graph.initializer}
    prefix = f"{next(filter(None, node.output), node.name)}/" if inner_names & used_names else ""
    used_names |= {prefix + name for name in inner_names}
    renamed: dict[str, str] = {}
    for value, result in zip(graph.output, node.output, strict=True):
        if value.name not in results or value.name in renamed:
            # The result is a weight, a value from around the branch, or a second copy of a result, so it gets an identity node.
            source, value.name = value.name, f"{value.name}/{result}"
            graph.node.append(helper.make_node("Identity", [source], [value.name]))
        renamed[value.name] = result or f"{prefix}{value.name}"
    compose.add_prefix_graph(graph, prefix, rename_outputs=False, rename_value_infos=False, inplace=True, name_map=renamed)
    return graph


def infer_bodies(node: Any, model: Any, types: dict[str, Any], numbers: _ByName, findings: Findings) -> None:
    """Infers the shapes in the bodies of a node, and from them those of its results.

    Parameters
    ----------
    node
        A node with bodies; the bodies are replaced by ones with the inferred shapes.
    model
        The model of the node, of which operator sets and functions are used.
    types, numbers
        Types and numbers of values around the node, by name. The types of the node's results are added to ``types`` if their
        shapes are known.
    findings
        Contradictions between declared and inferred types in the bodies are added.
    """
    operand_types = _body_input_types(node, types)
    for attribute in bodies_of(node):
        for value, kind in zip(attribute.g.input, operand_types, strict=False):
            findings.check(value.name, value.type, kind or value.type)
        body = _as_model(attribute.g, model, operand_types, types, numbers)
        _take_back(attribute.g, inferred(body, findings).graph)
    results = {"If": _of_choice, "Loop": _of_loop, "Scan": _of_scan}.get(node.op_type)
    if node.domain in ("", "ai.onnx") and results is not None:
        kinds = results(node, types, numbers)
        types |= {name: kind for name, kind in zip(node.output, kinds, strict=False) if name and is_fixed(kind)}


def _body_input_types(node: Any, types: _ByName) -> list[Any]:
    """Types of the inputs that a node passes to its body; None for an unknown type."""
    from onnx import TensorProto, helper

    if node.op_type == "Loop":
        begin = [helper.make_tensor_type_proto(kind, []) for kind in (TensorProto.INT64, TensorProto.BOOL)]
        return [*begin, *(types.get(name) for name in node.input[2:])]
    if node.op_type == "Scan":
        states, axes = _scanned(node)
        parts = zip(node.input[states:], axes["scan_input_axes"], strict=False)
        return [*(types.get(name) for name in node.input[:states]), *(_part(types.get(name), axis) for name, axis in parts)]
    return []


def _as_model(graph: Any, model: Any, operand_types: list[Any], types: _ByName, numbers: _ByName) -> Any:
    """A body as a separate model: values from around it are inputs, or constants if their numbers are known."""
    from onnx import helper, numpy_helper

    separate = type(model)(ir_version=model.ir_version, opset_import=model.opset_import, functions=model.functions)
    separate.graph.CopyFrom(graph)
    for value, kind in zip(separate.graph.input, operand_types, strict=False):
        if is_fixed(kind):
            value.type.CopyFrom(kind)
    for name in captured(graph):
        if name in numbers:
            separate.graph.initializer.append(numpy_helper.from_array(numbers[name], name))
        elif name in types:
            separate.graph.input.append(helper.make_value_info(name, types[name]))
    return separate


def _take_back(graph: Any, body: Any) -> None:
    """Copies the graph of a separate model with inferred types back into a body, without declarations of values from around
    it."""
    outside = captured(graph)
    for values in (body.input, body.initializer, body.value_info):
        for value in [value for value in values if value.name in outside]:
            values.remove(value)
    graph.CopyFrom(body)


def _results(attribute: Any) -> list[Any]:
    """Types of the results of a body."""
    return [value.type for value in attribute.g.output]


def _of_choice(node: Any, types: _ByName, numbers: _ByName) -> list[Any]:
    """Types of the results of an ``If``; None for a result whose types differ between the branches."""
    first, *others = (_results(attribute) for attribute in bodies_of(node))
    return [kinds[0] if all(kind == kinds[0] for kind in kinds) else None for kinds in zip(first, *others, strict=False)]


def _of_loop(node: Any, types: _ByName, numbers: _ByName) -> list[Any]:
    """Types of the results of a ``Loop``: first the values that it carries, then the results that iterations append to."""
    (attribute,) = bodies_of(node)
    carried = len(attribute.g.input) - 2
    kinds = _settled(attribute.g, 2, _results(attribute)[1:], carried)
    times = int(numbers[node.input[0]].reshape(-1)[0]) if node.input[0] in numbers else -1
    known_times = times if 0 <= times <= _MOST_ITERATIONS else None
    return [*kinds[:carried], *(_stacked(kind, known_times, 0) for kind in kinds[carried:])]


def _of_scan(node: Any, types: _ByName, numbers: _ByName) -> list[Any]:
    """Types of the results of a ``Scan``: first the values that it carries, then the results that iterations append to."""
    (attribute,) = bodies_of(node)
    states, axes = _scanned(node)
    kinds = _settled(attribute.g, 0, _results(attribute), states)
    first = types.get(node.input[states])
    axis = axes["scan_input_axes"][0]
    shape = [] if first is None else first.tensor_type.shape.dim
    times = shape[axis].dim_value if -len(shape) <= axis < len(shape) and shape[axis].HasField("dim_value") else None
    stacked = zip(kinds[states:], axes["scan_output_axes"], strict=False)
    return [*kinds[:states], *(_stacked(kind, times, axis) for kind, axis in stacked)]


def _settled(graph: Any, begin: int, kinds: list[Any], carried: int) -> list[Any]:
    """Types of the results of a loop's body; None for a carried value whose shape an iteration changes.

    ``kinds`` are the types that were inferred for the results. ``begin`` is the position of the first carried value among the
    inputs of the body, and ``carried`` is the number of carried values. If an iteration changes a shape, it is also removed
    from the input's declaration.
    """
    settled = list(kinds)
    for at in range(min(carried, len(kinds))):
        declared = graph.input[begin + at].type
        if declared.tensor_type.shape != kinds[at].tensor_type.shape:
            declared.tensor_type.ClearField("shape")
            settled[at] = None
    return settled


def _scanned(node: Any) -> tuple[int, dict[str, list[int]]]:
    """The number of values that a ``Scan`` carries from one iteration to the next, and the axes of its scanned inputs and
    outputs."""
    options = {attribute.name: attribute for attribute in node.attribute}
    count = options["num_scan_inputs"].i if "num_scan_inputs" in options else len(node.input)
    axes = {"scan_input_axes": [0] * len(node.input), "scan_output_axes": [0] * len(node.output)}
    axes |= {name: list(options[name].ints) for name in axes if name in options}
    return len(node.input) - count, axes


def _part(kind: Any, axis: int) -> Any:
    """Type of one slice of a tensor along an axis, a tensor with one dimension less; None if the type or the axis is not
    known."""
    if kind is None or not -len(kind.tensor_type.shape.dim) <= axis < len(kind.tensor_type.shape.dim):
        return None
    part = type(kind).FromString(kind.SerializeToString())
    del part.tensor_type.shape.dim[axis]
    return part


def _stacked(kind: Any, times: int | None, axis: int) -> Any:
    """Type of ``times`` tensors that are stacked along a new axis; None if their type, shape or number is not known."""
    from onnx import helper

    if times is None or kind is None or not kind.tensor_type.HasField("shape"):
        return None
    shape = [size.dim_value if size.HasField("dim_value") else None for size in kind.tensor_type.shape.dim]
    shape.insert(axis if axis >= 0 else len(shape) + 1 + axis, times)
    return helper.make_tensor_type_proto(kind.tensor_type.elem_type, shape)
