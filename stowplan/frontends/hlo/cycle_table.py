"""A compiler's cycle estimates, read from the same module compiled without and with fast memory."""

from __future__ import annotations

from pathlib import Path

from stowplan.errors import InputError
from stowplan.frontends.hlo.attributes import estimated_cycles
from stowplan.frontends.hlo.parse import read_module
from stowplan.frontends.hlo.placed import FAST_SPACE, Placed, placed_instructions, step_leaves
from stowplan.hardware.costs.cycles import CycleTable, StepCycles
from stowplan.hardware.program import Program, ProgramStep


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
