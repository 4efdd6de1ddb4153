"""Operator graphs among the inputs: HLO before optimisation or ONNX, and a target with banks, become bank-mapping problems."""

from __future__ import annotations

from pathlib import Path

from stowplan.hardware.affine.program import Program
from stowplan.hardware.elimination.eliminate import eliminate
from stowplan.hardware.frontends.network import is_onnx
from stowplan.hardware.inferentia.problem import build_problem
from stowplan.hardware.inferentia.target import is_bank_target, load_target
from stowplan.models.bank_mapping.problem import Problem

__all__ = ["is_bank_target", "open_graph", "read_graph"]


def read_graph(path: str | Path) -> Program:
    """Affine program of an HLO or ONNX file, its data movement still in place; raises InputError naming the operator."""
    if is_onnx(path):
        from stowplan.hardware.frontends.affine.onnx_graph import read_affine_onnx

        return read_affine_onnx(path)
    from stowplan.hardware.frontends.affine.hlo import read_affine_hlo

    return read_affine_hlo(path)


def open_graph(path: str | Path, target: str | Path, capacity: int | None = None) -> Problem:
    """Problem of mapping a graph to a target's banks, its load/store pairs eliminated first.

    Raises
    ------
    InputError
        What is wrong with the graph or the target, and where.
    """
    machine = load_target(target)
    program, _ = eliminate(read_graph(path))
    return build_problem(program, machine, capacity=capacity).problem
