"""Walks through a module with its calls and loops inlined, and finds the existing array that an instruction names.

Instructions that only name arrays are, for example, tuples and bitcasts. Others create arrays.

A *leaf* is an array in the value of an instruction, which may be a tuple. A few lines of text can expand to any number of
instructions when calls and loops are inlined, so the size of the expansion is checked before a walk.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Generic, TypeVar

from stowplan.errors import InputError
from stowplan.frontends.hlo.module import Computation, HloModule, Instruction
from stowplan.frontends.hlo.opcodes import ENDS, SAME_VALUE, SAME_VALUE_CALLS, STARTS
from stowplan.frontends.hlo.shape import TupleShape

#: Opcodes whose computations are inlined.
IN_LINE = frozenset({"while", "call", "conditional"})

#: After loops and calls are inlined, a program may have at most so many instructions, and name at most so many arrays. Larger
#: programs are refused, because a walk through them would take too much time and memory.
MAX_INSTRUCTIONS = 2_000_000
MAX_ARRAYS = 10_000_000

#: The type of the data that a walk has for each leaf, such as the number of a tensor.
T = TypeVar("T")

#: Programs whose loops and calls are nested deeper than this are refused, so that walks may recurse.
MAX_NESTING = 64


def check_extent(
    module: HloModule,
    in_line: frozenset[str] = IN_LINE,
    *,
    instructions: int = MAX_INSTRUCTIONS,
    arrays: int = MAX_ARRAYS,
) -> None:
    """Refuses modules that become too large when the computations of some opcodes are inlined.

    Parameters
    ----------
    module
        The module.
    in_line
        Opcodes whose computations are inlined.
    instructions, arrays
        The largest allowed numbers of instructions, and of arrays that they name; a tuple names all its parts.

    Raises
    ------
    InputError
        The module exceeds these numbers, or is nested deeper than :data:`MAX_NESTING`.
    """
    size: dict[str, int] = {}
    named: dict[str, int] = {}
    depth: dict[str, int] = {}
    for computation in module.computations.values():
        called = [
            name for instruction in computation.instructions if instruction.opcode in in_line for name in instruction.called
        ]
        size[computation.name] = len(computation.instructions) + sum(size[name] for name in called)
        named[computation.name] = sum(instruction.shape.offsets[-1] for instruction in computation.instructions) + sum(
            named[name] for name in called
        )
        depth[computation.name] = 1 + max((depth[name] for name in called), default=0)
    entry = module.entry
    place = f"line {entry.line}"
    for count, most, what in ((size, instructions, "instructions"), (named, arrays, "arrays")):
        if count[entry.name] > most:
            raise InputError(f"found more than {most} {what} with loops and calls in line, expected fewer", place=place)
    if depth[entry.name] > MAX_NESTING:
        raise InputError(f"found loops and calls nested {depth[entry.name]} deep, expected at most {MAX_NESTING}", place=place)


class LeafWalk(Generic[T]):
    """Base class of walks that compute data of the type ``T`` for each leaf of each instruction."""

    def __init__(self, module: HloModule):
        self.module = module

    def expect_leaves(self, instruction: Instruction, leaves: Sequence[T]) -> None:
        """Raises InputError if the number of leaves of an instruction differs from that of its shape."""
        expected = instruction.shape.offsets[-1]
        if len(leaves) != expected:
            raise instruction.error(f"found {len(leaves)} arrays, expected the {expected} of its shape")

    def named(self, instruction: Instruction, computation: Computation, leaves: Mapping[str, list[T]]) -> list[T] | None:
        """The data of the leaves of an instruction that only names existing arrays; None for any other instruction.

        Parameters
        ----------
        instruction
            The instruction.
        computation
            The computation that contains it.
        leaves
            The data of the leaves of earlier instructions of the computation, by the name of the instruction.

        Raises
        ------
        InputError
            The instruction does not fit its operand.
        """
        opcode = instruction.opcode
        if opcode == "tuple":
            return list(chain.from_iterable(leaves[name] for name in instruction.operands))
        if opcode == "get-tuple-element":
            source, index = first_operand(instruction, computation), instruction.attribute("index") or ""
            if not isinstance(source.shape, TupleShape):
                raise instruction.error(f"found operand %{source.name}, expected a tuple")
            if not (index.isdecimal() and len(index) < 9 and int(index) < len(source.shape.parts)):
                raise instruction.error(f"found index={index}, expected one below {len(source.shape.parts)}")
            return self._part(source, int(index), leaves)
        if opcode in SAME_VALUE or custom_target(instruction) in SAME_VALUE_CALLS:
            return leaves[first_operand(instruction, computation).name]
        parts = ENDS.get(opcode)
        if parts is not None:
            source = first_operand(instruction, computation)
            if not isinstance(source.shape, TupleShape) or max(parts) >= len(source.shape.parts):
                raise instruction.error(f"found operand %{source.name}, expected the tuple of an asynchronous start")
            return [leaf for part in parts for leaf in self._part(source, part, leaves)]
        return None

    def _part(self, source: Instruction, part: int, leaves: Mapping[str, list[T]]) -> list[T]:
        """The data of the leaves of one part of a tuple."""
        offsets = source.shape.offsets
        return leaves[source.name][offsets[part] : offsets[part + 1]]

    def passed(self, instruction: Instruction, operands: Sequence[Sequence[T]], nothing: T) -> dict[int, T]:
        """The data of the leaves of an asynchronous start that are not its results, by the number of the leaf.

        These leaves are the operands, whose data are in ``operands``, and flags, which get ``nothing``. The dictionary is empty
        for all other instructions.

        Raises
        ------
        InputError
            The shape of the start does not fit its operands.
        """
        if instruction.opcode not in STARTS:
            return {}
        source, result = STARTS[instruction.opcode]
        values, offsets = list(chain.from_iterable(operands)), instruction.shape.offsets
        if instruction.opcode in ("send", "collective-permute-start") and offsets[1:2] == (1,):
            del values[1:]  # The other operands are a token, or the storage for the result.
        if len(offsets) < max(source, result, 1) + 2 or offsets[source + 1] - offsets[source] != len(values):
            raise instruction.error(f"expected a tuple of operands and results as shape of {instruction.opcode}")
        leaves = dict.fromkeys(range(offsets[-1]), nothing)
        leaves.update(zip(range(offsets[source], offsets[source + 1]), values, strict=True))
        for leaf in range(offsets[result], offsets[result + 1]):
            del leaves[leaf]
        return leaves


def first_operand(instruction: Instruction, computation: Computation) -> Instruction:
    """The first operand of an instruction; raises InputError if it has none."""
    if not instruction.operands:
        raise instruction.error(f"found no operand, expected one of {instruction.opcode}")
    return computation.by_name[instruction.operands[0]]


def custom_target(instruction: Instruction) -> str | None:
    """The target of a custom call, empty if it has none; None for every other opcode."""
    if instruction.opcode != "custom-call":
        return None
    return (instruction.attribute("custom_call_target") or "").strip('"')
