"""Memory traffic of an instruction: the bytes that it reads of each operand, and results that it writes in place of an operand.

A fusion that only slices an operand moves the slice, not the operand. A fusion whose root is a dynamic-update-slice (or
scatter) writes the update into the storage of its operand, and does not move the rest. Both are found through bitcasts and
nested fusions, as in XLA's ``HloDataflowAnalysis::GetInPlaceInputOutputPairs``. A *leaf* is an array in the value of an
instruction, which may be a tuple; leaves are numbered in order.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from stowplan.deadline import check_reading
from stowplan.frontends.hlo.module import Computation, HloModule, Instruction
from stowplan.frontends.hlo.opcodes import ELEMENTWISE
from stowplan.frontends.hlo.shape import ArrayShape, Shape, TupleShape

#: Opcodes that read only a part of their first operand: as many bytes as their result has.
_SLICES = frozenset({"slice", "dynamic-slice", "gather"})
#: The results of :func:`_updated` for opcodes that always update in place.
_UPDATES = {"dynamic-update-slice": [(0, 0, 1)], "ragged-all-to-all": [(0, 1, 0)]}
#: Opcodes whose access is that of the computation that they call.
_FUSED = frozenset({"fusion", "async-start"})


class InPlace(NamedTuple):
    """A leaf of the result that is written into the storage of a leaf of an operand."""

    output_leaf: int
    """Number of the leaf of the result."""
    operand: int
    """Number of the operand."""
    operand_leaf: int
    """Number of the leaf of this operand."""
    write: int | None
    """Bytes that are written; None for the whole value."""
    reads_elsewhere: bool = False
    """Whether a fusion also reads parts of the operand that it does not write, or reads it after writing."""


class Access(NamedTuple):
    """The memory traffic of an instruction, or of a fused computation, whose parameters count as its operands."""

    reads: tuple[int | None, ...]
    """For each operand, the number of its bytes that are read, where updates are made in place; None for the whole operand."""
    in_place: tuple[InPlace, ...]
    """Leaves of the result that are written in place of an operand."""


#: The access of each computation so far, by its name.
_AccessOf = dict[str, Access]
#: For each instruction, by its name, the instructions that use it, with the number of the operand.
_Users = dict[str, list[tuple[Instruction, int]]]


def fused_access(module: HloModule) -> dict[str, Access]:
    """Computes the :class:`Access` of every computation of a module, by its name, as if a fusion or an asynchronous operation
    called it.

    Raises InputError as :func:`instruction_access` does, and TimeLimitError if the time limit for reading inputs is over.
    """
    access_of: dict[str, Access] = {}
    for computation in module.computations.values():
        check_reading()
        access_of[computation.name] = _computation_access(computation, access_of)
    return access_of


def instruction_access(instruction: Instruction, computation: Computation, fused: dict[str, Access]) -> Access:
    """Computes the :class:`Access` of an instruction, which is a step of the program or is inside of a fused computation.

    Parameters
    ----------
    instruction
        The instruction.
    computation
        The computation that contains it.
    fused
        The access of the computations before this one (:func:`fused_access`).

    Raises
    ------
    InputError
        The operands of a fusion do not fit its computation, an update has too few operands, or the attribute
        ``output_to_operand_aliasing`` is not valid or names a leaf that does not exist.
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
    """Number of the leaf with this index in a shape; None if there is no such leaf."""
    wanted = tuple(index)
    return next((number for number, (leaf, _) in enumerate(shape.leaves) if leaf == wanted), None)


def array_bytes(instruction: Instruction) -> int:
    """Bytes of a value as stored; for a tuple, those of its leaves."""
    shape = instruction.shape
    return shape.bytes if isinstance(shape, ArrayShape) else sum(leaf.bytes for _, leaf in shape.leaves)


