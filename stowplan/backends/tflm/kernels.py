"""Where kernels of TensorFlow Lite Micro read and write: how near to an operand's end the operator's result may begin.

An access model of a kernel says, for each element of the result in the order of writing, which is the lowest element of the
operand that is read for it. With ``unread[j]`` the lowest element that is read after element ``j`` of the result is written,
items of ``v`` bytes in the operand and ``w`` in the result, nothing is written over before its last read if and only if for
every such ``j``, counted from the two beginnings,

    result + (j + 1) * w <= operand + unread[j] * v

so that the distance from the result's begin up to the operand's end is at least the largest of
``(elements of the operand - unread[j]) * v + (j + 1) * w``. Functions that copy by ``memcpy`` must not have source and target
overlap, so there ``unread[j]`` counts what is read by the copy that writes ``j``, too.

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

#: Sets of kernels: none that may overlap, the reference kernels, those of CMSIS-NN.
KERNELS = ("none", "reference", "cmsis-nn")

#: Bytes of an item, by the schema's names of types. Packed types are left out: their items share bytes.
_ITEM_BYTES = {
    "bool": 1,
    **{f"{sign}int{bits}": bits // 8 for bits in (8, 16, 32, 64) for sign in ("", "u")},
    **{f"float{bits}": bits // 8 for bits in (16, 32, 64)},
}
#: C's character types: through them a compiler must expect every other to be read or written.
_CHARACTERS = ("int8", "uint8")

#: Index of an element that is not there: nothing is read.
_NOTHING = np.iinfo(np.int64).max

#: Operators that leave all bytes as they are where the result has the offset of the first operand, and whether the result then
#: holds what the operand does. RESHAPE and DYNAMIC_UPDATE_SLICE compare the two pointers and copy nothing. EXPAND_DIMS copies
#: element by element, and SQUEEZE by one ``memcpy``, each element to its own place: compilers require of C libraries that
#: ``memcpy`` takes equal pointers. CMSIS-NN has no kernels of its own for these.
IN_PLACE = {"DYNAMIC_UPDATE_SLICE": False, "EXPAND_DIMS": True, "RESHAPE": True, "SQUEEZE": True}

#: Operators that are modelled as CMSIS-NN has them.
_CMSIS_NN = ("CONV_2D", "DEPTHWISE_CONV_2D")

#: CMSIS-NN's vector code takes a depthwise convolution in blocks of so many channels, one block after the other.
_DEPTHWISE_BLOCK = 124

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class _Call:
    """An operator, and which of its operands is looked at."""

    shapes: Sequence[tuple[int, ...]]
    """Of the operands, and last of the result."""
    types: Sequence[str]
    attributes: Mapping[str, Any]
    operand: int

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
    """How a kernel goes through an operand."""

    first: Ints
    """[elements of the result] lowest element of the operand read for it, after the writing of the one before."""
    is_copied: bool = False
    """Whether what is read for an element may be read after it is written."""


def check_kernels(kernels: str) -> None:
    """Raise UsageError where this set of kernels is not known."""
    if kernels not in KERNELS:
        raise UsageError(f"found the kernels {kernels!r}, expected one of {', '.join(KERNELS)}")


def is_modelled(operator: str, kernels: str) -> bool:
    """Whether anything is known of an operator's kernel, by the schema's name."""
    return operator in {"none": (), "reference": (*_MODELS, *IN_PLACE), "cmsis-nn": (*_CMSIS_NN, *IN_PLACE)}[kernels]


def distance(
    operator: str,
    shapes: Sequence[tuple[int, ...]],
    types: Sequence[str],
    attributes: Mapping[str, Any],
    kernels: str,
    operand: int = 0,
) -> int | None:
    """Least bytes from the result's begin up to the operand's end with which nothing is overwritten before its last read.

    Every larger number of bytes is safe as well. A tensor that an operator reads as several operands needs the largest of their
    distances, and has none where one of them has none. Sizes that were rounded up for planning lie beyond the end meant here.

    Parameters
    ----------
    operator
        The schema's name: ``CONV_2D``.
    shapes
        Of all operands in the operator's order, ``()`` for one that is left out, and last of the result, which is the only one.
    types
        As ``shapes``, by the schema's names in small letters: ``int8``; ``""`` for what is left out.
    attributes
        The options by the schema's names: ``stride_w``, ``stride_h``, ``dilation_w_factor``, ``dilation_h_factor``,
        ``padding`` (``SAME`` or ``VALID``), ``filter_width``, ``filter_height``, ``axis`` (of ``MEAN`` a sequence),
        ``keep_dims``; and the values of constant operands: ``paddings`` (before and after, for each dimension), ``perm``.
    kernels
        One of :data:`KERNELS`.
    operand
        Number of the operand.

    Returns
    -------
    int or None
        Bytes. 0 where all is read before anything is written; None where the two must not overlap, or nothing is known.

    Raises
    ------
    UsageError
        Another set of kernels.
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
        # Between other types a compiler may swap reads and writes.
        return None
    access = model(call)
    return None if access is None else _least_distance(call, access)


