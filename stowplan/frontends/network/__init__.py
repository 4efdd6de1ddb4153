"""Front ends for networks of layers: layer files, ONNX models and PyTorch models become a :mod:`stowplan.hardware.network`.

A *layer* is what the hardware runs as one operation, such as a convolution with the activation function after it. The operators
of a framework are first collected one by one in a :class:`~.coarsen.Trace`, and then merged into layers
(:func:`~.coarsen.coarsen`). Networks are the input of tier placement, which chooses a memory tier for each tensor.

A module imports only modules that come before it in this list:

- ``coarsen``: merges operators into layers
- ``layer_json``: layer files
- ``onnx_model``: ONNX models
- ``torch_model``: PyTorch models, traced by ``torch.export``
"""

from __future__ import annotations

from typing import Any, cast, get_args

from stowplan.errors import UsageError
from stowplan.frontends.formats import InputFormat, Opened, Source, TargetFamily
from stowplan.frontends.network.coarsen import Granularity
from stowplan.frontends.network.layer_json import is_layer_file, read_layers, save_layers
from stowplan.frontends.network.onnx_model import is_onnx, read_onnx
from stowplan.frontends.network.torch_model import read_exported, read_torch
from stowplan.frontends.options import ReadOptions
from stowplan.hardware.network import Network, Precision
from stowplan.hardware.nnp_i.target import load_target, target_names
from stowplan.models.tier_placement.problem import amended

__all__ = ["is_onnx", "read_exported", "read_layers", "read_onnx", "read_torch", "save_layers"]


def _open(source: Source, options: ReadOptions) -> Opened:
    """Makes the problem of a network; raises UsageError for an unknown precision or granularity, or for a granularity of a
    layer file."""
    # This is imported here, so that listing formats does not load it.
    from stowplan.hardware.nnp_i.problem import build_problem

    precision = _choice("precision", options.precision or "int8", get_args(Precision))
    granularity = _choice("granularity", options.granularity or "auto", get_args(Granularity))
    machine = load_target(str(options.target))
    if is_onnx(source.path):
        network: Network = read_onnx(source.path, options.user_sizes, granularity=cast(Granularity, granularity))
    elif options.granularity is not None:
        raise UsageError(f"{source.path} has its layers already: a granularity is for ONNX models")
    else:
        network = read_layers(source.path)
    problem = build_problem(network, machine, cast(Precision, precision), address_spaces=options.address_spaces)
    return Opened(problem if options.capacity is None else amended(problem, {"capacity": options.capacity}))


def _choice(what: str, given: str, expected: tuple[Any, ...]) -> str:
    """The value of an option; raises UsageError if it is not one of ``expected``."""
    if given not in expected:
        raise UsageError(f"found {what} {given!r}, expected one of {', '.join(expected)}")
    return given


_OPTIONS = frozenset({"target", "capacity", "precision", "address_spaces"})

FORMAT = InputFormat(
    what="a network",
    suffixes=(".json", ".onnx"),
    # A granularity and sizes of dimensions do not apply to a layer file, which has its layers already.
    accepts=lambda source: _OPTIONS | {"granularity", "dim", "shape"} if source.data is None else _OPTIONS,
    matches=lambda source: is_layer_file(source.data) if source.data is not None else is_onnx(source.path),
    open=_open,
    targets=TargetFamily(
        "networks",
        "tier placement",
        "nnp-i",
        "a memory tier for each tensor",
        load_target,
        target_names,
        lambda chip: ", ".join(f"{tier.name} {tier.capacity / 2**20:g} MiB" for tier in chip.tiers),
    ),
)
