"""Shapes that kernels of TensorFlow Lite Micro compute for their results, regardless of the shapes that the file declares.

The runtime plans its arena after all kernels are prepared, and uses the shapes that tensors have then. Nearly all kernels use
the declared shape of their result. The kernels that this module knows replace it by a computed shape; RESHAPE does so only if
the declared shape has an extent of -1. These kernels ignore ``shape_signature``, and RESHAPE also ignores its second operand
and its options.

Sources: all calls of ``CreateWritableTensorDimsWithCopy`` in ``tensorflow/lite/micro/kernels`` of tflite-micro,
``reshape_common.cc``, and ``micro_allocation_info.cc``, August 2026.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import TypeAlias

from stowplan.errors import InputError

Shape: TypeAlias = tuple[int, ...]

#: A function that returns a number in the operator's options. It gets the number of the field and the number's format in
#: :mod:`struct`, and returns 0 if the options do not have the field.
Option: TypeAlias = Callable[[int, str], int]


def result_shape(operator: str, declared: Shape, operands: Sequence[Shape], option: Option, place: str) -> Shape:
    """Computes the shape that a result has at run time.

    It is the declared shape for all operators that are not listed in this module, and if a size of an operand is not known.

    Parameters
    ----------
    operator
        Name of the operator in the schema, such as ``GATHER``.
    declared
        The shape that the file declares for the result; -1 stands for a size that is not known.
    operands
        Shapes of the operands at run time, in their order.
    option
        Returns a number in the operator's options.
    place
        Name of the result for messages.

    Raises
    ------
    InputError
        The runtime refuses the operator, or would write beyond the memory of the declared shape.
    """
    if min((extent for shape in operands for extent in shape), default=0) < 0:
        return declared
    try:
        shape, is_valid = _computed_shape(operator, declared, operands, option)
    except (ArithmeticError, LookupError, ValueError):
        is_valid = False
    if is_valid:
        return shape
    shapes = " and ".join(str([*shape]) for shape in operands)
    message = f"found the declared shape {[*declared]} for the result of {operator} on {shapes}"
    raise InputError(f"{message}, expected one that the runtime takes", place=place)


def _computed_shape(operator: str, declared: Shape, operands: Sequence[Shape], option: Option) -> tuple[Shape, bool]:
    """The shape at run time, and whether it passes the kernel's checks. If the operands do not have the ranks that the kernel
    expects, raises ArithmeticError, LookupError or ValueError."""
    if operator == "RESHAPE":
        shape, elements = () if declared == (0,) and len(operands) == 1 else declared, prod(operands[0])
        if shape.count(-1) == 1:
            shape = tuple(elements // -prod(shape) if extent == -1 else extent for extent in shape)
        return shape, prod(shape) == elements
    if operator == "GATHER":
        values, positions = operands
        axis, batches = range(len(values))[option(0, "i")], option(1, "i")
        batches += len(positions) * (batches < 0)
        shape = (*values[:axis], *positions[batches:], *values[axis + 1 :])
        return shape, 0 <= batches <= min(axis, len(positions)) and _has_room(declared, shape)
    if operator == "GATHER_ND":
        values, positions = operands
        shape = (*positions[:-1], *values[positions[-1] :])
        return shape, positions[-1] <= len(values) and _has_room(declared, shape)
    if operator == "EMBEDDING_LOOKUP":
        (rows,), values = operands
        shape = (rows, *values[1:], *declared[len(values) :])
        return shape, 2 <= len(values) <= len(declared) and not 0 <= prod(declared) < prod(shape)
    if operator == "BATCH_MATMUL":
        rank = max(map(len, operands))
        left, right = ((1,) * (rank - len(shape)) + shape for shape in operands)
        batches_of_both = (other if one == 1 else one for one, other in zip(left[:-2], right[:-2], strict=True))
        shape = (*batches_of_both, left[-1 if option(0, "B") else -2], right[-2 if option(1, "B") else -1])
        return shape, rank <= len(declared) and prod(shape) == prod(declared)
    if operator in ("DEPTH_TO_SPACE", "SPACE_TO_DEPTH"):
        ((batch, rows, columns, depth),), block = operands, option(0, "i")
        shape = (batch, rows * block, columns * block, depth // block // block)
        if operator == "SPACE_TO_DEPTH":
            shape = (batch, rows // block, columns // block, depth * block * block)
        return shape, block > 0 and len(declared) == 4 and prod(shape) == prod(operands[0])
    if operator == "L2_POOL_2D":
        ((batch, rows, columns, depth),) = operands
        taps = (option(4, "i"), option(3, "i")) if option(0, "b") else (1, 1)
        strides = option(2, "i"), option(1, "i")
        places = ((size + step - tap) // step for size, step, tap in zip((rows, columns), strides, taps, strict=True))
        return (batch, *places, depth), len(declared) == 4
    return declared, True


def _has_room(declared: Shape, shape: Shape) -> bool:
    """Whether the memory in which the runtime keeps the declared shape is large enough for another shape.

    A shape is kept as its rank and its extents, each a number of 4 bytes. Its memory is rounded up to a multiple of 16 bytes.
    """
    return (3 + 4 * len(shape)) // 16 <= (3 + 4 * len(declared)) // 16
