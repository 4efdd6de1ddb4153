"""The answer: places in the list."""

from __future__ import annotations

from pathlib import Path

import msgspec

from stowplan import files


class Plan(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Places in the list."""

    problem: str
    objective: int
    chosen: tuple[int, ...]
    target: str = ""
    format: str = "stowplan.sums.plan"
    version: int = 1

    def save(self, path: str | Path) -> None:
        files.write_atomic(path, files.encode(self))


def decode(data: bytes, source: str | Path | None = None) -> Plan:
    return files.decode(data, Plan, format_name="stowplan.sums.plan", version=1, source=source)
