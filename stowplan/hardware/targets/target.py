"""What a target is: its memories, copy engines and speeds. The file format is in ``docs/reference/targets.md``."""

from __future__ import annotations

from typing import Literal

import msgspec

from stowplan.errors import InputError
from stowplan.hardware.targets.toml_files import (
    Bytes,
    BytesPerSecond,
    ElementsPerSecond,
    FlopsPerSecond,
    Hertz,
    Picoseconds,
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
