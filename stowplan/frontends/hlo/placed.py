"""Instructions of a compiled module as a memory-space assignment left them: memories of operands and results, cycles."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from stowplan.frontends.hlo.module import Computation, HloModule, Instruction
from stowplan.frontends.hlo.schedule import IN_LINE
from stowplan.frontends.hlo.shape import ArrayShape, index_text
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
