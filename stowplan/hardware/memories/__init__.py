"""Descriptions of devices with several memories, such as microcontrollers, for banked packing.

The memories are called *banks*. Descriptions have their sizes and costs of access, and come from files such as
``stm32h743.toml``. :func:`target_names` returns the names of the devices in this package. :func:`load_target` loads a device by
its name or the path of a file; it raises InputError if the device is missing or not valid.
"""

from __future__ import annotations

import msgspec

from stowplan.errors import InputError
from stowplan.hardware.targets.toml_files import Bytes, TargetFiles, is_path

#: Values of the fields ``format`` and ``version`` of target files.
FORMAT, VERSION = "stowplan.memory_target", 1


class NoBytes(Bytes, example="4 KiB", units=Bytes.units, least=0):
    """A number of bytes that may be zero."""


class Memory(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A bank of memory."""

    name: str
    """Name, which no other bank of the device has."""
    capacity: Bytes
    """Size of the bank."""
    cost: int
    """Cost of reading or writing one byte, in any unit that all banks of the device share, such as clock cycles."""
    alignment: Bytes = Bytes(1)
    """Offsets in the bank are multiples of this, and sizes of tensors are rounded up to multiples of it."""
    reserved: NoBytes = NoBytes(0)
    """Bytes at the bank's lowest addresses that tensors may not occupy."""


class MemoryTarget(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A device with several banks of memory. Construction raises InputError if a value is out of range."""

    name: str
    """Name of the target."""
    description: str
    """A description in a line, for people."""
    banks: tuple[Memory, ...]
    """The banks, at least one."""
    format: str = FORMAT
    version: int = VERSION

    def __post_init__(self) -> None:
        names = {bank.name for bank in self.banks}
        if not self.banks or len(names) < len(self.banks):
            raise InputError(
                f"found {len(self.banks)} of {len(names)} names, expected one or more, each of its own", place="banks"
            )
        for number, bank in enumerate(self.banks):
            place = f"banks[{number}] ({bank.name})"
            if not 0 <= bank.cost < 1 << 30:
                raise InputError(f"found the cost {bank.cost}, expected 0 to {(1 << 30) - 1} for each byte", place=place)
            if bank.reserved >= bank.capacity:
                expected = f"less than the capacity, {bank.capacity}"
                raise InputError(f"found {bank.reserved} reserved bytes, expected {expected}", place=place)


_FILES = TargetFiles(MemoryTarget, __name__, FORMAT, VERSION)
load_target, target_names = _FILES.load, _FILES.names


def is_memory_target(name_or_path: object) -> bool:
    """Whether a target, given by name or path, is a device with banks; False for None, and if the file cannot be read.

    A file that mentions the format of such devices counts as one even if it is not valid, so that loading it reports the fault.
    """
    target = str(name_or_path or "")
    if not is_path(target):
        return target in target_names()
    try:
        load_target(target)
    except InputError as error:
        return error.place != "format" and _mentions_format(target)
    return True


def _mentions_format(path: str) -> bool:
    """Whether a file contains the name of the format in its first 64 KiB."""
    try:
        with open(path, "rb") as stream:
            return FORMAT.encode() in stream.read(1 << 16)
    except OSError:
        return False
