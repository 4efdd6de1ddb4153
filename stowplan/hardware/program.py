"""A compiled program as front ends read it: steps in schedule order, storage, loops; no target and no costs yet.

A cost model (:mod:`stowplan.hardware.costs`) turns a program and a target into a memory-mapping problem.
"""

from __future__ import annotations

from functools import cached_property

import msgspec

from stowplan.models.memory_mapping.problem import InFlight


class ProgramUse(msgspec.Struct, frozen=True):
    """A step reads (``is_output`` false) or writes a tensor, moving ``bytes`` bytes (a slice of it, perhaps)."""

    tensor: int
    is_output: bool
    bytes: int


class ProgramStep(msgspec.Struct, frozen=True):
    """An instruction that costs something, at its place in the schedule."""

    name: str
    opcode: str
    flops: int
    """Multiplications and additions of the convolutions and matrix products in it (two per multiply-accumulate)."""
    elementwise: int
    """Elements computed by everything else in it."""
    weight: int
    """Product of the trip counts of the loops around the step."""
    uses: tuple[ProgramUse, ...]
    cycles: int | None = None
    """The compiler's own estimate for one run, where the module carries one."""


class ProgramTensor(msgspec.Struct, frozen=True):
    """Storage of one value, or of several that must share it."""

    name: str
    size: int
    """Bytes as stored, tile padding included."""
    is_input: bool
    is_output: bool
    members: tuple[str, ...] = ()
    """Values that share the storage, where there is more than one: ``"instruction"`` or ``"instruction{index}"``."""


class ProgramLoop(msgspec.Struct, frozen=True):
    """Steps ``[start, end)`` run ``trip_count`` times."""

    start: int
    end: int
    trip_count: int
    name: str
    trip_count_known: bool = True


class Program(msgspec.Struct, frozen=True, dict=True):
    """A program, ready for any target."""

    name: str
    steps: tuple[ProgramStep, ...]
    tensors: tuple[ProgramTensor, ...]
    loops: tuple[ProgramLoop, ...] = ()
    in_flight: tuple[InFlight, ...] = ()
    """What asynchronous operations read and write, and until when."""
    value_tensor: dict[str, int] = {}
    """Tensor of every value: ``"instruction"``, or ``"instruction{0,1}"`` for a leaf of a tuple."""
    notes: tuple[str, ...] = ()
    """What the front end could not take literally, for people to read."""

    @cached_property
    def use_count(self) -> int:
        """Number of uses."""
        return sum(len(step.uses) for step in self.steps)

    @cached_property
    def step_index(self) -> dict[str, int]:
        """Step of each instruction name."""
        return {step.name: index for index, step in enumerate(self.steps)}
