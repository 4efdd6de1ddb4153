"""Reads from compiled modules the memories of operands and results, the cycles, and the signatures of a program's steps.

A *step* is an instruction of the program in the order of the schedule. Its *signature* is a hash of everything that its time
depends on besides memory: its operation, shapes and layouts. *Memory-space assignment* is the pass of XLA that decides which
arrays are in fast memory; after it, the layout of an array names its memory space, such as ``S(1)``. *Cycles* are the estimates
that the compiler writes to instructions as ``estimated_cycles``. A *use* means that one step reads or writes one tensor of the
program (:mod:`stowplan.hardware.program`). The *pattern* of a step says which of its arrays are in fast memory, with one bit
for each array.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from stowplan import files
from stowplan.deadline import check_reading
from stowplan.errors import InputError
from stowplan.frontends.hlo.module import Computation, HloModule, Instruction, estimated_cycles
from stowplan.frontends.hlo.opcodes import NAMING
from stowplan.frontends.hlo.parse import read_module
from stowplan.frontends.hlo.shape import BITS, ArrayShape, Shape, index_text
from stowplan.frontends.hlo.walk import IN_LINE
from stowplan.hardware.costs.roofline import CycleTable, StepCycles
from stowplan.hardware.costs.signatures import (
    NO_USE,
    Assignment,
    LatencyTable,
    Leaf,
    Predictor,
    SignatureCosts,
    StepPlacement,
    StepSignature,
    shipped,
)
from stowplan.hardware.program import Program, ProgramStep
from stowplan.hardware.targets import CMEM, Target, load_target


class Placed(NamedTuple):
    """An instruction that may be a step, with its computation."""

    instruction: Instruction
    """The instruction."""
    computation: Computation
    """The computation that contains it."""

    def operand_shapes(self) -> Iterator[ArrayShape]:
        """Shapes of the arrays that it reads; tuples are flattened."""
        for operand in self.instruction.operands:
            for _, leaf in self.computation.by_name[operand].shape.leaves:
                yield leaf

    def result_shapes(self) -> Iterator[ArrayShape]:
        """Shapes of the arrays that it defines."""
        for _, leaf in self.instruction.shape.leaves:
            yield leaf

    def spaces(self) -> list[int]:
        """Memory spaces of the arrays that it reads, followed by those of the arrays that it defines."""
        return [leaf.memory_space for shapes in (self.operand_shapes(), self.result_shapes()) for leaf in shapes]


class StepLeaves(NamedTuple):
    """For each array that a step's instruction reads or defines, the number of the tensor of the program to which it belongs.

    It is None for an array without storage. See :class:`~stowplan.hardware.program.ProgramTensor`.
    """

    operands: tuple[int | None, ...]
    """Tensors of the arrays of all operands, in order; tuples are flattened."""
    results: tuple[int | None, ...]
    """Tensors of the arrays of the result, in order."""


def placed_instructions(module: HloModule) -> dict[str, Placed]:
    """The instructions that may be steps, by name: those of the entry, and of the loops, calls and branches in it."""
    placed: dict[str, Placed] = {}
    waiting = [module.entry]
    seen: set[str] = set()
    while waiting:
        computation = waiting.pop()
        if computation.name in seen:
            continue
        seen.add(computation.name)
        for instruction in computation.instructions:
            placed[instruction.name] = Placed(instruction, computation)
            if instruction.opcode in IN_LINE:
                waiting += [module.computations[name] for name in instruction.called]
    return placed


def step_leaves(step: ProgramStep, at: Placed, program: Program) -> StepLeaves:
    """Finds the tensors of ``program`` to which the arrays of a step belong.

    ``at`` is the instruction of the step. It may come from another module than the program, if it has the same operands there.
    """
    path = step.name[: len(step.name) - len(at.instruction.name)]

    def tensors(instruction: Instruction) -> Iterator[int | None]:
        for index, _ in instruction.shape.leaves:
            name = instruction.name + index_text(index)
            yield program.value_tensor.get(path + name, program.value_tensor.get(name))

    operands = (tensor for name in at.instruction.operands for tensor in tensors(at.computation.by_name[name]))
    return StepLeaves(tuple(operands), tuple(tensors(at.instruction)))


def read_cycle_table(
    slow_path: str | Path, planned_path: str | Path, program: Program, *, fast_space: int = CMEM
) -> CycleTable:
    """Reads the cycles of a program's steps from two modules that the compiler has annotated with ``estimated_cycles``.

    Parameters
    ----------
    slow_path
        Module that was compiled with everything in slow memory.
    planned_path
        The same module with the compiler's own plan. A use is served from fast memory if the layout of the operand or result
        has the memory space ``fast_space``.
    program
        The program to be planned. Instructions are matched by name.
    fast_space
        Number of the memory space of fast memory, such as 3 for ``S(3)`` in layouts; by default CMEM of TPU v4.

    Returns
    -------
    CycleTable
        Cycles of each step that has an estimate in the first module. The cycles under the compiler's plan are left out in these
        cases:

        - The second module does not have the instruction.
        - The instruction has another opcode there, or other numbers of operands or results.
        - The instruction reads one tensor from both memories.

    Raises
    ------
    InputError
        A file cannot be read or is not HLO text, or the first module has no estimate for any step of the program.
    TimeLimitError
        The time limit for reading inputs is over.
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
    """Returns the uses of a step whose arrays are in fast memory in the planned instruction.

    A use is given as the number of the tensor and whether the step writes it. The result is None if the planned instruction has
    other numbers of operands or results, or has the arrays of one use in both memories.
    """
    leaves, planned_spaces = step_leaves(step, slow, program), planned.spaces()
    if len(list(planned.operand_shapes())) != len(leaves.operands) or len(planned_spaces) != sum(map(len, leaves)):
        return None
    keys = [(tensor, False) for tensor in leaves.operands] + [(tensor, True) for tensor in leaves.results]
    uses = {(use.tensor, use.is_output) for use in step.uses}
    spaces: dict[tuple[int, bool], set[bool]] = {}
    for (tensor, is_output), space in zip(keys, planned_spaces, strict=True):
        if tensor is not None and (tensor, is_output) in uses:
            spaces.setdefault((tensor, is_output), set()).add(space == fast_space)
    if any(len(marks) > 1 for marks in spaces.values()):
        return None
    return frozenset(use for use, marks in spaces.items() if True in marks)


