"""Access models of the kernels of TensorFlow Lite Micro: how close to the end of an operand the operator's result may begin.

The code of an operator is its *kernel*. If the result of an operator lies in the bytes of an operand, the kernel must read each
byte of the operand for the last time before it overwrites the byte. Elements of the result are written one after the other. An
*access model* of a kernel gives the lowest element of the operand that is read for each of them. Let ``unread[j]`` be the
lowest element that is read after element ``j`` of the result is written. Let elements have ``v`` bytes in the operand and ``w``
bytes in the result, and let ``operand`` and ``result`` be the two offsets. Then no element is overwritten before its last read
if and only if, for every ``j`` after which an element is read,

    result + (j + 1) * w <= operand + unread[j] * v

The *distance* is the number of bytes from the start of the result to the end of the operand. It must therefore be at least the
largest of these numbers, over all ``j``:

    (elements of the operand - unread[j]) * v + (j + 1) * w

For functions that copy by ``memcpy``, whose source and target must not overlap, ``unread[j]`` also counts the elements that are
read by the copy that writes ``j``.

Sources: the loops of ``tensorflow/lite/kernels/internal/reference`` and ``tensorflow/lite/micro/kernels`` in tflite-micro, and
``Source/ConvolutionFunctions`` of CMSIS-NN, August 2026.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stowplan.errors import UsageError

#: Sets of kernels: ``none`` allows no overlaps, ``reference`` are TFLM's reference kernels, ``cmsis-nn`` those of CMSIS-NN.
KERNELS = ("none", "reference", "cmsis-nn")

#: Bytes of an element, by the schema's names of types. Packed types are missing, because their elements share bytes.
_ITEM_BYTES = {
    "bool": 1,
    **{f"{sign}int{bits}": bits // 8 for bits in (8, 16, 32, 64) for sign in ("", "u")},
    **{f"float{bits}": bits // 8 for bits in (16, 32, 64)},
}
#: C's character types. A compiler must assume that accesses through them may read or write objects of any other type.
_CHARACTERS = ("int8", "uint8")

#: Index that stands for no element, if none is read.
_NOTHING = np.iinfo(np.int64).max

#: Operators whose result may have the offset of the first operand. The value is True if the result then equals the operand.
#: RESHAPE and DYNAMIC_UPDATE_SLICE compare the two pointers and copy nothing if they are equal. EXPAND_DIMS copies each element
#: onto itself, and SQUEEZE copies all elements onto themselves by one ``memcpy``; compilers require that ``memcpy`` works with
#: equal pointers. CMSIS-NN has no kernels of its own for these operators.
IN_PLACE = {"DYNAMIC_UPDATE_SLICE": False, "EXPAND_DIMS": True, "RESHAPE": True, "SQUEEZE": True}

#: Operators whose CMSIS-NN kernels are modelled.
_CMSIS_NN = ("CONV_2D", "DEPTHWISE_CONV_2D")

#: CMSIS-NN's vector code computes a depthwise convolution in blocks of this many channels, one after the other.
_DEPTHWISE_BLOCK = 124

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class _Call:
    """An operator, and one of its operands."""

    shapes: Sequence[tuple[int, ...]]
    """Shapes of the operands, followed by the shape of the result."""
    types: Sequence[str]
    """Their element types, in the same order."""
    attributes: Mapping[str, Any]
    """Options and constant operands by name, as :func:`distance` takes them."""
    operand: int
    """Index of the operand."""

    @property
    def source(self) -> tuple[int, ...]:
        """Shape of the operand."""
        return self.shapes[self.operand]

    @property
    def result(self) -> tuple[int, ...]:
        """Shape of the result."""
        return self.shapes[-1]


@dataclass(frozen=True)
class _Access:
    """The access model of a kernel and one of its operands."""

    first: Ints
    """[elements of the result] For each element of the result, the lowest index of the operand's elements that the kernel reads
    for it, that is, after it has written the element before; :data:`_NOTHING` if it reads none."""
    is_copied: bool = False
    """Whether the elements that are read for an element of the result may be read after it is written, as by ``memcpy``."""


def check_kernels(kernels: str) -> None:
    """Raise UsageError if ``kernels`` is none of :data:`KERNELS`."""
    if kernels not in KERNELS:
        raise UsageError(f"found the kernels {kernels!r}, expected one of {', '.join(KERNELS)}")


def is_modelled(operator: str, kernels: str) -> bool:
    """Whether there is an access model of an operator's kernel.

    ``operator`` is its name in the schema, and ``kernels`` one of :data:`KERNELS`; a KeyError is raised for another set.
    """
    return operator in {"none": (), "reference": (*_MODELS, *IN_PLACE), "cmsis-nn": (*_CMSIS_NN, *IN_PLACE)}[kernels]


def distance(
    operator: str,
    shapes: Sequence[tuple[int, ...]],
    types: Sequence[str],
    attributes: Mapping[str, Any],
    kernels: str,
    operand: int = 0,
) -> int | None:
    """Returns the least distance with which the kernel overwrites no element of the operand before its last read.

    The distance is the number of bytes from the start of the result to the end of the operand's elements. Padding that was
    added to the operand's size lies beyond that end. Every larger distance is safe as well. If an operator reads one tensor as
    several operands, call this for each of them and use the largest distance. If one is None, the tensor and the result must
    not overlap.

    Parameters
    ----------
    operator
        The schema's name, such as ``CONV_2D``.
    shapes
        Shapes of all operands in the operator's order, ``()`` for one that is omitted, followed by the shape of the only
        result.
    types
        Element types in the same order, by the schema's names in lower case, such as ``int8``; ``""`` for an omitted operand.
    attributes
        The options by the schema's names: ``stride_w``, ``stride_h``, ``dilation_w_factor``, ``dilation_h_factor``,
        ``padding`` (``SAME`` or ``VALID``), ``filter_width``, ``filter_height``, ``axis`` (a sequence for ``MEAN``),
        ``keep_dims``; and the values of constant operands: ``paddings`` (before and after, for each dimension), ``perm``.
    kernels
        One of :data:`KERNELS`.
    operand
        Index of the operand.

    Returns
    -------
    int or None
        The distance in bytes. It is 0 if the kernel reads the whole operand before it writes the result, and None if the two
        must not overlap or if there is no access model.

    Raises
    ------
    UsageError
        ``kernels`` is none of :data:`KERNELS`.
    ArithmeticError, LookupError, ValueError
        Shapes or attributes are not those that the kernel accepts.
    """
    check_kernels(kernels)
    call = _Call(shapes, types, attributes, operand)
    model = _MODELS.get(operator)
    if kernels == "none" or model is None or 0 in call.source or 0 in call.result:
        return None
    if kernels == "cmsis-nn" and not _as_reference_in_cmsis_nn(operator, call):
        return None
    kinds = types[operand], types[-1]
    if not {*kinds} <= _ITEM_BYTES.keys() or (kinds[0] != kinds[1] and not {*kinds} & {*_CHARACTERS}):
        # If neither type is a character type, a compiler may reorder reads and writes of different types.
        return None
    access = model(call)
    return None if access is None else _least_distance(call, access)


def _least_distance(call: _Call, access: _Access) -> int | None:
    """Returns the distance by the formula in the module's docstring; None if it is so large that the two do not overlap."""
    item, result_item = _ITEM_BYTES[call.types[call.operand]], _ITEM_BYTES[call.types[-1]]
    unread = np.minimum.accumulate(access.first[::-1])[::-1]
    if not access.is_copied:
        unread = np.append(unread[1:], _NOTHING)
    writes = np.flatnonzero(unread != _NOTHING)
    elements = prod(call.source)
    if not len(writes):
        return 0
    least = int(((elements - unread[writes]) * item + (writes + 1) * result_item).max())
    return least if least < elements * item + prod(call.result) * result_item else None


