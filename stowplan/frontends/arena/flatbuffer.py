"""What little of a flatbuffer is needed: fields of tables, and vectors."""

from __future__ import annotations

import struct


class FlatBuffer:
    """The bytes of a file, read by places."""

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