#: Attributes that are not part of a signature. Either no time depends on them, or they name computations, whose digests are
#: part of the signature.
_LEFT_OUT = frozenset({
    "backend_config", "metadata", "frontend_attributes", "sharding", "origin", "control-predecessors",
    "calls", "to_apply", "body", "condition", "branch_computations", "called_computations", "select", "scatter", "comparator",
})  # fmt: skip


def sign_steps(module: HloModule, program: Program) -> dict[str, StepSignature]:
    """Computes the signatures of the steps of a program.

    Parameters
    ----------
    module
        The module from which the program was made, before memory-space assignment.
    program
        The program that :func:`~stowplan.frontends.hlo.program_from_module` returned for this module.

    Returns
    -------
    dict
        The signature of each step, by the step's name. Steps that only name data, or that the module does not have, have none.

    Raises
    ------
    TimeLimitError
        The time limit for reading inputs is over.
    """
    placed = placed_instructions(module)
    digests, opcodes = _computation_digests(module)
    shapes: dict[int, str] = {}
    signatures = {}
    for step in program.steps:
        check_reading()
        at = placed.get(step.name.rpartition("/")[2])
        if at is None or at.instruction.opcode in NAMING:
            continue
        leaves = step_leaves(step, at, program)
        instruction, computation = at
        operands = instruction.operands
        text = "|".join((
            instruction.opcode,
            _shape_text(instruction.shape, shapes),
            *(_shape_text(computation.by_name[name].shape, shapes) for name in operands),
            # The same array as two operands differs from two arrays, so the operands are numbered.
            *(str(operands.index(name)) for name in operands),
            *(digests[name] for name in instruction.called),
            *_attribute_texts(instruction),
        ))  # fmt: skip
        inner: Counter[str] = Counter()
        for name in instruction.called:
            inner.update(opcodes[name])
        signatures[step.name] = StepSignature(
            signature=_digest(text),
            opcode=instruction.opcode,
            kind=instruction.attribute("kind") or "",
            flops=step.flops,
            elementwise=step.elementwise,
            inner=tuple(sorted(inner.items())),
            leaves=_leaves_of(step, at, leaves),
            weight=step.weight,
        )
    return signatures


