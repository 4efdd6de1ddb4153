"""Items, memories and live ranges: the structure that banked packing, tier placement and LLM placement have in common.

An *item* occupies bytes of one memory during all of its live range. The kinds have different items (buffers; weights and
outputs of layers; whole layers), costs and further rules. The conditions under which items fit into memories are defined here.
LLM placement is an exception: a part of a layer may be on the host, so it limits the bytes of each device in its own model, and
describes every memory here as large enough for all layers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from stowplan.models.packing.bounds import live_sets


class Item(NamedTuple):
    """A buffer, the weights or the output of a layer, or a whole layer: it occupies bytes of one memory in ``[first, end)``."""

    first: int
    """First moment at which it is live."""
    end: int
    """First moment after its live range."""
    size_in: Mapping[int, int]
    """Bytes that it occupies, by the number of the memory. Memories that may not hold it, or are too small, are left out."""


class Memory(NamedTuple):
    """A memory that items are placed in: a bank of banked packing, a tier of tier placement, or a device or its host."""

    capacity: int
    """Bytes that the items which are live at the same time may occupy in total: the size of the memory without reserved
    bytes."""
    end: int
    """Offset in bytes at which the memory ends."""


@dataclass(frozen=True)
class Placement:
    """Items, memories, and the offsets that items may have. Their *numbers* are their positions in these lists."""

    items: Sequence[Item]
    """The items."""
    memories: Sequence[Memory]
    """The memories."""
    steps: Mapping[tuple[int, int], int]
    """Alignment in bytes of an item's offset, by (item, memory)."""
    lowest: Mapping[tuple[int, int], int]
    """Lowest offset in bytes that an item may have, by (item, memory); 0 for pairs that are not named."""
    permanent: Sequence[int] = ()
    """Items that are live at every moment, such as weights. :attr:`maximal_live_sets` leaves them out."""

    @cached_property
    def maximal_live_sets(self) -> list[list[int]]:
        """The maximal sets of items that are live at the same moment, without the permanent items."""
        permanent = {*self.permanent}
        lives = ((number, item.first, item.end) for number, item in enumerate(self.items) if number not in permanent)
        return [sorted(live) for live in live_sets(lives)]

    def inside(self, memory: int, numbers: Sequence[int]) -> list[tuple[int, int]]:
        """(item, bytes) for each of the items ``numbers`` that may be placed in the memory."""
        return [(number, size) for number in numbers if (size := self.items[number].size_in.get(memory)) is not None]
