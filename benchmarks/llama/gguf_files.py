"""Writes GGUF files with true headers. Data are a hole, so that a model of any size takes some kilobytes on disk, or random."""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from stowplan.frontends.gguf import TYPES

#: Numbers of the types of tensors, by name.
NUMBERS = {name: number for number, (name, _, _) in TYPES.items()}

#: Standard deviation of random weights.
DEVIATION = 0.02

#: Blocks of Q8_0 that are drawn for a file; larger tensors repeat them.
DRAWN_BLOCKS = 1 << 15

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


def write_gguf(
    path: Path, metadata: Mapping[str, Any], tensors: Sequence[TensorSpec], *, version: int = 3, seed: int | None = None
) -> int:
    """Write a file; its size in bytes, most of which are a hole unless there is a seed.

    Parameters
    ----------
    metadata
        Values are numbers, strings, booleans, or lists of one of these. Whole numbers are unsigned and of 32 bits.
    seed
        Of random data, for tensors of the types F32 and Q8_0: normally distributed weights, and ones for vectors.
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
        if seed is not None:
            chance = np.random.default_rng(seed)
            blocks = _blocks(chance)
            file.write(bytes(_padded(len(data)) - len(data)))
            for tensor in tensors:
                content = _random(tensor, chance, blocks)
                file.write(content + bytes(_padded(len(content)) - len(content)))
        file.flush()
        os.ftruncate(file.fileno(), total)
    return total


def _random(tensor: TensorSpec, chance: np.random.Generator, blocks: bytes) -> bytes:
    """Data of a tensor."""
    if tensor.type == "Q8_0":
        return (blocks * -(-tensor.bytes // len(blocks)))[: tensor.bytes]
    if tensor.type != "F32":
        raise ValueError(f"{tensor.name}: found the type {tensor.type}, expected F32 or Q8_0 for random data")
    is_vector = len(tensor.shape) == 1
    drawn = np.ones(tensor.shape) if is_vector else chance.normal(0, DEVIATION, tensor.shape)
    return drawn.astype("<f4").tobytes()


def _blocks(chance: np.random.Generator) -> bytes:
    """Random blocks of Q8_0: each a scale in 16 bits, and 32 whole numbers of 8 bits."""
    values = chance.normal(0, DEVIATION, (DRAWN_BLOCKS, 32))
    scales = (np.abs(values).max(axis=1) / 127).astype("<f2")
    numbers = np.clip(np.rint(values / scales[:, None].astype(float)), -127, 127).astype(np.int8)
    return np.concatenate([scales[:, None].view(np.uint8), numbers.view(np.uint8)], axis=1).tobytes()


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
