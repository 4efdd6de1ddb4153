"""Reads tables and vectors from a flatbuffer, the binary format of TensorFlow Lite models.

A *table* has numbered fields, each of which may be missing. A *position* is a number of bytes from the start of the file.
Parameters ``at`` and ``table`` are positions, ``field`` is the number of a field, and ``form`` is the format of a number in
:mod:`struct`, without the byte order.
"""

from __future__ import annotations

import struct

from stowplan.errors import InputError


class FlatBuffer:
    """The contents of a file. Every method raises InputError if it would read beyond the end of the file."""

    def __init__(self, data: bytes):
        self.data = data

    def unpack(self, at: int, form: str) -> tuple[int, ...]:
        """The little-endian numbers from a position on; ``form`` is their format in :mod:`struct`."""
        size = struct.calcsize(f"<{form}")
        if not 0 <= at <= len(self.data) - size:
            message = f"not a whole TensorFlow Lite model: found a reference to {size} bytes at {at}"
            raise InputError(f"{message}, expected all of them within the {len(self.data)} bytes of the file")
        return struct.unpack_from(f"<{form}", self.data, at)

    def scalar(self, at: int, form: str) -> int:
        """The little-endian number at a position."""
        return int(self.unpack(at, form)[0])

    def follow(self, at: int) -> int:
        """The position to which the offset at a position refers."""
        return at + self.scalar(at, "I")

    def field(self, table: int, number: int) -> int | None:
        """Position of a field's value; None if the table does not contain the field."""
        vtable = table - self.scalar(table, "i")
        entry = 4 + 2 * number
        where = self.scalar(vtable + entry, "H") if entry < self.scalar(vtable, "H") else 0
        return table + where if where else None

    def number(self, table: int, field: int, form: str, default: int = 0) -> int:
        """The number in a field of a table; ``default`` if the table does not contain the field."""
        at = self.field(table, field)
        return default if at is None else self.scalar(at, form)

    def option(self, table: int | None, field: int, form: str) -> int:
        """The number in a field of a table; 0 if the table is None or does not contain the field."""
        return 0 if table is None else self.number(table, field, form)

    def vector(self, table: int, field: int, form: str = "B") -> tuple[int, int]:
        """Position of the first element of the vector in a field, and the number of elements, which is 0 without a vector.

        ``form`` is the format of an element in :mod:`struct`.
        """
        at = self.field(table, field)
        if at is None:
            return 0, 0
        start = self.follow(at)
        count = self.scalar(start, "I")
        self.unpack(start + 4, f"{count * struct.calcsize(form)}x")
        return start + 4, count

    def tables(self, table: int, field: int) -> list[int]:
        """Positions of the tables in the vector of tables in a field; empty without a vector."""
        start, count = self.vector(table, field, "I")
        return [start + 4 * at + offset for at, offset in enumerate(self.unpack(start, f"{count}I"))]

    def integers(self, table: int, field: int) -> list[int]:
        """The signed 32-bit integers of the vector in a field; empty without a vector."""
        start, count = self.vector(table, field, "i")
        return list(self.unpack(start, f"{count}i"))

    def text(self, table: int, field: int) -> str:
        """The text in a field; empty if the table does not contain the field. Bytes that are no UTF-8 are replaced."""
        start, count = self.vector(table, field)
        return self.data[start : start + count].decode("utf-8", errors="replace") if count else ""
