"""Writes a plan into a TensorFlow Lite model, as the offline memory plan of TensorFlow Lite Micro, and the model as C or C++.

The *runtime*, TensorFlow Lite Micro, places activations and scratch buffers (temporary memory of operators) in one array, the
*arena*. An offline memory plan is an entry of the model's metadata with the offset of each tensor in the arena. The runtime
places all other buffers around these tensors. The old file is the end of the new one and is not changed. New tables are put
before it and refer to tables in it, because all references in a flatbuffer point forward. A *slot* is the position of such a
reference in the file. C and C++ sources have the same form as the sources that TensorFlow Lite Micro's own tools write.
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

#: The first word of the offline plan, which is followed by the number of subgraphs.
_PLAN_VERSION = 1

#: The old file begins at a multiple of this many bytes in the new one, so that its data stay aligned.
_FILE_ALIGNMENT = 64

#: Number of the root table's field with the version of the schema, the only one that is no reference.
_MODEL_VERSION = 0


def write_plan(source: str | Path, plan: Plan, path: str | Path) -> None:
    """Writes a model with a plan of its arena as metadata.

    Parameters
    ----------
    source
        The model for which the plan was made, as :func:`stowplan.read` reads it. If the model contains an offline plan already
        and its problem was read with ``replace_offline_plan``, the offsets of that plan are replaced; otherwise they stay.
    plan
        A plan of the packing problem of the model; it is verified again.
    path
        The new model; may be the same file as ``source``.

    Raises
    ------
    InputError
        One of these:

        - the model cannot be read, or has data outside of the flatbuffer
        - the plan is not valid for the model, or has an offset of 2 GiB or more
        - the new file cannot be written
    """
    with collecting_unmodelled():
        # Warnings about this model were issued when the plan was made.
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
    """Returns [tensors] the offset of each tensor in bytes: from the plan, or from the file if the tensor is not planned."""
    every = list(model.offsets)
    for number, at in zip(model.planned, plan.offsets, strict=False):
        every[number] = at
    return every


def with_orders(model: TfliteModel, orders: Mapping[int, Sequence[int]]) -> bytes:
    """Returns the file with the operators of some subgraphs in other orders.

    Parameters
    ----------
    orders
        From the index of a subgraph to the positions of its operators in the file, in the order in which they will run. Other
        subgraphs are not changed.

    Raises
    ------
    InputError
        An operator's table lies before the list of operators, to which references must point forward.
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
    """Returns the file with an offline plan, which replaces the one in the file if there is one.

    Parameters
    ----------
    data
        Contents of the model file.
    every
        [tensors of all subgraphs] Offsets in bytes; -1 for a tensor that the runtime places.

    Raises
    ------
    InputError
        An offset is 2 GiB or more or less than -1, or the model has data outside of the flatbuffer.
    """
    return _with_plan(data, every, FlatBuffer(data).vector(FlatBuffer(data).follow(0), schema.MODEL_SUBGRAPHS)[1])


def one_operator(model: TfliteModel, graph: int, position: int) -> bytes:
    """Returns a model file with only one operator, whose planned tensors are all at offset 0; all other tensors are empty.

    ``graph`` and ``position`` are the index of the operator's subgraph and its position there. Raises InputError if the model
    has data outside of the flatbuffer.
    """
    operator, tensors = model.subgraphs[graph].operators[position], model.subgraphs[graph].tensors
    own = {*operator.reads, *operator.writes}
    offsets = [0 if number in own and model.tensors[number].is_planned else AT_RUNTIME for number in tensors]
    outputs = [tensors.index(number) for number in operator.writes]
    return _with_plan(model.data, offsets, 1, _SingleOperator(graph, operator.table, {*map(tensors.index, own)}, outputs))


