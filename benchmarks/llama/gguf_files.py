"""Writes GGUF files with true headers: data are a hole, so that a model of any size takes some kilobytes on disk."""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from stowplan.frontends.gguf import TYPES

#: Numbers of the types of tensors, by name.
NUMBERS = {name: number for number, (name, _, _) in TYPES.items()}

#: Data and tensors begin at multiples of this many bytes.
ALIGNMENT = 32


@dataclass(frozen=True)
class TensorSpec:
    """A tensor to be written."""

    name: str
    type: str
    shape: tuple[int, ...]
    """The contiguous dimension first."""

    @property
    def bytes(self) -> int:
        """Of its data."""
        _, values, size = TYPES[NUMBERS[self.type]]
        assert self.shape[0] % values == 0, self
        return prod(self.shape) // values * size


def write_gguf(path: Path, metadata: Mapping[str, Any], tensors: Sequence[TensorSpec], *, version: int = 3) -> int:
    """Write a file; its size in bytes, most of which are a hole.

    Values of metadata are numbers, strings, booleans, or lists of one of these. Whole numbers are unsigned and of 32 bits.
    """
    head = [b"GGUF", struct.pack("<IQQ", version, len(tensors), len(metadata))]
    for key, value in metadata.items():
        head += [_text(key), *_value(value)]
    offset = 0
    for tensor in tensors:
        shape = struct.pack(f"<I{len(tensor.shape)}Q", len(tensor.shape), *tensor.shape)
        head += [_text(tensor.name), shape, struct.pack("<IQ", NUMBERS[tensor.type], offset)]
        offset += _padded(tensor.bytes)
    data = b"".join(head)
    total = _padded(len(data)) + offset
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.ftruncate(file.fileno(), total)
    return total


def _value(value: Any) -> list[bytes]:
    if isinstance(value, list):
        inner = _value(value[0]) if value else [struct.pack("<I", 4)]
        entries = [b"".join(_value(entry)[1:]) for entry in value]
        return [struct.pack("<I", 9), inner[0], struct.pack("<Q", len(value)), *entries]
    if isinstance(value, bool):
        return [struct.pack("<I", 7), struct.pack("<?", value)]
    if isinstance(value, int):
        return [struct.pack("<I", 4), struct.pack("<I", value)]
    if isinstance(value, float):
        return [struct.pack("<I", 6), struct.pack("<f", value)]
    return [struct.pack("<I", 8), _text(str(value))]


def _text(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def _padded(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT
