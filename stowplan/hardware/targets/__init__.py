"""What a target is: its memories, copy engines and speeds, and what XLA calls things on it.

Targets are loaded by name or from a file, :func:`load_target`. The file format is in ``docs/reference/targets.md``.
"""

from __future__ import annotations

from typing import Literal

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

#: Memory spaces of fast memories in XLA's layouts: TPU v4's, and that of later chips.
CMEM, VMEM = 3, 1


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


#: Ways of setting knobs that act on some chip and may be idle on another.
KnobName = Literal["order", "preload", "overlap", "eagerness", "capacity", "slices"]

#: Flags that change the program before its memory-space assignment.
FlagName = Literal["scoped_half", "scoped_double", "no_conv_input_fusion", "scavenge", "bundle_aware"]

#: Predictors of cycles that come with the package, by the chip that each was learned on.
PredictorName = Literal["tpu-v4", "tpu-v5e", "tpu-v6e", "tpu-7x"]


class XlaChip(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What XLA and libtpu call things on a chip: all that differs from chip to chip stands here."""

    topology: str
    """The smallest one with the chip, by libtpu's name."""
    accelerator: str
    """Type of the accelerator, as ``TPU_ACCELERATOR_TYPE`` takes it."""
    fast_space: int
    """Memory space of the fast memory in layouts, ``S(n)``."""
    steers: tuple[KnobName, ...]
    """Knobs that are known to act on the assignment; what is idle is not tried."""
    flags: tuple[FlagName, ...] = ()
    """What is known to change programs and may make them faster."""
    harm: bool = False
    """Whether there are instructions that fast memory slows down, so that all in slow memory is worth a compile."""
    predictor: PredictorName | None = None
    """What predicts cycles that no compile has shown; None for that of TPU v4 or v5e, by the kind of fast memory."""
    scoped: Bytes | None = None
    """Part of the fast memory that kernels keep for themselves by default, where it is one with theirs (the scoped limit);
    the target's capacity is what it leaves."""
    config: str = ""
    """Configuration of the chip by libtpu's name, where it has several."""
    copy_engines: int = 4
    """Copies that are under way at once. They share the bandwidth of slow memory."""
    link_bandwidth: BytesPerSecond | None = None
    """Of a link to a neighbouring chip, one way; collectives cost nothing where it is not known."""
    host_bandwidth: BytesPerSecond = BytesPerSecond(16_000_000_000)
    """Of the link to the host, one way; assumed where it is not said."""

    @property
    def machine(self) -> str:
        """What results of compiles are kept under."""
        return f"{self.topology} {self.config}".rstrip()


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
    xla: XlaChip | None = None
    """For machines that XLA compiles for ahead of time."""
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

    @property
    def fast_space(self) -> int:
        """Memory space of the fast memory in XLA's layouts; that of CMEM where XLA is not known to compile for the machine."""
        return CMEM if self.xla is None else self.xla.fast_space

    @property
    def predictor(self) -> PredictorName:
        """The predictor of cycles that was learned on the machine, or on the one that is most like it."""
        named = None if self.xla is None else self.xla.predictor
        return named or ("tpu-v5e" if self.fast_space == VMEM else "tpu-v4")

    def with_capacity(self, capacity: int) -> Target:
        """The same target with ``capacity`` bytes of fast memory; raises InputError where that is below 1."""
        return msgspec.structs.replace(self, fast_memory=msgspec.structs.replace(self.fast_memory, capacity=Bytes(capacity)))

    def cycles_ps(self, cycles: int) -> int:
        """Duration of ``cycles`` clock cycles, ps."""
        return duration_ps(cycles, self.clock)


__all__ = ["CopyEngine", "FastMemory", "Roofline", "Target", "decode_target", "load_target", "target_names"]

_FILES = TargetFiles(Target, __name__, FORMAT, VERSION)

target_names, load_target, decode_target = _FILES.names, _FILES.load, _FILES.decode


def xla_chip(target: Target | str) -> XlaChip:
    """What XLA calls things on a target.

    Raises
    ------
    UsageError
        A target that XLA is not known to compile for ahead of time.
    InputError
        An unknown name.
    """
    loaded = load_target(target) if isinstance(target, str) else target
    if loaded.xla is None:
        known = ", ".join(name for name in target_names() if load_target(name).xla is not None)
        raise UsageError(f"found target {loaded.name!r}, expected one that XLA compiles for: {known}")
    return loaded.xla


def fast_space_of(target: str) -> int:
    """Memory space of the fast memory in XLA's layouts, by a target's name; that of CMEM where no such TPU is known."""
    return load_target(target).fast_space if target in target_names() else CMEM