def read_assignment(
    compiled: str | Path | HloModule,
    signatures: Mapping[str, StepSignature],
    *,
    fast_space: int = CMEM,
) -> Assignment:
    """Reads the memories and cycles of a program's steps from the module after code generation.

    Parameters
    ----------
    compiled
        Path of HLO text (plain or gzip), or a module. Steps are matched by name; steps that are missing there, or that have
        another opcode or another number of operands or results, are left out.
    signatures
        The signatures of the program's steps (:func:`sign_steps`).
    fast_space
        Number of the memory space of fast memory, such as 3 for ``S(3)`` in layouts.

    Raises
    ------
    InputError
        The file cannot be read or is not HLO text, or no step has ``estimated_cycles``.
    TimeLimitError
        The time limit for reading inputs is over.
    """
    module = compiled if isinstance(compiled, HloModule) else read_module(compiled)
    steps = read_placements(module, signatures, fast_space=fast_space)
    if all(placement.cycles is None for placement in steps.values()):
        raise InputError(
            "found no estimated_cycles for any step of the program, expected the text after code generation",
            source=module.source,
        )
    return Assignment(steps)


def read_placements(
    module: HloModule, signatures: Mapping[str, StepSignature], *, fast_space: int = CMEM
) -> dict[str, StepPlacement]:
    """Reads the memories of a program's steps, and the cycles if there are any, from a module after memory-space assignment.

    The parameters are those of :func:`read_assignment`, which also says which steps are left out. The result has the memories
    and cycles of the other steps by their names. No error is raised, even if there are none.
    """
    placed = placed_instructions(module)
    steps = {}
    for name, step in signatures.items():
        at = placed.get(name.rpartition("/")[2])
        if at is None or at.instruction.opcode != step.opcode:
            continue
        spaces = at.spaces()
        if len(spaces) == len(step.leaves):
            pattern = sum(1 << bit for bit, space in enumerate(spaces) if space == fast_space)
            steps[name] = StepPlacement(pattern, estimated_cycles(at.instruction))
    return steps


def read_costs(
    paths: Iterable[str | Path],
    module: HloModule,
    program: Program,
    *,
    target: Target | None = None,
    predictor: Predictor | None = None,
) -> SignatureCosts:
    """Reads costs of a program's steps from latency tables, compiled modules, or both.

    Parameters
    ----------
    paths
        Latency tables that :meth:`~stowplan.hardware.costs.signatures.LatencyTable.save` has written, and HLO text with
        ``estimated_cycles``. If two files have different cycles for the same entry, the later file counts.
    module, program
        The module that is to be planned, and its program.
    target
        The machine; TPU v4 by default.
    predictor
        Predicts the costs for which no file has an entry (:class:`~stowplan.hardware.costs.signatures.Predictor`); by default
        this package's model for the machine.

    Raises
    ------
    InputError
        A file cannot be read or is neither a latency table nor HLO text with estimates, or no file has an entry for any step of
        the program.
    TimeLimitError
        The time limit for reading inputs is over.
    """
    signatures = sign_steps(module, program)
    machine = target or load_target("tpu-v4")
    table = LatencyTable()
    last = None
    for path in paths:
        last = path
        if files.is_json(path):
            table.merge(LatencyTable.load(path))
        else:
            table.add(read_assignment(path, signatures, fast_space=machine.fast_space), signatures)
    if not any(step.signature in table for step in signatures.values()):
        raise InputError(f"found no entry for any step of {program.name}, expected some", source=last)
    entries = table.only(step.signature for step in signatures.values())
    return SignatureCosts(signatures, entries, predictor or shipped(machine.predictor))


