"""A compiled program, as front ends return it: steps in the order of the schedule, tensors and loops, without target or costs.

A cost model (:mod:`stowplan.hardware.costs`) turns a program and a target into a memory-mapping problem.
"""

from __future__ import annotations

from functools import cached_property

import msgspec

from stowplan.models.memory_mapping.problem import InFlight


class ProgramUse(msgspec.Struct, frozen=True):
    """A read (``is_output`` is false) or write of a tensor by a step; it moves ``bytes`` bytes, for example a slice."""

    tensor: int
    is_output: bool
    bytes: int


class ProgramStep(msgspec.Struct, frozen=True):
    """An instruction of the program that may take time."""

    name: str
    opcode: str
    flops: int
    """Multiplications and additions of its convolutions and matrix products (two per multiply-accumulate)."""
    elementwise: int
    """Number of elements that its other operations compute."""
    weight: int
    """Product of the trip counts of the loops around the step."""
    uses: tuple[ProgramUse, ...]
    cycles: int | None = None
    """The compiler's estimate for one run; None if the compiled module has none."""


class ProgramTensor(msgspec.Struct, frozen=True):
    """Storage of one value, or of several values that must share it."""

    name: str
    size: int
    """Bytes as stored, including the padding of tiles."""
    is_input: bool
    is_output: bool
    members: tuple[str, ...] = ()
    """Values that share the storage, each as ``"instruction"`` or ``"instruction{index}"``; empty if there is only one."""


class ProgramLoop(msgspec.Struct, frozen=True):
    """Steps ``[start, end)`` run ``trip_count`` times."""

    start: int
    end: int
    trip_count: int
    name: str
    trip_count_known: bool = True


class Program(msgspec.Struct, frozen=True, dict=True):
    """A program that is independent of targets."""

    name: str
    steps: tuple[ProgramStep, ...]
    tensors: tuple[ProgramTensor, ...]
    loops: tuple[ProgramLoop, ...] = ()
    in_flight: tuple[InFlight, ...] = ()
    """Tensors that asynchronous operations read or write, and the steps until which they do."""
    value_tensor: dict[str, int] = {}
    """Number of the tensor of every value; keys are ``"instruction"``, or ``"instruction{0,1}"`` for a leaf of a tuple."""
    notes: tuple[str, ...] = ()
    """Remarks for people: parts of the module that the front end had to approximate."""

    @cached_property
    def use_count(self) -> int:
        """Number of uses of all steps."""
        return sum(len(step.uses) for step in self.steps)

    @cached_property
    def step_index(self) -> dict[str, int]:
        """Number of each step, by its name."""
        return {step.name: index for index, step in enumerate(self.steps)}
