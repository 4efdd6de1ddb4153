"""A compiled program, as front ends return it: steps in the order of the schedule, tensors and loops, without target or costs.

A *step* is an instruction, in the order in which the compiler scheduled them. Steps and tensors are named by their numbers,
which are their positions in the fields ``steps`` and ``tensors``. A *value* is an array that the program defines: a leaf of an
instruction's result, which may be a tuple. A *tensor* is storage for one value or several. A cost model
(:mod:`stowplan.hardware.costs`) turns a program and a target into a memory-mapping problem.
"""

from __future__ import annotations

from functools import cached_property

import msgspec

from stowplan.models.memory_mapping.problem import InFlight


class ProgramUse(msgspec.Struct, frozen=True):
    """A read or a write of a tensor by a step."""

    tensor: int
    """Number of the tensor."""
    is_output: bool
    """Whether the step writes the tensor; otherwise it reads it."""
    bytes: int
    """Number of bytes that one run of the step moves; less than the tensor's size if it accesses only a slice."""


class ProgramStep(msgspec.Struct, frozen=True):
    """An instruction of the program that may take time."""

    name: str
    """Name of the instruction."""
    opcode: str
    """Its operation, as the compiler names it, such as ``fusion``."""
    flops: int
    """Multiplications and additions of its convolutions and matrix products in one run (two per multiply-accumulate)."""
    elementwise: int
    """Number of elements that its other operations compute in one run."""
    weight: int
    """How often the step runs: the product of the trip counts of the loops around it."""
    uses: tuple[ProgramUse, ...]
    """The tensors that it reads and writes."""
    cycles: int | None = None
    """The compiler's estimate of the clock cycles of one run; None if the compiled module has none."""


class ProgramTensor(msgspec.Struct, frozen=True):
    """Storage of one value, or of several values that must share it."""

    name: str
    """Name of the value, or of the first of several values."""
    size: int
    """Bytes as stored, including the padding of tiles."""
    is_input: bool
    """Whether it exists when the program starts, as parameters and constants do."""
    is_output: bool
    """Whether it is a result of the program, so that it must exist at the end."""
    members: tuple[str, ...] = ()
    """Values that share the storage, each as ``"instruction"`` or ``"instruction{index}"``; empty if there is only one."""


class ProgramLoop(msgspec.Struct, frozen=True):
    """Steps ``[start, end)`` run ``trip_count`` times."""

    start: int
    """Number of the first step."""
    end: int
    """Number of the step after the last one."""
    trip_count: int
    """Number of iterations; 1 if it is not known."""
    name: str
    """Name of the loop's instruction."""
    trip_count_known: bool = True
    """Whether the number of iterations is known."""


class Program(msgspec.Struct, frozen=True, dict=True):
    """A program that is independent of targets."""

    name: str
    """Name of the program."""
    steps: tuple[ProgramStep, ...]
    """The steps in the order of the schedule."""
    tensors: tuple[ProgramTensor, ...]
    """The tensors that steps read and write."""
    loops: tuple[ProgramLoop, ...] = ()
    """The loops; an enclosing loop comes before the loops in it."""
    in_flight: tuple[InFlight, ...] = ()
    """Tensors that asynchronous operations read or write, each with the steps from the start of the operation to its end."""
    value_tensor: dict[str, int] = {}
    """Number of the tensor of every value; keys are ``"instruction"``, or ``"instruction{0,1}"`` for a leaf of a tuple."""
    notes: tuple[str, ...] = ()
    """Remarks for people about parts of the module that the front end had to approximate."""

    @cached_property
    def use_count(self) -> int:
        """Number of uses of all steps."""
        return sum(len(step.uses) for step in self.steps)

    @cached_property
    def step_index(self) -> dict[str, int]:
        """Number of each step, by its name."""
        return {step.name: index for index, step in enumerate(self.steps)}
