"""Arithmetic of instructions: floating-point operations of convolutions and matrix products, and the number of elements that
all other instructions compute. Cost models turn these numbers into times."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

from stowplan.frontends.hlo.module import Computation, HloModule, Instruction, convolution_labels, numbers, window
from stowplan.frontends.hlo.opcodes import NO_ARITHMETIC, STARTS
from stowplan.frontends.hlo.shape import ArrayShape, Shape, TupleShape

#: Opcodes that combine many elements into one, or the reverse, so that their operands may have more elements than their result.
_COMBINING = frozenset({"reduce", "scatter", "select-and-scatter", "sort"})
#: A convolution is refused if the kernel and the result are both larger than this along one dimension, because the time to
#: count its taps (:func:`_convolution_flops`) is proportional to the smaller one of the two sizes.
_MAX_POSITIONS = 1 << 20


class Work(NamedTuple):
    """The arithmetic of one run of an instruction or a computation."""

    flops: int
    """Multiplications and additions of convolutions and matrix products, two per multiply-add."""
    elementwise: int
    """Elements that all other instructions compute; pure data movement does not count."""


def computation_work(module: HloModule) -> dict[str, Work]:
    """The work of every computation of a module, by its name, including nested fusions but not loops, calls and branches.

    Raises InputError as :func:`instruction_work` does.
    """
    work_of: dict[str, Work] = {}
    for computation in module.computations.values():
        flops = elementwise = 0
        for instruction in computation.instructions:
            work = instruction_work(instruction, computation, work_of)
            flops += work.flops
            elementwise += work.elementwise
        work_of[computation.name] = Work(flops, elementwise)
    return work_of


def instruction_work(instruction: Instruction, computation: Computation, work_of: dict[str, Work]) -> Work:
    """The work of one instruction.

    Parameters
    ----------
    instruction
        The instruction.
    computation
        The computation that contains it.
    work_of
        The work of the computations before this one, by name (:func:`computation_work`).

    Raises
    ------
    InputError
        The attributes of a convolution, dot or reduce-window do not fit its operands, or the kernel and the result of a
        convolution are both larger than 1,048,576 along one dimension.
    """
    opcode = instruction.opcode
    if opcode in NO_ARITHMETIC:
        return Work(0, 0)
    if opcode in ("fusion", "async-start"):
        return work_of[instruction.called[0]] if instruction.called else Work(0, 0)
    if opcode == "convolution":
        return Work(_convolution_flops(instruction, computation), 0)
    if opcode == "dot":
        return Work(_dot_flops(instruction, computation), 0)
    shape = instruction.shape
    if opcode in STARTS and isinstance(shape, TupleShape):
        # The tuple of an asynchronous start also contains the operands.
        shape = TupleShape(shape.parts[STARTS[opcode][1] :][:1])
    elements = _elements(shape)
    if opcode in _COMBINING:
        elements = max([elements, *(_elements(computation.by_name[name].shape) for name in instruction.operands)])
        if opcode == "scatter" and len(instruction.operands) == 3:
            elements = _elements(computation.by_name[instruction.operands[2]].shape)
    elif opcode == "reduce-window":
        # A window as long as its dimension is a total or a cumulative reduction, which is not computed anew at each position.
        reduced = _operand_array(instruction, computation, 0)
        sizes = window(instruction, len(reduced.dims)).size
        elements *= math.prod(size for size, extent in zip(sizes, reduced.dims, strict=True) if size < extent)
        elements = max(elements, reduced.elements)
    return Work(0, elements)


def _elements(shape: Shape) -> int:
    """The number of elements of all arrays of a shape."""
    return sum(leaf.elements for _, leaf in shape.leaves)


def _operand_array(instruction: Instruction, computation: Computation, number: int) -> ArrayShape:
    """The shape of an operand; raises InputError if it is missing or a tuple."""
    if number < len(instruction.operands):
        shape = computation.by_name[instruction.operands[number]].shape
        if isinstance(shape, ArrayShape):
            return shape
    raise instruction.error(f"expected an array as operand {number} of {instruction.opcode}")


def _result_array(instruction: Instruction) -> ArrayShape:
    """The shape of the result; raises InputError if it is a tuple."""
    if not isinstance(instruction.shape, ArrayShape):
        raise instruction.error(f"found a tuple, expected an array as result of {instruction.opcode}")
    return instruction.shape


def _dot_flops(instruction: Instruction, computation: Computation) -> int:
    """Two operations for each element of the result and each index of the contracted dimensions."""
    left = _operand_array(instruction, computation, 0)
    contracted = numbers(instruction, "lhs_contracting_dims", below=len(left.dims), needed=False)
    return 2 * _result_array(instruction).elements * math.prod(left.dims[dim] for dim in contracted)


def _convolution_flops(instruction: Instruction, computation: Computation) -> int:
    """Two operations for every product of a kernel element with an input element.

    A *tap* is a pair of an output position and a kernel position. It does not count if it meets padding or a hole of a dilated
    input, because it multiplies no input element then.

    XLA writes batched matrix products as convolutions whose window slides mostly over padding. If every tap counted, the result
    would be wrong by a factor of the batch size.
    """
    left, right = _operand_array(instruction, computation, 0), _operand_array(instruction, computation, 1)
    out = _result_array(instruction)
    left_labels, right_labels, out_labels = convolution_labels(instruction, len(left.dims), len(right.dims), len(out.dims))
    rank = len(left_labels) - 2
    sliding = window(instruction, rank)
    taps = 1
    for dim in range(rank):
        label = str(dim)
        kernel, size = right.dims[right_labels.index(label)], out.dims[out_labels.index(label)]
        if min(kernel, size) > _MAX_POSITIONS:
            raise instruction.error(
                f"found a window of {kernel} by {size} positions, expected at most {_MAX_POSITIONS} on a side"
            )
        taps *= _valid_taps(
            left.dims[left_labels.index(label)],
            kernel,
            size,
            sliding.stride[dim],
            sliding.pad[dim][0],
            sliding.lhs_dilate[dim],
            sliding.rhs_dilate[dim],
        )
    batch_groups = _group_count(instruction, "batch_group_count")
    batch = left.dims[left_labels.index("b")] // batch_groups
    inputs = left.dims[left_labels.index("f")] // _group_count(instruction, "feature_group_count")
    return 2 * batch * inputs * out.dims[out_labels.index("f")] * taps


def _group_count(instruction: Instruction, name: str) -> int:
    """The number of groups in the attribute ``name``, 1 if it is missing; raises InputError if it is not a positive number."""
    groups = numbers(instruction, name, needed=False) or [1]
    if len(groups) != 1 or groups[0] < 1:
        raise instruction.error(f"found {name} {groups}, expected a positive number")
    return groups[0]


@lru_cache(maxsize=4096)
def _valid_taps(size: int, kernel: int, out: int, stride: int, pad: int, left_dilation: int, right_dilation: int) -> int:
    """Number of pairs of an output position and a kernel position that meet an input element, along one dimension.

    ``size``, ``kernel`` and ``out`` are the extents of input, kernel and output; ``pad`` is the padding before the input, and
    may be negative. ``left_dilation`` is the distance between neighbouring elements of the input, and ``right_dilation`` that
    of the kernel.

    Output position ``o`` and kernel position ``k`` meet position ``p = o * stride + k * right_dilation - pad`` of the dilated
    input. An input element is there if ``p`` is a multiple of ``left_dilation`` from 0 to ``(size - 1) * left_dilation``.
    """
    if size == 0:
        return 0
    if out < kernel:  # Output and kernel have the same part in the formula of p, so the loop can run over the shorter one.
        kernel, out, stride, right_dilation = out, kernel, right_dilation, stride
    common = math.gcd(stride, left_dilation)
    period = left_dilation // common
    inverse = pow(stride // common, -1, period) if period > 1 else 0
    total = 0
    for tap in range(kernel):
        # For this kernel position, p is o * stride + offset. Count the output positions o whose p is an input element.
        offset = tap * right_dilation - pad
        if offset % common:
            continue
        low = max(0, -(offset // stride))
        high = min(out - 1, ((size - 1) * left_dilation - offset) // stride)
        first = low + (-offset // common * inverse - low) % period
        if first <= high:
            total += (high - first) // period + 1
    return total
