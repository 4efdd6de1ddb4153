"""Scratch memory: bytes that kernels ask the runtime for while their operator runs.

They are what the reference kernels ask for, or come from a table, the log of a device, or by hand, or are measured
(:mod:`stowplan.backends.tflm.runtime`). Kernels of other libraries ask for other sizes.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

from stowplan import files
from stowplan.errors import InputError, UsageError
from stowplan.frontends.tflite.model import ALIGNMENT, CUSTOM, Operator, Scopes, TfliteModel, TfliteTensor

#: Sizes in bytes, not rounded, that an operator asks for, by its subgraph and its place there, in the file's order.
Scratch: TypeAlias = Mapping[tuple[int, int], tuple[int, ...]]

#: Types of tensors, by their numbers in the schema.
_FLOAT32, _INT16, _INT8, _INT4 = 0, 7, 9, 17

#: Bytes of a pointer and of size_t where tables are not given; a 32-bit device asks for less.
_POINTER = 8

#: A line of the runtime's log.
_LINE = re.compile(r"\(id=(\d+)\): size=(\d+), offset=-?\d+, first_used=(-?\d+) last_used=(-?\d+)")


def rounded(size: int) -> int:
    """Bytes as the runtime rounds them up."""
    return size + -size % ALIGNMENT


def of_reference_kernels(model: TfliteModel) -> tuple[dict[tuple[int, int], tuple[int, ...]], list[tuple[int, int]]]:
    """What the reference kernels ask for, and the operators of which that is not known."""
    known: dict[tuple[int, int], tuple[int, ...]] = {}
    unknown = []
    for graph, subgraph in enumerate(model.subgraphs):
        for position, operator in enumerate(subgraph.operators):
            sizes = _of_kernel(operator, model.tensors)
            if sizes is None:
                unknown.append((graph, position))
            elif sizes:
                known[graph, position] = sizes
    return known, unknown


def _of_kernel(operator: Operator, tensors: Sequence[TfliteTensor]) -> tuple[int, ...] | None:
    """Sizes, none at all for most operators; None where they are not known."""
    if operator.code == CUSTOM:
        return _of_custom(operator, tensors)
    if operator.is_opaque:
        return None
    ask = _ASKING.get(operator.code)
    reads = [tensors[number] for number in operator.reads]
    writes = [tensors[number] for number in operator.writes]
    try:
        return () if ask is None else ask(reads, writes)
    except (IndexError, ValueError):
        return None


def _of_custom(operator: Operator, tensors: Sequence[TfliteTensor]) -> tuple[int, ...] | None:
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
    return math.prod(tensor.shape)


def _filter(reads: Sequence[TfliteTensor], _: Sequence[TfliteTensor]) -> tuple[int, ...]:
    """Filters of int4 are unpacked."""
    return (_elements(reads[1]),) if reads[1].kind == _INT4 else ()


def _svdf(reads: Sequence[TfliteTensor], writes: Sequence[TfliteTensor]) -> tuple[int, ...]:
    batch, filters = reads[0].shape[0], reads[1].shape[0]
    units = () if reads[1].kind == _FLOAT32 else (4 * batch * writes[0].shape[-1],)
    return (4 * batch * filters, *units)


def _sums(reads: Sequence[TfliteTensor], writes: Sequence[TfliteTensor]) -> tuple[int, ...]:
    accumulators = (4 * _elements(writes[0]),) if reads[0].kind in (_INT8, _INT16) else ()
    return (*accumulators, *_extremes(reads, writes))


def _extremes(reads: Sequence[TfliteTensor], _: Sequence[TfliteTensor]) -> tuple[int, ...]:
    return 4 * len(reads[0].shape), 4 * _elements(reads[1])


def _lstm(reads: Sequence[TfliteTensor], writes: Sequence[TfliteTensor]) -> tuple[int, ...]:
    # Of the variables, output state and cell state, the second: [batch, state].
    cell = [tensor for tensor in reads if tensor.is_variable][1]
    return (_elements(cell) * (4 if cell.kind == _FLOAT32 else 2),) * 4


def _transposed(reads: Sequence[TfliteTensor], writes: Sequence[TfliteTensor]) -> tuple[int, ...]:
    values = reads[2]
    wide = (8 * _elements(reads[3]),) if len(reads) > 3 and reads[3].kind == values.kind == _INT16 else ()
    accumulators = {_INT8: (4 * _elements(writes[0]),), _INT16: (8 * _elements(writes[0]),)}
    return (*wide, *accumulators.get(values.kind, ()))


def _dimensions(reads: Sequence[TfliteTensor], _: Sequence[TfliteTensor]) -> tuple[int, ...]:
    return (4 * len(reads[0].shape),) * 2


def _pointers(reads: Sequence[TfliteTensor], _: Sequence[TfliteTensor]) -> tuple[int, ...]:
    return (_POINTER * len(reads),)


#: By number of the operator: convolutions and FULLY_CONNECTED, SVDF, MEAN and SUM, REDUCE_MAX, REDUCE_MIN and REDUCE_ALL, LSTM,
#: TRANSPOSE_CONV, MIRROR_PAD, ADD_N.
_ASKING = {
    **dict.fromkeys((3, 4, 9), _filter),
    27: _svdf,
    **dict.fromkeys((40, 74), _sums),
    **dict.fromkeys((82, 89, 140), _extremes),
    44: _lstm,
    67: _transposed,
    100: _dimensions,
    106: _pointers,
}


def given(model: TfliteModel, scopes: Scopes, texts: Iterable[str]) -> dict[tuple[int, int], tuple[int, ...]]:
    """Sizes as a user gives them: ``OPERATOR=BYTES``, several joined by ``+``, or a file, a table as JSON or a device's log.

    An operator is its place in the first subgraph, or ``SUBGRAPH:PLACE``. A table has these as names, and as values a number of
    bytes or a list. A log, of a runtime built with ``TF_LITE_SHOW_MEMORY_USE``, says all: what it leaves out asks for nothing.

    Raises
    ------
    UsageError, InputError
        No such file or operator, no sizes, or the log of another model.
    """
    told: dict[tuple[int, int], tuple[int, ...]] = {}
    for text in texts:
        name, equals, sizes = text.partition("=")
        if equals and re.fullmatch(r"[\d:]+", name):
            told[_operator(model, name, f"--scratch {text}")] = _sizes(sizes.split("+"), f"--scratch {text}")
            continue
        content = files.read_bytes(Path(text)).decode(errors="replace")
        if _LINE.search(content):
            told |= _of_log(model, scopes, content, text)
            continue
        try:
            table = json.loads(content)
        except ValueError as error:
            raise InputError(f"found neither a table nor a log of TF_LITE_SHOW_MEMORY_USE: {error}", source=text) from None
        if not isinstance(table, dict):
            raise InputError('found no names, expected bytes by operator, such as {"3": 1024}', source=text)
        for name, value in table.items():
            told[_operator(model, name, text)] = _sizes(value if isinstance(value, list) else [value], text)
    return told


def _operator(model: TfliteModel, name: str, place: str) -> tuple[int, int]:
    numbers = [int(part) for part in name.split(":") if part.isdigit()]
    graph, position = numbers if len(numbers) == 2 else (0, numbers[0] if len(numbers) == 1 else -1)
    if not (0 <= graph < len(model.subgraphs) and 0 <= position < len(model.subgraphs[graph].operators)):
        count = len(model.subgraphs[0].operators)
        raise UsageError(f"{place}: found operator {name!r}, expected 0 to {count - 1}, or SUBGRAPH:PLACE")
    return graph, position


def _sizes(values: Sequence[object], place: str) -> tuple[int, ...]:
    texts = [str(value) for value in values]
    if not all(text.isdigit() for text in texts):
        raise UsageError(f"{place}: found {'+'.join(texts)!r}, expected bytes")
    return tuple(int(text) for text in texts)


def _of_log(model: TfliteModel, scopes: Scopes, content: str, source: str) -> dict[tuple[int, int], tuple[int, ...]]:
    """What a device said, for all operators."""
    rows = [tuple(map(int, match)) for match in _LINE.findall(content)]
    sizes = [tensor.size for tensor in model.tensors]
    tensors = [row for row in zip(sizes, scopes.first, scopes.last, strict=True) if row[0]]
    if [number for number, *_ in rows] != [*range(len(rows))] or [row[1:] for row in rows[: len(tensors)]] != tensors:
        raise InputError(f"found the log of another model, expected one that begins with {len(tensors)} tensors", source=source)
    # Of operators within others, the innermost that has these scopes.
    owners = {span: name for name, span in sorted(scopes.operators.items())}
    logged: dict[tuple[int, int], tuple[int, ...]] = dict.fromkeys(scopes.operators, ())
    for number, size, first, last in rows[len(tensors) :]:
        if (first, last) not in owners:
            raise InputError(f"found buffer {number} from scope {first} to {last}, expected an operator's", source=source)
        logged[owners[first, last]] += (size,)
    return logged
