"""Affine programs from HLO text before XLA's optimisations, with its data movement still in place.

Calls are written out in place. Broadcasts, reshapes, transposes, slices, concatenations, pads and reversals become loop nests;
gathers and dynamic slices are operators that look at their operand at run-time indices; everything else is an operator with a
bank rule. Text order is a valid order to run in, not a schedule.
"""

from __future__ import annotations

from pathlib import Path

from stowplan.deadline import check_reading
from stowplan.errors import InputError
from stowplan.frontends.affine.hlo_movement import MOVEMENT
from stowplan.frontends.affine.hlo_operators import ELEMENTWISE, OPERATORS, elementwise, reduce
from stowplan.frontends.affine.hlo_walk import Value, Walk, fits, leaves, shape_text
from stowplan.frontends.hlo import Computation, HloModule, Instruction, TupleShape, read_module
from stowplan.frontends.hlo.attributes import number
from stowplan.frontends.hlo.extent import check_extent
from stowplan.hardware.affine.check import check
from stowplan.hardware.affine.program import Program

_HANDLERS = MOVEMENT | OPERATORS

#: Modules with more instructions, or naming more arrays, than this once calls stand in line are refused.
MAX_INSTRUCTIONS = 200_000
MAX_ARRAYS = 1_000_000


def read_affine_hlo(path: str | Path, float_bytes: int | None = None) -> Program:
    """Checked program of a plain or gzip file of HLO text; raises InputError naming the line or operator.

    ``float_bytes`` is the size of all floating-point numbers, None for their own.
    """
    return affine_program(read_module(path), float_bytes)


def affine_program(module: HloModule, float_bytes: int | None = None) -> Program:
    """Checked program of a module's entry computation; ``float_bytes`` as in :func:`read_affine_hlo`.

    Raises
    ------
    InputError
        An instruction that has no place here (a while loop, a fusion: compile with optimisations off, or dump before them).
    """
    try:
        return _program(Walk(module, float_bytes))
    except InputError as error:
        raise (error if module.source is None else error.within(module.source)) from None


def _program(walk: Walk) -> Program:
    entry = walk.module.entry
    check_extent(walk.module, frozenset({"call"}), instructions=MAX_INSTRUCTIONS, arrays=MAX_ARRAYS)
    root = _walk(walk, entry, None)
    outputs = dict.fromkeys(each.name for each in leaves(root))
    program = walk.builder.program(tuple(outputs))
    check(program)
    return program


def _walk(walk: Walk, computation: Computation, arguments: list[Value] | None) -> Value:
    """Value of the root. ``arguments`` are those of a call, None for the entry."""
    values: dict[str, Value] = {}
    for each in computation.instructions:
        check_reading()
        value = _value(walk, each, [values[name] for name in each.operands], arguments)
        if not fits(value, each.shape):
            raise each.error(f"found a value of shape {shape_text(value)}, expected that of its text")
        values[each.name] = value
    return values[computation.root.name]


def _value(walk: Walk, each: Instruction, operands: list[Value], arguments: list[Value] | None) -> Value:
    opcode = each.opcode
    if opcode == "parameter":
        return walk.inputs(each.name, each.shape) if arguments is None else arguments[each.parameter_number or 0]
    if opcode == "constant":
        return walk.inputs(each.name, each.shape)
    if opcode == "tuple":
        return tuple(operands)
    if opcode == "get-tuple-element":
        source = operands[0] if operands else None
        if not isinstance(source, tuple):
            raise each.error("found no tuple, expected one as operand")
        return source[number(each, "index", below=len(source))]
    if opcode == "call":
        called = walk.module.computations[each.called[0]]
        if len(called.parameters) != len(operands):
            raise each.error(f"found {len(operands)} operands, expected the {len(called.parameters)} of %{called.name}")
        return _walk(walk, called, operands)
    if opcode in ("optimization-barrier", "opt-barrier", "copy") and operands and isinstance(operands[0], tuple):
        return operands[0]
    arrays = [leaf for operand in operands for leaf in leaves(operand)]
    if opcode == "reduce":
        return reduce(walk, each, arrays)
    if isinstance(each.shape, TupleShape):
        return walk.opaque(each, arrays)
    handler = _HANDLERS.get(opcode)
    if handler is not None:
        return handler(walk, each, arrays)
    if opcode in ELEMENTWISE and arrays and all(each.shape.dims == array.shape or not array.shape for array in arrays):
        return elementwise(walk, each, arrays)
    if opcode in ("while", "fusion", "conditional"):
        message = f"found a {opcode}, expected a module before optimisation, with calls and plain instructions only: "
        message += "of XLA's dump, take the file with before_optimizations in its name"
        raise InputError(message, place=f"operator {each.name} (line {each.line})")
    return walk.opaque(each, arrays)
