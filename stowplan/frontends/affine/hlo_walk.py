"""The state of a walk through an HLO module: values of instructions, and the operators that are added to the program."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

from stowplan.frontends.affine.access import Variable
from stowplan.frontends.affine.builder import Builder
from stowplan.frontends.hlo import ArrayShape, HloModule, Instruction, Shape, TupleShape
from stowplan.hardware.affine import rules
from stowplan.hardware.affine.program import Option

#: A value: an array, or a tuple of values.
Value: TypeAlias = "Variable | tuple[Value, ...]"

#: A function that adds an instruction to the program, from its operands.
Handler: TypeAlias = "Callable[[Walk, Instruction, list[Variable]], Variable]"

#: Floating-point types, including those of 8 bits and less.
_FLOATS = re.compile(r"f64|f32|f16|bf16|f[48]e\w+")


class Walk:
    """The state of one walk through a module."""

    def __init__(self, module: HloModule, float_bytes: int | None):
        self.module, self._float_bytes = module, float_bytes
        self.builder = Builder(module.name)

    def inputs(self, name: str, shape: Shape) -> Value:
        """Add inputs of the program for all arrays of a shape."""
        if isinstance(shape, TupleShape):
            return tuple(self.inputs(f"{name}.{number}", part) for number, part in enumerate(shape.parts))
        return self.builder.input(name, shape.dims, _item_bytes(shape, self._float_bytes))

    def operator(
        self,
        instruction: Instruction,
        operands: list[Variable],
        options: tuple[Option, ...],
        *,
        op: str = "",
        attributes: dict[str, Any] | None = None,
        restricted: bool = False,
        dynamic: tuple[int, ...] = (),
    ) -> list[Variable]:
        """Add an operator whose results are those of an instruction."""
        shapes = [leaf for _, leaf in instruction.shape.leaves]
        return self.builder.operator(
            op or instruction.opcode,
            operands,
            [leaf.dims for leaf in shapes],
            options,
            attributes=attributes,
            restricted=restricted,
            name=instruction.name,
            dynamic=dynamic,
            item_bytes=[_item_bytes(leaf, self._float_bytes) for leaf in shapes],
        )

    def opaque(self, instruction: Instruction, operands: list[Variable]) -> Value:
        """Add an operator about which nothing is known: all of its arrays must be in one bank."""
        outputs = len(instruction.shape.leaves)
        dynamic = tuple(range(len(operands)))
        results = self.operator(instruction, operands, rules.unspread(len(operands), outputs), dynamic=dynamic)
        return results[0] if isinstance(instruction.shape, ArrayShape) else packed(instruction.shape, iter(results))


def leaves(value: Value) -> list[Variable]:
    """The arrays in a value, in order."""
    return [value] if isinstance(value, Variable) else [leaf for part in value for leaf in leaves(part)]


def packed(shape: Shape, results: Iterator[Variable]) -> Value:
    """The value with a shape that consists of these arrays in order."""
    if isinstance(shape, ArrayShape):
        return next(results)
    return tuple(packed(part, results) for part in shape.parts)


def dims(instruction: Instruction) -> tuple[int, ...]:
    """Dimensions of the array that an instruction returns."""
    assert isinstance(instruction.shape, ArrayShape)
    return instruction.shape.dims


def _item_bytes(shape: ArrayShape, float_bytes: int | None) -> int:
    if float_bytes is not None and _FLOATS.fullmatch(shape.dtype):
        return float_bytes
    return max(1, shape.bytes // shape.elements) if shape.elements else 1


def fits(value: Value, shape: Shape) -> bool:
    """Whether a value has the shape in the text; other functions rely on it."""
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
    """Numbers as text for an error message."""
    return ",".join(map(str, values))


def first_operand(instruction: Instruction, operands: list[Variable], count: int | None = 1) -> Variable:
    """The first operand; raises InputError if the number of operands is not ``count`` (None: if there is no operand)."""
    if len(operands) != count if count is not None else not operands:
        raise instruction.error(f"found {len(operands)} operands, expected {count or 'one or more'}")
    return operands[0]


def expect_one_for_each(instruction: Instruction, name: str, values: list[int], operand: Variable) -> None:
    """Raise InputError unless there is one number for each dimension."""
    if len(values) != len(operand.shape):
        raise instruction.error(
            f"found {name}={{{listed(values)}}}, expected {len(operand.shape)} numbers, one for each dimension"
        )
