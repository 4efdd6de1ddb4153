"""ONNX files, as every front end for them begins: read, functions inlined, shapes inferred.

Weights may stand in another file, and that file need not be there. Only short lists of whole numbers are fetched from it, which
lies in the model's folder: a reshape or a slice may be meant by them.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from stowplan import files
from stowplan.errors import InputError, MissingDependencyError
from stowplan.frontends import shape_inference

#: Nodes at most, once functions of the model stand in line: a few that call each other twice are any number of nodes.
MAX_NODES = 200_000
#: Numbers that are fetched from another file, at most: those of shapes and slices are a few.
MAX_FETCHED = 4096


class OnnxFile(NamedTuple):
    """A model that was read."""

    onnx: Any
    """The module ``onnx`` itself."""
    graph: Any
    """The model's graph, with the shapes that could be inferred."""
    name: str
    """The file's, without what it ends in."""
    missing: dict[str, str]
    """Lists of numbers that stand in another file which could not be read: name to reason."""


def read_onnx_file(path: str | Path) -> OnnxFile:
    """Read an ONNX model.

    Raises
    ------
    MissingDependencyError
        There is no onnx.
    InputError
        Not an ONNX model, or one without nodes.
    """
    if importlib.util.find_spec("onnx"):
        # It imports onnx while this process does.
        shape_inference.start()
    try:
        import onnx
        from onnx import inliner
    except ImportError as error:
        raise MissingDependencyError("reading an ONNX model needs onnx: pip install 'stowplan[frontends]'") from error
    data = files.read_bytes(path)
    try:
        model = onnx.load_model_from_string(data)
        if not model.graph.node:
            raise InputError("not an ONNX model, or one without nodes", source=path)
        if model.functions:
            _check_functions(model)
            model = inliner.inline_local_functions(model)
        _check_splits(model.graph)
        _check_sizes(model.graph)
        missing = _fetch_numbers(model.graph, Path(path).parent, onnx)
        model = shape_inference.infer(model)
    except InputError as error:
        raise error.within(path) from None
    except Exception as error:
        # protobuf and onnx raise errors of many types, over several lines.
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise InputError(f"not an ONNX model: {reason[0]}", source=path) from error
    _check_names(model.graph, path)
    name = Path(path).name.removesuffix(".gz").removesuffix(".onnx").removesuffix(".stripped")
    return OnnxFile(onnx, model.graph, name, missing)


def attributes(node: Any, onnx: Any) -> dict[str, Any]:
    """Values of a node's attributes by name; raises InputError for one that says no value."""
    try:
        return {each.name: onnx.helper.get_attribute_value(each) for each in node.attribute}
    except (ValueError, TypeError) as error:
        raise InputError(f"found an attribute without a value: {error}", place=f"operator {node.output[0]}") from error


def _check_splits(graph: Any) -> None:
    """Refuse splits into other numbers of parts than they have results: onnx's shape inference ends the process over them."""
    for node in graph.node:
        for attribute in node.attribute:
            if node.op_type == "Split" and attribute.name == "num_outputs" and attribute.i != len(node.output):
                message = f"found {len(node.output)} results of a Split, expected its num_outputs, {attribute.i}"
                raise InputError(message, place=f"operator {next(iter(node.output), node.name)}")


def _check_sizes(graph: Any) -> None:
    """Refuse sizes below 0: onnx's shape inference ends the process over a slice of them."""
    for each in (*graph.input, *graph.output, *graph.value_info):
        for size in each.type.tensor_type.shape.dim:
            if size.dim_value < 0:
                message = f"found a size of {size.dim_value}, expected a number above 0: export the model with fixed shapes"
                raise InputError(message, place=f"value {each.name}")


def _check_names(graph: Any, path: str | Path) -> None:
    """Refuse nodes without results, and names that are not UTF-8, which come as bytes."""
    for node in graph.node:
        if not all(isinstance(name, str) for name in (*node.input, *node.output, node.op_type, node.name)):
            raise InputError("found a name that is not UTF-8 text", source=path, place=f"node {node.output!r}")
        if not any(node.output):
            raise InputError(f"found a {node.op_type} without a result, expected one or more", source=path)
    for each in (*graph.input, *graph.output, *graph.value_info, *graph.initializer):
        if not isinstance(each.name, str):
            raise InputError("found a name that is not UTF-8 text", source=path, place=f"value {each.name!r}")


def missing_text(missing: dict[str, str]) -> str:
    """What to add to a message where numbers could not be fetched that may be why; empty where there are none."""
    return "".join(f"; the numbers of {name!r} stand in another file: {reason}" for name, reason in list(missing.items())[:1])


def _check_functions(model: Any) -> None:
    """Refuse models that explode where their functions stand in line."""
    bodies = {(each.domain, each.name): each.node for each in model.functions}
    known: dict[tuple[str, str], int] = {}
    walking: list[tuple[str, str]] = []

    def size(nodes: Iterable[Any]) -> int:
        total = 0
        for node in nodes:
            key = (node.domain, node.op_type)
            total += _function(key) if key in bodies else 1
            for attribute in node.attribute:
                for graph in (attribute.g, *attribute.graphs):
                    total += size(graph.node)
        return total

    def _function(key: tuple[str, str]) -> int:
        if key in walking or len(walking) > 100:
            raise InputError(f"found functions nested deeper than 100, or in each other: {key[1]!r}, expected a few levels")
        if key not in known:
            walking.append(key)
            known[key] = 1 + size(bodies[key])
            walking.pop()
        return known[key]

    if size(model.graph.node) > MAX_NODES:
        raise InputError(f"found more than {MAX_NODES} nodes with functions in line, expected fewer")


def _fetch_numbers(graph: Any, folder: Path, onnx: Any) -> dict[str, str]:
    """Put short lists of whole numbers that stand beside the model into it; those that could not be had, with the reason."""
    missing: dict[str, str] = {}
    named = [(each.name, each) for each in graph.initializer]
    named += [
        (node.output[0], each.t)
        for node in graph.node
        if node.op_type == "Constant" and node.output
        for each in node.attribute
        if each.name == "value"
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
    """Whether the values of a tensor stand in another file."""
    return bool(tensor.HasField("data_location") and tensor.data_location == onnx.TensorProto.EXTERNAL)


def _fetched(tensor: Any, folder: Path, size: int) -> bytes:
    """The first ``size`` bytes of a tensor from its file, which must lie in the model's folder."""
    said = {each.key: each.value for each in tensor.external_data}
    location, offset = said.get("location", ""), said.get("offset", "0")
    where = (folder / location).resolve()
    if not location or not where.is_relative_to(folder.resolve()):
        raise ValueError(f"found the file {location!r}, expected one in the model's folder")
    if not where.is_file():
        raise ValueError(f"there is no file {location!r} beside the model")
    if not (offset.isdecimal() and len(offset) < 19):
        raise ValueError(f"found the offset {offset!r} in {location!r}, expected a whole number")
    files.note_read(where)
    with where.open("rb") as stream:
        stream.seek(int(offset))
        data: bytes = stream.read(size)
    if len(data) < size:
        raise ValueError(f"found {len(data)} bytes at offset {offset} of {location!r}, expected {size}")
    return data
