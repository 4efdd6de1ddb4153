"""Front ends that make affine programs: a builder for Python, HLO modules before optimization, and ONNX graphs.

An affine program is a sequence of loop nests and operators. Its accesses are quasi-affine functions of loop indices: sums of
indices, and of quotients and remainders of such sums by constants. Affine programs are the input of bank mapping, which chooses
the dimension along which each tensor is spread over the banks of an on-chip memory. A module imports only modules that come
before it in this list:

- ``access``: how loop nests access their operands
- ``builder``: builds affine programs in Python
- ``hlo_walk``: the state of a walk through an HLO module
- ``hlo``: affine programs from HLO text before XLA's optimizations, with all of its data movement
- ``onnx_walk``: the state of a walk through an ONNX graph
- ``onnx_graph``: affine programs from ONNX graphs
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from stowplan.errors import UsageError
from stowplan.frontends.affine.access import Index, Variable
from stowplan.frontends.affine.builder import Builder
from stowplan.frontends.formats import InputFormat, Opened, Source, TargetFamily
from stowplan.frontends.network.onnx_model import is_onnx
from stowplan.frontends.options import NO_USER_SIZES, ReadOptions, UserSizes
from stowplan.hardware.inferentia.target import is_memory_target, load_target, target_names

if TYPE_CHECKING:
    from stowplan.hardware.affine.program import Program


__all__ = ["Builder", "Index", "Variable"]


#: Bytes of an element for each precision with which a graph can be read instead of its own.
PRECISIONS = {"fp16": 2, "bf16": 2, "int8": 1}


def read_graph(path: str | Path, precision: str | None = None, user_sizes: UserSizes = NO_USER_SIZES) -> Program:
    """Reads the affine program of an HLO or ONNX file, including all operators that only move data.

    Parameters
    ----------
    path
        Path of a plain or gzip file.
    precision
        Precision of all floating-point tensors, weights and activations alike, one of :data:`PRECISIONS`; None for that of the
        file.
    user_sizes
        Values that the user gives for sizes that an ONNX model does not fix.

    Raises
    ------
    UsageError
        The precision is unknown.
    InputError
        The file cannot be read or is not valid, or an instruction of an HLO file is not supported; the message names the line
        or the operator.
    MissingDependencyError
        The file is an ONNX model, and the package onnx is not installed.
    TimeLimitError
        The time limit for reading inputs is over.
    """
    if precision is not None and precision not in PRECISIONS:
        raise UsageError(f"found precision {precision!r}, expected one of {', '.join(PRECISIONS)} for a graph")
    float_bytes = None if precision is None else PRECISIONS[precision]
    if is_onnx(path):
        from stowplan.frontends.affine.onnx_graph import read_affine_onnx

        return read_affine_onnx(path, float_bytes, user_sizes)
    from stowplan.frontends.affine.hlo import read_affine_hlo

    return read_affine_hlo(path, float_bytes)


def _open(source: Source, options: ReadOptions) -> Opened:
    """Makes the bank-mapping problem of a graph, after data movement that is not needed was eliminated."""
    # This is imported here, so that listing formats does not load it.
    from stowplan.hardware.inferentia.problem import build_problem
    from stowplan.transforms.eliminate import eliminate

    machine = load_target(str(options.target))
    program, _ = eliminate(read_graph(source.path, options.precision, options.user_sizes))
    return Opened(build_problem(program, machine, capacity=options.capacity).problem)


def _claims(source: Source) -> bool | None:
    """Whether HLO text is a graph and not a compiled program; None for an ONNX model, which may also be read as a network."""
    if is_onnx(source.path):
        return None
    from stowplan.frontends.hlo import read_module

    return not read_module(source.path).is_scheduled


FORMAT = InputFormat(
    what="a graph for a target with banks",
    suffixes=(".onnx", ".hlo", ".hlo.txt"),
    accepts=lambda source: frozenset({"target", "capacity", "precision", *(("dim", "shape") if is_onnx(source.path) else ())}),
    # Only the target distinguishes such a file from compiled programs and networks.
    matches=lambda source: source.data is None and source.target is not None and is_memory_target(source.target),
    open=_open,
    targets=TargetFamily(
        "graphs whose tensors are spread over banks",
        "bank mapping",
        "inferentia",
        "the dimension along which each tensor is spread over banks",
        load_target,
        target_names,
        lambda target: f"{target.banks} banks, {target.scratchpad.capacity / 2**20:g} MiB scratchpad",
    ),
    claims=_claims,
)
