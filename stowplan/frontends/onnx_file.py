"""Reads ONNX files for all front ends: inlines functions and infers shapes.

Weights may be in an external file, which need not exist. Only short lists of integers are read from it, since they may be the
operands of a reshape or a slice; the external file must be in the model's folder. Nodes such as ``If`` and ``Loop`` run graphs
of their own, which are called bodies here.
"""

from __future__ import annotations

import importlib.util
import math
import re
import shlex
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from stowplan import files
from stowplan.errors import InputError, MissingDependencyError, first_line, naming, to_install
from stowplan.frontends import shape_inference
from stowplan.frontends.onnx_shapes import Findings
from stowplan.frontends.onnx_sizes import check_user_sizes, fix_sizes, graphs_of, is_fixed
from stowplan.frontends.options import NO_USER_SIZES, UserSizes
from stowplan.log import warn_unmodelled

#: The largest number of nodes after functions are inlined. It is checked before they are inlined, because a short chain of
#: functions, each of which calls the next one twice, has a number of nodes that is exponential in its length.
MAX_NODES = 200_000
#: The longest list of integers that is read from an external file; the lists of shapes and slices are short.
MAX_FETCHED = 4096


#: Most names of element types contain their number of bits.
_DIGITS = re.compile("[0-9]+")
#: Domains of operators whose names have no prefix in front ends.
_STANDARD = ("", "ai.onnx")


class OnnxFile:
    """A model that was read, or a body of one of its nodes, with the shapes and types of its values.

    Parameters
    ----------
    onnx
        The Python module ``onnx``.
    graph
        The model's graph, with the shapes that could be inferred. Operators of domains other than ONNX's own have the domain in
        their names: ``com.microsoft::Gelu``.
    opset
        Version of ONNX's own operators.
    name
        Name of the file without its extension.
    missing
        For each list of integers that could not be read from an external file, by its name, the reason.
    outer
        For a body, the graph around it, whose values it may use.
    """

    def __init__(self, onnx: Any, graph: Any, opset: int, name: str, missing: dict[str, str], outer: OnnxFile | None = None):
        self.onnx, self.graph, self.opset, self.name, self.missing = onnx, graph, opset, name, missing
        self.shapes: dict[str, tuple[int, ...] | None] = {} if outer is None else dict(outer.shapes)
        """The shape of each value, by its name; None if the shape is not fixed."""
        self.types: dict[str, int] = {} if outer is None else dict(outer.types)
        """ONNX's number of the element type of each value, by its name."""
        self.stored: dict[str, Any] = {} if outer is None else dict(outer.stored)
        """Weights and constants in the file, as protocol buffers, by name."""
        for value in (*graph.output, *graph.value_info, *graph.input):
            kind = value.type.tensor_type
            self.shapes[value.name] = tuple(size.dim_value for size in kind.shape.dim) if is_fixed(value.type) else None
            self.types[value.name] = kind.elem_type
        for tensor in (*graph.initializer, *(tensor.values for tensor in graph.sparse_initializer)):
            self.store(tensor.name, tensor)

    def store(self, name: str, tensor: Any) -> None:
        """Records a tensor that the file stores, or that a node has as an attribute."""
        self.shapes[name], self.types[name], self.stored[name] = tuple(tensor.dims), tensor.data_type, tensor

    def inside(self, graph: Any) -> OnnxFile:
        """The body ``graph`` of a node of this graph, which may use the values of this graph."""
        return OnnxFile(self.onnx, graph, self.opset, self.name, self.missing, self)

    @property
    def inputs(self) -> list[str]:
        """Names of the graph's inputs, without those that have stored values."""
        return [value.name for value in self.graph.input if value.name not in self.stored]

    def shape(self, name: str, place: str = "") -> tuple[int, ...]:
        """Sizes of the dimensions of a value.

        Raises
        ------
        InputError
            The shape is not fixed, or a size is negative. The error names ``place``, or the value if ``place`` is empty.
        """
        shape = self.shapes.get(name)
        if shape is None:
            message = f"found no fixed shape, expected one: {self._why_open(name)}"
            raise InputError(message + missing_text(self.missing), place=place or name)
        if any(size < 0 for size in shape):
            message = f"found the shape {list(shape)}, expected no negative lengths: an input may be too small"
            raise InputError(message, place=place or name)
        return shape

    def type_name(self, name: str) -> str:
        """ONNX's name of the type of a value's elements, such as ``FLOAT16``; the number of the type if it has no name."""
        types = self.onnx.TensorProto.DataType
        kind = self.types.get(name, types.UNDEFINED)
        return str(types.Name(kind)) if kind in types.values() else str(kind)

    def bits(self, name: str) -> int:
        """Bits of an element of a value; elements of less than 8 bits are packed.

        Raises
        ------
        InputError
            The elements have no fixed size, as those of strings.
        """
        label = self.type_name(name)
        digits = _DIGITS.search({"FLOAT": "32", "DOUBLE": "64", "BOOL": "8"}.get(label, label))
        if digits is None or label.isdigit():
            raise InputError(f"found elements of type {label}, expected numbers of a fixed size", place=name)
        return int(digits[0])

    def is_known(self, kind: str) -> bool:
        """Whether onnx defines an operator of this name, such as ``Conv`` or ``ai.onnx.ml::Scaler``."""
        domain, _, name = kind.rpartition("::")
        return bool(self.onnx.defs.has(name, domain))

    def _why_open(self, name: str) -> str:
        """Text that says why the shape of a value is not fixed.

        It names the operator at which the shape is lost, or asks for fixed input shapes if the shape of an input is not fixed.
        """
        makers = {result: node for node in self.graph.node for result in node.output}
        while name in makers:
            # A node is removed when it is visited, so that a cycle ends the search.
            node = makers.pop(name)
            operand = next((operand for operand in node.input if operand and self.shapes.get(operand) is None), None)
            if operand is None:
                why = "takes it from values" if self.is_known(node.op_type) else "is not known to onnx"
                if any(attribute.HasField("g") for attribute in node.attribute):
                    why = "runs graphs that do not say it alike, or times that are not known"
                return f"the operator {node.op_type} that makes {name!r} {why} (--shape {shlex.quote(name)}=SIZES tells it)"
            name = operand
        return "export the model with fixed input shapes"

    def attributes(self, node: Any) -> dict[str, Any]:
        """Values of a node's attributes by name; raises InputError for an attribute without a value."""
        try:
            return {attribute.name: self.onnx.helper.get_attribute_value(attribute) for attribute in node.attribute}
        except (ValueError, TypeError) as error:
            raise InputError(f"found an attribute without a value: {error}", place=f"operator {node.output[0]}") from error