def _as_reference_in_cmsis_nn(operator: str, call: _Call) -> bool:
    """Whether CMSIS-NN's kernel reads no element later than the reference kernel does, in its plain, DSP and vector code.

    It reads elements later in four cases:

    - convolutions with filters of one row compute one output channel after the other
    - grouped convolutions compute one group after the other
    - depthwise convolutions of many channels compute blocks of channels
    - depthwise convolutions of one channel run as ordinary convolutions
    """
    if operator not in _CMSIS_NN or {call.types[0], call.types[1], call.types[-1]} != {"int8"}:
        return False
    channels, filters = call.shapes[0][-1], call.shapes[1]
    if operator == "CONV_2D":
        return filters[1] > 1 and filters[3] == channels
    return 1 < channels <= _DEPTHWISE_BLOCK


def _element_wise(call: _Call) -> _Access | None:
    """The kernel has one loop over the result; operands are broadcast along dimensions of size 1."""
    if len(call.source) > len(call.result):
        return None
    indices = np.arange(prod(call.source)).reshape(call.source)
    try:
        return _Access(np.broadcast_to(indices, call.result).ravel())
    except ValueError:
        return None


def _convolution(call: _Call) -> _Access | None:
    """Each element of the result reads a window of the operand, in the channels of its group."""
    filters, channels = call.shapes[1], call.source[-1]
    if call.operand or len(filters) != 4 or channels % filters[3]:
        return None
    groups = channels // filters[3]
    if call.result[-1] % groups:
        return None
    group = np.arange(call.result[-1]) // (call.result[-1] // groups)
    return _windows(call, filters[1], filters[2], group * filters[3])


