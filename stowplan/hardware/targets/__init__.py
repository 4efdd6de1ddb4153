"""Descriptions of machines with a slow and a fast memory: sizes, copy engines, speeds, and what XLA needs to compile for them.

:func:`load_target` loads a target by its name or from a file, :func:`decode_target` decodes the contents of a file, and
:func:`target_names` returns the names of the targets in this package. The first two raise InputError for a target that is
missing or not valid. ``docs/reference/targets.md`` describes the file format.
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

#: Values of the fields ``format`` and ``version`` of target files.
FORMAT = "stowplan.target"
VERSION = 1

#: Numbers of the memory spaces of fast memories in XLA's layouts: CMEM of TPU v4, and VMEM of later chips.
CMEM, VMEM = 3, 1


class FastMemory(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The fast memory, in which software decides the place of each tensor."""

    capacity: Bytes
    """Its size."""
    alignment: Bytes
    """Every offset is a multiple of this."""
    capacity_options: tuple[Bytes, ...] = ()
    """Suggestions of other capacities, for people and benchmarks; any capacity is allowed."""
    max_preloads: int = 0
    """Largest number of program inputs that may be in fast memory when the program starts."""


class CopyEngine(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Hardware that copies data between slow and fast memory while the program runs."""

    in_bandwidth: BytesPerSecond
    """Bandwidth of a copy to fast memory."""
    out_bandwidth: BytesPerSecond
    """Bandwidth of a copy to slow memory."""
    channels: int
    """Largest number of copies at the same time; each has the full bandwidth."""
    latency: Picoseconds
    """Fixed part of the duration of every copy."""

    def in_ps(self, size: int) -> int:
        """Time in ps to copy ``size`` bytes to fast memory on an idle channel."""
        return self.latency + duration_ps(size, self.in_bandwidth)

    def out_ps(self, size: int) -> int:
        """Time in ps to copy ``size`` bytes to slow memory on an idle channel."""
        return self.latency + duration_ps(size, self.out_bandwidth)


class Roofline(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Parameters of the roofline model, :mod:`stowplan.hardware.costs.roofline`; bandwidths are those of one instruction."""

    slow_read_bandwidth: BytesPerSecond
    """Bandwidth of reads from slow memory."""
    slow_write_bandwidth: BytesPerSecond
    """Bandwidth of writes to slow memory."""
    fast_read_bandwidth: BytesPerSecond
    """Bandwidth of reads from fast memory."""
    fast_write_bandwidth: BytesPerSecond
    """Bandwidth of writes to fast memory."""
    vector_bandwidth: BytesPerSecond
    """Largest bandwidth at which a step without a matrix product can read, from both memories together."""
    compute: FlopsPerSecond
    """Speed of convolutions and matrix products; a multiply-accumulate counts as two operations."""
    elementwise: ElementsPerSecond
    """Speed of all other operations."""
    overhead: Picoseconds
    """Fixed part of the duration of every step."""


#: Names of compiler settings (*knobs*) that change XLA's memory-space assignment, the pass that decides which tensors are in
#: fast memory, on some chips. On other chips they have no effect.
KnobName = Literal["order", "preload", "overlap", "eagerness", "capacity", "slices"]

#: Names of compiler flags that change the program before XLA's memory-space assignment.
FlagName = Literal["scoped_half", "scoped_double", "no_conv_input_fusion", "scavenge", "bundle_aware"]

#: Names of the predictors of cycles in the package; each is named after the chip for which it was trained.
PredictorName = Literal["tpu-v4", "tpu-v5e", "tpu-v6e", "tpu-7x"]


class XlaChip(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Names and properties of a chip for XLA and libtpu: everything that differs between the chips that they compile for."""

    topology: str
    """libtpu's name of the smallest topology with the chip."""
    accelerator: str
    """Type of the accelerator, a value of ``TPU_ACCELERATOR_TYPE``."""
    fast_space: int
    """Number ``n`` of the memory space of fast memory in layouts, as in ``S(n)``."""
    steers: tuple[KnobName, ...]
    """Knobs that are known to change the memory-space assignment of programs for this chip; other knobs are not tried."""
    flags: tuple[FlagName, ...] = ()
    """Flags that are known to change programs for this chip and may make them faster; other flags are not tried."""
    harm: bool = False
    """Whether fast memory makes some instructions slower, so that a compilation with all data in slow memory is worth a try."""
    predictor: PredictorName | None = None
    """Predictor of cycles for choices of memories that no compiled module has (:mod:`stowplan.hardware.costs.signatures`). None
    means that of TPU v4 if the fast memory is CMEM, and that of TPU v5e if it is VMEM."""
    scoped: Bytes | None = None
    """The part of the fast memory that kernels reserve for their own data by default (XLA's scoped memory limit), on chips on
    which kernels use the same memory. The target's capacity is the remaining part."""
    config: str = ""
    """libtpu's name of the chip's configuration if there are several; otherwise empty."""
    copy_engines: int = 4
    """Largest number of copies at the same time. They share the bandwidth of slow memory."""
    link_bandwidth: BytesPerSecond | None = None
    """Bandwidth of a link to a neighbouring chip, in one direction. None if it is not known; then collective operations
    between chips cost nothing."""
    host_bandwidth: BytesPerSecond = BytesPerSecond(16_000_000_000)
    """Bandwidth of the link to the host, in one direction; the default is an assumption."""

    @property
    def machine(self) -> str:
        """Name of the machine under which results of compilations are stored: the topology, and the configuration if there is
        one."""
        return f"{self.topology} {self.config}".rstrip()


class Target(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A machine with a slow and a fast memory. Construction raises InputError if a value is out of range."""

    name: str
    """Name of the target."""
    description: str
    """A description in a line, for people."""
    clock: Hertz
    """Clock rate, by which cycles are converted to time."""
    fast_memory: FastMemory
    """The fast memory."""
    copies: CopyEngine
    """The hardware that copies between the memories."""
    roofline: Roofline
    """Parameters of the roofline model."""
    stalls: Literal["forbidden", "allowed"] = "allowed"
    """Whether the program may wait for copies; the default of problems for this target."""
    cost_model: Literal["roofline", "table", "measured", "signatures"] = "roofline"
    """The default cost model of problems for this target."""
    xla: XlaChip | None = None
    """Properties for XLA; None if XLA is not known to compile ahead of time for the machine."""
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
        """Number of the memory space of fast memory in XLA's layouts; that of CMEM if the target has no properties for XLA."""
        return CMEM if self.xla is None else self.xla.fast_space

    @property
    def predictor(self) -> PredictorName:
        """The predictor of cycles that was trained for the machine, or for the most similar one."""
        named = None if self.xla is None else self.xla.predictor
        return named or ("tpu-v5e" if self.fast_space == VMEM else "tpu-v4")

    def with_capacity(self, capacity: int) -> Target:
        """The same target with ``capacity`` bytes of fast memory; raises InputError if that is less than 1."""
        return msgspec.structs.replace(self, fast_memory=msgspec.structs.replace(self.fast_memory, capacity=Bytes(capacity)))

    def cycles_ps(self, cycles: int) -> int:
        """Duration of ``cycles`` clock cycles in ps."""
        return duration_ps(cycles, self.clock)


__all__ = ["CopyEngine", "FastMemory", "Roofline", "Target", "decode_target", "load_target", "target_names"]

_FILES = TargetFiles(Target, __name__, FORMAT, VERSION)

target_names, load_target, decode_target = _FILES.names, _FILES.load, _FILES.decode


def xla_chip(target: Target | str) -> XlaChip:
    """The properties for XLA of a target, which is given itself or by its name.

    Raises
    ------
    UsageError
        XLA is not known to compile ahead of time for the target.
    InputError
        There is no target with this name.
    """
    loaded = load_target(target) if isinstance(target, str) else target
    if loaded.xla is None:
        known = ", ".join(name for name in target_names() if load_target(name).xla is not None)
        raise UsageError(f"found target {loaded.name!r}, expected one that XLA compiles for: {known}")
    return loaded.xla


def fast_space_of(target: str) -> int:
    """Number of the memory space of a target's fast memory in XLA's layouts; that of CMEM if there is no such target."""
    return load_target(target).fast_space if target in target_names() else CMEM
