"""TensorFlow Lite models as packing problems: the tensors of the first subgraph that a runtime gives memory to.

Only the few tables that say so are read, straight from the flatbuffer (schema version 3). Lives are those of TensorFlow Lite
Micro: from the operator that writes a tensor to the last that reads it, both included; inputs live from the start, outputs to
the end.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from stowplan import files
from stowplan.deadline import check_reading
from stowplan.errors import InputError, naming
from stowplan.log import warn_unmodelled
from stowplan.models.packing.problem import Buffer, Problem

#: Bytes 4 to 8 of every such file.
IDENTIFIER = b"TFL3"

#: Bytes that TensorFlow Lite Micro aligns tensors to.
ALIGNMENT = 16

#: Bytes of an element, by number of its type in the schema, as TensorFlow Lite Micro reckons: int4 (17) is not packed, and what
#: a resource (13) refers to is kept apart. Strings, variants and types that it does not know are refused.
_BYTES = {0: 4, 1: 2, 2: 4, 3: 1, 4: 8, 6: 1, 7: 2, 8: 8, 9: 1, 10: 8, 11: 16, 12: 8, 13: 0, 15: 4, 16: 2, 17: 1, 18: 2}

#: Builtin operators, by number: what calls other graphs is refused; what else is not among those that are known to read and
#: write their tensors alone is named in a warning.
_CUSTOM, _CALLS = 32, {31: "CALL", 51: "DELEGATE", 118: "IF", 119: "WHILE", 129: "CALL_ONCE", 200: "a loop", 209: "a choice"}
_MODELLED = frozenset(range(162)) - {_CUSTOM, 127}
#: Of these, those whose reference kernels ask the runtime for memory of their own: SVDF, MEAN, LSTM, TRANSPOSE_CONV, SUM,
#: REDUCE_MAX, MIRROR_PAD, ADD_N.
_WITH_SCRATCH = frozenset({27, 40, 44, 67, 74, 82, 100, 106})

#: Name of the metadata that holds a plan: version, number of subgraphs, number of tensors, and an offset for each.
OFFLINE_PLAN = "OfflineMemoryAllocation"
#: Offset of a tensor that the runtime is to place.
AT_RUNTIME = -1

#: Fields of tables, by their numbers in the schema.
_MODEL_CODES, _MODEL_SUBGRAPHS, MODEL_BUFFERS, MODEL_METADATA = 1, 2, 4, 6
_CODE_OLD_NUMBER, _CODE_NAME, _CODE_NUMBER = 0, 1, 3
METADATA_NAME, METADATA_BUFFER = 0, 1
_GRAPH_TENSORS, _GRAPH_INPUTS, _GRAPH_OUTPUTS, _GRAPH_OPERATORS = 0, 1, 2, 3
_TENSOR_SHAPE, _TENSOR_TYPE, _TENSOR_BUFFER, _TENSOR_NAME, _TENSOR_IS_VARIABLE = 0, 1, 2, 3, 5
#: Numbers that are not stored one after the other in the file: sparse tensors, those inside variants, those in other files.
_TENSOR_ELSEWHERE = (6, 9, 10)
_OPERATOR_CODE, _OPERATOR_INPUTS, _OPERATOR_OUTPUTS, _OPERATOR_INTERMEDIATES = 0, 1, 2, 8
_BUFFER_DATA, BUFFER_OFFSET, _BUFFER_SIZE = 0, 1, 2


class FlatBuffer:
    """What little of a flatbuffer is needed: fields of tables, and vectors."""

    def __init__(self, data: bytes):
        self.data = data

    def scalar(self, at: int, form: str) -> int:
        """A little-endian number, by its letter in :mod:`struct`; struct.error beyond the end."""
        if at < 0:
            raise struct.error("a place before the file")
        return int(struct.unpack_from(f"<{form}", self.data, at)[0])

    def follow(self, at: int) -> int:
        """What the offset at a place points to."""
        return at + self.scalar(at, "I")

    def field(self, table: int, number: int) -> int | None:
        """Place of a field's value; None where the table leaves it out."""
        vtable = table - self.scalar(table, "i")
        entry = 4 + 2 * number
        where = self.scalar(vtable + entry, "H") if entry < self.scalar(vtable, "H") else 0
        return table + where if where else None

    def number(self, table: int, field: int, form: str, default: int = 0) -> int:
        """A number in a table."""
        at = self.field(table, field)
        return default if at is None else self.scalar(at, form)

    def vector(self, table: int, field: int) -> tuple[int, int]:
        """Place of the first element of a vector, and how many there are; none where it is left out."""
        at = self.field(table, field)
        if at is None:
            return 0, 0
        start = self.follow(at)
        return start + 4, self.scalar(start, "I")

    def tables(self, table: int, field: int) -> list[int]:
        """Places of the tables of a vector."""
        start, count = self.vector(table, field)
        if count * 4 > len(self.data):
            raise struct.error("a vector longer than the file")
        return [self.follow(start + 4 * at) for at in range(count)]

    def integers(self, table: int, field: int) -> list[int]:
        """A vector of 32-bit integers."""
        start, count = self.vector(table, field)
        return list(struct.unpack_from(f"<{count}i", self.data, start)) if count else []

    def text(self, table: int, field: int) -> str:
        """A string."""
        start, count = self.vector(table, field)
        return self.data[start : start + count].decode("utf-8", errors="replace") if count else ""


