"""Affine programs from HLO text before XLA's optimisations, with its data movement still in place.

Calls are written out in place. Broadcasts, reshapes, transposes, slices, concatenations, pads and reversals become loop nests;
gathers and dynamic slices are operators that look at their operand at run-time indices; everything else is an operator with a
bank rule. Text order is a valid order to run in, not a schedule.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from stowplan.deadline import check_reading
from stowplan.errors import InputError
from stowplan.frontends.affine.access import Variable
from stowplan.frontends.affine.builder import Builder
from stowplan.frontends.affine.hlo_movement import MOVEMENT
from stowplan.frontends.affine.hlo_operators import ELEMENTWISE, OPERATORS, elementwise, reduce
from stowplan.frontends.hlo import ArrayShape, Computation, HloModule, Instruction, Shape, TupleShape, read_module
from stowplan.frontends.hlo.attributes import number
from stowplan.frontends.hlo.extent import check_extent
from stowplan.hardware.affine import program
from stowplan.hardware.affine.check import check
from stowplan.hardware.affine.program import Option, Program

#: A value: an array, or a tuple of values.
Value: TypeAlias = "Variable | tuple[Value, ...]"

#: Writes an instruction, given its operands.
Handler: TypeAlias = "Callable[[Walk, Instruction, list[Variable]], Variable]"

#: Floating-point types, those of 8 bits and less included.
_FLOATS = re.compile(r"f64|f32|f16|bf16|f[48]e\w+")


class Walk:
    """State of one walk through a module."""

    def __init__(self, module: HloModule, float_bytes: int | None):
        self.module, self._float_bytes = module, float_bytes
        self.builder = Builder(module.name)

    def inputs(self, name: str, shape: Shape) -> Value:
        """Tensors that are there from the start."""
        if isinstance(shape, TupleShape):
            return tuple(self.inputs(f"{name}.{number}", part) for number, part in enumerate(shape.parts))
        return self.builder.input(name, shape.dims, _item_bytes(shape, self._float_bytes))

    def operator(
        self,
        each: Instruction,
        operands: list[Variable],
        options: tuple[Option, ...],
        *,
        op: str = "",
        attributes: dict[str, Any] | None = None,
        restricted: bool = False,
        dynamic: tuple[int, ...] = (),
    ) -> list[Variable]:
        """Write an operator whose results are those of an instruction."""
        shapes = [leaf for _, leaf in each.shape.leaves()]
        return self.builder.operator(
            op or each.opcode,
            operands,
            [leaf.dims for leaf in shapes],
            options,
            attributes=attributes,
            restricted=restricted,
            name=each.name,
            dynamic=dynamic,
            item_bytes=[_item_bytes(leaf, self._float_bytes) for leaf in shapes],
        )

    def opaque(self, each: Instruction, operands: list[Variable]) -> Value:
        """What nothing is known of: all in one bank, read at indices unknown."""
        outputs = len(list(each.shape.leaves()))
        dynamic = tuple(range(len(operands)))
        results = self.operator(each, operands, program.unspread(len(operands), outputs), dynamic=dynamic)
        return results[0] if isinstance(each.shape, ArrayShape) else packed(each.shape, iter(results))


def leaves(value: Value) -> list[Variable]:
    """Arrays of a value, in order."""
    return [value] if isinstance(value, Variable) else [leaf for part in value for leaf in leaves(part)]


def packed(shape: Shape, results: Iterator[Variable]) -> Value:
    """The value of a shape, of arrays in order."""
    if isinstance(shape, ArrayShape):
        return next(results)
    return tuple(packed(part, results) for part in shape.parts)


def dims(each: Instruction) -> tuple[int, ...]:
    """Sizes of an array that an instruction makes."""
    assert isinstance(each.shape, ArrayShape)
    return each.shape.dims


def _item_bytes(shape: ArrayShape, float_bytes: int | None) -> int:
    if float_bytes is not None and _FLOATS.fullmatch(shape.dtype):
        return float_bytes
    return max(1, shape.bytes // shape.elements) if shape.elements else 1


def fits(value: Value, shape: Shape) -> bool:
    """Whether a value is one of the shape that the text gives; what follows takes that for granted."""
    if isinstance(value, Variable):
        return isinstance(shape, ArrayShape) and tuple(value.shape) == shape.dims
    return (
        isinstance(shape, TupleShape)
        and len(value) == len(shape.parts)
        and all(fits(one, two) for one, two in zip(value, shape.parts, strict=True))
    )


def shape_text(value: Value) -> str:
    """The shape of a value, for an error message."""
    return str(list(value.shape)) if isinstance(value, Variable) else f"a tuple of {len(value)}"


def listed(values: Sequence[int]) -> str:
    """Numbers, for an error message."""
    return ",".join(map(str, values))


def first_operand(each: Instruction, operands: list[Variable], count: int | None = 1) -> Variable:
    """The first operand, where there are ``count`` of them; None for one or more."""
    if len(operands) != count if count is not None else not operands:
        raise each.error(f"found {len(operands)} operands, expected {count or 'one or more'}")
    return operands[0]


def expect_one_for_each(each: Instruction, name: str, values: list[int], operand: Variable) -> None:
    """Raise InputError where there is not one number for each dimension."""
    if len(values) != len(operand.shape):
        raise each.error(f"found {name}={{{listed(values)}}}, expected {len(operand.shape)} numbers, one for each dimension")


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
