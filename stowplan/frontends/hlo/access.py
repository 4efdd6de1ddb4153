"""What an instruction moves: the bytes it reads of each operand, and which results it writes in place of an operand.

A fusion that only slices an operand moves the slice, not the operand. A fusion rooted in a dynamic-update-slice (or scatter)
writes the update into its operand's storage; the rest of the operand is not touched. Both are looked for through bitcasts and
nested fusions, as ``HloDataflowAnalysis::GetInPlaceInputOutputPairs`` of XLA does.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from stowplan.deadline import check_reading
from stowplan.frontends.hlo.module import Computation, HloModule, Instruction
from stowplan.frontends.hlo.shape import ArrayShape, Shape, TupleShape

_SLICES = frozenset({"slice", "dynamic-slice", "gather"})
_UPDATES = {"dynamic-update-slice": 1, "scatter": 2}
"""Opcodes that update operand 0 in place, and the number of the operand that holds the update."""
_FUSED = frozenset({"fusion", "async-start"})


class InPlace(NamedTuple):
    """Leaf ``output_leaf`` of the result is leaf ``operand_leaf`` of operand ``operand``, updated."""

    output_leaf: int
    operand: int
    operand_leaf: int
    write: int | None
    """Bytes written; None for all of the value."""


class Access(NamedTuple):
    """Traffic of one instruction, or of a fused computation, whose parameters are then the operands."""

    reads: tuple[int | None, ...]
    """Bytes read of each operand where the in-place updates hold; None for all of it."""
    in_place: tuple[InPlace, ...]


def fused_access(module: HloModule) -> dict[str, Access]:
    """Access of every computation that a fusion or asynchronous operation calls."""
    fused = {
        name
        for computation in module.computations.values()
        for instruction in computation.instructions
        if instruction.opcode in _FUSED
        for name in instruction.called
    }
    known: dict[str, Access] = {}
    for computation in module.computations.values():
        if computation.name in fused:
            check_reading()
            known[computation.name] = _computation_access(computation, known)
    return known


def instruction_access(instruction: Instruction, computation: Computation, fused: dict[str, Access]) -> Access:
    """Access of one instruction that is a step of the program.

    Raises
    ------
    InputError
        A fusion whose operands do not fit its computation, or an alias of an operand that does not exist.
    """
    access = _own_access(instruction, computation, fused)
    pairs = list(access.in_place)
    for alias in instruction.output_aliases:
        output_leaf = leaf_number(instruction.shape, alias.output_index)
        operand_leaf = None
        if alias.operand < len(instruction.operands):
            operand_leaf = leaf_number(computation.by_name[instruction.operands[alias.operand]].shape, alias.operand_index)
        if output_leaf is None or operand_leaf is None:
            raise instruction.error(
                f"found output_to_operand_aliasing of {alias}, expected leaves of the result and of an operand"
            )
        if all(pair.output_leaf != output_leaf for pair in pairs):
            pairs.append(InPlace(output_leaf, alias.operand, operand_leaf, None))
    return Access(access.reads, tuple(pairs))


def leaf_number(shape: Shape, index: Iterable[int]) -> int | None:
    """Position of an index among a shape's leaves, or None where it is no leaf."""
    wanted = tuple(index)
    return next((number for number, (found, _) in enumerate(shape.leaves) if found == wanted), None)


def array_bytes(instruction: Instruction) -> int:
    """Bytes of a value as stored; a tuple's are those of its leaves."""
    shape = instruction.shape
    return shape.bytes if isinstance(shape, ArrayShape) else sum(leaf.bytes for _, leaf in shape.leaves)


def _own_access(instruction: Instruction, computation: Computation, fused: dict[str, Access]) -> Access:
    operands = instruction.operands
    if instruction.opcode in _FUSED and instruction.called:
        access = fused[instruction.called[0]]
        if len(access.reads) != len(operands):
            raise instruction.error(f"found {len(operands)} operands, expected the {len(access.reads)} of its computation")
        return access
    reads: list[int | None] = [None] * len(operands)
    if instruction.opcode in _SLICES and operands:
        reads[0] = array_bytes(instruction)
    update = _update_bytes(instruction, computation)
    if update is None:
        return Access(tuple(reads), ())
    reads[0] = _read_by_update(instruction, update)
    return Access(tuple(reads), (InPlace(0, 0, 0, update),))


def _update_bytes(instruction: Instruction, computation: Computation) -> int | None:
    """Bytes of an in-place update, None where the instruction is none."""
    position = _UPDATES.get(instruction.opcode)
    if position is None or isinstance(instruction.shape, TupleShape):
        return None
    if len(instruction.operands) <= position:
        raise instruction.error(f"found {len(instruction.operands)} operands, expected more than {position}")
    return min(array_bytes(computation.by_name[instruction.operands[position]]), instruction.shape.bytes)