def _own_access(instruction: Instruction, computation: Computation, fused: dict[str, Access]) -> Access:
    """The access of an instruction before the attribute ``output_to_operand_aliasing`` is considered."""
    opcode, operands = instruction.opcode, instruction.operands
    if opcode in _FUSED and instruction.called:
        access = fused[instruction.called[0]]
        if len(access.reads) != len(operands):
            raise instruction.error(f"found {len(operands)} operands, expected the {len(access.reads)} of its computation")
        # The results of an asynchronous start are the second part of its tuple.
        first = max(instruction.shape.offsets[:2]) if opcode == "async-start" else 0
        return Access(access.reads, tuple(pair._replace(output_leaf=pair.output_leaf + first) for pair in access.in_place))
    reads: list[int | None] = [None] * len(operands)
    if opcode in _SLICES and operands:
        reads[0] = array_bytes(instruction)
    pairs = []
    for result, operand, update in _updated(instruction):
        if len(operands) <= max(operand, update):
            raise instruction.error(f"found {len(operands)} operands, expected more than {max(operand, update)}")
        written = None
        if update:
            total_bytes = instruction.shape.leaves[result][1].bytes if result < len(instruction.shape.leaves) else 0
            written = min(array_bytes(computation.by_name[operands[update]]), total_bytes)
            # A scatter reads the old elements to combine them with the update; a dynamic-update-slice only overwrites.
            reads[operand] = written if opcode == "scatter" else 0
        pairs.append(InPlace(result, operand, 0, written))
    return Access(tuple(reads), tuple(pairs))


