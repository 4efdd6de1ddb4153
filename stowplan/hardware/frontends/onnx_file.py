"""ONNX files, as every front end for them begins: read, functions inlined, shapes inferred."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any, NamedTuple

from stowplan import files
from stowplan.errors import InputError, MissingDependencyError


class OnnxFile(NamedTuple):
    """A model that was read."""

    onnx: Any
    """The module ``onnx`` itself."""
    graph: Any
    """The model's graph, with the shapes that could be inferred."""
    name: str
    """The file's, without what it ends in."""


def read_onnx_file(path: str | Path) -> OnnxFile:
    """Read an ONNX model.

    Raises
    ------
    MissingDependencyError
        There is no onnx.
    InputError
        Not an ONNX model, or one without nodes.
    """
    try:
        import onnx
        from onnx import inliner, shape_inference
    except ImportError as error:
        raise MissingDependencyError("reading an ONNX model needs onnx: pip install 'stowplan[frontends]'") from error
    data = files.read_bytes(path)
    try:
        model = onnx.load_model_from_string(data)
        if not model.graph.node:
            raise InputError("not an ONNX model, or one without nodes", source=path)
        if model.functions:
            model = inliner.inline_local_functions(model)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = shape_inference.infer_shapes(model, data_prop=True)
    except InputError:
        raise
    except Exception as error:
        # protobuf and onnx raise errors of many types, over several lines.
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise InputError(f"not an ONNX model: {reason[0]}", source=path) from error
    name = Path(path).name.removesuffix(".gz").removesuffix(".onnx").removesuffix(".stripped")
    return OnnxFile(onnx, model.graph, name)
