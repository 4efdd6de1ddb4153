"""Layered networks among the inputs: a layer file or ONNX model, with a target, becomes a tier-placement problem."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast, get_args

import msgspec

from stowplan.errors import UsageError
from stowplan.hardware.frontends.network import Granularity, is_layer_file, is_onnx, read_layers, read_onnx
from stowplan.hardware.network import Network, Precision
from stowplan.hardware.nnp_i.costs import build_problem
from stowplan.hardware.nnp_i.target import load_target
from stowplan.models.tier_placement.problem import Problem


class NetworkOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How to read a network, where its file leaves it open."""

    precision: str | None = None
    """``int8`` (the default) or ``fp16``, of weights and activations alike. Of graphs on memory with banks one of
    :data:`stowplan.portfolio.graphs.PRECISIONS`; their default is the file's own."""
    granularity: str | None = None
    """``auto`` (the default), ``layer`` or ``fine``; see :mod:`stowplan.hardware.frontends.network.coarsen`. ONNX only."""
    address_spaces: bool = False
    """Whether a plan gives every tensor an offset in its tier."""


#: No options.
AS_THE_FILE_SAYS = NetworkOptions()


def is_network(path: str | Path, data: bytes | None) -> bool:
    """Whether a file holds a network. ``data`` is its content where it is JSON, None elsewhere."""
    return is_layer_file(data) if data is not None else is_onnx(path)


def open_network(path: str | Path, target: str | Path | None, options: NetworkOptions, capacity: int | None) -> Problem:
    """Problem of placing a network on a target.

    Raises
    ------
    UsageError
        No target, or an unknown option.
    InputError
        What is wrong with the network or the target, and where.
    """
    if target is None:
        raise UsageError(f"{path} is a network: name a target with tiers for it (nnp-i; stowplan targets lists them)")
    precision = _choice("precision", options.precision or "int8", get_args(Precision))
    granularity = _choice("granularity", options.granularity or "auto", get_args(Granularity))
    machine = load_target(target)
    if is_onnx(path):
        network: Network = read_onnx(path, granularity=cast(Granularity, granularity))
    elif options.granularity is not None:
        raise UsageError(f"{path} has its layers already: a granularity is for ONNX models")
    else:
        network = read_layers(path)
    problem = build_problem(network, machine, cast(Precision, precision), address_spaces=options.address_spaces)
    return problem if capacity is None else with_capacity(problem, capacity)


def with_capacity(problem: Problem, capacity: int) -> Problem:
    """The problem with ``capacity`` bytes in the fastest tier."""
    tiers = (*problem.tiers[:-1], msgspec.structs.replace(problem.tiers[-1], capacity=capacity))
    return msgspec.structs.replace(problem, tiers=tiers)


def _choice(what: str, found: str, expected: tuple[Any, ...]) -> str:
    if found not in expected:
        raise UsageError(f"found {what} {found!r}, expected one of {', '.join(expected)}")
    return found