#: Begin and end of a stretch of time and bytes: first moment, first byte, and those after the last.
_Box: TypeAlias = tuple[int, int, int, int]


@dataclass(frozen=True)
class TfliteModel:
    """A model's first subgraph: which of its tensors are planned."""

    problem: Problem
    planned: tuple[int, ...]
    """Number of the tensor of each buffer; buffers behind these stand for tensors whose offsets are fixed."""
    offsets: tuple[int, ...]
    """Of each tensor, in the plan that the file has: :data:`AT_RUNTIME` where the runtime places it, or there is no plan."""
    data: bytes
    """The file."""


def is_tflite(path: str | Path) -> bool:
    """Whether a file is one, by its name."""
    return Path(path).name.lower().endswith(".tflite")


def read_tflite(path: str | Path, capacity: int | None = None, replace_offline_plan: bool = False) -> TfliteModel:
    """A model's tensors that need memory, as a packing problem.

    Parameters
    ----------
    path
        The model.
    capacity
        Bytes of the arena; None asks for the least.
    replace_offline_plan
        Tensors for which the file has an offset are planned, too, but for those of custom operators: these may know the offset.

    Raises
    ------
    InputError
        No such file, not a TensorFlow Lite model, several subgraphs, a shape or type without a fixed size, or tensors that
        nothing writes.
    """
    data = files.read_bytes(path)
    if data[4:8] != IDENTIFIER:
        raise InputError(f"found {data[4:8]!r} as its identifier, expected {IDENTIFIER.decode()}", source=path)
    try:
        with naming(path):
            return _read(data, Path(path).name.partition(".")[0], capacity, replace_offline_plan)
    except (struct.error, OverflowError, MemoryError) as error:
        raise InputError(f"not a whole TensorFlow Lite model: {error}", source=path) from error


