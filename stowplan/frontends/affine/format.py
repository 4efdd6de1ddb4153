"""Operator graphs among the inputs: HLO before optimisation or ONNX, and a target with banks, become a bank-mapping problem."""

from __future__ import annotations

from stowplan.frontends.format import InputFormat, Opened, Source, TargetFamily, TargetRow
from stowplan.frontends.network.onnx_model import is_onnx
from stowplan.frontends.options import ReadOptions
from stowplan.hardware.inferentia.target import is_bank_target, load_target, target_names


def _open(source: Source, options: ReadOptions) -> Opened:
    from stowplan.frontends.affine.problem import open_graph

    return Opened(open_graph(source.path, str(options.target), options.capacity, options.precision))


def _claims(source: Source) -> bool | None:
    if is_onnx(source.path):
        return None
    from stowplan.frontends.hlo import read_module

    return not read_module(source.path).is_scheduled


def _rows() -> list[TargetRow]:
    return [
        TargetRow(name, f"{target.banks} banks, {target.scratchpad.capacity / 2**20:g} MiB scratchpad", target.description)
        for name, target in ((name, load_target(name)) for name in target_names())
    ]


FORMAT = InputFormat(
    what="a graph for a target with banks",
    suffixes=(".onnx", ".hlo", ".hlo.txt"),
    accepts=lambda source: frozenset({"target", "capacity", "precision"}),
    # The target decides: compiled programs and networks are in the same files.
    matches=lambda source: source.data is None and source.target is not None and is_bank_target(source.target),
    open=_open,
    targets=TargetFamily(
        "graphs to map to banks", "bank mapping", "inferentia", "what is spread over which banks", load_target, _rows
    ),
    claims=_claims,
)