class _SingleOperator(NamedTuple):
    """One operator of a subgraph, from which a model is made; tensors have their indices in the subgraph."""

    graph: int
    """Index of the subgraph."""
    operator: int
    """Position of the operator's table in the old file."""
    tensors: set[int]
    """Indices of the operands and results; all other tensors of the model are empty."""
    outputs: list[int]
    """Indices of the results, which are the outputs of the model."""

    def write(self, new: _Writer, old: FlatBuffer, begin: int, slot: int) -> None:
        """Writes a subgraph with this operator only.

        ``slot`` is the slot of the list of subgraphs in the root table of the new file. The old file begins at the position
        ``begin`` of the new one.
        """
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


def _with_plan(data: bytes, every: Sequence[int], subgraphs: int, single: _SingleOperator | None = None) -> bytes:
    """Returns the file with an offline plan of these offsets, for this number of subgraphs.

    With ``single``, the new file has only this operator.

    Raises InputError as :func:`with_offsets` does.
    """
    if max(every, default=0) >= 1 << 31:
        raise InputError(
            f"found offset {max(every)}, expected less than 2 GiB, the most that the runtime takes", place="tensors"
        )
    if min(every, default=0) < AT_RUNTIME:
        raise InputError(
            f"found offset {min(every)}, expected at least 0, or {AT_RUNTIME} for a tensor that the runtime places",
            place="tensors",
        )
    old = FlatBuffer(data)
    root = old.follow(0)
    buffers = old.tables(root, schema.MODEL_BUFFERS)
    if any(old.number(buffer, schema.BUFFER_OFFSET, "Q") > 1 for buffer in buffers):
        raise InputError("found data behind the flatbuffer, at fixed places, expected all of it inside", place="buffers")
    other_metadata = [
        entry
        for entry in old.tables(root, schema.MODEL_METADATA)
        if old.text(entry, schema.METADATA_NAME) != schema.OFFLINE_PLAN
    ]
    # All fields of the root table except the version are references.
    fields = (old.scalar(root - old.scalar(root, "i"), "H") - 4) // 2
    references = {
        number: old.follow(at)
        for number in range(fields)
        if number != _MODEL_VERSION and (at := old.field(root, number)) is not None
    }
    new = _Writer()
    # The sizes of the new tables do not depend on the references. The first pass finds out where the old file will begin.
    begin = 0
    for _ in range(2):
        new = _Writer()
        new.raw(struct.pack("<I4s", 0, schema.IDENTIFIER))
        numbers = sorted({*references, _MODEL_VERSION, schema.MODEL_BUFFERS, schema.MODEL_METADATA})
        table, slots = new.table(numbers)
        new.patch(0, table)
        struct.pack_into("<I", new.data, slots[_MODEL_VERSION], old.number(root, _MODEL_VERSION, "I"))
        for number, place in references.items():
            if number == schema.MODEL_SUBGRAPHS and single is not None:
                single.write(new, old, begin, slots[number])
            elif number not in (schema.MODEL_BUFFERS, schema.MODEL_METADATA):
                new.patch(slots[number], begin + place)
        entries = new.vector(slots[schema.MODEL_BUFFERS], len(buffers) + 1)
        for slot, place in zip(entries, buffers, strict=False):
            new.patch(slot, begin + place)
        metadata = new.vector(slots[schema.MODEL_METADATA], len(other_metadata) + 1)
        for slot, place in zip(metadata, other_metadata, strict=False):
            new.patch(slot, begin + place)
        entry, inside = new.table([schema.METADATA_NAME, schema.METADATA_BUFFER])
        new.patch(metadata[-1], entry)
        struct.pack_into("<I", new.data, inside[schema.METADATA_BUFFER], len(buffers))
        new.patch(
            inside[schema.METADATA_NAME], new.block(schema.OFFLINE_PLAN.encode() + b"\0", length=len(schema.OFFLINE_PLAN))
        )
        buffer_table, buffer_slots = new.table([0])
        new.patch(entries[-1], buffer_table)
        # The bytes of a buffer follow their count, and must begin at a multiple of the alignment.
        new.align(ALIGNMENT, 4)
        content = struct.pack(f"<{3 + len(every)}i", _PLAN_VERSION, subgraphs, len(every), *every)
        new.patch(buffer_slots[0], new.block(content))
        new.align(_FILE_ALIGNMENT)
        begin = len(new.data)
    return bytes(new.data) + data


