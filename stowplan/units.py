"""Units of objectives and bounds, and text for values in them and for numbers of things.

Files store the name of a unit, which :func:`stowplan.kinds.unit` looks up.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

import msgspec


class Pair(msgspec.Struct, frozen=True):
    """How one value ``first * scale + second`` is made of two numbers: values are compared by the first number, then by the
    second. An example is an initiation interval and the latency at it."""

    first: str
    """Name of the first number in text."""
    scale: int
    """Factor of the first number, larger than any second number."""
    second: str
    """Name of the second number in text."""


class Unit(msgspec.Struct, frozen=True):
    """What a value counts, such as bytes or picoseconds."""

    name: str
    """The name in files and in text."""
    pair: Pair | None = None
    """How a value is made of two numbers; None if it is a single number."""

    @property
    def has_ratios(self) -> bool:
        """Whether ratios of values, and so gaps and speedups, have a meaning. They have none if a value is made of two
        numbers."""
        return self.pair is None

    def split(self, value: int) -> tuple[int, int]:
        """The two numbers of a value; for a unit of single numbers, the value and 0."""
        return (value, 0) if self.pair is None else divmod(value, self.pair.scale)

    def write(self, value: int, digits: int = 4) -> str:
        """A value as text: durations in a readable unit, pairs with both names, all others with thousands separators.

        ``digits`` is the number of significant digits of a duration; other values are always written in full.
        """
        if self.pair is not None:
            first, second = self.split(value)
            return f"{self.pair.first} {first}, {self.pair.second} {second}"
        if self == PS:
            return format_ps(value, digits)
        return counted(value, "byte") if self == BYTES else f"{value:,} {self.name}".rstrip()

    def write_apart(self, values: Iterable[int | None]) -> dict[int, str]:
        """Text of each value, by value; None is skipped. Values that differ are written with as many digits as are needed to
        tell them apart."""
        return format_apart(values, self.write)


#: Picoseconds, bytes, and costs without a unit. Kinds that count something else define a unit of their own.
PS, BYTES, COST = Unit("ps"), Unit("bytes"), Unit("cost")


def counted(number: int, one: str, many: str | None = None) -> str:
    """A number with the noun ``one``, or with its plural ``many``; without ``many``, the plural is formed with *s*."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def format_ps(picoseconds: int, digits: int = 4) -> str:
    """A duration in the largest unit in which it is at least 1, from seconds to picoseconds, with ``digits`` significant
    digits; picoseconds are written in full."""
    for unit, size in (("s", 10**12), ("ms", 10**9), ("us", 10**6), ("ns", 10**3)):
        if abs(picoseconds) >= size:
            return f"{picoseconds / size:.{digits}g} {unit}"
    return f"{picoseconds} ps"


def format_apart(values: Iterable[int | None], write: Callable[[int, int], str]) -> dict[int, str]:
    """Text of each value, by value, such that different values have different texts, as far as 17 digits allow it.

    Parameters
    ----------
    values
        The values; None is skipped.
    write
        ``(value, digits) -> text``. It is called with 4 digits, and with more for values whose texts are equal.
    """
    digits = {value: 4 for value in values if value is not None}
    while True:
        texts = {value: write(value, count) for value, count in digits.items()}
        times = Counter(texts.values())
        alike = [value for value, count in digits.items() if times[texts[value]] > 1 and count < 17]
        if not alike:
            return texts
        for value in alike:
            digits[value] += 1
