"""The answer to a bank-mapping problem: how everything is computed, what stays on chip, the copies. Plain data, no rules."""

from __future__ import annotations

from pathlib import Path

import msgspec

from stowplan import files

FORMAT = "stowplan.bank_mapping.plan"
VERSION = 1


class BankCopy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A memcopy between banks: a tensor that stays on chip, in another layout."""

    tensor: int
    layout: int
    """What it makes; it copies from the tensor's own layout."""
    before: int
    """Number of the operator it runs before."""


class Plan(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Choices; :func:`stowplan.models.bank_mapping.verify.verify` says whether they are valid."""

    problem: str
    """Digest of the problem it is for."""
    objective: int
    """Weighted bytes moved between banks and to and from main memory."""
    options: tuple[int, ...]
    """For each operator, which of its options."""
    layouts: tuple[int, ...]
    """For each tensor its own layout."""
    on_chip: tuple[bool, ...]
    """For each tensor, whether it stays on chip from its first use to its last."""
    copies: tuple[BankCopy, ...] = ()
    """Ascending by operator."""
    name: str = ""
    """Name of the problem, for people; the digest decides."""
    target: str = ""
    """Name of the target, for people."""
    format: str = FORMAT
    version: int = VERSION

    def save(self, path: str | Path) -> None:
        """Write the plan as JSON. The same plan gives the same bytes."""
        files.write_atomic(path, files.encode(self))


def load(path: str | Path) -> Plan:
    """Read a plan file; raises :class:`~stowplan.errors.InputError` naming file and field."""
    return decode(files.read_bytes(path), source=path)


def decode(data: bytes, source: str | Path | None = None) -> Plan:
    """Plan from JSON bytes; raises :class:`~stowplan.errors.InputError` naming source and field."""
    return files.decode(data, Plan, format_name=FORMAT, version=VERSION, source=source)
