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

from stowplan import files
from stowplan.errors import InputError, naming
from stowplan.models.packing.problem import Buffer, Problem

#: Bytes 4 to 8 of every such file.
IDENTIFIER = b"TFL3"

#: Bytes that TensorFlow Lite Micro aligns tensors to.
ALIGNMENT = 16

#: Bits of an element, by number of its type in the schema; types without a fixed size are missing.
_BITS = {0: 32, 1: 16, 2: 32, 3: 8, 4: 64, 6: 8, 7: 16, 8: 64, 9: 8, 10: 64, 11: 128, 12: 64, 15: 32, 16: 16, 17: 4, 18: 16}

#: Fields of tables, by their numbers in the schema.
_MODEL_SUBGRAPHS, _MODEL_BUFFERS = 2, 4
_GRAPH_TENSORS, _GRAPH_INPUTS, _GRAPH_OUTPUTS, _GRAPH_OPERATORS = 0, 1, 2, 3
_TENSOR_SHAPE, _TENSOR_TYPE, _TENSOR_BUFFER, _TENSOR_NAME, _TENSOR_IS_VARIABLE = 0, 1, 2, 3, 5
_OPERATOR_INPUTS, _OPERATOR_OUTPUTS, _OPERATOR_INTERMEDIATES = 1, 2, 8
_BUFFER_DATA, _BUFFER_OFFSET, _BUFFER_SIZE = 0, 1, 2


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


@dataclass(frozen=True)
class TfliteModel:
    """A model's first subgraph: which of its tensors are planned."""

    problem: Problem
    planned: tuple[int, ...]
    """Number of the tensor of each buffer."""
    tensors: int
    """How many tensors there are."""
    data: bytes
    """The file."""


def is_tflite(path: str | Path) -> bool:
    """Whether a file is one, by its name."""
    return Path(path).name.lower().endswith(".tflite")


def read_tflite(path: str | Path, capacity: int | None = None) -> TfliteModel:
    """A model's tensors that need memory, as a packing problem.

    Raises
    ------
    InputError
        No such file, not a TensorFlow Lite model, several subgraphs, or a shape or type without a fixed size.
    """
    data = files.read_bytes(path)
    if data[4:8] != IDENTIFIER:
        raise InputError(f"found {data[4:8]!r} as its identifier, expected {IDENTIFIER.decode()}", source=path)
    try:
        with naming(path):
            return _read(data, Path(path).name.partition(".")[0], capacity)
    except (struct.error, OverflowError, MemoryError) as error:
        raise InputError(f"not a whole TensorFlow Lite model: {error}", source=path) from error


def _read(data: bytes, name: str, capacity: int | None) -> TfliteModel:
    buffer = FlatBuffer(data)
    model = buffer.follow(0)
    graphs = buffer.tables(model, _MODEL_SUBGRAPHS)
    if len(graphs) != 1:
        raise InputError(f"found {len(graphs)} subgraphs, expected one: control flow is not planned", place="subgraphs")
    stored = [_has_data(buffer, each) for each in buffer.tables(model, _MODEL_BUFFERS)]
    (graph,) = graphs
    tensors = buffer.tables(graph, _GRAPH_TENSORS)
    operators = buffer.tables(graph, _GRAPH_OPERATORS)
    first: dict[int, int] = {}
    last: dict[int, int] = {}

    def touch(numbers: list[int], moment: int) -> None:
        for number in numbers:
            if number == -1:
                continue
            if not 0 <= number < len(tensors):
                raise InputError(f"found tensor {number}, expected 0 to {len(tensors) - 1}", place=f"operator {moment}")
            first.setdefault(number, moment)
            last[number] = max(moment, last.get(number, moment))

    touch(buffer.integers(graph, _GRAPH_INPUTS), 0)
    for moment, operator in enumerate(operators):
        for field in (_OPERATOR_INPUTS, _OPERATOR_OUTPUTS, _OPERATOR_INTERMEDIATES):
            touch(buffer.integers(operator, field), moment)
    touch(buffer.integers(graph, _GRAPH_OUTPUTS), max(0, len(operators) - 1))
    found: list[Buffer] = []
    planned: list[int] = []
    for number in sorted(first):
        tensor = tensors[number]
        place = f"tensors[{number}]"
        where = buffer.number(tensor, _TENSOR_BUFFER, "I")
        if where >= len(stored):
            raise InputError(f"found buffer {where}, expected 0 to {len(stored) - 1}", place=place)
        # Variables keep their bytes from one run to the next, and are given them apart.
        if stored[where] or buffer.number(tensor, _TENSOR_IS_VARIABLE, "B"):
            continue
        shape = buffer.integers(tensor, _TENSOR_SHAPE)
        kind = buffer.number(tensor, _TENSOR_TYPE, "b")
        if kind not in _BITS or any(each < 0 for each in shape):
            raise InputError(f"found shape {shape} of type {kind}, expected a fixed size", place=place)
        size = -(-math.prod(shape) * _BITS[kind] // 8)
        label = f"{number} {buffer.text(tensor, _TENSOR_NAME)}".strip()
        found.append(Buffer(id=label, lower=first[number], upper=last[number] + 1, size=size, alignment=ALIGNMENT))
        planned.append(number)
    return TfliteModel(Problem(name=name, buffers=tuple(found), capacity=capacity), tuple(planned), len(tensors), data)


def _has_data(buffer: FlatBuffer, table: int) -> bool:
    """Whether a buffer holds bytes, in the file or behind it."""
    outside = buffer.number(table, _BUFFER_OFFSET, "Q") > 1 and buffer.number(table, _BUFFER_SIZE, "Q") > 0
    return outside or buffer.vector(table, _BUFFER_DATA)[1] > 0