def _read_by_update(instruction: Instruction, update: int) -> int:
    """A scatter combines what is there with the update; a dynamic-update-slice only overwrites."""
    return update if instruction.opcode == "scatter" else 0


def _computation_access(computation: Computation, known: dict[str, Access]) -> Access:
    users: dict[str, list[tuple[Instruction, int]]] = {}
    for instruction in computation.instructions:
        for position, name in enumerate(instruction.operands):
            users.setdefault(name, []).append((instruction, position))
    pairs: list[InPlace] = []
    chain: set[str] = set()
    taken: set[int] = set()
    closed: set[tuple[str, int]] = set()
    for leaf, (source, source_leaf) in enumerate(_root_leaves(computation)):
        found = _follow_updates(source, source_leaf, computation, known, closed)
        if found is not None and found[0] not in taken:
            parameter, written, names = found
            taken.add(parameter)
            chain |= names
            pairs.append(InPlace(leaf, parameter, 0, written))
    reads = tuple(_parameter_read(parameter, computation, users, chain, known) for parameter in computation.parameters)
    return Access(reads, tuple(pairs))


def _root_leaves(computation: Computation) -> list[tuple[Instruction, int]]:
    """Instruction and leaf behind each leaf of the root; nested tuples are left out, nothing is written in place there."""
    root = computation.root
    if root.opcode == "tuple":
        elements = [computation.by_name[name] for name in root.operands]
        return [(element, 0) for element in elements] if all(isinstance(e.shape, ArrayShape) for e in elements) else []
    if isinstance(root.shape, ArrayShape):
        return [(root, 0)]
    return (
        [(root, leaf) for leaf in range(len(root.shape.parts))]
        if all(isinstance(p, ArrayShape) for p in root.shape.parts)
        else []
    )


def _follow_updates(
    instruction: Instruction, leaf: int, computation: Computation, known: dict[str, Access], closed: set[tuple[str, int]]
) -> tuple[int, int, set[str]] | None:
    """Parameter that a value is an updated version of, bytes of the updates, and the instructions that update; or None.

    ``closed`` are leaves that lead to a parameter that another result is written over, so that many results of one chain
    take no longer than one.
    """
    written = 0
    chain: set[str] = set()
    way: set[tuple[str, int]] = set()
    while True:
        check_reading()
        if (instruction.name, leaf) in closed:
            return None
        way.add((instruction.name, leaf))
        if instruction.opcode == "parameter":
            if not chain or not isinstance(instruction.shape, ArrayShape):
                return None
            closed |= way
            return int(instruction.argument), written, chain
        if not instruction.operands:
            return None
        source = computation.by_name[instruction.operands[0]]
        update = _update_bytes(instruction, computation)
        if instruction.opcode == "get-tuple-element":
            index = instruction.attribute("index") or ""
            leaf = int(index) if index.isdecimal() and len(index) < 9 else 0
            if source.opcode == "tuple" and leaf < len(source.operands):
                source, leaf = computation.by_name[source.operands[leaf]], 0
            elif source.opcode != "fusion":
                return None
        elif update is not None:
            written += update
            chain.add(instruction.name)
        elif instruction.opcode == "fusion":
            pair = next(
                (pair for pair in _own_access(instruction, computation, known).in_place if pair.output_leaf == leaf), None
            )
            if pair is None:
                return None
            written += pair.write or 0
            chain.add(instruction.name)
            source, leaf = computation.by_name[instruction.operands[pair.operand]], pair.operand_leaf
        elif instruction.opcode != "bitcast":
            return None
        instruction = source


def _parameter_read(
    parameter: Instruction,
    computation: Computation,
    users: dict[str, list[tuple[Instruction, int]]],
    chain: set[str],
    known: dict[str, Access],
) -> int | None:
    """Bytes read of a parameter, None for all of it."""
    total = 0
    same = [parameter.name]
    seen: set[str] = set()
    while same:
        name = same.pop()
        if name in seen:
            # One that a user has as two operands: it would be followed twice, and each of its users four times.
            continue
        seen.add(name)
        check_reading()
        if name == computation.root.name:
            return None
        for user, position in users.get(name, ()):
            part = 0
            if user.opcode == "bitcast":
                same.append(user.name)
            elif user.opcode in _SLICES and position == 0:
                part = array_bytes(user)
            elif user.opcode in _UPDATES and position == 0 and user.name in chain:
                part = _read_by_update(user, _update_bytes(user, computation) or 0)
            elif user.opcode == "fusion":
                access = _own_access(user, computation, known)
                nested = access.reads[position]
                updates = any(pair.operand == position for pair in access.in_place)
                if nested is None or (updates and user.name not in chain):
                    return None
                part = nested
            else:
                return None
            total += part
    return total
