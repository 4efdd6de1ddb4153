"""What a target is: its memories, copy engines and speeds, and what XLA calls things on it.

Targets are loaded by name or from a file, :func:`load_target`. The file format is in ``docs/reference/targets.md``.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import msgspec

from stowplan.errors import InputError, UsageError
from stowplan.hardware.targets.toml_files import (
    Bytes,
    BytesPerSecond,
    ElementsPerSecond,
    FlopsPerSecond,
    Hertz,
    Picoseconds,
    TargetFiles,
    duration_ps,
)

FORMAT = "stowplan.target"
VERSION = 1


class FastMemory(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The memory that software manages."""

    capacity: Bytes
    alignment: Bytes
    """Every offset is a multiple of this."""
    capacity_options: tuple[Bytes, ...] = ()
    """Other capacities worth trying, for people and benchmarks; nothing is bound to them."""
    max_preloads: int = 0
    """How many program inputs may stand in fast memory before the program starts."""


class CopyEngine(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Copies between slow and fast memory, beside the program."""

    in_bandwidth: BytesPerSecond
    out_bandwidth: BytesPerSecond
    channels: int
    """Copies at once; each has the full bandwidth."""
    latency: Picoseconds
    """Fixed part of every copy, ps."""

    def in_ps(self, size: int) -> int:
        """Time to copy ``size`` bytes into fast memory on an idle channel, ps."""
        return self.latency + duration_ps(size, self.in_bandwidth)

    def out_ps(self, size: int) -> int:
        """Time to copy ``size`` bytes out of fast memory on an idle channel, ps."""
        return self.latency + duration_ps(size, self.out_bandwidth)


class Roofline(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Parameters of the roofline, :mod:`stowplan.hardware.costs.roofline`; bandwidths are what one instruction draws."""

    slow_read_bandwidth: BytesPerSecond
    slow_write_bandwidth: BytesPerSecond
    fast_read_bandwidth: BytesPerSecond
    fast_write_bandwidth: BytesPerSecond
    vector_bandwidth: BytesPerSecond
    """What a step without a matrix product can read at most, from whichever memory."""
    compute: FlopsPerSecond
    elementwise: ElementsPerSecond
    overhead: Picoseconds
    """Fixed part of every step, ps."""


class Target(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A machine with slow memory and fast memory. Construction raises InputError where a value makes no sense."""

    name: str
    description: str
    clock: Hertz
    fast_memory: FastMemory
    copies: CopyEngine
    roofline: Roofline
    stalls: Literal["forbidden", "allowed"] = "allowed"
    """May the program wait for copies, unless the caller says otherwise?"""
    cost_model: Literal["roofline", "table", "measured", "signatures"] = "roofline"
    """Cost model, unless the caller says otherwise."""
    format: str = FORMAT
    version: int = VERSION

    def __post_init__(self) -> None:
        if self.clock < 1:
            raise InputError(f"found {self.clock}, expected at least 1", place="clock")
        for group in ("fast_memory", "copies", "roofline"):
            part = getattr(self, group)
            for name in part.__struct_fields__:
                value, least = getattr(part, name), 0 if name in ("max_preloads", "latency", "overhead") else 1
                if isinstance(value, int) and value < least:
                    raise InputError(f"found {value}, expected at least {least}", place=f"{group}.{name}")

    def with_capacity(self, capacity: int) -> Target:
        """The same target with ``capacity`` bytes of fast memory; raises InputError where that is below 1."""
        return msgspec.structs.replace(self, fast_memory=msgspec.structs.replace(self.fast_memory, capacity=Bytes(capacity)))

    def cycles_ps(self, cycles: int) -> int:
        """Duration of ``cycles`` clock cycles, ps."""
        return duration_ps(cycles, self.clock)


class XlaChip(NamedTuple):
    """What XLA and libtpu call things on a chip: all that differs from chip to chip stands here."""

    topology: str
    """The smallest one with the chip."""
    accelerator: str
    """Type of the accelerator."""
    fast_space: int
    """Memory space of the fast memory in layouts, ``S(n)``."""
    capacity_option: str
    """KiB of fast memory that memory-space assignment may use."""
    retries_option: str
    """How often it tries again where a value does not fit."""
    overlap_option: str
    """For how many times its own time a copy had best run beside the program. The larger, the earlier it begins."""


#: Chips that XLA compiles for without their being there, by the name of their target.
XLA_CHIPS = {
    "tpu-v4": XlaChip(
        topology="v4:2x2x1",
        accelerator="v4-8",
        fast_space=3,
        capacity_option="xla_tpu_max_cmem_used_by_memory_space_assignment",
        retries_option="xla_tpu_cmem_max_retries",
        overlap_option="xla_tpu_cmem_preferred_overlap_to_async_copy_ratio",
    )
}

#: The chip of modules and options that name none.
TPU_V4 = XLA_CHIPS["tpu-v4"]


def xla_chip(target: str) -> XlaChip:
    """What XLA calls things on a target, by its name.

    Raises
    ------
    UsageError
        A target that XLA is not known to compile for ahead of time.
    """
    if target not in XLA_CHIPS:
        raise UsageError(f"found target {target!r}, expected one that XLA compiles for: {', '.join(XLA_CHIPS)}")
    return XLA_CHIPS[target]


__all__ = ["CopyEngine", "FastMemory", "Roofline", "Target", "decode_target", "load_target", "target_names"]

_FILES = TargetFiles(Target, __name__, FORMAT, VERSION)

target_names, load_target, decode_target = _FILES.names, _FILES.load, _FILES.decode
