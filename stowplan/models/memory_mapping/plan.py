"""The answer to a memory-mapping problem: residencies, copies, and which uses are fast. Plain data, no rules."""

from __future__ import annotations

from typing import Literal

import msgspec

from stowplan.models.document import Document

FORMAT = "stowplan.memory_mapping.plan"
VERSION = 1


class Residency(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Tensor ``tensor`` stands in fast memory at ``[offset, offset + size)`` bytes during the steps ``[start, end)``."""

    tensor: int
    start: int
    end: int
    offset: int
    preloaded: bool = False
    """In place before the program starts, without a copy (XLA's cross-program prefetch)."""


class Copy(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A copy queued at boundary ``start``; step ``end`` waits for it."""

    tensor: int
    direction: Literal["in", "out"]
    start: int
    end: int
    part: tuple[int, int] | None = None
    """Bytes ``[low, high)`` of the tensor, where a prefetch is made in slices; None for all of it."""

    def moved(self, size: int) -> int:
        """Bytes it moves of a tensor of that size."""
        return size if self.part is None else self.part[1] - self.part[0]


class Plan(Document, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A memory-mapping plan; :func:`stowplan.models.memory_mapping.verify.verify` says whether it is valid."""

    problem: str
    """Digest of the problem it is for."""
    objective_ps: int
    residencies: tuple[Residency, ...] = ()
    copies: tuple[Copy, ...] = ()
    """In the order in which they are queued, sorted by ``start``."""
    fast_uses: tuple[int, ...] = ()
    """Numbers of the uses served from fast memory, ascending."""
    program: str = ""
    """Name of the program, for people; the digest decides."""
    target: str = ""
    names: dict[int, str] = msgspec.field(default_factory=dict)
    """Names of the tensors that have residencies, for whoever applies or reads the plan; the numbers decide."""
    format: str = FORMAT
    version: int = VERSION