def read_onnx_file(path: str | Path, user_sizes: UserSizes = NO_USER_SIZES, *, with_bodies: bool = False) -> OnnxFile:
    """Reads an ONNX model. Callers should make later errors about it name the path as well (:func:`~stowplan.errors.naming`).

    Parameters
    ----------
    user_sizes
        Values that the user gives for sizes that the model does not fix.
    with_bodies
        Whether the caller supports control flow, that is, nodes with bodies. An ``If`` whose condition is constant is replaced
        by its branch and does not count.

    Raises
    ------
    MissingDependencyError
        The package onnx is not installed.
    InputError
        The file is no ONNX model, or the model has no nodes, has inputs whose sizes are not fixed, or has control flow that is
        not supported.
    """
    if importlib.util.find_spec("onnx"):
        # The child process that infers shapes imports onnx at the same time as this process.
        shape_inference.start()
    try:
        import onnx
        from onnx import inliner
    except ImportError as error:
        raise MissingDependencyError(f"reading an ONNX model needs onnx: {to_install('frontends')}") from error
    with naming(path):
        graph, opset, missing = _read_graph(path, onnx, inliner, user_sizes, with_bodies)
    name = Path(path).name.removesuffix(".gz").removesuffix(".onnx").removesuffix(".stripped")
    return OnnxFile(onnx, graph, opset, name, missing)


