"""Affine programs from ONNX graphs. Weights need not be there; shapes, and what shapes are computed from, must be."""

from __future__ import annotations

from pathlib import Path

from stowplan.deadline import check_reading
from stowplan.errors import InputError
from stowplan.frontends.affine.onnx_movement import MOVEMENT
from stowplan.frontends.affine.onnx_operators import OPERATORS
from stowplan.frontends.affine.onnx_walk import Walk
from stowplan.frontends.onnx_file import OnnxFile, attributes, read_onnx_file
from stowplan.hardware.affine.check import check
from stowplan.hardware.affine.program import Program

_HANDLERS = MOVEMENT | OPERATORS


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
        return _program(found, float_bytes)
    except InputError as error:
        raise error.within(path) from None


def _program(file: OnnxFile, float_bytes: int | None) -> Program:
    walk = Walk(file, float_bytes)
    for node in file.graph.node:
        check_reading()
        options = attributes(node, file.onnx)
        walk.expect(node, node.op_type not in ("If", "Loop", "Scan"), f"a {node.op_type}", "a graph without control flow")
        handler = _HANDLERS.get(node.op_type)
        if handler is not None:
            handler(walk, node, options)
        else:
            walk.opaque(node)
    outputs = [walk.variable(each.name).name for each in file.graph.output]
    program = walk.builder.program(tuple(dict.fromkeys(outputs)))
    check(program)
    return program
