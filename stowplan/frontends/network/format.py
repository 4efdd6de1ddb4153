"""Layered networks among the inputs: a layer file or ONNX model, with a target, becomes a tier-placement problem."""

from __future__ import annotations

from stowplan.frontends.format import InputFormat, Opened, Source, TargetFamily, TargetRow
from stowplan.frontends.network.layer_json import is_layer_file
from stowplan.frontends.network.onnx_model import is_onnx
from stowplan.frontends.options import ReadOptions
from stowplan.hardware.nnp_i.target import load_target, target_names


def _open(source: Source, options: ReadOptions) -> Opened:
    from stowplan.frontends.network.problem import open_network

    return Opened(open_network(source.path, options))


def _rows() -> list[TargetRow]:
    return [
        TargetRow(name, ", ".join(f"{tier.name} {tier.capacity / 2**20:g} MiB" for tier in chip.tiers), chip.description)
        for name, chip in ((name, load_target(name)) for name in target_names())
    ]


_OPTIONS = frozenset({"target", "capacity", "precision", "granularity", "address_spaces"})

FORMAT = InputFormat(
    what="a network",
    suffixes=(".json", ".onnx"),
    # A layer file has its layers already.
    accepts=lambda source: _OPTIONS if source.data is None else _OPTIONS - {"granularity"},
    matches=lambda source: is_layer_file(source.data) if source.data is not None else is_onnx(source.path),
    open=_open,
    targets=TargetFamily("networks", "tier placement", "nnp-i", "a memory tier for each tensor", load_target, _rows),
)