def _depthwise_convolution(call: _Call) -> _Access | None:
    """Each element of the result reads a window of the operand in one channel."""
    filters = call.shapes[1]
    if call.operand or len(filters) != 4 or call.result[-1] % call.source[-1]:
        return None
    return _windows(call, filters[1], filters[2], np.arange(call.result[-1]) // (call.result[-1] // call.source[-1]))


def _pooling(call: _Call) -> _Access | None:
    """Each element of the result reads a window of the operand in its own channel."""
    return _windows(call, call.attributes["filter_height"], call.attributes["filter_width"], np.arange(call.result[-1]))


def _windows(call: _Call, height: int, width: int, channels: Ints) -> _Access | None:
    """Each element of the result reads a window of the operand.

    Parameters
    ----------
    height, width
        Numbers of taps of the window.
    channels
        [channels of the result] The first channel of the operand that is read.
    """
    if len(call.source) != 4 or len(call.result) != 4:
        return None
    batches, rows, columns, depth = call.source
    attributes = call.attributes
    padding = attributes["padding"]
    row = _first_taps(rows, call.result[1], height, attributes["stride_h"], attributes.get("dilation_h_factor", 1), padding)
    column = _first_taps(
        columns, call.result[2], width, attributes["stride_w"], attributes.get("dilation_w_factor", 1), padding
    )
    if row is None or column is None or call.result[0] != batches:
        return None
    batch, row, column = np.arange(batches)[:, None, None, None], row[:, None, None], column[:, None]
    first = ((batch * rows + row) * columns + column) * depth + channels
    return _Access(np.where((row < 0) | (column < 0), _NOTHING, first).ravel())


def _first_taps(size: int, places: int, taps: int, stride: int, dilation: int, padding: str) -> Ints | None:
    """Returns [places] the first index that each window reads along one dimension of the operand; -1 if it reads none.

    ``size`` is the operand's extent along this dimension, ``places`` the result's extent, and ``taps`` the window's. None is
    returned if ``places`` does not agree with the padding.
    """
    extent = (taps - 1) * dilation + 1
    if places != (-(-size // stride) if padding == "SAME" else -(-(size - extent + 1) // stride)):
        return None
    before = max(0, (places - 1) * stride + extent - size) // 2
    begin = np.arange(places) * stride - before
    tap = np.maximum(0, -(begin // dilation))
    index = begin + tap * dilation
    return np.where((tap < taps) & (index < size), index, -1)


def _fully_connected(call: _Call) -> _Access | None:
    """Each element of a row of the result reads the whole row of the operand."""
    depth = call.shapes[1][-1]
    if call.operand or prod(call.source) != prod(call.result[:-1]) * depth:
        return None
    return _Access(np.arange(prod(call.result)) // call.result[-1] * depth)


def _row_wise(call: _Call) -> _Access | None:
    """The kernel reads a row once or twice, and then once more, element by element, while it writes the row of the result."""
    return _Access(np.arange(prod(call.result))) if call.source == call.result else None


def _pad(call: _Call) -> _Access | None:
    """Each element of the result reads the element that it copies; padding reads nothing."""
    paddings = call.attributes.get("paddings")
    if call.operand or paddings is None or not len(paddings) == len(call.source) == len(call.result):
        return None
    if any(
        before + size + after != padded
        for (before, after), size, padded in zip(paddings, call.source, call.result, strict=True)
    ):
        return None
    first = np.full(call.result, _NOTHING)
    inside = tuple(slice(before, before + size) for (before, _), size in zip(paddings, call.source, strict=True))
    first[inside] = np.arange(prod(call.source)).reshape(call.source)
    return _Access(first.ravel())


def _concatenation(call: _Call) -> _Access | None:
    """The kernel copies contiguous pieces of the operands in turn, each by ``memcpy``."""
    axis = call.attributes["axis"] % len(call.result)
    runs = [prod(shape[axis:]) for shape in call.shapes[:-1]]
    outer = prod(call.result[:axis])
    first = np.full((outer, prod(call.result[axis:])), _NOTHING)
    if sum(runs) != first.shape[1]:
        return None
    begin = sum(runs[: call.operand])
    first[:, begin : begin + runs[call.operand]] = np.arange(outer)[:, None] * runs[call.operand]
    return _Access(first.ravel(), is_copied=True)


def _mean(call: _Call) -> _Access | None:
    """Only floating-point means of whole images, for each channel, have a model: other means set the result to 0 before they
    read."""
    axes = call.attributes.get("axis", ())
    if (
        call.operand
        or call.types[0] != "float32"
        or not call.attributes.get("keep_dims")
        or tuple(axes) not in ((1, 2), (2, 1))
    ):
        return None
    if len(call.source) != 4:
        return None
    batches, rows, columns, depth = call.source
    return _Access((np.arange(batches)[:, None] * rows * columns * depth + np.arange(depth)).ravel())


def _transpose(call: _Call) -> _Access | None:
    """Each element of the result reads the element that it copies."""
    perm = call.attributes.get("perm")
    if call.operand or perm is None or sorted(perm) != [*range(len(call.source))]:
        return None
    return _Access(np.arange(prod(call.source)).reshape(call.source).transpose(perm).ravel())


def _transposed_convolution(call: _Call) -> _Access | None:
    """The kernel accumulates integers in scratch memory before it writes the result; other types have no model, because it
    accumulates them in the result itself."""
    if call.operand != 2 or call.types[2] not in ("int8", "int16"):
        return None
    first = np.full(prod(call.result), _NOTHING)
    first[0] = 0
    return _Access(first)


#: Names of operators that compute each element of the result from one element of each operand.
_UNARY = (
    "ABS CEIL COS DEQUANTIZE ELU EXP FLOOR HARD_SWISH LEAKY_RELU LOG LOGICAL_NOT LOGISTIC NEG QUANTIZE RELU RELU6 ROUND RSQRT "
    "SIN SQRT SQUARE TANH"
)
_BINARY = (
    "ADD DIV EQUAL FLOOR_DIV FLOOR_MOD GREATER GREATER_EQUAL LESS LESS_EQUAL LOGICAL_AND LOGICAL_OR MAXIMUM MINIMUM MUL "
    "NOT_EQUAL PRELU SQUARED_DIFFERENCE SUB"
)

#: From the name of an operator to the function that makes the access model of its reference kernel. The function returns None
#: if the model does not hold for the call.
_MODELS: dict[str, Callable[[_Call], _Access | None]] = {
    **dict.fromkeys(f"{_UNARY} {_BINARY}".split(), _element_wise),
    "AVERAGE_POOL_2D": _pooling,
    "CONCATENATION": _concatenation,
    "CONV_2D": _convolution,
    "DEPTHWISE_CONV_2D": _depthwise_convolution,
    "FULLY_CONNECTED": _fully_connected,
    "LOG_SOFTMAX": _row_wise,
    "MAX_POOL_2D": _pooling,
    "MEAN": _mean,
    "PAD": _pad,
    "PADV2": _pad,
    "SOFTMAX": _row_wise,
    "TRANSPOSE": _transpose,
    "TRANSPOSE_CONV": _transposed_convolution,
}
