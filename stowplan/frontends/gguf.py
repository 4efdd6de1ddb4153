"""Headers of GGUF files, the format of llama.cpp's models: metadata, and the name, type and shape of each tensor.

The data of tensors are not read, so that a file of any size takes milliseconds. Arrays of strings, such as vocabularies, are
only counted. If a model is split into several files (``-00001-of-00003.gguf``), the headers of all of them are read. A
quantized type stores values in blocks. The format is documented in ggml's ``docs/gguf.md``; sizes of blocks are those of
``ggml.h``.
"""

from __future__ import annotations

import mmap
import re
import struct
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

from stowplan.errors import InputError, brief

#: The first bytes of every GGUF file, and the versions of the format that can be read.
MAGIC, VERSIONS = b"GGUF", (2, 3)

#: For each type of tensor, by its number in files: its name, the number of values in a block, and the bytes of a block.
TYPES: dict[int, tuple[str, int, int]] = {
    0: ("F32", 1, 4),
    1: ("F16", 1, 2),
    2: ("Q4_0", 32, 18),
    3: ("Q4_1", 32, 20),
    6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24),
    8: ("Q8_0", 32, 34),
    9: ("Q8_1", 32, 36),
    10: ("Q2_K", 256, 84),
    11: ("Q3_K", 256, 110),
    12: ("Q4_K", 256, 144),
    13: ("Q5_K", 256, 176),
    14: ("Q6_K", 256, 210),
    15: ("Q8_K", 256, 292),
    16: ("IQ2_XXS", 256, 66),
    17: ("IQ2_XS", 256, 74),
    18: ("IQ3_XXS", 256, 98),
    19: ("IQ1_S", 256, 50),
    20: ("IQ4_NL", 32, 18),
    21: ("IQ3_S", 256, 110),
    22: ("IQ2_S", 256, 82),
    23: ("IQ4_XS", 256, 136),
    24: ("I8", 1, 1),
    25: ("I16", 1, 2),
    26: ("I32", 1, 4),
    27: ("I64", 1, 8),
    28: ("F64", 1, 8),
    29: ("IQ1_M", 256, 56),
    30: ("BF16", 1, 2),
    34: ("TQ1_0", 256, 54),
    35: ("TQ2_0", 256, 66),
    39: ("MXFP4", 32, 17),
    40: ("NVFP4", 64, 36),
}

#: Formats of the module ``struct`` for the scalar types of metadata, by their numbers in files.
_SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
#: Numbers of the other types of metadata.
_STRING, _ARRAY = 8, 9

#: Two limits. A string of more bytes than ``_LONGEST`` is skipped: no such string is needed. A file with more tensors, more
#: keys, or more entries in an array than ``_MOST`` is refused: it is damaged, and would fill the memory of this process.
_LONGEST, _MOST = 1 << 16, 1 << 24

#: Largest number of dimensions of a tensor, as the GGUF format has it.
_DIMENSIONS = 4

#: The name of a file of a split model: the name of the model, the number of the file from 1, and the number of files.
_SPLIT = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.gguf")


class Tensor(NamedTuple):
    """A tensor of a model."""

    name: str
    """Its name, such as ``blk.0.attn_q.weight``."""
    type: str
    """Name of the type of its elements, such as ``Q4_K``."""
    shape: tuple[int, ...]
    """Size of each dimension, with the dimension that is contiguous in memory first."""
    bytes: int
    """Size of its data in bytes."""

    @property
    def values(self) -> int:
        """Number of its elements."""
        return prod(self.shape)


class Strings(NamedTuple):
    """An array of strings, of which only the number is known."""

    length: int
    """Number of the strings."""


