"""Files that describe devices: peak rates of arithmetic and memory, from which the time of operators is estimated.

Importing this package does not import torch.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from stowplan.errors import InputError
from stowplan.hardware.targets.toml_files import BytesPerSecond, FlopsPerSecond, TargetFiles


class Device(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Peak rates of a device. The constructor raises InputError if there is no rate of arithmetic."""

    name: str
    """The name by which users select the device, for example ``h100``."""
    description: str
    """One line that says which device it is."""
    bandwidth: BytesPerSecond
    """Bytes per second of the device's memory."""
    compute: dict[str, FlopsPerSecond]
    """Floating-point operations per second of dense matrix products, by the type of elements, such as ``float32``. ``tf32`` is
    used for float32 if torch may round it."""
    format: str = "stowplan.torch-device"
    version: int = 1

    def __post_init__(self) -> None:
        if not self.compute:
            raise InputError("found no rates, expected one of a type of elements, such as float32", place="compute")


#: The files of devices that come with the package.
FILES = TargetFiles(Device, __name__, "stowplan.torch-device", noun="costs")


def device(name_or_path: str | Path) -> Device:
    """Loads a device by its name, or from a TOML file by its path.

    Raises
    ------
    InputError
        The name is unknown, the file is missing or is not TOML, or a field is missing, unknown or out of range.
    """
    return FILES.load(name_or_path)