def _read(data: bytes, name: str, capacity: int | None, replace_offline_plan: bool) -> TfliteModel:
    buffer = FlatBuffer(data)
    model = buffer.follow(0)
    graphs = buffer.tables(model, _MODEL_SUBGRAPHS)
    if len(graphs) != 1:
        message = f"found {len(graphs)} subgraphs, expected one: bodies of IF, WHILE and CALL_ONCE are not planned"
        raise InputError(message, place="subgraphs")
    stored = [_has_data(buffer, tensor) for tensor in buffer.tables(model, MODEL_BUFFERS)]
    (graph,) = graphs
    tensors = buffer.tables(graph, _GRAPH_TENSORS)
    operators = buffer.tables(graph, _GRAPH_OPERATORS)
    codes = buffer.tables(model, _MODEL_CODES)
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    unwritten: dict[int, int] = {}
    custom: set[int] = set()

    def touch(table: int, field: int, moment: int) -> list[int]:
        numbers = [number for number in buffer.integers(table, field) if number != -1]
        for number in numbers:
            if not 0 <= number < len(tensors):
                raise InputError(f"found tensor {number}, expected 0 to {len(tensors) - 1}", place=f"operator {moment}")
            first.setdefault(number, moment)
            last[number] = max(moment, last.get(number, moment))
        return numbers

    touch(graph, _GRAPH_INPUTS, 0)
    for moment, operator in enumerate(operators):
        is_custom = _check_operator(buffer, operator, codes, moment)
        known = set(first)
        reads = touch(operator, _OPERATOR_INPUTS, moment)
        writes = [tensor for field in (_OPERATOR_OUTPUTS, _OPERATOR_INTERMEDIATES) for tensor in touch(operator, field, moment)]
        if is_custom:
            custom.update(reads, writes)
        else:
            unwritten.update(dict.fromkeys({*reads} - known, moment))
    touch(graph, _GRAPH_OUTPUTS, max(0, len(operators) - 1))
    offsets = _offline_plan(buffer, model, len(tensors))
    free: dict[int, Buffer] = {}
    placed: list[_Box] = []
    for number in sorted(first):
        tensor = tensors[number]
        place = f"tensors[{number}]"
        where = buffer.number(tensor, _TENSOR_BUFFER, "I")
        if where >= len(stored):
            raise InputError(f"found buffer {where}, expected 0 to {len(stored) - 1}", place=place)
        # Variables keep their bytes from one run to the next, and are given them apart.
        if stored[where] or buffer.number(tensor, _TENSOR_IS_VARIABLE, "B"):
            continue
        if number in unwritten:
            raise InputError(f"found nothing that writes what operator {unwritten[number]} reads, expected it", place=place)
        shape = buffer.integers(tensor, _TENSOR_SHAPE)
        kind = buffer.number(tensor, _TENSOR_TYPE, "b")
        is_elsewhere = any(buffer.field(tensor, field) is not None for field in _TENSOR_ELSEWHERE)
        if kind not in _BYTES or is_elsewhere or any(extent < 0 for extent in shape):
            description = "a sparse, variant or external tensor" if is_elsewhere else f"shape {shape} of type {kind}"
            raise InputError(f"found {description}, expected a fixed size", place=place)
        # The runtime rounds up sizes as it does offsets.
        size = -(-math.prod(shape) * _BYTES[kind] // ALIGNMENT) * ALIGNMENT
        low, lower, upper = offsets[number], first[number], last[number] + 1
        if low != AT_RUNTIME and (number in custom or not replace_offline_plan):
            placed.append((lower, low, upper, low + size))
        elif size:
            label = f"{number} {buffer.text(tensor, _TENSOR_NAME)}".strip()
            free[number] = Buffer(id=label, lower=lower, upper=upper, size=size, alignment=ALIGNMENT)
    if placed:
        stay = f"{len(placed)} tensors stay where the file has them, unchecked for what they share"
        warn_unmodelled(f"{stay}; --set replace_offline_plan=yes frees those of no custom operator", OFFLINE_PLAN)
    problem = Problem(name=name, buffers=(*free.values(), *_obstacles(placed)), capacity=capacity)
    return TfliteModel(problem, tuple(free), offsets, data)


def _check_operator(buffer: FlatBuffer, operator: int, codes: list[int], moment: int) -> bool:
    """Whether an operator is a custom one; refuses those that call other graphs, and says what of others is not modelled."""
    number = buffer.number(operator, _OPERATOR_CODE, "I")
    place = f"operator {moment}"
    if number >= len(codes):
        raise InputError(f"found operator code {number}, expected 0 to {len(codes) - 1}", place=place)
    # Old files have one byte for it, which newer ones fill as far as it goes.
    code = max(buffer.number(codes[number], _CODE_OLD_NUMBER, "b"), buffer.number(codes[number], _CODE_NUMBER, "i"))
    if code in _CALLS:
        raise InputError(f"found {_CALLS[code]}, expected an operator that calls no other graph", place=place)
    if code not in _MODELLED:
        name = f"the custom operator {buffer.text(codes[number], _CODE_NAME)!r}" if code == _CUSTOM else f"operator code {code}"
        warn_unmodelled(f"{name} is not known: memory of its own, and bytes that its tensors share, are not planned", place)
    elif code in _WITH_SCRATCH:
        warn_unmodelled("its kernel asks for scratch memory that is not planned: the arena may have to be larger", place)
    return code == _CUSTOM


def _offline_plan(buffer: FlatBuffer, model: int, tensors: int) -> tuple[int, ...]:
    """Offset of each tensor in the plan that a model has; all at run time where it has none."""
    offsets = [AT_RUNTIME] * tensors
    holders = buffer.tables(model, MODEL_BUFFERS)
    for entry in buffer.tables(model, MODEL_METADATA):
        if buffer.text(entry, METADATA_NAME) != OFFLINE_PLAN:
            continue
        number = buffer.number(entry, METADATA_BUFFER, "I")
        start, count = buffer.vector(holders[number], _BUFFER_DATA) if number < len(holders) else (0, 0)
        _, _, told, *offsets = struct.unpack_from(f"<{count // 4}i", buffer.data, start) if count >= 12 else (0, 0, 0)
        if told != tensors or len(offsets) < tensors or min(offsets, default=0) < AT_RUNTIME:
            message = f"found {len(offsets)} offsets for {told} tensors, expected one of -1 or more for each of {tensors}"
            raise InputError(message, place=OFFLINE_PLAN)
    return tuple(offsets[:tensors])


def _obstacles(placed: list[_Box]) -> list[Buffer]:
    """Buffers at offsets that are fixed. Those that meet are one, around them: an accelerator may address operands as parts of
    its scratch memory.
    """
    boxes: list[_Box] = []
    for box in placed:
        check_reading()
        while met := [
            other for other in boxes if all(max(box[at], other[at]) < min(box[at + 2], other[at + 2]) for at in (0, 1))
        ]:
            boxes = [other for other in boxes if other not in met]
            starts, lows, ends, highs = zip(box, *met, strict=True)
            box = (min(starts), min(lows), max(ends), max(highs))
        boxes.append(box)
    every = enumerate(boxes)
    return [Buffer(id=f"placed {at}", lower=box[0], upper=box[2], size=box[3] - box[1], offset=box[1]) for at, box in every]


def _has_data(buffer: FlatBuffer, table: int) -> bool:
    """Whether a buffer holds bytes, in the file or behind it."""
    outside = buffer.number(table, BUFFER_OFFSET, "Q") > 1 and buffer.number(table, _BUFFER_SIZE, "Q") > 0
    return outside or buffer.vector(table, _BUFFER_DATA)[1] > 0
