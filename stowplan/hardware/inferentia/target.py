"""Descriptions of chips with banked on-chip memory, from TOML files such as ``inferentia.toml``.

A *bank* is one of many equal parts of the on-chip memory that work in parallel. :func:`target_names` returns the names of the
targets that come with this package. :func:`load_target` loads a target by its name or the path of a file, and
:func:`decode_target` decodes the contents of a file. Both raise InputError for a target that is missing or not valid.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from stowplan import files
from stowplan.errors import InputError
from stowplan.hardware.targets.toml_files import MAX_TARGET_BYTES, Bytes, BytesPerSecond, TargetFiles, decode_toml, is_path

#: Values of the fields ``format`` and ``version`` of target files.
FORMAT = "stowplan.bank_target"
VERSION = 1


class Scratchpad(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """On-chip memory."""

    capacity: Bytes
    """Capacity of all banks together."""
    tile: Bytes | None = None
    """Larger tensors are split into tiles of at most this size, each of which is on chip or not; None to split no tensor."""
    stream_buffer: Bytes | None = None
    """Part of the capacity that is reserved for data that operators stream from and to main memory; None to reserve nothing."""


class Bandwidth(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Bandwidths of copies."""

    between_banks: BytesPerSecond
    """Bandwidth of copies between banks."""
    main_memory: BytesPerSecond
    """Bandwidth of copies from and to main memory."""


class BankTarget(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A chip for bank mapping. Construction raises InputError if a value is out of range."""

    name: str
    """Name of the target."""
    description: str
    """A description in a line, for people."""
    banks: int
    """Number of banks of the on-chip memory."""
    scratchpad: Scratchpad
    """The on-chip memory."""
    bandwidth: Bandwidth
    """Bandwidths of copies."""
    format: str = FORMAT
    version: int = VERSION

    def __post_init__(self) -> None:
        if not 1 <= self.banks <= 1 << 20:
            raise InputError(f"found {self.banks}, expected 1 to {1 << 20}", place="banks")
        buffer = self.scratchpad.stream_buffer
        if buffer is not None and buffer > self.scratchpad.capacity:
            raise InputError(
                f"found {buffer} bytes, expected at most the capacity of {int(self.scratchpad.capacity)} bytes",
                place="scratchpad.stream_buffer",
            )

    @property
    def weights(self) -> tuple[int, int]:
        """The costs of a byte that is copied between banks, and of a byte that is moved to or from main memory.

        They are proportional to the time for a byte. The faster of the two has cost 1, and the other cost is rounded.
        """
        slow, fast = self.bandwidth.main_memory, self.bandwidth.between_banks
        least = max(slow, fast)
        return max(1, round(least / fast)), max(1, round(least / slow))


_FILES = TargetFiles(BankTarget, __name__.rpartition(".")[0], FORMAT, VERSION)

target_names, load_target, decode_target = _FILES.names, _FILES.load, _FILES.decode


def is_memory_target(name_or_path: str | Path) -> bool:
    """Whether a target, given by name or path of a TOML file, is a chip with banks; False if the file cannot be read."""
    if not is_path(name_or_path):
        return name_or_path in target_names()
    try:
        return decode_toml(files.read_bytes(name_or_path, MAX_TARGET_BYTES)).get("format") == FORMAT
    except InputError:
        return False
