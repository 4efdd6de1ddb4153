"""Instructions of a compiled module as a memory-space assignment left them, and a compiler's cycle estimates of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from stowplan.errors import InputError
from stowplan.frontends.hlo.attributes import estimated_cycles
from stowplan.frontends.hlo.module import Computation, HloModule, Instruction
from stowplan.frontends.hlo.parse import read_module
from stowplan.frontends.hlo.schedule import IN_LINE
from stowplan.frontends.hlo.shape import ArrayShape, index_text
from stowplan.hardware.costs.roofline import CycleTable, StepCycles
from stowplan.hardware.program import Program, ProgramStep

#: Memory space of CMEM in the layouts of TPU modules: ``S(3)``.
FAST_SPACE = 3


class Placed(NamedTuple):
    """An instruction that may be a step, and the computation it stands in."""

    instruction: Instruction
    computation: Computation

    def operand_shapes(self) -> Iterator[ArrayShape]:
        """Shapes of the arrays it reads, tuples taken apart."""
        for operand in self.instruction.operands:
            for _, leaf in self.computation.by_name[operand].shape.leaves():
                yield leaf

    def result_shapes(self) -> Iterator[ArrayShape]:
        """Shapes of the arrays it defines."""
        for _, leaf in self.instruction.shape.leaves():
            yield leaf

    def spaces(self) -> list[int]:
        """Memory spaces of the arrays it reads, then of those it defines."""
        return [leaf.memory_space for shapes in (self.operand_shapes(), self.result_shapes()) for leaf in shapes]


class StepLeaves(NamedTuple):
    """Tensors of the arrays that a step's instruction reads and defines; None for an array without storage."""

    operands: tuple[int | None, ...]
    results: tuple[int | None, ...]


def placed_instructions(module: HloModule) -> dict[str, Placed]:
    """Instructions that are steps, by name: those of the entry and of the loops, calls and branches in it."""
    found: dict[str, Placed] = {}
    waiting = [module.entry]
    seen: set[str] = set()
    while waiting:
        computation = waiting.pop()
        if computation.name in seen:
            continue
        seen.add(computation.name)
        for instruction in computation.instructions:
            found[instruction.name] = Placed(instruction, computation)
            if instruction.opcode in IN_LINE:
                waiting += [module.computations[name] for name in instruction.called]
    return found


def step_leaves(step: ProgramStep, at: Placed, program: Program) -> StepLeaves:
    """Tensors of the arrays of a step; ``at`` is its instruction in a module with the program's own operands."""
    path = step.name[: len(step.name) - len(at.instruction.name)]

    def tensors(instruction: Instruction) -> Iterator[int | None]:
        for index, _ in instruction.shape.leaves():
            name = instruction.name + index_text(index)
            yield program.value_tensor.get(path + name, program.value_tensor.get(name))

    operands = (tensor for name in at.instruction.operands for tensor in tensors(at.computation.by_name[name]))
    return StepLeaves(tuple(operands), tuple(tensors(at.instruction)))


def read_cycle_table(
    slow_path: str | Path, planned_path: str | Path, program: Program, *, fast_space: int = FAST_SPACE
) -> CycleTable:
    """Cycles of a program's steps from two modules that the compiler annotated with ``estimated_cycles``.

    Parameters
    ----------
    slow_path
        Module compiled with everything in slow memory.
    planned_path
        The same module with the compiler's own plan; a use is fast where the layout of the operand or result says
        ``S(fast_space)``.
    program
        The program to be planned. Instructions are matched by name; steps that a module lacks, or that have other operands
        there, get no estimate. So does a step whose planned instruction reads one tensor from both memories.

    Returns
    -------
    CycleTable
        Cycles of each step that has estimates, in slow memory and as planned.

    Raises
    ------
    InputError
        A file that is not HLO text, or a module without an estimate for any step of the program.
    """
    slow, planned = placed_instructions(read_module(slow_path)), placed_instructions(read_module(planned_path))
    steps = {}
    for step in program.steps:
        bare = step.name.rpartition("/")[2]
        cycles = estimated_cycles(slow[bare].instruction) if bare in slow else None
        if cycles is not None:
            fast = None
            if bare in planned and planned[bare].instruction.opcode == slow[bare].instruction.opcode:
                fast = _fast_uses(step, planned[bare], slow[bare], program, fast_space)
            after = None if fast is None else estimated_cycles(planned[bare].instruction)
            steps[step.name] = StepCycles(cycles) if after is None else StepCycles(cycles, after, fast or frozenset())
    if not steps:
        raise InputError(f"found no estimated_cycles for any step of {program.name}, expected some", source=slow_path)
    return CycleTable(steps)


def _fast_uses(
    step: ProgramStep, planned: Placed, slow: Placed, program: Program, fast_space: int
) -> frozenset[tuple[int, bool]] | None:
    """Uses of the step that the planned instruction serves from fast memory; None where that is not clear."""
    leaves, found = step_leaves(step, slow, program), planned.spaces()
    if len(list(planned.operand_shapes())) != len(leaves.operands) or len(found) != sum(map(len, leaves)):
        return None
    keys = [(tensor, False) for tensor in leaves.operands] + [(tensor, True) for tensor in leaves.results]
    uses = {(use.tensor, use.is_output) for use in step.uses}
    spaces: dict[tuple[int, bool], set[bool]] = {}
    for (tensor, is_output), space in zip(keys, found, strict=True):
        if tensor is not None and (tensor, is_output) in uses:
            spaces.setdefault((tensor, is_output), set()).add(space == fast_space)
    if any(len(each) > 1 for each in spaces.values()):
        return None
    return frozenset(use for use, each in spaces.items() if True in each)
