"""The table model: each step passes through two latencies that a compiler estimated, one without and one with its own plan."""

from __future__ import annotations

import msgspec


class StepCycles(msgspec.Struct, frozen=True):
    """What a compiler estimated for one run of one step, in clock cycles."""

    slow: int
    """With everything in slow memory."""
    planned: int | None = None
    """With the uses ``fast`` served from fast memory; None where the compiler's plan is not known."""
    fast: frozenset[tuple[int, bool]] = frozenset()
    """Uses (tensor, is_output) that the compiler's plan serves from fast memory."""


class CycleTable(msgspec.Struct, frozen=True):
    """Estimates of the steps of a program, by the step's name."""

    steps: dict[str, StepCycles]
