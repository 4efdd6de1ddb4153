"""Text for sizes, times, axis ticks and names. Nothing in this module raises an error."""

from __future__ import annotations

import math
from collections.abc import Iterable

from stowplan.units import BYTES, Unit, format_apart

#: Units of time with their lengths in picoseconds, longest first.
TIME_UNITS = (("s", 10**12), ("ms", 10**9), ("us", 10**6), ("ns", 10**3), ("ps", 1))

MIB = 1 << 20

#: Maximum number of characters of a name in a table, and of the name of a plan.
_NAME, _PLAN = 32, 12


def format_bytes(count: int, digits: int = 4) -> str:
    """A number of bytes with a unit: ``1536`` as ``1.5 KiB``."""
    for unit, size in (("GiB", 1 << 30), ("MiB", MIB), ("KiB", 1 << 10)):
        if abs(count) >= size:
            return f"{count / size:.{digits}g} {unit}"
    return f"{count} B"


def byte_unit(top: int) -> tuple[str, int]:
    """Unit, and its size in bytes, for an axis from 0 to ``top`` bytes. It is MiB unless the memory is very small."""
    for unit, size in (("MiB", MIB), ("KiB", 1 << 10)):
        if top >= size:
            return unit, size
    return "B", 1


def time_unit(top_ps: int) -> tuple[str, int]:
    """Unit, and its length in picoseconds, for an axis from 0 to ``top_ps``."""
    return next(((unit, size) for unit, size in TIME_UNITS if top_ps >= size), TIME_UNITS[-1])


def format_value(value: int | None, unit: Unit, digits: int = 4) -> str:
    """Text of an objective or bound; a dash for None."""
    if value is None:
        return "–"
    return format_bytes(value, digits) if unit == BYTES else unit.write(value, digits)


def format_values(values: Iterable[int | None], unit: Unit) -> dict[int | None, str]:
    """Text of objectives and bounds, with as many digits as are needed to tell different ones apart; a dash for None."""
    texts: dict[int | None, str] = {None: format_value(None, unit)}
    return texts | format_apart(values, lambda value, digits: format_value(value, unit, digits))


def nice_ticks(low: float, high: float, most: int = 5) -> list[float]:
    """At most ``most`` round values between ``low`` and ``high``, at distances of 1, 2 or 5 times a power of ten."""
    span = high - low
    if not span > 0 or not math.isfinite(span):
        return [low]
    step = 10.0 ** math.floor(math.log10(span / most))
    for factor in (1.0, 2.0, 5.0, 10.0, 20.0):
        first, last = math.ceil(low / (step * factor) - 1e-9), math.floor(high / (step * factor) + 1e-9)
        if last - first < most:
            return [index * step * factor for index in range(first, last + 1)]
    return [low]


def format_tick(value: float) -> str:
    """The label of a tick, with thousands separators and without needless digits."""
    return f"{value:,.0f}" if abs(value) >= 1000 or value == int(value) else f"{value:.6g}"


def memory_ticks(capacity: int, most: int = 4) -> list[float]:
    """Ticks of an axis from 0 to ``capacity`` bytes in its :func:`byte_unit`: even parts of the capacity if these are whole
    numbers."""
    _, size = byte_unit(capacity)
    if capacity % (size * most) == 0:
        return [float(part * (capacity // size // most)) for part in range(most + 1)]
    return nice_ticks(0, capacity / size, most + 1)


def shorten(text: str, most: int) -> str:
    """Shortens a text to ``most`` characters. Its end is kept, because numbered names differ there."""
    if len(text) <= most:
        return text
    if most <= 2:
        return "…"
    tail = min(4, (most - 1) // 2)
    return f"{text[: most - 1 - tail]}…{text[len(text) - tail :]}"


def printable(name: str) -> str:
    """A name from a file with its control characters escaped, which could otherwise control the terminal."""
    return name if name.isprintable() else ascii(name)


def name_of(name: str, most: int = _NAME) -> str:
    """A name from a file, escaped and shortened."""
    return shorten(printable(name), most)


def plan_line(name: str, text: str) -> str:
    """A line about another plan."""
    return f"  {name_of(name, _PLAN):<{_PLAN}}  {text}"
