"""What a device with several memories is: banks with sizes and costs of access, read from a file such as ``stm32h743.toml``."""

from __future__ import annotations

import msgspec

from stowplan.errors import InputError
from stowplan.hardware.targets.toml_files import Bytes, TargetFiles, is_path

FORMAT, VERSION = "stowplan.memory_target", 1


class NoBytes(Bytes, example="4 KiB", units=Bytes.units, least=0):
    """Bytes; zero is allowed."""


class Memory(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A bank."""

    name: str
    capacity: Bytes
    cost: int
    """Of one byte read or written, in any unit: cycles of a core, or what an access takes in a fast bank."""
    alignment: Bytes = Bytes(1)
    """Offsets in it are multiples of this, and a tensor takes a multiple of it."""
    reserved: NoBytes = NoBytes(0)
    """At its bottom, for something else."""


class MemoryTarget(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A device with banks. Construction raises InputError where a value makes no sense."""

    name: str
    description: str
    banks: tuple[Memory, ...]
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
    """Whether a target, by name or path, is one with banks; false for one that cannot be read."""
    target = str(name_or_path or "")
    if not is_path(target):
        return target in target_names()
    try:
        load_target(target)
    except InputError as error:
        # A file that says that it is one is one, whatever else is wrong with it: its error is the one to show.
        return error.place != "format" and _says_so(target)
    return True


def _says_so(path: str) -> bool:
    try:
        with open(path, "rb") as stream:
            return FORMAT.encode() in stream.read(1 << 16)
    except OSError:
        return False
