"""Descriptions of chips with tiers of memory, for tier placement: tiers, speeds and overhead, from TOML files such as
``nnp-i.toml``.

:func:`target_names` returns the names of the targets that come with this package. :func:`load_target` loads a target by its
name or the path of a file, and :func:`decode_target` decodes the contents of a file. Both raise InputError for a target that is
missing or not valid.
"""

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

#: Values of the fields ``format`` and ``version`` of target files.
FORMAT = "stowplan.tier_target"
VERSION = 1

#: Operations that only move data, so that they take no computation time.
MOVES = frozenset({"view", "reshape", "transpose", "concat", "slice", "pad", "embedding", "gather"})


class Memory(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A tier of memory."""

    name: str
    """Name of the tier."""
    capacity: Bytes
    """Size of the tier."""
    bandwidth: BytesPerSecond
    """Bandwidth of reads and writes."""
    alignment: Bytes = Bytes(1)
    """Offsets in the tier are multiples of this, if plans have offsets."""


class Compute(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Computation speeds in one precision."""

    matrix: FlopsPerSecond
    """Speed of convolutions and matrix products; a multiply-accumulate counts as two operations."""
    vector: ElementsPerSecond
    """Speed of all other operations. The number of their elements is that of inputs or of outputs, whichever is larger."""


class Overhead(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Fixed parts of durations."""

    layer: Picoseconds
    """Fixed part of the duration of every layer."""


class TierTarget(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A chip for tier placement. Construction raises InputError if it has no tiers, or speeds for no precision."""

    name: str
    """Name of the target."""
    description: str
    """A description in a line, for people."""
    tiers: tuple[Memory, ...]
    """Tiers of memory, the slowest one first."""
    compute: dict[Precision, Compute]
    """Computation speeds for each precision."""
    overhead: Overhead
    """Fixed parts of durations."""
    format: str = FORMAT
    version: int = VERSION

    def __post_init__(self) -> None:
        if not self.tiers:
            raise InputError("found no tiers, expected at least one", place="tiers")
        if not self.compute:
            raise InputError("found no precisions, expected at least one", place="compute")

    @property
    def precisions(self) -> tuple[Precision, ...]:
        """The precisions for which the target has speeds, the narrowest one first."""
        return tuple(precision for precision in get_args(Precision) if precision in self.compute)

    def speed(self, precision: Precision) -> Compute:
        """The speeds in a precision; raises InputError if the target has none."""
        if precision not in self.compute:
            known = ", ".join(self.precisions)
            raise InputError(f"found precision {precision!r}, expected one of {known} (of target {self.name})")
        return self.compute[precision]

    def compute_ps(self, layer: Layer, precision: Precision) -> int:
        """The computation time of a layer in ps, without memory traffic; 0 if the layer only moves data. Raises InputError if
        the target has no speeds for the precision."""
        speed = self.speed(precision)
        if layer.macs:
            return duration_ps(2 * layer.macs, speed.matrix)
        if layer.op in MOVES:
            return 0
        return duration_ps(max(layer.input_elements, layer.output_elements), speed.vector)


_FILES = TargetFiles(TierTarget, __name__.rpartition(".")[0], FORMAT, VERSION)

target_names, load_target, decode_target = _FILES.names, _FILES.load, _FILES.decode
