"""Files of devices: peak rates of arithmetic and of memory, from which operators' seconds are estimated. Needs no torch."""

from __future__ import annotations

from pathlib import Path

import msgspec

from stowplan.errors import InputError
from stowplan.hardware.targets.toml_files import BytesPerSecond, FlopsPerSecond, TargetFiles


class Device(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Peak rates of a device. Construction raises InputError without a rate of arithmetic."""

    name: str
    description: str
    bandwidth: BytesPerSecond
    """Of the device's memory."""
    compute: dict[str, FlopsPerSecond]
    """Of dense matrix products, by the type of elements: ``float32``; ``tf32`` is that of float32 where torch may round it."""
    format: str = "stowplan.torch-device"
    version: int = 1

    def __post_init__(self) -> None:
        if not self.compute:
            raise InputError("found no rates, expected one of a type of elements, such as float32", place="compute")


FILES = TargetFiles(Device, __name__, "stowplan.torch-device", noun="costs")


def device(name_or_path: str | Path) -> Device:
    """Device of this name, or of a TOML file of this path.

    Raises
    ------
    InputError
        An unknown name, a missing file, not TOML, a field that is missing, unknown or out of range.
    """
    return FILES.load(name_or_path)
