"""Quantities of a target file: strings with a unit in, integers in base units out.

A file says ``"64 MiB"`` or ``"1200 GB/s"``, so that nobody has to guess a unit; the program counts in whole bytes, bytes a
second, hertz, operations a second and picoseconds, so that costs are exact integers. ``k, M, G, T, P`` are powers of 1000,
``Ki, Mi, Gi`` powers of 1024.
"""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Any, ClassVar, Self

PS_PER_SECOND = 10**12

_QUANTITY = re.compile(r"([+-]?[0-9]{1,15}(?:\.[0-9]{1,12})?)\s*(\S+)")
_DECIMAL = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15}
_BINARY = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30}


class Quantity(int):
    """A positive (or, where ``least`` is 0, non-negative) whole number of base units."""

    example: ClassVar[str]
    least: ClassVar[int] = 1
    units: ClassVar[dict[str, int]]

    @classmethod
    def parse(cls, text: object) -> Self:
        """Read ``"64 MiB"``; raises ValueError with what was found and an example of what was expected."""
        match = _QUANTITY.fullmatch(text.strip()) if isinstance(text, str) else None
        if match is None:
            raise ValueError(f"found {text!r}, expected a number and a unit such as {cls.example!r}")
        number, unit = match.groups()
        if unit not in cls.units:
            raise ValueError(f"found unit {unit!r}, expected one of {', '.join(cls.units)}")
        value = Decimal(number) * cls.units[unit]
        if not cls.least <= value < 2**63 or value != value.to_integral_value():
            kind = "a positive" if cls.least else "a non-negative"
            base = next(name for name, scale in cls.units.items() if scale == 1)
            raise ValueError(f"found {text!r}, expected {kind} whole number of {base} below 2^63")
        return cls(value)


class Bytes(Quantity):
    """Bytes."""

    example = "64 MiB"
    units: ClassVar[dict[str, int]] = {f"{prefix}B": scale for prefix, scale in (_DECIMAL | _BINARY).items()}


class BytesPerSecond(Quantity):
    """Bytes a second."""

    example = "1200 GB/s"
    units: ClassVar[dict[str, int]] = {f"{prefix}B/s": scale for prefix, scale in _DECIMAL.items()}


class Hertz(Quantity):
    """Clock cycles a second."""

    example = "1.05 GHz"
    units: ClassVar[dict[str, int]] = {f"{prefix}Hz": scale for prefix, scale in _DECIMAL.items()}


class FlopsPerSecond(Quantity):
    """Multiplications and additions a second."""

    example = "275 Tflop/s"
    units: ClassVar[dict[str, int]] = {f"{prefix}flop/s": scale for prefix, scale in _DECIMAL.items()}


class ElementsPerSecond(Quantity):
    """Elements a second, computed by everything that is no matrix product."""

    example = "1 Telem/s"
    units: ClassVar[dict[str, int]] = {f"{prefix}elem/s": scale for prefix, scale in _DECIMAL.items()}


class Picoseconds(Quantity):
    """Picoseconds; zero is allowed."""

    example = "0.6 us"
    least = 0
    units: ClassVar[dict[str, int]] = {"ps": 1, "ns": 10**3, "us": 10**6, "ms": 10**9, "s": 10**12}


def decode_hook(kind: type, value: Any) -> Any:
    """Let msgspec read quantities."""
    if issubclass(kind, Quantity):
        return kind.parse(value)
    raise NotImplementedError(kind)


def duration_ps(amount: int, per_second: int) -> int:
    """Time for ``amount`` units at ``per_second`` units a second, to the nearest picosecond (halves up)."""
    return (2 * amount * PS_PER_SECOND + per_second) // (2 * per_second)