def _read_graph(
    path: str | Path, onnx: Any, inliner: Any, user_sizes: UserSizes, with_bodies: bool
) -> tuple[Any, int, dict[str, str]]:
    """The graph of a file with its shapes, the version of its operators, and the lists of integers that could not be read."""
    data = files.read_bytes(path)
    try:
        model = onnx.load_model_from_string(data)
        if not model.graph.node:
            raise InputError("not an ONNX model, or one without nodes")
        if model.functions:
            _check_functions(model)
            model = inliner.inline_local_functions(model)
        fix_sizes(model, user_sizes)
        graphs = list(graphs_of(model.graph))
        missing: dict[str, str] = {}
        for graph in graphs:
            _check_splits(graph)
            missing |= _fetch_numbers(graph, Path(path).parent, onnx)
        model, findings = shape_inference.infer(model)
    except InputError:
        raise
    except Exception as error:
        # protobuf and onnx raise errors of many types, over several lines.
        raise InputError(f"not an ONNX model: {first_line(error)}") from error
    for graph in graphs_of(model.graph):
        _check_nodes(graph, with_bodies)
        check_user_sizes(graph, user_sizes)
    _check_declared(model.graph, findings, user_sizes)
    if model.ir_version >= 11 and model.configuration:
        warn_unmodelled("it is laid out for several devices, which is not modelled: planned as for one", "configuration")
    return model.graph, max((opset.version for opset in model.opset_import if opset.domain in _STANDARD), default=1), missing


def _check_splits(graph: Any) -> None:
    """Raises InputError for a ``Split`` whose number of parts differs from that of its results.

    Shape inference of onnx crashes on such nodes.
    """
    for node in graph.node:
        for attribute in node.attribute:
            if node.op_type == "Split" and attribute.name == "num_outputs" and attribute.i != len(node.output):
                message = f"found {len(node.output)} results of a Split, expected its num_outputs, {attribute.i}"
                raise InputError(message, place=f"operator {next(iter(node.output), node.name)}")


def _check_declared(graph: Any, findings: Findings, user_sizes: UserSizes) -> None:
    """Warns of declared shapes that differ from inferred ones.

    Like onnxruntime, it raises InputError if element types differ, or if the shape of an input with an initializer differs.
    """
    fixed = {value.name for value in graph.input} & {tensor.name for tensor in graph.initializer}
    stale = [each for each in findings.contradictions if each[0] not in user_sizes.shapes]
    for name, what, (declared, inferred) in stale:
        if what == "type" or name in fixed:
            raise InputError(
                f"found the declared {what} {declared}, expected the inferred one, {inferred}", place=f"value {name}"
            )
    for name, _, (declared, inferred) in stale[:1]:
        more = f" (so are {len(stale) - 1} more)" if len(stale) > 1 else ""
        text = f"its shape is declared as {declared}, but inferred as {inferred}, which is planned for{more}"
        warn_unmodelled(text, f"value {name}")
    for name in [name for name in findings.believed if stale and name not in user_sizes.shapes]:
        text = "its shape is known from its declaration only, and other declared shapes are wrong (--shape tells it)"
        warn_unmodelled(text, f"value {name}")


def _check_nodes(graph: Any, with_bodies: bool) -> None:
    """Raises InputError for unsupported control flow, values that are no tensors, nodes without results, and names that are not
    UTF-8.

    Operators of other domains get their domain as a prefix of their names, so that they cannot be mistaken for ONNX's own.
    """
    for node in graph.node:
        if not all(isinstance(name, str) for name in (*node.input, *node.output, node.op_type, node.name)):
            raise InputError("found a name that is not UTF-8 text", place=f"node {node.output!r}")
        if not any(node.output):
            raise InputError(f"found a {node.op_type} without a result, expected one or more")
        is_supported = with_bodies and node.domain in _STANDARD and node.op_type in ("If", "Loop", "Scan")
        if not is_supported and any(attribute.HasField("g") or attribute.graphs for attribute in node.attribute):
            raise InputError(
                f"found a {node.op_type}, expected a graph without control flow",
                place=f"operator {next(filter(None, node.output))}",
            )
        if node.domain not in _STANDARD:
            node.op_type = f"{node.domain}::{node.op_type}"
    for value in (*graph.input, *graph.output, *graph.value_info):
        if (kind := value.type.WhichOneof("value")) not in (None, "tensor_type"):
            raise InputError(f"found a {kind}, expected a tensor", place=f"value {value.name}")
    for value in (*graph.input, *graph.output, *graph.value_info, *graph.initializer):
        if not isinstance(value.name, str):
            raise InputError("found a name that is not UTF-8 text", place=f"value {value.name!r}")


