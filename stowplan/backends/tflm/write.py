"""Plans into TensorFlow Lite models: the offline memory plan of TensorFlow Lite Micro, as metadata; models as C++ sources.

The runtime places what the plan names at these offsets of its arena, and what it needs itself around them. The rest of the
file is not changed: new tables are put before it, and refer to what is there. In a flatbuffer all references point forward.
Sources have the form that TensorFlow Lite Micro's own tools give them.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from stowplan import files
from stowplan.errors import InputError, naming
from stowplan.frontends.tflite import model as schema
from stowplan.frontends.tflite.flatbuffer import FlatBuffer
from stowplan.frontends.tflite.model import ALIGNMENT, AT_RUNTIME, TfliteModel, read_tflite
from stowplan.log import collecting_unmodelled
from stowplan.models.packing.plan import Plan
from stowplan.models.packing.verify import verify
from stowplan.version import VERSION

#: What the metadata begins with; the number of subgraphs follows.
_VERSION = 1

#: The old file keeps its alignment: it begins at a multiple of this.
_BLOCK = 64

_MODEL_VERSION = 0


def write_plan(source: str | Path, plan: Plan, path: str | Path) -> None:
    """Write a model with a plan of its arena as metadata.

    Parameters
    ----------
    source
        The model that the plan was made for, as :func:`stowplan.read` reads it. Of a plan that it has, offsets are replaced
        where ``replace_offline_plan`` was asked for when this one was made, and stay elsewhere.
    plan
        Checked against the model once more.
    path
        Where the new model goes; may be ``source``.

    Raises
    ------
    InputError
        The plan is not valid for this model, or the model keeps data outside the flatbuffer.
    """
    with collecting_unmodelled():
        # Whoever made the plan was told.
        model = read_tflite(source)
        if plan.problem != model.problem.digest:
            model = read_tflite(source, replace_offline_plan=True)
    verification = verify(model.problem, plan)
    if not verification.ok:
        raise InputError(f"the plan is not valid for this model: {verification.violations[0].message}", source=source)
    with naming(source):
        data = with_offsets(model.data, offsets(model, plan))
    files.write_atomic(path, data)


def offsets(model: TfliteModel, plan: Plan) -> list[int]:
    """Offset of each tensor of the model; for those that are not planned what the file says."""
    every = list(model.offsets)
    for number, at in zip(model.planned, plan.offsets, strict=False):
        every[number] = at
    return every


def with_orders(model: TfliteModel, orders: Mapping[int, Sequence[int]]) -> bytes:
    """The file with the operators of some subgraphs in other orders: positions of the operators, by the subgraph.

    Raises
    ------
    InputError
        An operator that stands before its list: references point forward.
    """
    data = bytearray(model.data)
    old = FlatBuffer(model.data)
    graphs = old.tables(old.follow(0), schema.MODEL_SUBGRAPHS)
    for graph, order in orders.items():
        start, _ = old.vector(graphs[graph], schema.GRAPH_OPERATORS)
        tables = [operator.table for operator in model.subgraphs[graph].operators]
        for at, position in enumerate(order):
            slot = start + 4 * at
            if tables[position] <= slot:
                raise InputError("found operators before their list, expected them behind it", place=f"subgraph {graph}")
            struct.pack_into("<I", data, slot, tables[position] - slot)
    return bytes(data)


def with_offsets(data: bytes, every: Sequence[int]) -> bytes:
    """A file with these offsets of its tensors as metadata."""
    return _with_plan(data, every, FlatBuffer(data).vector(FlatBuffer(data).follow(0), schema.MODEL_SUBGRAPHS)[1])


def one_operator(model: TfliteModel, graph: int, position: int) -> bytes:
    """A model of one operator alone, with all that is planned of it at offset 0; tensors of others are empty."""
    operator, tensors = model.subgraphs[graph].operators[position], model.subgraphs[graph].tensors
    own = {*operator.reads, *operator.writes}
    offsets = [0 if number in own and model.tensors[number].is_planned else AT_RUNTIME for number in tensors]
    outputs = [tensors.index(number) for number in operator.writes]
    return _with_plan(model.data, offsets, 1, _Part(graph, operator.table, {*map(tensors.index, own)}, outputs))


class _Part(NamedTuple):
    """What is left of a model: one operator of a subgraph, tensors by their numbers there."""

    graph: int
    operator: int
    tensors: set[int]
    outputs: list[int]

    def write(self, new: _Writer, old: FlatBuffer, begin: int, slot: int) -> None:
        """A subgraph of its own, where a slot refers to the list of subgraphs; the old file begins at ``begin``."""
        source = old.tables(old.follow(0), schema.MODEL_SUBGRAPHS)[self.graph]
        (only,) = new.vector(slot, 1)
        fields = [schema.GRAPH_TENSORS, schema.GRAPH_INPUTS, schema.GRAPH_OUTPUTS, schema.GRAPH_OPERATORS]
        table, slots = new.table(fields)
        new.patch(only, table)
        tensors = old.tables(source, schema.GRAPH_TENSORS)
        entries = new.vector(slots[schema.GRAPH_TENSORS], len(tensors))
        new.patch(new.vector(slots[schema.GRAPH_OPERATORS], 1)[0], begin + self.operator)
        for field, numbers in ((schema.GRAPH_INPUTS, []), (schema.GRAPH_OUTPUTS, self.outputs)):
            new.patch(slots[field], new.block(struct.pack(f"<{len(numbers)}i", *numbers), length=len(numbers)))
        empty, shape = new.table([schema.TENSOR_SHAPE])
        new.patch(shape[schema.TENSOR_SHAPE], new.block(bytes(4), length=1))
        for number, (entry, tensor) in enumerate(zip(entries, tensors, strict=True)):
            new.data[entry : entry + 4] = struct.pack("<i", (begin + tensor if number in self.tensors else empty) - entry)


def _with_plan(data: bytes, every: Sequence[int], subgraphs: int, part: _Part | None = None) -> bytes:
    if max(every, default=0) >= 1 << 31:
        raise InputError(
            f"found offset {max(every)}, expected less than 2 GiB, the most that the runtime takes", place="tensors"
        )
    old = FlatBuffer(data)
    root = old.follow(0)
    buffers = old.tables(root, schema.MODEL_BUFFERS)
    if any(old.number(buffer, schema.BUFFER_OFFSET, "Q") > 1 for buffer in buffers):
        raise InputError("found data behind the flatbuffer, at fixed places, expected all of it inside", place="buffers")
    kept = [
        entry
        for entry in old.tables(root, schema.MODEL_METADATA)
        if old.text(entry, schema.METADATA_NAME) != schema.OFFLINE_PLAN
    ]
    # Fields of the root as it is: all but the version are references.
    fields = (old.scalar(root - old.scalar(root, "i"), "H") - 4) // 2
    references = {
        number: old.follow(at)
        for number in range(fields)
        if number != _MODEL_VERSION and (at := old.field(root, number)) is not None
    }
    new = _Writer()
    # Sizes of the new tables do not depend on what they refer to: the first pass finds out where the old file begins.
    begin = 0
    for _ in range(2):
        new = _Writer()
        new.raw(struct.pack("<I4s", 0, schema.IDENTIFIER))
        numbers = sorted({*references, _MODEL_VERSION, schema.MODEL_BUFFERS, schema.MODEL_METADATA})
        table, slots = new.table(numbers)
        new.patch(0, table)
        struct.pack_into("<I", new.data, slots[_MODEL_VERSION], old.number(root, _MODEL_VERSION, "I"))
        for number, place in references.items():
            if number == schema.MODEL_SUBGRAPHS and part is not None:
                part.write(new, old, begin, slots[number])
            elif number not in (schema.MODEL_BUFFERS, schema.MODEL_METADATA):
                new.patch(slots[number], begin + place)
        entries = new.vector(slots[schema.MODEL_BUFFERS], len(buffers) + 1)
        for slot, place in zip(entries, buffers, strict=False):
            new.patch(slot, begin + place)
        metadata = new.vector(slots[schema.MODEL_METADATA], len(kept) + 1)
        for slot, place in zip(metadata, kept, strict=False):
            new.patch(slot, begin + place)
        entry, inside = new.table([schema.METADATA_NAME, schema.METADATA_BUFFER])
        new.patch(metadata[-1], entry)
        struct.pack_into("<I", new.data, inside[schema.METADATA_BUFFER], len(buffers))
        new.patch(
            inside[schema.METADATA_NAME], new.block(schema.OFFLINE_PLAN.encode() + b"\0", length=len(schema.OFFLINE_PLAN))
        )
        holder, holds = new.table([0])
        new.patch(entries[-1], holder)
        # Bytes of a buffer begin at a multiple of the alignment, behind their count.
        new.align(ALIGNMENT, 4)
        content = struct.pack(f"<{3 + len(every)}i", _VERSION, subgraphs, len(every), *every)
        new.patch(holds[0], new.block(content))
        new.align(_BLOCK)
        begin = len(new.data)
    return bytes(new.data) + data


class _Writer:
    """Appends tables, vectors and strings; references are filled in once it is known where they point."""

    def __init__(self) -> None:
        self.data = bytearray()

    def raw(self, content: bytes) -> None:
        self.data += content

    def align(self, unit: int, after: int = 0) -> None:
        """Fill up until what stands ``after`` bytes further is at a multiple of ``unit``."""
        self.data += bytes(-(len(self.data) + after) % unit)

    def patch(self, slot: int, target: int) -> None:
        """Let the reference at a slot point to a place further on."""
        struct.pack_into("<I", self.data, slot, max(0, target - slot))

    def table(self, numbers: list[int]) -> tuple[int, dict[int, int]]:
        """A table with 32-bit fields of these numbers, all 0: its place, and theirs."""
        count = max(numbers) + 1
        self.align(4)
        # Vtable first, then the table: the vtable's size is a multiple of 2 only.
        vtable = len(self.data) + (-(4 + 2 * count) % 4)
        self.data += bytes(vtable - len(self.data))
        entries = [4 + 4 * numbers.index(number) if number in numbers else 0 for number in range(count)]
        self.data += struct.pack(f"<{2 + count}H", 4 + 2 * count, 4 + 4 * len(numbers), *entries)
        place = len(self.data)
        self.data += struct.pack("<i", place - vtable) + bytes(4 * len(numbers))
        return place, {number: place + 4 + 4 * at for at, number in enumerate(numbers)}

    def vector(self, slot: int, count: int) -> list[int]:
        """A vector of references, all empty, that a slot refers to: places of its elements."""
        self.align(4)
        self.patch(slot, len(self.data))
        self.data += struct.pack("<I", count)
        start = len(self.data)
        self.data += bytes(4 * count)
        return [start + 4 * at for at in range(count)]

    def block(self, content: bytes, length: int | None = None) -> int:
        """A vector of bytes, or a string with its zero: its place."""
        self.align(4)
        place = len(self.data)
        self.data += struct.pack("<I", len(content) if length is None else length) + content
        return place


def array_names(stem: str) -> tuple[str, str]:
    """Name of the array and beginning of the constants' names, for files of this name without its ending."""
    base = re.sub(r"\W", "_", stem.removesuffix("_model_data"), flags=re.ASCII)
    return f"g_{base}_model_data", f"g_{base}_arena"


