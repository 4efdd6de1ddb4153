"""Graphs whose operators are to be ordered, among the inputs: ONNX models, exported PyTorch programs and HLO.

The target ``order`` says so: the same files mean other problems for other targets.
"""

from __future__ import annotations

from pathlib import Path

from stowplan.frontends.format import InputFormat, Opened, Source, TargetFamily
from stowplan.frontends.network.onnx_model import is_onnx
from stowplan.frontends.operator_order.torch_export import is_exported, read_exported
from stowplan.frontends.options import ReadOptions

TARGET = "order"


def _open(source: Source, options: ReadOptions) -> Opened:
    from stowplan.frontends.operator_order.hlo_graph import read_hlo_order
    from stowplan.frontends.operator_order.onnx_graph import read_onnx_order

    if is_exported(source.path):
        return Opened(read_exported(source.path))
    return Opened(read_onnx_order(source.path) if is_onnx(source.path) else read_hlo_order(source.path))


def _claims(source: Source) -> bool | None:
    return True if is_exported(Path(source.path)) else None


FORMAT = InputFormat(
    what="a graph to order",
    suffixes=(".onnx", ".pt2", ".hlo", ".hlo.txt"),
    accepts=lambda source: frozenset({"target"}),
    matches=lambda source: source.data is None and (source.target == TARGET or is_exported(source.path)),
    open=_open,
    targets=TargetFamily.of_one(
        "graphs to order",
        "operator order",
        TARGET,
        "an order of its operators, and offsets",
        "the order of operators, and offsets, for the least memory",
    ),
    claims=_claims,
)
