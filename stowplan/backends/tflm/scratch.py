"""Sizes of scratch buffers: temporary memory that a kernel requests from the runtime, and that is live while its operator runs.

The *runtime* is TensorFlow Lite Micro, and a *kernel* is the code of an operator. The runtime counts time in *scopes*: each
operator, and each subgraph that an operator calls, begins a new one. The sizes have one of these sources:

- the user gives them, as text, as a table, or as the log of a device
- they are measured (:mod:`stowplan.backends.tflm.runtime`)
- they are those of the *reference kernels*, the runtime's portable implementations of operators. Kernels of other libraries
  request other sizes.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

from stowplan import files
from stowplan.errors import InputError, UsageError, brief
from stowplan.frontends.tflite.model import ALIGNMENT, CUSTOM, Operator, Scopes, TfliteModel, TfliteTensor

#: From an operator, given by its subgraph and its position there in the file, to the sizes of its scratch buffers in bytes, not
#: rounded.
Scratch: TypeAlias = Mapping[tuple[int, int], tuple[int, ...]]

#: Numbers of element types in the schema.
_FLOAT32, _INT16, _INT8, _INT4 = 0, 7, 9, 17

#: Bytes of a pointer and of ``size_t`` on a 64-bit machine; kernels on a 32-bit device request less.
_POINTER = 8

#: A line of the log of a runtime that was built with ``TF_LITE_SHOW_MEMORY_USE``.
_LOG_LINE = re.compile(r"\(id=(\d+)\): size=(\d+), offset=-?\d+, first_used=(-?\d+) last_used=(-?\d+)")

#: ``SUBGRAPH:POSITION`` of an operator, and a size in bytes. Larger numbers than these exist in no model.
_OPERATOR, _SIZE = re.compile(r"([0-9]{1,9}):([0-9]{1,9})"), re.compile(r"[0-9]{1,18}")


def rounded(size: int) -> int:
    """Returns a size in bytes, rounded up to a multiple of the runtime's alignment of 16 bytes."""
    return size + -size % ALIGNMENT


def of_reference_kernels(model: TfliteModel) -> tuple[dict[tuple[int, int], tuple[int, ...]], list[tuple[int, int]]]:
    """Returns the sizes in bytes of the scratch buffers of the reference kernels, and the operators for which they are unknown.

    Operators are given by their subgraph and their position in the file. An operator that is in neither result has no scratch
    buffers.
    """
    sizes_of: dict[tuple[int, int], tuple[int, ...]] = {}
    unknown = []
    for graph, subgraph in enumerate(model.subgraphs):
        for position, operator in enumerate(subgraph.operators):
            sizes = _kernel_sizes(operator, model.tensors)
            if sizes is None:
                unknown.append((graph, position))
            elif sizes:
                sizes_of[graph, position] = sizes
    return sizes_of, unknown


def _kernel_sizes(operator: Operator, tensors: Sequence[TfliteTensor]) -> tuple[int, ...] | None:
    """Returns the sizes of an operator's scratch buffers, an empty tuple for most operators; None if they are not known."""
    if operator.code == CUSTOM:
        return _custom_sizes(operator, tensors)
    if operator.is_opaque:
        return None
    sizes_of_kernel = _SIZES_OF_CODE.get(operator.code)
    reads = [tensors[number] for number in operator.reads]
    writes = [tensors[number] for number in operator.writes]
    try:
        return () if sizes_of_kernel is None else sizes_of_kernel(reads, writes)
    except (IndexError, ValueError):
        return None


def _custom_sizes(operator: Operator, tensors: Sequence[TfliteTensor]) -> tuple[int, ...] | None:
    """Returns the sizes of a custom operator's scratch buffers; None if they are not known."""
    if operator.custom == "ethos-u":
        bases = len(operator.reads) + len(operator.writes)
        return 8 * bases, _POINTER * bases
    if operator.is_opaque or operator.custom == "TFLite_Detection_PostProcess":
        return None
    if operator.custom == "SignalRfft":
        # A real transform of n values has n / 2 + 1 complex ones.
        return ((tensors[operator.writes[0]].shape[-1] - 2) * (2 if tensors[operator.reads[0]].kind == _INT16 else 4),)
    return ()


