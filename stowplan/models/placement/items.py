"""Items that are each placed in one memory while they live: what the problems of placement have in common.

An *item* takes bytes of one memory from its first moment until its end. A kind says what items are, what each costs in the
memory that it is placed in, and which rules it has besides; what fits is the same for all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from stowplan.models.packing.bounds import live_sets


class Item(NamedTuple):
    """Something that takes bytes of one memory."""

    first: int
    """Moment from which it takes them."""
    end: int
    """Moment from which it does not any more."""
    taken: Mapping[int, int]
    """Bytes that it takes, by the number of each memory that it may be in, and where it fits by itself."""


class Memory(NamedTuple):
    """A memory, or a tier, or a bank."""

    room: int
    """Bytes that items may take at once."""
    end: int
    """Offset that nothing ends behind."""


@dataclass(frozen=True)
class Placement:
    """Items and memories, by their numbers."""

    items: Sequence[Item]
    memories: Sequence[Memory]
    steps: Mapping[tuple[int, int], int]
    """Of an item and a memory: bytes that offsets of the item there are multiples of."""
    lowest: Mapping[tuple[int, int], int]
    """Of an item and a memory: the item's lowest offset there. Those that are not named have 0."""
    always: Sequence[int] = ()
    """Items that live at every moment, such as weights; moments leave them out."""

    @cached_property
    def moments(self) -> list[list[int]]:
        """Items that live at once beside those that always do: the largest such sets."""
        always = {*self.always}
        lives = ((number, item.first, item.end) for number, item in enumerate(self.items) if number not in always)
        return [sorted(live) for live in live_sets(lives)]

    def inside(self, memory: int, numbers: Sequence[int]) -> list[tuple[int, int]]:
        """Of these items, those that may be in a memory, and the bytes that each takes there."""
        return [(number, size) for number in numbers if (size := self.items[number].taken.get(memory)) is not None]