def _updated(instruction: Instruction) -> list[tuple[int, int, int]]:
    """Returns a triple of numbers for each result that an instruction writes in place.

    The numbers are the leaf of the result, the operand in whose storage it is written, and the operand that has the written
    elements. The last number is 0 if all elements of the result are new.
    """
    opcode, count = instruction.opcode, len(instruction.operands)
    if opcode == "scatter":
        arrays = max(1, (count - 1) // 2)
        return [(number, number, arrays + 1 + number) for number in range(arrays)]
    if opcode == "all-reduce-start":
        return [(number, number, 0) for number in range(count)]
    if count == 4 and opcode in ("collective-permute", "collective-permute-start"):
        return [(int(opcode.endswith("start")), 1, 0)]
    return _UPDATES.get(opcode, [])


def _computation_access(computation: Computation, access_of: dict[str, Access]) -> Access:
    """The access of a computation whose parameters count as the operands of the instruction that calls it."""
    users: _Users = {}
    for instruction in computation.instructions:
        for position, name in enumerate(instruction.operands):
            users.setdefault(name, []).append((instruction, position))
    pairs: list[InPlace] = []
    chain: set[str] = set()
    paired_parameters: set[int] = set()
    closed: set[tuple[str, int]] = set()
    for leaf, (source, source_leaf) in enumerate(_root_leaves(computation)):
        update = _follow_updates(source, source_leaf, computation, access_of, closed)
        if update is not None and update[0] not in paired_parameters:
            parameter, written, names, path = update
            paired_parameters.add(parameter)
            chain |= names
            pairs.append(InPlace(leaf, parameter, 0, written, _reads_elsewhere(path, names, computation, users, access_of)))
    reads = tuple(_parameter_read(parameter, computation, users, chain, access_of) for parameter in computation.parameters)
    return Access(reads, tuple(pairs))


def _root_leaves(computation: Computation) -> list[tuple[Instruction, int]]:
    """For each leaf of the root, the instruction that computes it, and the number of the leaf in the value of this instruction.

    The list is empty if the root has nested tuples, which are not written in place.
    """
    root = computation.root
    parts = root.shape.parts if isinstance(root.shape, TupleShape) else (root.shape,)
    if not all(isinstance(part, ArrayShape) for part in parts):
        return []
    if root.opcode == "tuple":
        return [(computation.by_name[name], 0) for name in root.operands]
    return [(root, leaf) for leaf in range(len(parts))]


def _follow_updates(
    instruction: Instruction, leaf: int, computation: Computation, access_of: dict[str, Access], closed: set[tuple[str, int]]
) -> tuple[int, int, set[str], list[str]] | None:
    """Follows a chain of in-place updates from a value back to a parameter.

    Parameters
    ----------
    closed
        Leaves that lead to a parameter over which another result is written. Leaves of this chain are added, so that several
        results of one chain are not followed again.

    Returns
    -------
    tuple or None
        The number of the parameter, the bytes of all updates, the names of the updating instructions, and the names of all
        instructions on the path to the parameter, which is the last one; None if the value is no updated parameter.
    """
    written = 0
    chain: set[str] = set()
    path: dict[tuple[str, int], None] = {}
    while True:
        check_reading()
        if (instruction.name, leaf) in closed:
            return None
        path[instruction.name, leaf] = None
        if instruction.opcode == "parameter":
            if not chain or not isinstance(instruction.shape, ArrayShape):
                return None
            closed |= path.keys()
            return int(instruction.argument), written, chain, [name for name, _ in path]
        if not instruction.operands:
            return None
        source = computation.by_name[instruction.operands[0]]
        if instruction.opcode == "get-tuple-element":
            index = instruction.attribute("index") or ""
            leaf = int(index) if index.isdecimal() and len(index) < 9 else 0
            if source.opcode == "tuple" and leaf < len(source.operands):
                source, leaf = computation.by_name[source.operands[leaf]], 0
            elif source.opcode == "get-tuple-element":
                return None
        elif instruction.opcode != "bitcast":
            access = instruction_access(instruction, computation, access_of)
            pair = next((pair for pair in access.in_place if pair.output_leaf == leaf), None)
            if pair is None:
                return None
            written += array_bytes(instruction) if pair.write is None else pair.write
            chain.add(instruction.name)
            source, leaf = computation.by_name[instruction.operands[pair.operand]], pair.operand_leaf
        instruction = source


def _reads_elsewhere(path: list[str], chain: set[str], computation: Computation, users: _Users, access_of: _AccessOf) -> bool:
    """Whether an instruction other than the updates reads a parameter, or a value on the path from the parameter to the root.

    A ``dynamic-slice`` does not count if it reads the slice that a single ``dynamic-update-slice`` then overwrites.

    Parameters
    ----------
    path
        Names of the instructions from the root to the parameter, which is the last one.
    chain
        Names of the updating instructions among them.
    """
    if len(chain) > 1 and any(len(users.get(name, ())) > 1 for name in path[:-1]):
        return True
    same = path[-1:]
    for name in same:
        for user, position in users.get(name, ()):
            if user.opcode == "bitcast":
                same.append(user.name)
            elif user.name in chain:
                pairs = instruction_access(user, computation, access_of).in_place
                if not any(pair.operand == position and not pair.reads_elsewhere for pair in pairs):
                    return True
            elif len(chain) > 1 or not _is_rewritten(user, computation.by_name[min(chain)], computation):
                return True
    return False


def _is_rewritten(part: Instruction, update: Instruction, computation: Computation) -> bool:
    """Whether ``part`` reads the slice that ``update`` overwrites, and reaches it only through element-wise instructions."""
    if (part.opcode, update.opcode) != ("dynamic-slice", "dynamic-update-slice") or part.operands[1:] != update.operands[2:]:
        return False
    reached = {part.name}
    for user in computation.instructions:
        positions = [position for position, name in enumerate(user.operands) if name in reached]
        # A bitcast-convert may combine several elements into one, so that positions change.
        if positions and user.opcode in ELEMENTWISE and user.opcode != "bitcast-convert":
            reached.add(user.name)
        elif positions and (user is not update or positions != [1]):
            return False
    return True


def _parameter_read(
    parameter: Instruction, computation: Computation, users: _Users, chain: set[str], access_of: _AccessOf
) -> int | None:
    """Bytes of a parameter that a computation reads; None if it reads the whole parameter.

    ``chain`` has the names of the updating instructions, whose writes in place are no reads.
    """
    total = 0
    same = [parameter.name]
    seen: set[str] = set()
    while same:
        name = same.pop()
        if name in seen:
            # A value that is two operands of one user is visited once; otherwise the work would double at each such user.
            continue
        seen.add(name)
        check_reading()
        if name == computation.root.name:
            return None
        for user, position in users.get(name, ()):
            if user.opcode == "bitcast":
                same.append(user.name)
                continue
            access = instruction_access(user, computation, access_of)
            part = access.reads[position]
            if part is None or (user.name not in chain and any(pair.operand == position for pair in access.in_place)):
                return None
            total += part
    return total
