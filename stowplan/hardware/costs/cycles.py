"""A compiler's cycle estimates of a program's steps, without and with fast memory."""

from __future__ import annotations

import msgspec


class StepCycles(msgspec.Struct, frozen=True):
    """What a compiler estimated for one run of one step, in clock cycles."""

    slow: int
    """With everything in slow memory."""
    planned: int | None = None
    """With the uses ``fast`` served from fast memory; None where that is not known."""
    fast: frozenset[tuple[int, bool]] = frozenset()
    """Uses (tensor, is_output) that the compiler's plan serves from fast memory."""


class CycleTable(msgspec.Struct, frozen=True):
    """Estimates of a program's steps, by the step's name. Steps without an estimate are left out."""

    steps: dict[str, StepCycles]