def _elements(tensor: TfliteTensor) -> int:
    """Returns the number of elements of a tensor."""
    return math.prod(tensor.shape)


def _filter(reads: Sequence[TfliteTensor], _: Sequence[TfliteTensor]) -> tuple[int, ...]:
    """Filters of type int4 are unpacked into scratch memory, one byte for each element."""
    return (_elements(reads[1]),) if reads[1].kind == _INT4 else ()


def _svdf(reads: Sequence[TfliteTensor], writes: Sequence[TfliteTensor]) -> tuple[int, ...]:
    """SVDF has a 32-bit number for each batch and filter and, unless its weights are floats, one for each batch and unit."""
    batch, filters = reads[0].shape[0], reads[1].shape[0]
    units = () if reads[1].kind == _FLOAT32 else (4 * batch * writes[0].shape[-1],)
    return (4 * batch * filters, *units)


def _sums(reads: Sequence[TfliteTensor], writes: Sequence[TfliteTensor]) -> tuple[int, ...]:
    """MEAN and SUM of int8 or int16 accumulate each element of the result in 32 bits.

    They also have the buffers of other reductions (:func:`_extremes`).
    """
    accumulators = (4 * _elements(writes[0]),) if reads[0].kind in (_INT8, _INT16) else ()
    return (*accumulators, *_extremes(reads, writes))


def _extremes(reads: Sequence[TfliteTensor], _: Sequence[TfliteTensor]) -> tuple[int, ...]:
    """Reductions have a 32-bit number for each dimension of the operand, and one for each axis along which they reduce."""
    return 4 * len(reads[0].shape), 4 * _elements(reads[1])


def _lstm(reads: Sequence[TfliteTensor], writes: Sequence[TfliteTensor]) -> tuple[int, ...]:
    """LSTM has four buffers with as many elements as the cell state: floats, or 16-bit numbers for all other types."""
    # The variables are the output state and the cell state; the cell state has the shape [batch, state].
    cell = [tensor for tensor in reads if tensor.is_variable][1]
    return (_elements(cell) * (4 if cell.kind == _FLOAT32 else 2),) * 4


def _transposed(reads: Sequence[TfliteTensor], writes: Sequence[TfliteTensor]) -> tuple[int, ...]:
    """TRANSPOSE_CONV of integers accumulates the result in 32 bits (int8) or 64 bits (int16), and widens a bias of int16 to 64
    bits."""
    values = reads[2]
    wide = (8 * _elements(reads[3]),) if len(reads) > 3 and reads[3].kind == values.kind == _INT16 else ()
    accumulators = {_INT8: (4 * _elements(writes[0]),), _INT16: (8 * _elements(writes[0]),)}
    return (*wide, *accumulators.get(values.kind, ()))


def _dimensions(reads: Sequence[TfliteTensor], _: Sequence[TfliteTensor]) -> tuple[int, ...]:
    """MIRROR_PAD has two buffers with a 32-bit number for each dimension."""
    return (4 * len(reads[0].shape),) * 2


def _pointers(reads: Sequence[TfliteTensor], _: Sequence[TfliteTensor]) -> tuple[int, ...]:
    """ADD_N has a pointer to each operand."""
    return (_POINTER * len(reads),)


#: Functions that compute the sizes, by the number of the operator: convolutions and FULLY_CONNECTED, SVDF, MEAN and SUM,
#: REDUCE_MAX, REDUCE_MIN and REDUCE_ALL, LSTM, TRANSPOSE_CONV, MIRROR_PAD, ADD_N.
_SIZES_OF_CODE = {
    **dict.fromkeys((3, 4, 9), _filter),
    27: _svdf,
    **dict.fromkeys((40, 74), _sums),
    **dict.fromkeys((82, 89, 140), _extremes),
    44: _lstm,
    67: _transposed,
    100: _dimensions,
    106: _pointers,
}