def missing_text(missing: dict[str, str]) -> str:
    """Text to add to an error message if lists of integers could not be read, since that may be the reason; otherwise empty."""
    return "".join(f"; the numbers of {name!r} stand in another file: {reason}" for name, reason in list(missing.items())[:1])


def _check_functions(model: Any) -> None:
    """Raises InputError for a model that would become too large when its functions are inlined, or that has recursive ones."""
    bodies = {(function.domain, function.name, function.overload): function.node for function in model.functions}
    size_of: dict[tuple[str, str, str], int] = {}
    walking: list[tuple[str, str, str]] = []

    def size(nodes: Iterable[Any]) -> int:
        total = 0
        for node in nodes:
            key = (node.domain, node.op_type, node.overload)
            total += _function(key) if key in bodies else 1
            for attribute in node.attribute:
                for graph in (attribute.g, *attribute.graphs):
                    total += size(graph.node)
        return total

    def _function(key: tuple[str, str, str]) -> int:
        if key in walking or len(walking) > 100:
            name = key[1] + f":{key[2]}" * bool(key[2])
            raise InputError(f"found functions nested deeper than 100, or in each other: {name!r}, expected a few levels")
        if key not in size_of:
            walking.append(key)
            size_of[key] = 1 + size(bodies[key])
            walking.pop()
        return size_of[key]

    if size(model.graph.node) > MAX_NODES:
        raise InputError(f"found more than {MAX_NODES} nodes with functions in line, expected fewer")


def _fetch_numbers(graph: Any, folder: Path, onnx: Any) -> dict[str, str]:
    """Loads short lists of integers from external files into the model.

    Returns, for each list that could not be read, by its name, the reason.
    """
    missing: dict[str, str] = {}
    named = [(tensor.name, tensor) for tensor in graph.initializer]
    named += [
        (node.output[0], attribute.t)
        for node in graph.node
        if node.op_type == "Constant" and node.output
        for attribute in node.attribute
        if attribute.name == "value"
    ]
    widths = {onnx.TensorProto.INT64: 8, onnx.TensorProto.INT32: 4}
    for name, tensor in named:
        width = widths.get(tensor.data_type)
        count = math.prod(tensor.dims)
        if not is_external(tensor, onnx) or width is None or len(tensor.dims) > 1 or not 0 < count <= MAX_FETCHED:
            continue
        try:
            data = _fetched(tensor, folder, count * width)
        except (OSError, ValueError) as error:
            missing[name] = str(getattr(error, "strerror", None) or error)
            continue
        tensor.ClearField("external_data")
        tensor.data_location = onnx.TensorProto.DEFAULT
        tensor.raw_data = data
    return missing


def is_external(tensor: Any, onnx: Any) -> bool:
    """Whether the values of a tensor are in another file."""
    return bool(tensor.HasField("data_location") and tensor.data_location == onnx.TensorProto.EXTERNAL)


def _fetched(tensor: Any, folder: Path, size: int) -> bytes:
    """The first ``size`` bytes of a tensor from its external file.

    Raises ValueError if the file is not in the model's folder, does not exist or is too short, or if the offset in the model is
    not a whole number; and OSError if the file cannot be read.
    """
    entries = {entry.key: entry.value for entry in tensor.external_data}
    location, offset = entries.get("location", ""), entries.get("offset", "0")
    where = (folder / location).resolve()
    if not location or not where.is_relative_to(folder.resolve()):
        raise ValueError(f"found the file {location!r}, expected one in the model's folder")
    if not where.is_file():
        raise ValueError(f"there is no file {location!r} beside the model")
    if not (offset.isdecimal() and len(offset) < 19):
        raise ValueError(f"found the offset {offset!r} in {location!r}, expected a whole number")
    files.record_read(where)
    with where.open("rb") as stream:
        stream.seek(int(offset))
        data: bytes = stream.read(size)
    if len(data) < size:
        raise ValueError(f"found {len(data)} bytes at offset {offset} of {location!r}, expected {size}")
    return data
