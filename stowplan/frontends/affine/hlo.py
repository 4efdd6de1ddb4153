"""Makes affine programs from HLO text before XLA's optimizations, including all instructions that only move data.

Calls are inlined. Broadcasts, reshapes, transposes, slices, concatenations, pads and reversals become loop nests. Gathers and
dynamic slices become operators that read an operand at run-time indices. All other instructions become operators with a bank
rule, which lists the ways in which operands and results may be spread over the banks of an on-chip memory. The order of the
text is one in which the program can run, but it is not a schedule.

A handler adds one instruction to the program, and returns its value. Handlers for instructions that move data are in
:data:`MOVEMENT`, and handlers for those that compute are in :data:`OPERATORS`. A handler raises InputError, which names the
instruction, if an operand or attribute does not fit.

A ``Walk`` (:mod:`.hlo_walk`) has the program so far. A ``Variable`` (:mod:`.access`) stands for a tensor of the program. In
bank rules, the *options* of an operator have the dimension along which each operand and result is spread, or
:data:`~stowplan.hardware.affine.program.UNSPREAD`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from stowplan.deadline import check_reading
from stowplan.errors import InputError, naming
from stowplan.frontends.affine.access import Variable
from stowplan.frontends.affine.hlo_walk import (
    Handler,
    Value,
    Walk,
    dims,
    expect_one_for_each,
    first_operand,
    fits,
    leaves,
    listed,
    shape_text,
)
from stowplan.frontends.hlo import ArrayShape, Computation, HloModule, Instruction, TupleShape, read_module
from stowplan.frontends.hlo.check import check_module
from stowplan.frontends.hlo.module import convolution_labels, number, numbers, padding, ranges, window
from stowplan.frontends.hlo.opcodes import ELEMENTWISE, HOST, SAME_VALUE_CALLS, SPACES
from stowplan.frontends.hlo.walk import check_extent, custom_target
from stowplan.hardware.affine import rules
from stowplan.hardware.affine.check import check
from stowplan.hardware.affine.program import UNSPREAD, Program


def _broadcast(walk: Walk, instruction: Instruction, operands: list[Variable]) -> Variable:
    source = first_operand(instruction, operands)
    dimensions = numbers(instruction, "dimensions", below=len(dims(instruction)))
    expect_one_for_each(instruction, "dimensions", dimensions, source)
    return walk.builder.broadcast(source, dims(instruction), dimensions, instruction.name)


def _reshape(walk: Walk, instruction: Instruction, operands: list[Variable]) -> Variable:
    return walk.builder.reshape(first_operand(instruction, operands), dims(instruction), instruction.name)


def _transpose(walk: Walk, instruction: Instruction, operands: list[Variable]) -> Variable:
    source = first_operand(instruction, operands)
    dimensions = numbers(instruction, "dimensions", below=len(source.shape))
    expect_one_for_each(instruction, "dimensions", dimensions, source)
    return walk.builder.transpose(source, dimensions, instruction.name)


def _slice(walk: Walk, instruction: Instruction, operands: list[Variable]) -> Variable:
    source = first_operand(instruction, operands)
    parts = ranges(instruction, len(source.shape))
    starts, ends, steps = [part[0] for part in parts], [part[1] for part in parts], [part[2] for part in parts]
    return walk.builder.slice(source, starts, ends, steps, instruction.name)


def _reverse(walk: Walk, instruction: Instruction, operands: list[Variable]) -> Variable:
    source = first_operand(instruction, operands)
    return walk.builder.reverse(source, numbers(instruction, "dimensions", below=len(source.shape)), instruction.name)


def _concatenate(walk: Walk, instruction: Instruction, operands: list[Variable]) -> Variable:
    rank = len(first_operand(instruction, operands, None).shape)
    if any(len(operand.shape) != rank for operand in operands):
        raise instruction.error("found operands of different ranks, expected one rank")
    return walk.builder.concatenate(operands, number(instruction, "dimensions", below=rank), instruction.name)


def _pad(walk: Walk, instruction: Instruction, operands: list[Variable]) -> Variable:
    source = first_operand(instruction, operands, 2)
    sides = padding(instruction, len(source.shape))
    low, high, interior = [side[0] for side in sides], [side[1] for side in sides], [side[2] for side in sides]
    if operands[1].shape:
        raise instruction.error(f"found a value of shape {list(operands[1].shape)} to pad with, expected a single one")
    return walk.builder.pad(source, low, high, interior, operands[1], instruction.name)


#: The handlers of instructions that move data, by their opcodes.
MOVEMENT: dict[str, Handler] = {
    "broadcast": _broadcast,
    "reshape": _reshape,
    "bitcast": _reshape,
    "transpose": _transpose,
    "slice": _slice,
    "reverse": _reverse,
    "concatenate": _concatenate,
    "pad": _pad,
}


#: The kind of a reduction is the opcode by which it combines two scalars if it is one of these; otherwise it is ``other``.
_PLAIN_REDUCTIONS = ("add", "maximum", "minimum", "multiply")


def elementwise(walk: Walk, instruction: Instruction, operands: list[Variable]) -> Variable:
    """Adds an element-wise instruction; the caller has checked that operands have the shape of the result or are scalars."""
    rank = len(dims(instruction))
    # A clamp may have scalar bounds, and a select a scalar predicate; scalars stay in one bank.
    options = tuple(
        (*(way[0] if array.shape else UNSPREAD for array in operands), way[0]) for way in rules.elementwise(rank, 1)
    )
    attributes: dict[str, Any] = {"direction": instruction.attribute("direction")}
    return walk.operator(instruction, operands, options, attributes=attributes)[0]


def _dot(walk: Walk, instruction: Instruction, operands: list[Variable]) -> Variable:
    one, two = len(first_operand(instruction, operands, 2).shape), len(operands[1].shape)

    def pairs(what: str) -> list[tuple[int, int]]:
        left = numbers(instruction, f"lhs_{what}_dims", below=one, needed=what == "contracting")
        right = numbers(instruction, f"rhs_{what}_dims", below=two, needed=what == "contracting")
        paired = list(zip(left, right, strict=False))
        if len(left) != len(right) or any(operands[0].shape[a] != operands[1].shape[b] for a, b in paired):
            message = f"found lhs_{what}_dims={{{listed(left)}}} and rhs_{what}_dims={{{listed(right)}}}"
            raise instruction.error(f"{message}, expected dimensions of equal sizes")
        return paired

    contracting, batch = pairs("contracting"), pairs("batch")
    if len(dims(instruction)) != one + two - 2 * len(contracting) - len(batch):
        raise instruction.error(
            f"found a result of {len(dims(instruction))} dimensions, expected those that are not contracted"
        )
    options = rules.matmul(one, two, contracting, batch)
    attributes: dict[str, Any] = {"contracting": contracting, "batch": batch}
    return walk.operator(instruction, operands, options, op="matmul", attributes=attributes, restricted=True)[0]


def _convolution(walk: Walk, instruction: Instruction, operands: list[Variable]) -> Variable:
    first_operand(instruction, operands, 2)
    labels = convolution_labels(instruction, len(operands[0].shape), len(operands[1].shape), len(dims(instruction)))
    spatial = len(dims(instruction)) - 2
    layout = tuple(
        tuple(part.index(mark) for mark in (*marks, *(str(at) for at in range(spatial))))
        for part, marks in zip(labels, ("bf", "oi", "bf"), strict=True)
    )
    sliding = window(instruction, spatial)
    attributes: dict[str, Any] = {
        "layout": layout,
        "strides": sliding.stride,
        "pads": sliding.pad,
        "base": sliding.lhs_dilate,
        "dilations": sliding.rhs_dilate,
        "groups": (numbers(instruction, "feature_group_count", needed=False) or [1])[0],
    }
    options = rules.convolution(layout[0][1], layout[1][1], layout[2][1])
    return walk.operator(instruction, operands, options, op="convolution", attributes=attributes, restricted=True)[0]


def _reduce_window(walk: Walk, instruction: Instruction, operands: list[Variable]) -> Variable:
    rank = len(first_operand(instruction, operands, 2).shape)
    sliding = window(instruction, rank)
    attributes: dict[str, Any] = {
        "window": sliding.size,
        "strides": sliding.stride,
        "pads": sliding.pad,
        "kind": _kind(walk, instruction),
    }
    options = tuple((way[0], UNSPREAD, way[1]) for way in rules.pool(sliding.size))
    return walk.operator(instruction, operands, options, op="pool", attributes=attributes, restricted=True)[0]


def reduce(walk: Walk, instruction: Instruction, operands: list[Variable]) -> Value:
    """Adds a reduction of one or several arrays along the same dimensions. The second half of the operands are initial values.

    Returns an array, or a tuple of arrays if the instruction does. Raises InputError if the numbers of arrays, initial values
    and results differ, if the arrays have different shapes, or if an attribute is missing or wrong.
    """
    half = len(operands) // 2
    outputs = len(instruction.shape.leaves)
    if not half or len(operands) != 2 * half or outputs != half:
        raise instruction.error(
            f"found {len(operands)} operands and {outputs} results, expected as many initial values as each"
        )
    rank = len(operands[0].shape)
    dimensions = numbers(instruction, "dimensions", below=rank)
    if any(operand.shape != operands[0].shape for operand in operands[:half]):
        raise instruction.error("found operands of different shapes, expected one shape")
    options = tuple((*way[:half], *(UNSPREAD,) * half, *way[half:]) for way in rules.reduction(rank, dimensions, half, outputs))
    attributes: dict[str, Any] = {"dimensions": dimensions, "kind": _kind(walk, instruction)}
    results = walk.operator(instruction, operands, options, attributes=attributes)
    return results[0] if isinstance(instruction.shape, ArrayShape) else tuple(results)


def _kind(walk: Walk, instruction: Instruction) -> str:
    """The opcode that a reduction applies to two values, or ``other`` if it is not one of :data:`_PLAIN_REDUCTIONS`. Raises
    InputError if the instruction names no computation."""
    if not instruction.called:
        raise instruction.error("found no to_apply, expected the computation that it reduces by")
    root = walk.module.computations[instruction.called[0]].root
    return root.opcode if root.opcode in _PLAIN_REDUCTIONS else "other"


def _gather(walk: Walk, instruction: Instruction, operands: list[Variable]) -> Variable:
    """Adds a gather of rows of a table. A dimension may be spread over banks if every row contains all of its elements."""
    table = first_operand(instruction, operands, 2)
    rank = len(table.shape)
    offsets = numbers(instruction, "offset_dims", below=len(dims(instruction)))
    window_dimensions = _remaining(instruction, rank, "collapsed_slice_dims", "operand_batching_dims")
    sizes = numbers(instruction, "slice_sizes")
    expect_one_for_each(instruction, "slice_sizes", sizes, table)
    options = [
        (dimension, UNSPREAD, offset)
        for dimension, offset in _paired(instruction, "offset_dims", window_dimensions, offsets)
        if sizes[dimension] == table.shape[dimension]
    ]
    return walk.operator(instruction, operands, (*options, (UNSPREAD,) * 3), dynamic=(0,))[0]


def _scatter(walk: Walk, instruction: Instruction, operands: list[Variable]) -> Variable:
    """Adds a scatter of rows into a table. A dimension may be spread over banks if every row contains all of its elements."""
    if len(operands) != 3:
        return walk.operator(instruction, operands, rules.unspread(len(operands), 1), dynamic=(0,) if operands else ())[0]
    rank = len(operands[0].shape)
    windows = numbers(instruction, "update_window_dims", below=len(operands[2].shape))
    window_dimensions = _remaining(instruction, rank, "inserted_window_dims", "input_batching_dims")
    options = [
        (dimension, UNSPREAD, update, dimension)
        for dimension, update in _paired(instruction, "update_window_dims", window_dimensions, windows)
        if operands[0].shape[dimension] == operands[2].shape[update]
    ]
    return walk.operator(instruction, operands, (*options, (UNSPREAD,) * 4), dynamic=(0,))[0]


def _dynamic_slice(walk: Walk, instruction: Instruction, operands: list[Variable]) -> Variable:
    """Adds a slice at run-time indices. A dimension may be spread over banks if the slice contains all of it."""
    source = first_operand(instruction, operands, None)
    full_dimensions = _equal_dimensions(instruction, source.shape, dims(instruction))
    starts = (UNSPREAD,) * (len(operands) - 1)
    options = [(dimension, *starts, dimension) for dimension in full_dimensions]
    return walk.operator(instruction, operands, (*options, (UNSPREAD, *starts, UNSPREAD)), dynamic=(0,))[0]


def _dynamic_update_slice(walk: Walk, instruction: Instruction, operands: list[Variable]) -> Variable:
    """Adds an update of a slice at run-time indices. A dimension may be spread over banks if the update covers all of it."""
    if len(operands) < 2:
        raise instruction.error(f"found {len(operands)} operands, expected two or more")
    full_dimensions = _equal_dimensions(instruction, operands[0].shape, operands[1].shape)
    if operands[0].shape != dims(instruction):
        raise instruction.error(f"found an operand of shape {list(operands[0].shape)}, expected that of the result")
    starts = (UNSPREAD,) * (len(operands) - 2)
    options = [(dimension, dimension, *starts, dimension) for dimension in full_dimensions]
    return walk.operator(instruction, operands, (*options, (UNSPREAD, UNSPREAD, *starts, UNSPREAD)))[0]


def _iota(walk: Walk, instruction: Instruction, operands: list[Variable]) -> Variable:
    shape = dims(instruction)
    if operands:
        raise instruction.error(f"found {len(operands)} operands, expected none")
    options = tuple((dimension,) for dimension in (*range(len(shape)), UNSPREAD))
    attributes: dict[str, Any] = {"shape": shape, "dimension": number(instruction, "iota_dimension", below=len(shape))}
    return walk.operator(instruction, operands, options, attributes=attributes)[0]


def _remaining(instruction: Instruction, rank: int, *attributes: str) -> list[int]:
    """The dimensions below ``rank`` that none of these attributes names."""
    named = {dimension for name in attributes for dimension in numbers(instruction, name, below=rank, needed=False)}
    return [dimension for dimension in range(rank) if dimension not in named]


def _paired(instruction: Instruction, name: str, dimensions: list[int], values: list[int]) -> list[tuple[int, int]]:
    """Pairs of a dimension and a number of the attribute ``name``; raises InputError if their counts differ."""
    if len(dimensions) != len(values):
        raise instruction.error(f"found {name}={{{listed(values)}}}, expected {len(dimensions)} numbers")
    return list(zip(dimensions, values, strict=True))


def _equal_dimensions(instruction: Instruction, one: Sequence[int], two: Sequence[int]) -> list[int]:
    """The dimensions in which two shapes are equal; raises InputError if they have different ranks."""
    if len(one) != len(two):
        raise instruction.error(f"found shapes {list(one)} and {list(two)}, expected one rank")
    return [at for at, (first, second) in enumerate(zip(one, two, strict=True)) if first == second]


#: The handlers of instructions that compute, by their opcodes.
OPERATORS: dict[str, Handler] = {
    "dot": _dot,
    "convolution": _convolution,
    "reduce-window": _reduce_window,
    "gather": _gather,
    "scatter": _scatter,
    "dynamic-slice": _dynamic_slice,
    "dynamic-update-slice": _dynamic_update_slice,
    "iota": _iota,
}


_HANDLERS = MOVEMENT | OPERATORS
#: Opcodes of instructions that :func:`elementwise` adds.
_SPREAD_ALIKE = ELEMENTWISE | {"copy"}

#: After calls are inlined, a module may have at most so many instructions, and name at most so many arrays. Larger modules are
#: refused, because a few calls that contain others can expand to any number of instructions.
MAX_INSTRUCTIONS = 200_000
MAX_ARRAYS = 1_000_000


def read_affine_hlo(path: str | Path, float_bytes: int | None = None) -> Program:
    """Reads and checks the program of a plain or gzip file of HLO text.

    Parameters
    ----------
    path
        Path of the file.
    float_bytes
        Size of all floating-point numbers in bytes; None for that of the file.

    Raises
    ------
    InputError
        The file cannot be read, the text is not valid, or an instruction is not supported (:func:`affine_program`); the message
        names the line or the operator.
    TimeLimitError
        The time limit for reading inputs is over.
    """
    return affine_program(read_module(path), float_bytes)


def affine_program(module: HloModule, float_bytes: int | None = None) -> Program:
    """Makes and checks the program of a module's entry computation.

    Parameters
    ----------
    float_bytes
        See :func:`read_affine_hlo`.

    Raises
    ------
    InputError
        An instruction is not valid or not supported, or the module has more than :data:`MAX_INSTRUCTIONS` instructions or
        :data:`MAX_ARRAYS` arrays after calls are inlined. While loops, conditionals and fusions are not supported: use the
        module that XLA dumps before its optimizations.
    TimeLimitError
        The time limit for reading inputs is over.
    """
    with naming(module.source):
        return _program(Walk(module, float_bytes))


def _program(walk: Walk) -> Program:
    """Adds the instructions of the entry computation, and returns the checked program."""
    entry = walk.module.entry
    check_extent(walk.module, frozenset({"call"}), instructions=MAX_INSTRUCTIONS, arrays=MAX_ARRAYS)
    root = _walk(walk, entry, None)
    check_module(walk.module, timed=False, spaces=SPACES - {HOST})
    outputs = dict.fromkeys(leaf.name for leaf in leaves(root))
    program = walk.builder.program(tuple(outputs))
    check(program)
    return program


def _walk(walk: Walk, computation: Computation, arguments: list[Value] | None) -> Value:
    """Adds the instructions of a computation; returns the value of its root. ``arguments`` are the operands of the call, and
    None for the entry. Raises InputError if a value does not have the shape that its instruction states."""
    values: dict[str, Value] = {}
    for instruction in computation.instructions:
        check_reading()
        value = _value(walk, instruction, [values[name] for name in instruction.operands], arguments)
        if not fits(value, instruction.shape):
            raise instruction.error(f"found a value of shape {shape_text(value)}, expected that of its text")
        values[instruction.name] = value
    return values[computation.root.name]


def _value(walk: Walk, instruction: Instruction, operands: list[Value], arguments: list[Value] | None) -> Value:
    """The value of an instruction, which is added to the program if it is an operation on arrays."""
    opcode = instruction.opcode
    if opcode == "parameter" and arguments is not None:
        return arguments[instruction.parameter_number or 0]
    if opcode in ("parameter", "constant"):
        return walk.inputs(instruction.name, instruction.shape)
    if opcode == "tuple":
        return tuple(operands)
    if opcode == "get-tuple-element":
        source = operands[0] if operands else None
        if not isinstance(source, tuple):
            raise instruction.error("found no tuple, expected one as operand")
        return source[number(instruction, "index", below=len(source))]
    if opcode == "call":
        called = walk.module.computations[instruction.called[0]]
        if len(called.parameters) != len(operands):
            raise instruction.error(f"found {len(operands)} operands, expected the {len(called.parameters)} of %{called.name}")
        return _walk(walk, called, operands)
    if opcode in ("optimization-barrier", "opt-barrier", "copy") and operands and isinstance(operands[0], tuple):
        return operands[0]
    if custom_target(instruction) in SAME_VALUE_CALLS and operands and fits(operands[0], instruction.shape):
        return operands[0]
    arrays = [leaf for operand in operands for leaf in leaves(operand)]
    if opcode == "reduce":
        return reduce(walk, instruction, arrays)
    if isinstance(instruction.shape, TupleShape):
        return walk.opaque(instruction, arrays)
    handler = _HANDLERS.get(opcode)
    if handler is not None:
        return handler(walk, instruction, arrays)
    if opcode in _SPREAD_ALIKE and arrays and all(array.shape in ((), instruction.shape.dims) for array in arrays):
        return elementwise(walk, instruction, arrays)
    if opcode in ("while", "fusion", "conditional"):
        message = f"found a {opcode}, expected a module before optimisation, with calls and plain instructions only: "
        message += "of XLA's dump, take the file with before_optimizations in its name"
        raise InputError(message, place=f"operator {instruction.name} (line {instruction.line})")
    return walk.opaque(instruction, arrays)