@dataclass(frozen=True)
class GgufFile:
    """The header of a model."""

    path: Path
    """The file that was named; of a split model, the first of its files."""
    metadata: dict[str, Any]
    """Values of this file by their keys. Arrays of numbers are lists, and arrays of strings are :class:`Strings`. A string
    of more than 64 KiB is replaced by an empty one."""
    tensors: list[Tensor] = field(default_factory=list)
    """The tensors of the whole model; of a split model, those of all files in the order of the files."""

    @property
    def architecture(self) -> str:
        """The value of the key ``general.architecture``, such as ``llama``; empty if there is none."""
        return str(self.metadata.get("general.architecture", ""))

    def get(self, key: str, default: Any = None) -> Any:
        """The value of a key of the architecture: for ``block_count``, that of the key ``llama.block_count`` in a model of the
        architecture ``llama``. If there is no such key, ``default`` is returned."""
        return self.metadata.get(f"{self.architecture}.{key}", default)


def is_gguf(data: bytes) -> bool:
    """Whether the contents of a file begin with the magic number of GGUF."""
    return data[:4] == MAGIC


def read_gguf(path: str | Path) -> GgufFile:
    """Reads the header of a model. If the model is split into several files, the headers of all of them are read.

    A split model has the number of its files in its metadata (``split.count``). Any of its files may be named; the metadata are
    those of the first one, as in llama.cpp. If the file is not named like a part of one (``NAME-00001-of-00003.gguf``), only
    this file is read.

    Raises
    ------
    InputError
        In one of these cases:

        - A file cannot be read or is damaged.
        - A file is no GGUF file, or is one of another version.
        - A tensor has a type that is not in :data:`TYPES`.
        - A file of a split model is missing, or its name and its metadata have different numbers of files.
    """
    named = _read(Path(path))
    match = _SPLIT.fullmatch(named.path.name)
    # A model that was merged from several files has the count 0.
    if _split_count(named) == 0 or match is None:
        return named
    number, count = int(match[2]), int(match[3])
    if not 1 <= number <= count:
        raise InputError(f"found file {number} of {count} by its name, expected a file from 1 to {count}", source=named.path)
    _check_count(named, count)
    parts = []
    for part in range(1, count + 1):
        other = named.path.with_name(f"{match[1]}-{part:05d}-of-{match[3]}.gguf")
        parts.append(named if part == number else _read(other))
        _check_count(parts[-1], count)
    first, *others = parts
    for file in others:
        first.tensors.extend(file.tensors)
    return first


def _check_count(file: GgufFile, count: int) -> None:
    """Raises InputError if the metadata of a file of a split model do not have ``count`` files, the number in its name."""
    found = _split_count(file)
    if found != count:
        raise InputError(f"found {found}, expected {count}, as in the name of the file", source=file.path, place="split.count")


def _split_count(file: GgufFile) -> int:
    """The number of files of a model by the metadata of one of them; 0 if they do not have it.

    Raises InputError if it is no number.
    """
    count = file.metadata.get("split.count", 0)
    if not isinstance(count, int):
        raise InputError(f"found {brief(repr(count), 40)}, expected a number", source=file.path, place="split.count")
    return count


def _read(path: Path) -> GgufFile:
    """Reads the header of one file."""
    try:
        with path.open("rb") as file:
            if path.stat().st_size < 24:
                raise InputError("found a file of less than 24 bytes, expected a GGUF file", source=path)
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                return _Reader(path, data).file()
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror or error}", source=path) from None


