"""The answer to a tier-placement problem: a tier, and maybe an offset, for every tensor. Plain data, no rules."""

from __future__ import annotations

from pathlib import Path

import msgspec

from stowplan import files

FORMAT = "stowplan.tier_placement.plan"
VERSION = 1


class Plan(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A memory map; :func:`stowplan.models.tier_placement.verify.verify` says whether it is valid.

    All tuples have an entry for each layer, in the problem's order. What is said of weights of 0 bytes is of no consequence;
    it is 0 by custom.
    """

    problem: str
    """Digest of the problem it is for."""
    objective_ps: int
    """Latency of the network."""
    weight_tiers: tuple[int, ...]
    """Number of the tier of each layer's weights."""
    output_tiers: tuple[int, ...]
    """Number of the tier of each layer's output activation."""
    weight_offsets: tuple[int, ...] = ()
    """Bytes from the start of the tier; empty where tiers are no address spaces."""
    output_offsets: tuple[int, ...] = ()
    name: str = ""
    """Name of the network, for people; the digest decides."""
    target: str = ""
    tiers: tuple[str, ...] = ()
    """Names of the tiers, for whoever applies or reads the plan; the numbers decide."""
    layers: tuple[str, ...] = ()
    """Names of the layers, likewise."""
    format: str = FORMAT
    version: int = VERSION

    def save(self, path: str | Path) -> None:
        """Write the plan as JSON; the same plan gives the same bytes."""
        files.write_atomic(path, files.encode(self))


def load(path: str | Path) -> Plan:
    """Read a plan file; raises :class:`~stowplan.errors.InputError` naming file and field."""
    return decode(files.read_bytes(path), source=path)


def decode(data: bytes, source: str | Path | None = None) -> Plan:
    """Plan from JSON bytes; raises :class:`~stowplan.errors.InputError` naming source and field."""
    return files.decode(data, Plan, format_name=FORMAT, version=VERSION, source=source)
