"""Operator graphs among the inputs: HLO before optimisation or ONNX, and a target with banks, become bank-mapping problems."""

from __future__ import annotations

from pathlib import Path

from stowplan.errors import UsageError
from stowplan.frontends.network import is_onnx
from stowplan.hardware.affine.program import Program
from stowplan.hardware.inferentia.problem import build_problem
from stowplan.hardware.inferentia.target import is_bank_target, load_target
from stowplan.models.bank_mapping.problem import Problem
from stowplan.transforms.elimination.eliminate import eliminate

__all__ = ["PRECISIONS", "is_bank_target", "open_graph", "read_graph"]


#: Bytes of an element of each precision that a graph can be read in, in place of the file's own.
PRECISIONS = {"fp16": 2, "bf16": 2, "int8": 1}


def read_graph(path: str | Path, precision: str | None = None) -> Program:
    """Affine program of an HLO or ONNX file, its data movement still in place.

    Parameters
    ----------
    path
        Plain or gzip.
    precision
        Of all floating-point tensors, weights and activations alike; None for the file's own.

    Raises
    ------
    UsageError
        An unknown precision.
    InputError
        What is wrong with the file; names the operator.
    """
    if precision is not None and precision not in PRECISIONS:
        raise UsageError(f"found precision {precision!r}, expected one of {', '.join(PRECISIONS)} for a graph")
    float_bytes = None if precision is None else PRECISIONS[precision]
    if is_onnx(path):
        from stowplan.frontends.affine.onnx_graph import read_affine_onnx

        return read_affine_onnx(path, float_bytes)
    from stowplan.frontends.affine.hlo import read_affine_hlo

    return read_affine_hlo(path, float_bytes)


def open_graph(path: str | Path, target: str | Path, capacity: int | None = None, precision: str | None = None) -> Problem:
    """Problem of mapping a graph to a target's banks, its load/store pairs eliminated first.

    Raises
    ------
    UsageError
        An unknown precision.
    InputError
        What is wrong with the graph or the target, and where.
    """
    machine = load_target(target)
    program, _ = eliminate(read_graph(path, precision))
    return build_problem(program, machine, capacity=capacity).problem
