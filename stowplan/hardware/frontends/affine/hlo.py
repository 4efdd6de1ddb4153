"""Affine programs from HLO text before XLA's optimisations, with its data movement still in place.

Calls are written out in place. Broadcasts, reshapes, transposes, slices, concatenations, pads and reversals become loop nests;
gathers and dynamic slices are operators that look at their operand at run-time indices; everything else is an operator with a
bank rule. Text order is a valid order to run in, not a schedule.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

from stowplan.errors import InputError
from stowplan.hardware.affine import rules
from stowplan.hardware.affine.check import check
from stowplan.hardware.affine.program import UNSPREAD, Option, Program
from stowplan.hardware.frontends.affine.builder import Builder, Variable
from stowplan.hardware.frontends.hlo import ArrayShape, Computation, HloModule, Instruction, Shape, TupleShape, read_module

#: A value: an array, or a tuple of values.
Value: TypeAlias = "Variable | tuple[Value, ...]"

#: Computations that add, multiply ... two scalars, by the opcode of their root.
_PLAIN_REDUCTIONS = ("add", "maximum", "minimum", "multiply")

_ELEMENTWISE_NAMES = """
    abs add and atan2 cbrt ceil clamp compare complex convert copy cosine divide erf exponential exponential-minus-one floor
    imag is-finite log log-plus-one logistic maximum minimum multiply negate not or popcnt power real reduce-precision remainder
    round-nearest-afz round-nearest-even rsqrt select shift-left shift-right-arithmetic shift-right-logical sign sine sqrt
    subtract tan tanh xor bitcast-convert"""
_ELEMENTWISE = frozenset(_ELEMENTWISE_NAMES.split())

_NUMBERS = re.compile(r"-?\d+")
_RANGE = re.compile(r"\[(\d+):(\d+)(?::(\d+))?\]")


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
        return _Walk(module, float_bytes).program()
    except InputError as error:
        raise (error if module.source is None else error.within(module.source)) from None


class _Walk:
    """State of one walk through a module."""

    def __init__(self, module: HloModule, float_bytes: int | None):
        self._module, self._float_bytes = module, float_bytes
        self._builder = Builder(module.name)
        self._handlers: dict[str, Callable[[Instruction, list[Variable]], Variable]] = {
            "broadcast": self._broadcast,
            "reshape": self._reshape,
            "bitcast": self._reshape,
            "transpose": self._transpose,
            "slice": self._slice,
            "reverse": self._reverse,
            "concatenate": self._concatenate,
            "pad": self._pad,
            "dot": self._dot,
            "convolution": self._convolution,
            "reduce-window": self._reduce_window,
            "gather": self._gather,
            "scatter": self._scatter,
            "dynamic-slice": self._dynamic_slice,
            "dynamic-update-slice": self._dynamic_update_slice,
            "iota": self._iota,
        }

    def program(self) -> Program:
        entry = self._module.entry
        root = self._walk(entry, None)
        outputs = dict.fromkeys(each.name for each in _leaves(root))
        program = self._builder.program(tuple(outputs))
        check(program)
        return program

    def _walk(self, computation: Computation, arguments: list[Value] | None) -> Value:
        """Value of the root. ``arguments`` are those of a call, None for the entry."""
        values: dict[str, Value] = {}
        for each in computation.instructions:
            values[each.name] = self._value(each, [values[name] for name in each.operands], arguments)
        return values[computation.root.name]

    def _value(self, each: Instruction, operands: list[Value], arguments: list[Value] | None) -> Value:
        opcode = each.opcode
        if opcode == "parameter":
            return self._inputs(each.name, each.shape) if arguments is None else arguments[each.parameter_number or 0]
        if opcode == "constant":
            return self._inputs(each.name, each.shape)
        if opcode == "tuple":
            return tuple(operands)
        if opcode == "get-tuple-element":
            source = operands[0]
            assert isinstance(source, tuple)
            return source[_numbers(each, "index")[0]]
        if opcode == "call":
            return self._walk(self._module.computations[each.called[0]], operands)
        if opcode in ("optimization-barrier", "copy") and not isinstance(operands[0], Variable):
            return operands[0]
        arrays = [leaf for operand in operands for leaf in _leaves(operand)]
        if opcode == "reduce":
            return self._reduce(each, arrays)
        if isinstance(each.shape, TupleShape):
            return self._opaque(each, arrays)
        handler = self._handlers.get(opcode)
        if handler is not None:
            return handler(each, arrays)
        if opcode in _ELEMENTWISE and all(each.shape.dims == array.shape or not array.shape for array in arrays):
            return self._elementwise(each, arrays)
        if opcode in ("while", "fusion", "conditional"):
            message = f"found a {opcode}, expected a module before optimisation, with calls and plain instructions only"
            raise InputError(message, place=f"operator {each.name} (line {each.line})")
        return self._opaque(each, arrays)

    def _inputs(self, name: str, shape: Shape) -> Value:
        if isinstance(shape, TupleShape):
            return tuple(self._inputs(f"{name}.{number}", part) for number, part in enumerate(shape.parts))
        return self._builder.input(name, shape.dims, _item_bytes(shape, self._float_bytes))

    def _operator(
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
        leaves = [leaf for _, leaf in each.shape.leaves()]
        return self._builder.operator(
            op or each.opcode,
            operands,
            [leaf.dims for leaf in leaves],
            options,
            attributes=attributes,
            restricted=restricted,
            name=each.name,
            dynamic=dynamic,
            item_bytes=[_item_bytes(leaf, self._float_bytes) for leaf in leaves],
        )

    # Operators that move data

    def _broadcast(self, each: Instruction, operands: list[Variable]) -> Variable:
        return self._builder.broadcast(operands[0], _dims(each), _numbers(each, "dimensions"), each.name)

    def _reshape(self, each: Instruction, operands: list[Variable]) -> Variable:
        return self._builder.reshape(operands[0], _dims(each), each.name)

    def _transpose(self, each: Instruction, operands: list[Variable]) -> Variable:
        return self._builder.transpose(operands[0], _numbers(each, "dimensions"), each.name)

    def _slice(self, each: Instruction, operands: list[Variable]) -> Variable:
        parts = _RANGE.findall(each.attribute("slice") or "")
        starts, ends = [int(start) for start, _, _ in parts], [int(end) for _, end, _ in parts]
        return self._builder.slice(operands[0], starts, ends, [int(step or 1) for _, _, step in parts], each.name)

    def _reverse(self, each: Instruction, operands: list[Variable]) -> Variable:
        return self._builder.reverse(operands[0], _numbers(each, "dimensions"), each.name)

    def _concatenate(self, each: Instruction, operands: list[Variable]) -> Variable:
        return self._builder.concatenate(operands, _numbers(each, "dimensions")[0], each.name)

    def _pad(self, each: Instruction, operands: list[Variable]) -> Variable:
        sides = [[int(number) for number in part.split("_")] for part in (each.attribute("padding") or "").split("x")]
        low, high = [side[0] for side in sides], [side[1] for side in sides]
        interior = [side[2] if len(side) > 2 else 0 for side in sides]
        return self._builder.pad(operands[0], low, high, interior, operands[1], each.name)

    # Operators that compute

    def _elementwise(self, each: Instruction, operands: list[Variable]) -> Variable:
        rank = len(_dims(each))
        # A clamp may have scalar bounds, a select a scalar predicate: those stay in one bank.
        options = tuple(
            (*(way[0] if array.shape else UNSPREAD for array in operands), way[0]) for way in rules.elementwise(rank, 1)
        )
        attributes: dict[str, Any] = {"direction": each.attribute("direction")}
        return self._operator(each, operands, options, attributes=attributes)[0]

    def _dot(self, each: Instruction, operands: list[Variable]) -> Variable:
        contracting = list(zip(_numbers(each, "lhs_contracting_dims"), _numbers(each, "rhs_contracting_dims"), strict=True))
        batch = list(zip(_numbers(each, "lhs_batch_dims"), _numbers(each, "rhs_batch_dims"), strict=True))
        options = rules.matmul(len(operands[0].shape), len(operands[1].shape), contracting, batch)
        attributes: dict[str, Any] = {"contracting": contracting, "batch": batch}
        return self._operator(each, operands, options, op="matmul", attributes=attributes, restricted=True)[0]

    def _convolution(self, each: Instruction, operands: list[Variable]) -> Variable:
        labels = each.attribute("dim_labels") or ""
        found = re.fullmatch(r"([0-9bf?]+)_([0-9io?]+)->([0-9bf?]+)", labels)
        if found is None:
            place = f"operator {each.name} (line {each.line})"
            raise InputError(f"found dim_labels {labels!r}, expected some such as b01f_01io->b01f", place=place)
        spatial = len(_dims(each)) - 2
        layout = tuple(
            tuple(part.index(mark) for mark in (*marks, *(str(number) for number in range(spatial))))
            for part, marks in zip(found.groups(), ("bf", "oi", "bf"), strict=True)
        )
        window = _window(each, spatial)
        groups = int(each.attribute("feature_group_count") or 1)
        attributes: dict[str, Any] = {
            "layout": layout,
            "strides": window["stride"],
            "pads": window["pad"],
            "base": window["lhs_dilate"],
            "dilations": window["rhs_dilate"],
            "groups": groups,
        }
        options = rules.convolution(layout[0][1], layout[1][1], layout[2][1])
        return self._operator(each, operands, options, op="convolution", attributes=attributes, restricted=True)[0]

    def _reduce_window(self, each: Instruction, operands: list[Variable]) -> Variable:
        rank = len(operands[0].shape)
        window = _window(each, rank)
        sizes = window["size"]
        attributes: dict[str, Any] = {
            "window": sizes,
            "strides": window["stride"],
            "pads": window["pad"],
            "kind": self._kind(each),
        }
        options = tuple((way[0], UNSPREAD, way[1]) for way in rules.pool(sizes))
        return self._operator(each, operands, options, op="pool", attributes=attributes, restricted=True)[0]

    def _reduce(self, each: Instruction, operands: list[Variable]) -> Value:
        dimensions = _numbers(each, "dimensions")
        half = len(operands) // 2
        rank = len(operands[0].shape)
        outputs = len(list(each.shape.leaves()))
        options = tuple(
            (*way[:half], *(UNSPREAD,) * half, *way[half:]) for way in rules.reduction(rank, dimensions, half, outputs)
        )
        attributes: dict[str, Any] = {"dimensions": dimensions, "kind": self._kind(each)}
        results = self._operator(each, operands, options, attributes=attributes)
        return results[0] if isinstance(each.shape, ArrayShape) else tuple(results)

    def _kind(self, each: Instruction) -> str:
        """Opcode of what a reduction computes of two values."""
        root = self._module.computations[each.called[0]].root
        return root.opcode if root.opcode in _PLAIN_REDUCTIONS else "other"

    def _gather(self, each: Instruction, operands: list[Variable]) -> Variable:
        """Rows of a table: a dimension that is taken whole may be spread, on both sides."""
        offsets = _numbers(each, "offset_dims")
        gone = set(_numbers(each, "collapsed_slice_dims")) | set(_numbers(each, "operand_batching_dims"))
        sizes = _numbers(each, "slice_sizes")
        kept = [dimension for dimension in range(len(operands[0].shape)) if dimension not in gone]
        options = [
            (dimension, UNSPREAD, offset)
            for dimension, offset in zip(kept, offsets, strict=True)
            if sizes[dimension] == operands[0].shape[dimension]
        ]
        return self._operator(each, operands, (*options, (UNSPREAD,) * 3), dynamic=(0,))[0]

    def _scatter(self, each: Instruction, operands: list[Variable]) -> Variable:
        """Rows added to a table: a dimension that updates have whole may be spread, on operand, updates and result."""
        if len(operands) != 3:
            return self._operator(each, operands, rules.unspread(len(operands), 1), dynamic=(0,))[0]
        windows = _numbers(each, "update_window_dims")
        gone = set(_numbers(each, "inserted_window_dims")) | set(_numbers(each, "input_batching_dims"))
        kept = [dimension for dimension in range(len(operands[0].shape)) if dimension not in gone]
        options = [
            (dimension, UNSPREAD, window, dimension)
            for dimension, window in zip(kept, windows, strict=True)
            if operands[0].shape[dimension] == operands[2].shape[window]
        ]
        return self._operator(each, operands, (*options, (UNSPREAD,) * 4), dynamic=(0,))[0]

    def _dynamic_slice(self, each: Instruction, operands: list[Variable]) -> Variable:
        whole = [at for at, (one, two) in enumerate(zip(operands[0].shape, _dims(each), strict=True)) if one == two]
        starts = (UNSPREAD,) * (len(operands) - 1)
        options = [(dimension, *starts, dimension) for dimension in whole]
        return self._operator(each, operands, (*options, (UNSPREAD, *starts, UNSPREAD)), dynamic=(0,))[0]

    def _dynamic_update_slice(self, each: Instruction, operands: list[Variable]) -> Variable:
        whole = [at for at, (one, two) in enumerate(zip(operands[0].shape, operands[1].shape, strict=True)) if one == two]
        starts = (UNSPREAD,) * (len(operands) - 2)
        options = [(dimension, dimension, *starts, dimension) for dimension in whole]
        return self._operator(each, operands, (*options, (UNSPREAD, UNSPREAD, *starts, UNSPREAD)))[0]

    def _iota(self, each: Instruction, operands: list[Variable]) -> Variable:
        shape = _dims(each)
        options = tuple((dimension,) for dimension in (*range(len(shape)), UNSPREAD))
        attributes: dict[str, Any] = {"shape": shape, "dimension": _numbers(each, "iota_dimension")[0]}
        return self._operator(each, operands, options, attributes=attributes)[0]

    def _opaque(self, each: Instruction, operands: list[Variable]) -> Value:
        """What nothing is known of: all in one bank, read at indices unknown."""
        outputs = len(list(each.shape.leaves()))
        dynamic = tuple(range(len(operands)))
        results = self._operator(each, operands, rules.unspread(len(operands), outputs), dynamic=dynamic)
        return results[0] if isinstance(each.shape, ArrayShape) else _packed(each.shape, iter(results))


def _leaves(value: Value) -> list[Variable]:
    return [value] if isinstance(value, Variable) else [leaf for part in value for leaf in _leaves(part)]


def _packed(shape: Shape, results: Iterator[Variable]) -> Value:
    if isinstance(shape, ArrayShape):
        return next(results)
    return tuple(_packed(part, results) for part in shape.parts)


def _dims(each: Instruction) -> tuple[int, ...]:
    assert isinstance(each.shape, ArrayShape)
    return each.shape.dims


#: Floating-point types, those of 8 bits and less included.
_FLOATS = re.compile(r"f64|f32|f16|bf16|f[48]e\w+")


def _item_bytes(shape: ArrayShape, float_bytes: int | None) -> int:
    if float_bytes is not None and _FLOATS.fullmatch(shape.dtype):
        return float_bytes
    return max(1, shape.bytes // shape.elements) if shape.elements else 1


def _numbers(each: Instruction, attribute: str) -> list[int]:
    return [int(number) for number in _NUMBERS.findall(each.attribute(attribute) or "")]


def _window(each: Instruction, rank: int) -> dict[str, list[Any]]:
    """Fields of ``window={size=3x3 stride=2x2 pad=1_1x1_1 ...}`` for every dimension, defaults where they are left out."""
    text = (each.attribute("window") or "{}").strip("{}")
    given = dict(part.split("=", 1) for part in text.split())
    found: dict[str, list[Any]] = {}
    for name in ("size", "stride", "pad", "lhs_dilate", "rhs_dilate"):
        parts = given[name].split("x") if name in given else []
        if name == "pad":
            found[name] = [tuple(int(side) for side in part.split("_")) for part in parts] or [(0, 0)] * rank
        else:
            found[name] = [int(part) for part in parts] or [1] * rank
    return found
