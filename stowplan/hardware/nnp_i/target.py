"""Descriptions of chips with tiers of memory: tiers, speeds and overhead, from TOML files such as ``nnp-i.toml``."""

from __future__ import annotations

from typing import get_args

import msgspec

from stowplan.errors import InputError
from stowplan.hardware.network import Layer, Precision
from stowplan.hardware.targets.toml_files import (
    Bytes,
    BytesPerSecond,
    ElementsPerSecond,
    FlopsPerSecond,
    Picoseconds,
    TargetFiles,
    duration_ps,
)

FORMAT = "stowplan.tier_target"
VERSION = 1

#: Operations that only move data: they take no computation time.
MOVES = frozenset({"view", "reshape", "transpose", "concat", "slice", "pad", "embedding", "gather"})


class Memory(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A tier of memory."""

    name: str
    capacity: Bytes
    bandwidth: BytesPerSecond
    alignment: Bytes = Bytes(1)


class Compute(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Computation speeds in one precision."""

    matrix: FlopsPerSecond
    """Speed of convolutions and matrix products; a multiply-accumulate counts as two operations."""
    vector: ElementsPerSecond
    """Speed of all other operations; the number of elements is that of inputs or of outputs, whichever is larger."""


class Overhead(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Fixed parts of durations."""

    layer: Picoseconds
    """Fixed part of the duration of every layer."""


class TierTarget(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A chip for tier placement. Construction raises InputError if it has no precision."""

    name: str
    description: str
    tiers: tuple[Memory, ...]
    """Tiers of memory, the slowest one first."""
    compute: dict[Precision, Compute]
    overhead: Overhead
    format: str = FORMAT
    version: int = VERSION

    def __post_init__(self) -> None:
        if not self.compute:
            raise InputError("found no precisions, expected at least one", place="compute")

    @property
    def precisions(self) -> tuple[Precision, ...]:
        """Precisions that the target has speeds for, the narrowest one first."""
        return tuple(precision for precision in get_args(Precision) if precision in self.compute)

    def speed(self, precision: Precision) -> Compute:
        """Speeds in a precision; raises InputError if the target has none."""
        if precision not in self.compute:
            known = ", ".join(self.precisions)
            raise InputError(f"found precision {precision!r}, expected one of {known} (of target {self.name})")
        return self.compute[precision]

    def compute_ps(self, layer: Layer, precision: Precision) -> int:
        """Computation time of a layer in ps, without memory traffic."""
        speed = self.speed(precision)
        if layer.macs:
            return duration_ps(2 * layer.macs, speed.matrix)
        if layer.op in MOVES:
            return 0
        return duration_ps(max(layer.input_elements, layer.output_elements), speed.vector)


_FILES = TargetFiles(TierTarget, __name__.rpartition(".")[0], FORMAT, VERSION)

target_names, load_target, decode_target = _FILES.names, _FILES.load, _FILES.decode
