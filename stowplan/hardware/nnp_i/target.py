"""What a chip with tiers of memory is: tiers, speeds and overhead, read from a TOML file such as ``nnp-i.toml``."""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import get_args

import msgspec

from stowplan import files
from stowplan.errors import InputError
from stowplan.hardware.network import Layer, Precision
from stowplan.hardware.targets import MAX_TARGET_BYTES
from stowplan.hardware.targets.units import (
    Bytes,
    BytesPerSecond,
    ElementsPerSecond,
    FlopsPerSecond,
    Picoseconds,
    decode_hook,
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
        return tuple(each for each in get_args(Precision) if each in self.compute)

    def speed(self, precision: Precision) -> Compute:
        """Speeds in a precision; raises InputError where the target has none."""
        if precision not in self.compute:
            found = ", ".join(self.precisions)
            raise InputError(f"found precision {precision!r}, expected one of {found} (of target {self.name})")
        return self.compute[precision]

    def compute_ps(self, layer: Layer, precision: Precision) -> int:
        """Time a layer takes were memory infinitely fast, ps."""
        speed = self.speed(precision)
        if layer.macs:
            return duration_ps(2 * layer.macs, speed.matrix)
        if layer.op in MOVES:
            return 0
        return duration_ps(max(layer.input_elements, layer.output_elements), speed.vector)


def target_names() -> tuple[str, ...]:
    """Names of the targets with tiers that come with the package, sorted."""
    files_here = resources.files(__package__).iterdir()
    return tuple(sorted(entry.name.removesuffix(".toml") for entry in files_here if entry.name.endswith(".toml")))


def load_target(name_or_path: str | Path) -> TierTarget:
    """Target of this name, or from a TOML file of this path (it ends in ``.toml`` or has a path separator in it).

    Raises
    ------
    InputError
        An unknown name, a missing file, not TOML, a field that is missing, unknown or out of range.
    """
    if isinstance(name_or_path, Path) or name_or_path.endswith(".toml") or "/" in name_or_path or "\\" in name_or_path:
        return decode_target(files.read_bytes(name_or_path, MAX_TARGET_BYTES), source=name_or_path)
    if name_or_path not in target_names():
        known = ", ".join(target_names())
        raise InputError(f"found target {name_or_path!r}, expected one of {known}, or the path of a .toml file")
    file = f"{name_or_path}.toml"
    return decode_target((resources.files(__package__) / file).read_bytes(), source=file)


def decode_target(data: bytes, source: str | Path | None = None) -> TierTarget:
    """Target from the bytes of a TOML file; raises InputError as :func:`load_target` does."""
    try:
        head = msgspec.toml.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InputError(f"not a TOML file: {error}", source=source) from error
    for key, expected in (("format", FORMAT), ("version", VERSION)):
        if head.get(key) != expected:
            raise InputError(f"found {head.get(key)!r}, expected {expected!r}", source=source, place=key)
    try:
        return msgspec.convert(head, TierTarget, dec_hook=decode_hook)
    except msgspec.ValidationError as error:
        message, _, path = str(error).partition(" - at `")
        raise InputError(message, source=source, place=path.rstrip("`").removeprefix("$.") or None) from error
    except InputError as error:
        raise (error if source is None else error.within(source)) from None
