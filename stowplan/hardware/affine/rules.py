"""Bank rules of operators: for each way to compute an operator, which dimensions of operands and outputs are spread over banks.

A rule is a tuple of *options*. An option has the spread dimension of each operand, followed by that of each output; it has -1
(:data:`~stowplan.hardware.affine.program.UNSPREAD`) for an array that is not spread. The operator reads each operand
through a *load* (:class:`~stowplan.hardware.affine.program.Load`), which collects elements of tensors into an array. The
dimensions of an operand are those of this array. Element ``i`` of a spread dimension is in bank ``i mod banks``. An array that
is not spread is in one bank, and the compute units of all banks read it from there. See docs/reference/bank-mapping.md.

Source: Zheng et al., "Optimizing Memory-Access Patterns for Deep Learning Accelerators" (2020, arXiv 2002.12798), section 2.2.
Nothing here raises an error.
"""

from __future__ import annotations

from collections.abc import Sequence

from stowplan.hardware.affine.program import UNSPREAD, Option


def elementwise(rank: int, operands: int, outputs: int = 1) -> tuple[Option, ...]:
    """Rule of an element-wise operation: all operands and outputs are spread along the same dimension, or none is spread.

    ``rank`` is the rank of each operand and output; ``operands`` and ``outputs`` are their numbers. The option for the
    outermost dimension comes first.
    """
    return tuple((dimension,) * (operands + outputs) for dimension in (*range(rank), UNSPREAD))


def matmul(
    left: int, right: int, contracting: Sequence[tuple[int, int]], batch: Sequence[tuple[int, int]] = ()
) -> tuple[Option, ...]:
    """Rule of a product of tensors: both inputs are spread along a contracted dimension, the output along a free one.

    Free dimensions are those that are neither contracted nor batch dimensions. The dimensions of the output are the batch
    dimensions, the free dimensions of the left operand and those of the right operand, in this order. For each contracted pair,
    the first options spread the output along a free dimension of the right operand, which usually has the weights. If no
    dimension is contracted, the inputs are not spread; if none is free, the output is not spread.

    Parameters
    ----------
    left, right
        Ranks of the two operands.
    contracting, batch
        Pairs of dimensions (of the left operand, of the right operand).
    """
    free_left = [axis for axis in range(left) if axis not in {one for one, _ in (*contracting, *batch)}]
    free_right = [axis for axis in range(right) if axis not in {two for _, two in (*contracting, *batch)}]
    first_right = len(batch) + len(free_left)
    results = [*range(first_right, first_right + len(free_right)), *range(len(batch), first_right)] or [UNSPREAD]
    return tuple((*pair, result) for pair in contracting or [(UNSPREAD, UNSPREAD)] for result in results)


def convolution(data_features: int, kernel_inputs: int, result_features: int) -> tuple[Option, ...]:
    """Rule of a convolution: its only option spreads the feature map, the kernel and the result along their channels.

    The arguments are the dimensions that count channels: ``data_features`` those of the feature map, ``kernel_inputs`` the
    input channels of the kernel, and ``result_features`` those of the result.
    """
    return ((data_features, kernel_inputs, result_features),)


def pool(window: Sequence[int]) -> tuple[Option, ...]:
    """Rule of pooling: input and output are spread along the same dimension, in which the window has size 1, or not at all.

    ``window`` has the size of the window in each dimension. Options with a later dimension come first, because the last
    dimension in which the window has size 1 usually counts channels.
    """
    free = [dimension for dimension, size in enumerate(window) if size == 1]
    return tuple((dimension, dimension) for dimension in (*reversed(free), UNSPREAD))


def reduction(rank: int, dimensions: Sequence[int], operands: int = 1, outputs: int = 1) -> tuple[Option, ...]:
    """Rule of a reduction over some dimensions.

    Operands and outputs may be spread along a dimension that is not reduced. Operands may also be spread along a reduced
    dimension: then the matrix unit adds up the partial results of the banks, and the outputs are not spread. Last comes the
    option in which nothing is spread.

    Parameters
    ----------
    rank
        Rank of the operands.
    dimensions
        The dimensions that are reduced.
    operands, outputs
        Numbers of operands and outputs.
    """
    free = [axis for axis in range(rank) if axis not in dimensions]
    options = [(*(axis,) * operands, *(output_axis,) * outputs) for output_axis, axis in enumerate(free)]
    options += [(*(axis,) * operands, *(UNSPREAD,) * outputs) for axis in (*dimensions, UNSPREAD)]
    return tuple(options)


def unspread(operands: int, outputs: int) -> tuple[Option, ...]:
    """Rule of an operator that needs each operand and each output in a single bank; the arguments are their numbers."""
    return ((UNSPREAD,) * (operands + outputs),)
