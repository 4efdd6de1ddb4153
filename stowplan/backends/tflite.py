"""Plans into TensorFlow Lite models: the offline memory plan of TensorFlow Lite Micro, as metadata of the model.

The runtime places what the plan names at these offsets of its arena, and what it needs itself around them. The rest of the
file is not changed: new tables are put before it, and refer to what is there. In a flatbuffer all references point forward.
"""

from __future__ import annotations

import struct
from pathlib import Path

from stowplan import files
from stowplan.errors import InputError, naming
from stowplan.frontends.arena.tflite_file import ALIGNMENT, IDENTIFIER, FlatBuffer, TfliteModel, read_tflite
from stowplan.models.packing.plan import Plan
from stowplan.models.packing.verify import verify

#: Name of the metadata, and version of what it holds.
NAME, VERSION = "OfflineMemoryAllocation", 1

#: Offset of a tensor that the runtime is to place.
AT_RUNTIME = -1

#: The old file keeps its alignment: it begins at a multiple of this.
_BLOCK = 64

_MODEL_VERSION, _MODEL_BUFFERS, _MODEL_METADATA = 0, 4, 6
_METADATA_NAME, _METADATA_BUFFER = 0, 1
_BUFFER_OFFSET = 1


def write_plan(source: str | Path, plan: Plan, path: str | Path) -> None:
    """Write a model with a plan of its arena as metadata; one that it had is replaced.

    Parameters
    ----------
    source
        The model that the plan was made for, as :func:`stowplan.read` reads it.
    plan
        Checked against the model once more.
    path
        Where the new model goes; may be ``source``.

    Raises
    ------
    InputError
        The plan is not valid for this model, or the model keeps data outside the flatbuffer.
    """
    model = read_tflite(source)
    found = verify(model.problem, plan)
    if not found.ok:
        raise InputError(f"the plan is not valid for this model: {found.violations[0].message}", source=source)
    with naming(source):
        data = with_offsets(model, offsets(model, plan))
    files.write_atomic(path, data)


def offsets(model: TfliteModel, plan: Plan) -> list[int]:
    """Offset of each tensor of the model; :data:`AT_RUNTIME` for those that are stored, variable or unused."""
    every = [AT_RUNTIME] * model.tensors
    for number, at in zip(model.planned, plan.offsets, strict=True):
        every[number] = at
    return every


def with_offsets(model: TfliteModel, every: list[int]) -> bytes:
    """The file with these offsets of its tensors as metadata."""
    old = FlatBuffer(model.data)
    root = old.follow(0)
    buffers = old.tables(root, _MODEL_BUFFERS)
    if any(old.number(each, _BUFFER_OFFSET, "Q") > 1 for each in buffers):
        raise InputError("found data behind the flatbuffer, at fixed places, expected all of it inside", place="buffers")
    kept = [each for each in old.tables(root, _MODEL_METADATA) if old.text(each, _METADATA_NAME) != NAME]
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
        new.raw(struct.pack("<I4s", 0, IDENTIFIER))
        numbers = sorted({*references, _MODEL_VERSION, _MODEL_BUFFERS, _MODEL_METADATA})
        table, slots = new.table(numbers)
        new.patch(0, table)
        struct.pack_into("<I", new.data, slots[_MODEL_VERSION], old.number(root, _MODEL_VERSION, "I"))
        for number, place in references.items():
            if number not in (_MODEL_BUFFERS, _MODEL_METADATA):
                new.patch(slots[number], begin + place)
        entries = new.vector(slots[_MODEL_BUFFERS], len(buffers) + 1)
        for slot, place in zip(entries, buffers, strict=False):
            new.patch(slot, begin + place)
        metadata = new.vector(slots[_MODEL_METADATA], len(kept) + 1)
        for slot, place in zip(metadata, kept, strict=False):
            new.patch(slot, begin + place)
        entry, inside = new.table([_METADATA_NAME, _METADATA_BUFFER])
        new.patch(metadata[-1], entry)
        struct.pack_into("<I", new.data, inside[_METADATA_BUFFER], len(buffers))
        new.patch(inside[_METADATA_NAME], new.block(NAME.encode() + b"\0", length=len(NAME)))
        holder, holds = new.table([0])
        new.patch(entries[-1], holder)
        # Bytes of a buffer begin at a multiple of the alignment, behind their count.
        new.align(ALIGNMENT, 4)
        content = struct.pack(f"<{3 + len(every)}i", VERSION, 0, len(every), *every)
        new.patch(holds[0], new.block(content))
        new.align(_BLOCK)
        begin = len(new.data)
    return bytes(new.data) + model.data


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
