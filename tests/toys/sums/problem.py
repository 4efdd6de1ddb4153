"""The instance: numbers."""

from __future__ import annotations

import hashlib
from pathlib import Path

import msgspec

from stowplan import files


class Problem(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Two numbers of the list shall be chosen, the smaller their sum the better."""

    numbers: tuple[int, ...]
    name: str = "sums"
    target: str = "paper"
    cost_model: str = "sum"
    format: str = "stowplan.sums.problem"
    version: int = 1

    @property
    def digest(self) -> str:
        return hashlib.sha256(repr(self.numbers).encode()).hexdigest()

    def save(self, path: str | Path) -> None:
        files.write_atomic(path, files.encode(self))


def decode(data: bytes, source: str | Path | None = None) -> Problem:
    return files.decode(data, Problem, format_name="stowplan.sums.problem", version=1, source=source)