def _computation_digests(module: HloModule) -> tuple[dict[str, str], dict[str, Counter[str]]]:
    """Returns two dictionaries by the name of the computation: a digest, and the number of its instructions of each opcode.

    The digest depends neither on names nor on the order of independent instructions. The numbers include the instructions of
    computations that are called.
    """
    digests: dict[str, str] = {}
    opcodes: dict[str, Counter[str]] = {}
    shapes: dict[int, str] = {}
    for computation in module.computations.values():
        check_reading()
        own: dict[str, str] = {}
        count: Counter[str] = Counter()
        for instruction in computation.instructions:
            number = instruction.argument if instruction.opcode == "parameter" else ""
            own[instruction.name] = _digest("|".join((
                instruction.opcode,
                number,
                _shape_text(instruction.shape, shapes),
                *(own[name] for name in instruction.operands),
                *(digests[name] for name in instruction.called),
                *_attribute_texts(instruction),
            )))  # fmt: skip
            count[instruction.opcode] += 1
            for name in instruction.called:
                count.update(opcodes[name])
        digests[computation.name] = own[computation.root.name]
        opcodes[computation.name] = count
    return digests, opcodes


def _digest(text: str) -> str:
    """A hash of a text as 16 hexadecimal digits."""
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def _shape_text(shape: Shape, text_of: dict[int, str]) -> str:
    """Types, extents and layouts of a shape as text, without memory spaces.

    ``text_of`` caches texts by the identity of the shape, because equal shapes of a parsed module are one object.
    """
    text = text_of.get(id(shape))
    if text is None:
        text = text_of[id(shape)] = ";".join(
            f"{index}{leaf.dtype}{leaf.dims}{leaf.minor_to_major}{leaf.tiles}" for index, leaf in shape.leaves
        )
    return text


def _attribute_texts(instruction: Instruction) -> list[str]:
    """The attributes that are part of a signature, as sorted texts."""
    if not instruction.attributes_text:
        return []
    return sorted(f"{name}={value}" for name, value in instruction.attributes.items() if name not in _LEFT_OUT)


def _leaves_of(step: ProgramStep, at: Placed, leaves: StepLeaves) -> tuple[Leaf, ...]:
    """The arrays that a step reads and defines. Several arrays of one use share its bytes in proportion to their sizes."""
    position = {(use.tensor, use.is_output): number for number, use in enumerate(step.uses)}
    shapes = [*at.operand_shapes(), *at.result_shapes()]
    keys = [(tensor, False) for tensor in leaves.operands] + [(tensor, True) for tensor in leaves.results]
    uses = [position.get((tensor, is_output), NO_USE) if tensor is not None else NO_USE for tensor, is_output in keys]
    total: Counter[int] = Counter()
    for use, shape in zip(uses, shapes, strict=True):
        total[use] += shape.bytes
    return tuple(
        Leaf(
            use=use,
            is_output=is_output,
            moved=step.uses[use].bytes * shape.bytes // max(total[use], 1) if use != NO_USE else 0,
            size=shape.bytes,
            element_bits=BITS.get(shape.dtype, 0),
            dims=tuple([shape.dims[dim] for dim in shape.minor_to_major]) or shape.dims,
        )
        for use, (_, is_output), shape in zip(uses, keys, shapes, strict=True)
    )
