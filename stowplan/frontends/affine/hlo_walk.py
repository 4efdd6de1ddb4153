"""The state of a walk through an HLO module, which adds operators to an affine program, and functions on values and shapes.

Handlers of instructions (:mod:`stowplan.frontends.affine.hlo`) receive a :class:`Walk`. The *leaves* of a shape or a value are
its arrays: a tuple has those of all its parts, and an array is its own only leaf.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

from stowplan.frontends.affine.access import Variable
from stowplan.frontends.affine.builder import Builder
from stowplan.frontends.hlo import ArrayShape, HloModule, Instruction, Shape, TupleShape
from stowplan.hardware.affine import rules
from stowplan.hardware.affine.program import Option

#: A value: an array, which is a tensor of the program, or a tuple of values.
Value: TypeAlias = "Variable | tuple[Value, ...]"

#: A function that adds an instruction with these operands to the program, and returns its value. It raises InputError, which
#: names the instruction, if operands or attributes do not fit the opcode.
Handler: TypeAlias = "Callable[[Walk, Instruction, list[Variable]], Variable]"

#: Floating-point types, including those of 8 bits and less.
_FLOATS = re.compile(r"f64|f32|f16|bf16|f[48]e\w+")


class Walk:
    """The state of one walk through a module: the program so far, which is in ``builder``.

    ``float_bytes`` is the size of all floating-point numbers in bytes; None for that of the module.
    """

    def __init__(self, module: HloModule, float_bytes: int | None):
        self.module, self._float_bytes = module, float_bytes
        self.builder = Builder(module.name)

    def inputs(self, name: str, shape: Shape) -> Value:
        """Adds inputs of the program for all arrays of a shape; returns them as a value of this shape."""
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
        """Adds an operator whose results are those of an instruction, and returns them.

        The parameters are those of :meth:`~stowplan.frontends.affine.builder.Builder.operator`.
        """
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
        """Adds an operator about which nothing is known, so that each of its arrays must be in one bank; returns the value of
        the instruction."""
        outputs = len(instruction.shape.leaves)
        dynamic = tuple(range(len(operands)))
        results = self.operator(instruction, operands, rules.unspread(len(operands), outputs), dynamic=dynamic)
        return results[0] if isinstance(instruction.shape, ArrayShape) else packed(instruction.shape, iter(results))


def leaves(value: Value) -> list[Variable]:
    """The arrays in a value, in order."""
    return [value] if isinstance(value, Variable) else [leaf for part in value for leaf in leaves(part)]


def packed(shape: Shape, results: Iterator[Variable]) -> Value:
    """Takes as many of ``results`` as a shape has arrays, and returns them as a value of this shape."""
    if isinstance(shape, ArrayShape):
        return next(results)
    return tuple(packed(part, results) for part in shape.parts)


def dims(instruction: Instruction) -> tuple[int, ...]:
    """Sizes of the dimensions of the array that an instruction returns; its shape must not be a tuple."""
    assert isinstance(instruction.shape, ArrayShape)
    return instruction.shape.dims


def _item_bytes(shape: ArrayShape, float_bytes: int | None) -> int:
    """Bytes of an element, at least 1; ``float_bytes`` replaces the size of floating-point elements."""
    if float_bytes is not None and _FLOATS.fullmatch(shape.dtype):
        return float_bytes
    return max(1, shape.bytes // shape.elements) if shape.elements else 1


def fits(value: Value, shape: Shape) -> bool:
    """Whether a value has this shape. The walk checks it for every instruction, and handlers rely on it."""
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
    """The first operand. Raises InputError if there are not exactly ``count`` operands; if ``count`` is None, one or more are
    accepted."""
    if len(operands) != count if count is not None else not operands:
        raise instruction.error(f"found {len(operands)} operands, expected {count or 'one or more'}")
    return operands[0]


def expect_one_for_each(instruction: Instruction, name: str, values: list[int], operand: Variable) -> None:
    """Raises InputError unless the attribute ``name`` has one number for each dimension of the operand."""
    if len(values) != len(operand.shape):
        raise instruction.error(
            f"found {name}={{{listed(values)}}}, expected {len(operand.shape)} numbers, one for each dimension"
        )
