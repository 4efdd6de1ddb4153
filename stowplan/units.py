"""What objectives and bounds count, and how people read such values.

Files have a unit by its name (:func:`stowplan.kinds.unit`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

import msgspec


class Pair(msgspec.Struct, frozen=True):
    """Two numbers in one value, ``first * scale + second``: the first decides."""

    first: str
    """What the first is called."""
    scale: int
    second: str


class Unit(msgspec.Struct, frozen=True):
    """What a value counts."""

    name: str
    """As files and people have it."""
    pair: Pair | None = None
    """The two numbers that a value is made of; None where it is one."""

    @property
    def has_ratios(self) -> bool:
        """Whether ratios of values, gaps among them, say something: not where a value is two numbers."""
        return self.pair is None

    def split(self, value: int) -> tuple[int, int]:
        """The number that decides, and the other; of a value that is one number, that and 0."""
        return (value, 0) if self.pair is None else divmod(value, self.pair.scale)

    def write(self, value: int, digits: int = 4) -> str:
        """A value for people: durations in a unit that reads easily, two numbers one by one, others with thousands apart."""
        if self.pair is not None:
            first, second = self.split(value)
            return f"{self.pair.first} {first}, {self.pair.second} {second}"
        return format_ps(value, digits) if self == PS else f"{value:,} {self.name}".rstrip()

    def write_apart(self, values: Iterable[int | None]) -> dict[int, str]:
        """Values for people, unlike ones with as many digits as tell them apart."""
        return format_apart(values, self.write)


#: Time, and memory. What results of other kinds count has a unit of its own.
PS, BYTES = Unit("ps"), Unit("bytes")


def format_ps(picoseconds: int, digits: int = 4) -> str:
    """A duration in a unit a person reads easily."""
    for unit, size in (("s", 10**12), ("ms", 10**9), ("us", 10**6), ("ns", 10**3)):
        if abs(picoseconds) >= size:
            return f"{picoseconds / size:.{digits}g} {unit}"
    return f"{picoseconds} ps"


def format_apart(values: Iterable[int | None], write: Callable[[int, int], str]) -> dict[int, str]:
    """Values for people, where unlike values look unlike: those that ``write(value, digits)`` makes alike get more digits."""
    digits = {value: 4 for value in values if value is not None}
    while True:
        texts = {value: write(value, count) for value, count in digits.items()}
        times = Counter(texts.values())
        alike = [value for value, count in digits.items() if times[texts[value]] > 1 and count < 17]
        if not alike:
            return texts
        for value in alike:
            digits[value] += 1
