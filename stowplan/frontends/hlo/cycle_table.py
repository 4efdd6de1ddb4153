"""A compiler's cycle estimates, read from the same module compiled without and with fast memory."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from stowplan.errors import InputError
from stowplan.frontends.hlo import Computation, HloModule, Instruction, read_module
from stowplan.hardware.costs.cycles import CycleTable, StepCycles
from stowplan.hardware.program import Program, ProgramStep

#: Memory space of CMEM in the layouts of TPU modules: ``S(3)``.
FAST_SPACE = 3

_CYCLES = re.compile(r'"estimated_cycles":"([0-9]{1,15})"')
_INLINED = frozenset({"while", "call", "conditional"})

_Placed = dict[str, tuple[Instruction, Computation]]


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
    slow, planned = _placed(read_module(slow_path)), _placed(read_module(planned_path))
    steps = {}
    for step in program.steps:
        bare = step.name.rpartition("/")[2]
        cycles = _cycles(slow, bare)
        if cycles is not None:
            fast = None
            if bare in planned and planned[bare][0].opcode == slow[bare][0].opcode:
                fast = _fast_uses(step, planned[bare], slow[bare], program, fast_space)
            after = None if fast is None else _cycles(planned, bare)
            steps[step.name] = StepCycles(cycles) if after is None else StepCycles(cycles, after, fast or frozenset())
    if not steps:
        raise InputError(f"found no estimated_cycles for any step of {program.name}, expected some", source=slow_path)
    return CycleTable(steps)


def _placed(module: HloModule) -> _Placed:
    """Instructions that are steps, by name: those of the entry and of the loops, calls and branches in it."""
    found: _Placed = {}
    waiting = [module.entry]
    seen: set[str] = set()
    while waiting:
        computation = waiting.pop()
        if computation.name in seen:
            continue
        seen.add(computation.name)
        for instruction in computation.instructions:
            found[instruction.name] = instruction, computation
            if instruction.opcode in _INLINED:
                waiting += [module.computations[name] for name in instruction.called]
    return found


def _cycles(placed: _Placed, name: str) -> int | None:
    match = _CYCLES.search(placed[name][0].attributes_text) if name in placed else None
    return int(match[1]) if match else None


def _fast_uses(
    step: ProgramStep,
    planned: tuple[Instruction, Computation],
    slow: tuple[Instruction, Computation],
    program: Program,
    fast_space: int,
) -> frozenset[tuple[int, bool]] | None:
    """Uses of the step that the planned instruction serves from fast memory; None where that is not clear."""
    operands = list(_operand_leaves(*slow)), [space for _, space in _operand_leaves(*planned)]
    results = list(_leaves(slow[0])), [space for _, space in _leaves(planned[0])]
    if len(operands[0]) != len(operands[1]) or len(results[0]) != len(results[1]):
        return None
    path = step.name[: len(step.name) - len(slow[0].name)]
    spaces: dict[tuple[int, bool], set[bool]] = {}
    for (names, planned_spaces), is_output in ((operands, False), (results, True)):
        for (name, _), space in zip(names, planned_spaces, strict=True):
            tensor = program.value_tensor.get(path + name, program.value_tensor.get(name))
            if tensor is not None:
                spaces.setdefault((tensor, is_output), set()).add(space == fast_space)
    uses = {(use.tensor, use.is_output) for use in step.uses}
    if any(len(found) > 1 for use, found in spaces.items() if use in uses):
        return None
    return frozenset(use for use, found in spaces.items() if True in found and use in uses)


def _operand_leaves(instruction: Instruction, computation: Computation) -> Iterator[tuple[str, int]]:
    for operand in instruction.operands:
        yield from _leaves(computation.by_name[operand])


def _leaves(instruction: Instruction) -> Iterator[tuple[str, int]]:
    """Name and memory space of each value an instruction defines."""
    for index, leaf in instruction.shape.leaves():
        yield instruction.name + ("{" + ",".join(map(str, index)) + "}" if index else ""), leaf.memory_space