class _Writer:
    """Appends tables, vectors and strings to a flatbuffer; references are filled in later, once their targets are known."""

    def __init__(self) -> None:
        self.data = bytearray()

    def raw(self, content: bytes) -> None:
        """Append bytes."""
        self.data += content

    def align(self, unit: int, after: int = 0) -> None:
        """Pad with zeros until the position ``after`` bytes behind the end is a multiple of ``unit``."""
        self.data += bytes(-(len(self.data) + after) % unit)

    def patch(self, slot: int, target: int) -> None:
        """Set the reference at a slot to a target that lies behind it."""
        struct.pack_into("<I", self.data, slot, max(0, target - slot))

    def table(self, numbers: list[int]) -> tuple[int, dict[int, int]]:
        """Append a table with 32-bit fields of these numbers, all 0; returns its position and those of its fields."""
        count = max(numbers) + 1
        self.align(4)
        # The vtable comes first. Its size is a multiple of 2 only, so it is padded to align the table.
        vtable = len(self.data) + (-(4 + 2 * count) % 4)
        self.data += bytes(vtable - len(self.data))
        entries = [4 + 4 * numbers.index(number) if number in numbers else 0 for number in range(count)]
        self.data += struct.pack(f"<{2 + count}H", 4 + 2 * count, 4 + 4 * len(numbers), *entries)
        place = len(self.data)
        self.data += struct.pack("<i", place - vtable) + bytes(4 * len(numbers))
        return place, {number: place + 4 + 4 * at for at, number in enumerate(numbers)}

    def vector(self, slot: int, count: int) -> list[int]:
        """Append a vector of empty references, and let a slot refer to it; returns the positions of its elements."""
        self.align(4)
        self.patch(slot, len(self.data))
        self.data += struct.pack("<I", count)
        start = len(self.data)
        self.data += bytes(4 * count)
        return [start + 4 * at for at in range(count)]

    def block(self, content: bytes, length: int | None = None) -> int:
        """Append a vector with these bytes, or a string with its terminating zero; returns its position.

        Parameters
        ----------
        length
            The number of elements, which precedes the bytes; by default the number of bytes.
        """
        self.align(4)
        place = len(self.data)
        self.data += struct.pack("<I", len(content) if length is None else length) + content
        return place


def array_names(stem: str) -> tuple[str, str]:
    """Returns the name of the C array and the prefix of the names of constants, for a file with the name ``stem``.

    ``stem`` has no extension. Its end ``_model_data`` is dropped, and characters that C does not allow become ``_``.
    """
    base = re.sub(r"\W", "_", stem.removesuffix("_model_data"), flags=re.ASCII)
    return f"g_{base}_model_data", f"g_{base}_arena"


def source_text(stem: str, data: bytes, is_c: bool) -> bytes:
    """Returns the contents of the ``.c`` or ``.cc`` file: the model as an array that is aligned to 16 bytes.

    ``stem`` is the name of the file without its extension, and ``data`` the contents of the model file.
    """
    values = ",".join(map(hex, data))
    array, _ = array_names(stem)
    align = "_Alignas" if is_c else "alignas"
    return f'#include "{stem}.h"\n\n{align}(16) const unsigned char {array}[] = {{{values}}};\n'.encode()


def header_text(stem: str, data: bytes, model: str, head: int, tail: int | None) -> bytes:
    """Returns the contents of the ``.h`` file for C11 and C++: the array and its size, and the sizes of the arena.

    Parameters
    ----------
    stem, data, model
        Name of the file without its extension, contents of the model file, and the model's name for a comment.
    head
        Bytes of activations and scratch buffers with the plan.
    tail
        Bytes of the runtime's persistent data, as measured on this machine; None if nothing was run.
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
