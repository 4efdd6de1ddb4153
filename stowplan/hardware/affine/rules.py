"""Bank rules of operators (section 2.2 of the paper): for each way to compute one, how operands and outputs are spread.

A dimension stands for itself in the operator's own view of an operand. Element ``i`` of a spread dimension is in bank
``i mod banks``; what is not spread is in one bank, and read from there by all (docs/reference/bank-mapping.md).
"""

from __future__ import annotations

from collections.abc import Sequence

from stowplan.hardware.affine.program import UNSPREAD, Option


def elementwise(rank: int, operands: int, outputs: int = 1) -> tuple[Option, ...]:
    """Element by element: all spread alike, the outermost dimension first."""
    return tuple((dimension,) * (operands + outputs) for dimension in (*range(rank), UNSPREAD))


def matmul(
    left: int, right: int, contracting: Sequence[tuple[int, int]], batch: Sequence[tuple[int, int]] = ()
) -> tuple[Option, ...]:
    """Product of tensors of these ranks: a contracted dimension on both inputs, a free one of either input on the output.

    Columns of the right side, the usual weights, come first.
    """
    free_left = [axis for axis in range(left) if axis not in {one for one, _ in (*contracting, *batch)}]
    free_right = [axis for axis in range(right) if axis not in {two for _, two in (*contracting, *batch)}]
    first_right = len(batch) + len(free_left)
    results = [*range(first_right, first_right + len(free_right)), *range(len(batch), first_right)] or [UNSPREAD]
    return tuple((*pair, result) for pair in contracting or [(UNSPREAD, UNSPREAD)] for result in results)


def convolution(data_features: int, kernel_inputs: int, result_features: int) -> tuple[Option, ...]:
    """Channels: of the map and of the kernel's inputs on the operands, of the result on the output."""
    return ((data_features, kernel_inputs, result_features),)


def pool(window: Sequence[int]) -> tuple[Option, ...]:
    """The output as the input, along a dimension that no window reaches across; the last one, usually channels, first."""
    free = [dimension for dimension, size in enumerate(window) if size == 1]
    return tuple((dimension, dimension) for dimension in (*reversed(free), UNSPREAD))


def reduction(rank: int, dimensions: Sequence[int], operands: int = 1, outputs: int = 1) -> tuple[Option, ...]:
    """A kept dimension on both sides; along a reduced one the matrix unit adds up over the banks: the output is unspread."""
    kept = [axis for axis in range(rank) if axis not in dimensions]
    options = [(*(axis,) * operands, *(place,) * outputs) for place, axis in enumerate(kept)]
    options += [(*(axis,) * operands, *(UNSPREAD,) * outputs) for axis in (*dimensions, UNSPREAD)]
    return tuple(options)


def unspread(operands: int, outputs: int) -> tuple[Option, ...]:
    """Everything in one bank."""
    return ((UNSPREAD,) * (operands + outputs),)