def _least_distance(call: _Call, access: _Access) -> int | None:
    """The formula above; None where it is no less than without an overlap."""
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
    """Whether CMSIS-NN reads what it reads for an element no later than the reference kernel does; plain, DSP and vector code.

    Convolutions whose filters are one row high go by output channels first, grouped ones by groups, depthwise ones by blocks of
    channels or, of one channel, as other convolutions.
    """
    if operator not in _CMSIS_NN or {call.types[0], call.types[1], call.types[-1]} != {"int8"}:
        return False
    channels, filters = call.shapes[0][-1], call.shapes[1]
    if operator == "CONV_2D":
        return filters[1] > 1 and filters[3] == channels
    return 1 < channels <= _DEPTHWISE_BLOCK


def _element_wise(call: _Call) -> _Access | None:
    """One loop over the result; operands of other shapes are repeated along dimensions of 1."""
    if len(call.source) > len(call.result):
        return None
    indices = np.arange(prod(call.source)).reshape(call.source)
    try:
        return _Access(np.broadcast_to(indices, call.result).ravel())
    except ValueError:
        return None


def _convolution(call: _Call) -> _Access | None:
    filters, channels = call.shapes[1], call.source[-1]
    if call.operand or len(filters) != 4 or channels % filters[3]:
        return None
    groups = channels // filters[3]
    if call.result[-1] % groups:
        return None
    group = np.arange(call.result[-1]) // (call.result[-1] // groups)
    return _windows(call, filters[1], filters[2], group * filters[3])


def _depthwise_convolution(call: _Call) -> _Access | None:
    filters = call.shapes[1]
    if call.operand or len(filters) != 4 or call.result[-1] % call.source[-1]:
        return None
    return _windows(call, filters[1], filters[2], np.arange(call.result[-1]) // (call.result[-1] // call.source[-1]))


def _pooling(call: _Call) -> _Access | None:
    return _windows(call, call.attributes["filter_height"], call.attributes["filter_width"], np.arange(call.result[-1]))


def _windows(call: _Call, height: int, width: int, channels: Ints) -> _Access | None:
    """A window of taps around each place of the result, which begins at these channels [channels of the result]."""
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
    """[places] along a dimension of ``size``, the first index that a window reads; -1 where it reads none.

    None where there are not as many places as the padding makes.
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
    depth = call.shapes[1][-1]
    if call.operand or prod(call.source) != prod(call.result[:-1]) * depth:
        return None
    return _Access(np.arange(prod(call.result)) // call.result[-1] * depth)


def _row_wise(call: _Call) -> _Access | None:
    """A row is read once or twice, then again while it is written."""
    return _Access(np.arange(prod(call.result))) if call.source == call.result else None


def _pad(call: _Call) -> _Access | None:
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
    """Runs of the operands in turn, each by ``memcpy``."""
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
    """Floating-point means of whole images, by channel. Others set the result to 0 before they read."""
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
    perm = call.attributes.get("perm")
    if call.operand or perm is None or sorted(perm) != [*range(len(call.source))]:
        return None
    return _Access(np.arange(prod(call.source)).reshape(call.source).transpose(perm).ravel())


def _transposed_convolution(call: _Call) -> _Access | None:
    """Of integers all is summed up in scratch memory first; of others in the result, which is set to 0 before."""
    if call.operand != 2 or call.types[2] not in ("int8", "int16"):
        return None
    first = np.full(prod(call.result), _NOTHING)
    first[0] = 0
    return _Access(first)


_UNARY = (
    "ABS CEIL COS DEQUANTIZE ELU EXP FLOOR HARD_SWISH LEAKY_RELU LOG LOGICAL_NOT LOGISTIC NEG QUANTIZE RELU RELU6 ROUND RSQRT "
    "SIN SQRT SQUARE TANH"
)
_BINARY = (
    "ADD DIV EQUAL FLOOR_DIV FLOOR_MOD GREATER GREATER_EQUAL LESS LESS_EQUAL LOGICAL_AND LOGICAL_OR MAXIMUM MINIMUM MUL "
    "NOT_EQUAL PRELU SQUARED_DIFFERENCE SUB"
)

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