def source_text(stem: str, data: bytes, is_c: bool) -> bytes:
    """The ``.c`` or ``.cc`` file: the model as an array that is aligned to 16 bytes."""
    values = ",".join(map(hex, data))
    array, _ = array_names(stem)
    align = "_Alignas" if is_c else "alignas"
    return f'#include "{stem}.h"\n\n{align}(16) const unsigned char {array}[] = {{{values}}};\n'.encode()


def header_text(stem: str, data: bytes, model: str, head: int, tail: int | None) -> bytes:
    """The ``.h`` file, for C11 and for C++: the array and its size, and sizes of the arena.

    Parameters
    ----------
    head
        Bytes of activations and scratch memory under the plan.
    tail
        Bytes of the runtime's persistent data, as measured on this machine; None where nothing was run.
    """
    array, arena = array_names(stem)
    macro = "STOWPLAN_ARENA_TAIL"
    lines = [
        f"/* {model}, planned by stowplan {VERSION}. For C11 and C++11; all sizes are in bytes. */",
        "#pragma once",
        "",
        "#ifdef __cplusplus",
        'extern "C" {',
        "#endif",
        "",
        "/* The model with its plan, for tflite::GetModel; aligned to 16 bytes. */",
        f"extern const unsigned char {array}[];",
        f"enum {{ {array}_size = {len(data)} }};",
        "",
        "/* The head of the arena: activations and scratch buffers, at the planned offsets. */",
        f"enum {{ {arena}_head_size = {head} }};",
        "",
        "/* The tail: persistent data of the interpreter, which depends on the device. An interpreter that runs there says how",
        f"   many bytes the arena takes (MicroInterpreter::arena_used_bytes); define {macro} as that less the head. */",
    ]
    if tail is None:
        lines += [f"#ifdef {macro}"]
    else:
        lines += [
            f"#ifndef {macro}",
            "/* As measured on 64-bit x86; pointers of a 32-bit device are smaller, and so is its tail. */",
            f"#define {macro} {tail}",
            "#endif",
        ]
    lines += [
        f"enum {{ {arena}_tail_size = {macro} }};",
        "/* The whole arena: alignas(16) static unsigned char arena[...]. */",
        f"enum {{ {arena}_size = {arena}_head_size + {arena}_tail_size }};",
        *(["#endif"] if tail is None else []),
        "",
        "#ifdef __cplusplus",
        "}",
        "#endif",
    ]
    return ("\n".join(lines) + "\n").encode()
