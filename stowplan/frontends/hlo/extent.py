"""How large a module is once its calls stand in line: a few lines of text can ask for any number of instructions."""

from __future__ import annotations

from stowplan.errors import InputError
from stowplan.frontends.hlo.module import HloModule, Instruction

#: Deeper nesting of loops and calls is refused, so that walks may recurse.
MAX_NESTING = 64


def check_extent(module: HloModule, in_line: frozenset[str], *, instructions: int, arrays: int) -> None:
    """Refuse modules that would explode where the computations of some opcodes stand in line.

    Parameters
    ----------
    in_line
        Opcodes whose computations stand in line.
    instructions, arrays
        Instructions, and arrays that they name (a tuple names all its parts), at most.

    Raises
    ------
    InputError
        More than that, or nested deeper than :data:`MAX_NESTING`.
    """
    size: dict[str, int] = {}
    named: dict[str, int] = {}
    depth: dict[str, int] = {}
    leaves: dict[int, int] = {}
    for computation in module.computations.values():
        called = [name for each in computation.instructions if each.opcode in in_line for name in each.called]
        size[computation.name] = len(computation.instructions) + sum(size[name] for name in called)
        named[computation.name] = sum(_leaves(each, leaves) for each in computation.instructions) + sum(
            named[name] for name in called
        )
        depth[computation.name] = 1 + max((depth[name] for name in called), default=0)
    entry = module.entry
    place = f"line {entry.line}"
    if size[entry.name] > instructions:
        raise InputError(
            f"found more than {instructions} instructions with loops and calls in line, expected fewer", place=place
        )
    if named[entry.name] > arrays:
        raise InputError(f"found more than {arrays} arrays with loops and calls in line, expected fewer", place=place)
    if depth[entry.name] > MAX_NESTING:
        raise InputError(f"found loops and calls nested {depth[entry.name]} deep, expected at most {MAX_NESTING}", place=place)


def _leaves(instruction: Instruction, known: dict[int, int]) -> int:
    """Arrays that an instruction names. Equal shapes of a module are one object, so identity is the key."""
    key = id(instruction.shape)
    if key not in known:
        known[key] = sum(1 for _ in instruction.shape.leaves())
    return known[key]
