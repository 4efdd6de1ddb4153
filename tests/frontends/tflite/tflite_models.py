"""TensorFlow Lite models made from tables of fields, by their numbers in the schema; and the plan that one has."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any, NamedTuple

from stowplan.frontends.tflite.flatbuffer import FlatBuffer

ADD, MEAN, CUSTOM, CALL_ONCE, VAR_HANDLE = 0, 40, 32, 129, 142


class Number(NamedTuple):
    """A number in a table: its form in :mod:`struct`."""

    value: int
    form: str = "I"


def flatbuffer(root: dict[int, Any]) -> bytes:
    """A table: of numbers, strings, bytes, lists of whole numbers, and lists of tables."""
    data = bytearray(struct.pack("<I4s", 0, b"TFL3"))
    waiting: list[tuple[int, Any]] = [(0, root)]

    def align(unit: int, behind: int = 0) -> None:
        data.extend(bytes(-(len(data) + behind) % unit))

    while waiting:
        slot, value = waiting.pop(0)
        if isinstance(value, dict):
            count = max(value, default=-1) + 1
            align(4, 2 * (2 + count))
            table = len(data) + 2 * (2 + count)
            places = {field: 4 + 8 * at for at, field in enumerate(value)}
            entries = [places.get(field, 0) for field in range(count)]
            data.extend(struct.pack(f"<{2 + count}H", 4 + 2 * count, 4 + 8 * len(value), *entries))
            data.extend(struct.pack("<i", table - (table - 2 * (2 + count))) + bytes(8 * len(value)))
            struct.pack_into("<I", data, slot, table - slot)
            for field, each in value.items():
                if isinstance(each, Number):
                    struct.pack_into(f"<{each.form}", data, table + places[field], each.value)
                else:
                    waiting.append((table + places[field], each))
            continue
        align(16, 4)
        struct.pack_into("<I", data, slot, len(data) - slot)
        if isinstance(value, str | bytes):
            content = value.encode() if isinstance(value, str) else value
            data.extend(struct.pack("<I", len(content)) + content + b"\0")
        elif value and isinstance(value[0], dict):
            start = len(data) + 4
            data.extend(struct.pack("<I", len(value)) + bytes(4 * len(value)))
            waiting += [(start + 4 * at, each) for at, each in enumerate(value)]
        else:
            data.extend(struct.pack(f"<I{len(value)}i", len(value), *value))
    return bytes(data)


def tensor(shape: list[int], kind: int = 9, **more: Any) -> dict[int, Any]:
    """A tensor without bytes in the file, int8 by default; ``stored`` for one with bytes, ``sparse`` for a sparse one."""
    fields = {0: shape, 1: Number(kind, "b"), 2: Number(1 if more.get("stored") else 0)}
    return fields | ({6: {}} if more.get("sparse") else {})


def save(
    path: Path,
    tensors: list[dict[int, Any]],
    operators: list[tuple[int, list[int], list[int]]],
    offsets: list[int] | None = None,
    **more: Any,
) -> Path:
    """A model whose first tensor is its input, and whose last is its output.

    Parameters
    ----------
    operators
        (builtin operator, inputs, outputs); custom ones are called ``mine``.
    offsets
        Of an offline plan; ``plan`` in ``more`` gives all of its words instead, ``subgraphs`` how many there are.
    """
    codes = [{0: Number(min(code, 127), "b"), 1: "mine", 3: Number(code, "i")} for code, _, _ in operators]
    nodes = [{0: Number(at), 1: reads, 2: writes} for at, (_, reads, writes) in enumerate(operators)]
    graph = {0: tensors, 1: [0], 2: [len(tensors) - 1], 3: nodes}
    words = more.get("plan", None if offsets is None else [1, 1, len(offsets), *offsets])
    plan = b"" if words is None else struct.pack(f"<{len(words)}i", *words)
    model = {0: Number(3), 1: codes, 2: [graph] * more.get("subgraphs", 1), 4: [{}, {0: b"stored"}, {0: plan}]}
    path.write_bytes(flatbuffer(model | ({} if words is None else {6: [{0: "OfflineMemoryAllocation", 1: Number(2)}]})))
    return path


def words(path: Path) -> list[int]:
    """The words of the one plan that a file has."""
    file = FlatBuffer(path.read_bytes())
    root = file.follow(0)
    (entry,) = (each for each in file.tables(root, 6) if file.text(each, 0) == "OfflineMemoryAllocation")
    start, count = file.vector(file.tables(root, 4)[file.number(entry, 1, "I")], 0)
    return list(struct.unpack_from(f"<{count // 4}i", file.data, start))