def read_sizes(model: TfliteModel, scopes: Scopes, texts: Iterable[str]) -> dict[tuple[int, int], tuple[int, ...]]:
    """Reads sizes of scratch buffers that a user gives.

    Parameters
    ----------
    scopes
        The scopes in which tensors live and operators run, in the order of the file. A log names operators by their scopes.
    texts
        Each text has one of these forms; if an operator occurs in several texts, the last one counts:

        - ``OPERATOR=BYTES``, with several sizes joined by ``+``. An operator is its position in the first subgraph, or
          ``SUBGRAPH:POSITION``.
        - the path of a JSON table from operators to a number of bytes or a list of them
        - the path of the log of a runtime that was built with ``TF_LITE_SHOW_MEMORY_USE``. A log is complete: operators that
          it does not mention have no scratch buffers.

    Raises
    ------
    UsageError
        An operator does not exist, or a size is not a whole number.
    InputError
        A file cannot be read, or is neither a table nor a log; or the log is that of another model.
    """
    sizes_of: dict[tuple[int, int], tuple[int, ...]] = {}
    for text in texts:
        name, equals, sizes = text.partition("=")
        if equals and re.fullmatch(r"[0-9:]+", name):
            sizes_of[_operator(model, name, f"--scratch {text}")] = _sizes(sizes.split("+"), f"--scratch {text}")
            continue
        content = files.read_bytes(Path(text)).decode(errors="replace")
        if _LOG_LINE.search(content):
            sizes_of |= _log_sizes(model, scopes, content, text)
            continue
        try:
            table = json.loads(content)
        except ValueError as error:
            raise InputError(f"found neither a table nor a log of TF_LITE_SHOW_MEMORY_USE: {error}", source=text) from None
        if not isinstance(table, dict):
            raise InputError('found no names, expected bytes by operator, such as {"3": 1024}', source=text)
        for name, value in table.items():
            sizes_of[_operator(model, name, text)] = _sizes(value if isinstance(value, list) else [value], text)
    return sizes_of


def operator_at(model: TfliteModel, name: str) -> tuple[int, int] | None:
    """Returns the subgraph and the position of an operator from a text ``SUBGRAPH:POSITION``.

    It is None if the text has another form, or if there is no such operator.
    """
    match = _OPERATOR.fullmatch(name)
    if match is None:
        return None
    graph, position = int(match[1]), int(match[2])
    return (graph, position) if graph < len(model.subgraphs) and position < len(model.subgraphs[graph].operators) else None


def _operator(model: TfliteModel, name: str, place: str) -> tuple[int, int]:
    """Returns the subgraph and position of an operator from its text.

    Raises UsageError, whose message begins with ``place``, if there is no such operator.
    """
    operator = operator_at(model, name if ":" in name else f"0:{name}")
    if operator is None:
        count = len(model.subgraphs[0].operators)
        raise UsageError(f"{place}: found operator {brief(name, 80)!r}, expected 0 to {count - 1}, or SUBGRAPH:POSITION")
    return operator


def _sizes(values: Sequence[object], place: str) -> tuple[int, ...]:
    """Reads sizes in bytes from texts or numbers; raises UsageError, whose message begins with ``place``, for anything else."""
    texts = [str(value) for value in values]
    if not all(_SIZE.fullmatch(text) for text in texts):
        raise UsageError(f"{place}: found {brief('+'.join(texts), 80)!r}, expected bytes")
    return tuple(int(text) for text in texts)


def _log_sizes(model: TfliteModel, scopes: Scopes, content: str, source: str) -> dict[tuple[int, int], tuple[int, ...]]:
    """Returns the sizes of all operators from the log of a device; raises InputError if the log is that of another model."""
    rows = [tuple(map(int, match)) for match in _LOG_LINE.findall(content)]
    sizes = [tensor.size for tensor in model.tensors]
    tensors = [row for row in zip(sizes, scopes.first, scopes.last, strict=True) if row[0]]
    if [number for number, *_ in rows] != [*range(len(rows))] or [row[1:] for row in rows[: len(tensors)]] != tensors:
        raise InputError(f"found the log of another model, expected one that begins with {len(tensors)} tensors", source=source)
    # If an operator that runs inside of another one has the same scopes, the inner one owns the buffer.
    owners = {span: name for name, span in sorted(scopes.operators.items())}
    sizes_of: dict[tuple[int, int], tuple[int, ...]] = dict.fromkeys(scopes.operators, ())
    for number, size, first, last in rows[len(tensors) :]:
        if (first, last) not in owners:
            raise InputError(f"found buffer {number} from scope {first} to {last}, expected an operator's", source=source)
        sizes_of[owners[first, last]] += (size,)
    return sizes_of
