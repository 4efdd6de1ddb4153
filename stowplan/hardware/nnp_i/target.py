"""What a chip with tiers of memory is: tiers, speeds and overhead, read from a TOML file such as ``nnp-i.toml``."""

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

#: Operations that only move data: they take the time of their bytes and no more.
MOVES = frozenset({"view", "reshape", "transpose", "concat", "slice", "pad", "embedding", "gather"})


class Memory(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A tier."""

    name: str
    capacity: Bytes
    bandwidth: BytesPerSecond
    alignment: Bytes = Bytes(1)


class Compute(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Speed in one precision."""

    matrix: FlopsPerSecond
    """Of convolutions and matrix products, two operations a multiply-accumulate."""
    vector: ElementsPerSecond
    """Of everything else, by the larger of elements read and written."""


class Overhead(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Fixed times, ps."""

    layer: Picoseconds
    """On top of every layer."""


class TierTarget(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A chip for tier placement. Construction raises InputError where a value makes no sense."""

    name: str
    description: str
    tiers: tuple[Memory, ...]
    """Slowest first."""
    compute: dict[Precision, Compute]
    overhead: Overhead
    format: str = FORMAT
    version: int = VERSION

    def __post_init__(self) -> None:
        if not self.compute:
            raise InputError("found no precisions, expected at least one", place="compute")

    @property
    def precisions(self) -> tuple[Precision, ...]:
        """Precisions the target has speeds for, narrowest first."""
        return tuple(precision for precision in get_args(Precision) if precision in self.compute)

    def speed(self, precision: Precision) -> Compute:
        """Speeds in a precision; raises InputError where the target has none."""
        if precision not in self.compute:
            known = ", ".join(self.precisions)
            raise InputError(f"found precision {precision!r}, expected one of {known} (of target {self.name})")
        return self.compute[precision]

    def compute_ps(self, layer: Layer, precision: Precision) -> int:
        """Time a layer takes were memory infinitely fast, ps."""
        speed = self.speed(precision)
        if layer.macs:
            return duration_ps(2 * layer.macs, speed.matrix)
        if layer.op in MOVES:
            return 0
        return duration_ps(max(layer.input_elements, layer.output_elements), speed.vector)


_FILES = TargetFiles(TierTarget, __name__.rpartition(".")[0], FORMAT, VERSION)

target_names, load_target, decode_target = _FILES.names, _FILES.load, _FILES.decode