class _Reader:
    """Reads one header from its begin to its end; ``at`` is the position of the next byte that is read.

    Every method that reads raises InputError if the file ends too early or has a value that the format does not allow.
    """

    def __init__(self, path: Path, data: mmap.mmap):
        self.path, self.data, self.at = path, data, 0

    def file(self) -> GgufFile:
        """Reads the header."""
        if self.data[:4] != MAGIC:
            raise self._wrong(f"found {self.data[:4]!r} at its begin, expected {MAGIC!r}: a GGUF file")
        self.at = 4
        version = self._number("<I")
        if version not in VERSIONS:
            raise self._wrong(f"found version {version}, expected one of {', '.join(map(str, VERSIONS))}")
        tensors, entries = self._number("<Q"), self._number("<Q")
        if tensors > _MOST or entries > _MOST:
            raise self._wrong(f"found {tensors} tensors and {entries} keys in its header, expected at most {_MOST} of each")
        metadata = {}
        for _ in range(entries):
            key = self._string()
            metadata[key] = self._value(self._number("<I"))
        return GgufFile(self.path, metadata, [self._tensor() for _ in range(tensors)])

    def _tensor(self) -> Tensor:
        """Reads the entry of a tensor: its name, shape and type."""
        name = self._string()
        dimensions = self._number("<I")
        if dimensions > _DIMENSIONS:
            raise self._wrong(f"found {dimensions} dimensions, expected at most {_DIMENSIONS}", f"tensor {name}")
        shape = tuple(self._number("<Q") for _ in range(dimensions))
        kind = self._number("<I")
        # This is the position of the tensor's data, which is not needed.
        self._number("<Q")
        if kind not in TYPES:
            raise self._wrong(f"found type {kind}, expected one that is known: {', '.join(map(str, TYPES))}", f"tensor {name}")
        type_name, values, size = TYPES[kind]
        if not shape or shape[0] % values:
            raise self._wrong(
                f"found shape {shape}, expected a multiple of {values} first, as {type_name} has", f"tensor {name}"
            )
        return Tensor(name, type_name, shape, prod(shape) // values * size)

    def _value(self, kind: int) -> Any:
        """Reads a value of metadata of the type with this number."""
        if kind in _SCALARS:
            return self._number(_SCALARS[kind])
        if kind == _STRING:
            return self._string()
        if kind != _ARRAY:
            raise self._wrong(f"found a value of type {kind}, expected 0 to 12")
        inner, count = self._number("<I"), self._number("<Q")
        if count > _MOST:
            raise self._wrong(f"found an array of {count} entries, expected at most {_MOST}")
        if inner == _STRING:
            self._skip_strings(count)
            return Strings(count)
        if inner in _SCALARS:
            form = f"<{count}{_SCALARS[inner][1]}"
            self._need(struct.calcsize(form))
            values = struct.unpack_from(form, self.data, self.at)
            self.at += struct.calcsize(form)
            return list(values)
        if inner == _ARRAY:
            raise self._wrong("found an array of arrays, expected one of numbers or strings")
        return [self._value(inner) for _ in range(count)]

    def _skip_strings(self, count: int) -> None:
        """Moves ``at`` past ``count`` strings, each of which is its length in 8 bytes and its text."""
        data, at, end = self.data, self.at, len(self.data)
        unpack = struct.Struct("<Q").unpack_from
        for _ in range(count):
            if at + 8 > end:
                raise self._short()
            at += 8 + unpack(data, at)[0]
        self.at = at
        self._need(0)

    def _string(self) -> str:
        """Reads a string; a very long one is skipped, and an empty string is returned."""
        length = self._number("<Q")
        if length > _LONGEST:
            self._need(length)
            self.at += length
            return ""
        self._need(length)
        text = self.data[self.at : self.at + length]
        self.at += length
        try:
            return text.decode()
        except UnicodeDecodeError:
            raise self._wrong(f"found the text {brief(repr(text), 40)}, expected UTF-8") from None

    def _number(self, form: str) -> Any:
        """Reads a number of this format of the module ``struct``."""
        size = struct.calcsize(form)
        self._need(size)
        (value,) = struct.unpack_from(form, self.data, self.at)
        self.at += size
        return value

    def _need(self, size: int) -> None:
        """Raises InputError if fewer than ``size`` bytes are left."""
        if self.at + size > len(self.data):
            raise self._short()

    def _short(self) -> InputError:
        """The error for a file that ends within its header."""
        return self._wrong(f"ends after {len(self.data)} bytes, within its header: expected a whole file")

    def _wrong(self, message: str, place: str | None = None) -> InputError:
        """The error with this message, for the caller to raise."""
        return InputError(message, source=self.path, place=place)
