"""The planner of TensorFlow Lite Micro, played: where the runtime puts what is not fixed, and how high its head is.

Written from the runtime's rules: what has an offset stands there; the rest by size, of equal sizes the later first, each in the
lowest gap between those placed before that live at some scope of its life.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Sequence
from typing import NamedTuple


class Request(NamedTuple):
    """What the runtime's planner is asked for, in the order in which it is: tensors, then scratch memory."""

    size: int
    """Bytes, rounded up."""
    first: int
    last: int
    """Scopes, both included."""
    offset: int | None = None
    """Where it is to stand; None leaves it to the planner."""


def place(requests: Sequence[Request]) -> list[int]:
    """The offset of each request."""
    fixed = [number for number, each in enumerate(requests) if each.offset is not None]
    free = [number for number, each in reversed(list(enumerate(requests))) if each.offset is None]
    free.sort(key=lambda number: -requests[number].size)
    offsets = [0] * len(requests)
    # Offset, how many came before, and number of each that is placed.
    placed: list[tuple[int, int, int]] = []
    for rank, number in enumerate([*fixed, *free]):
        size, first, last, offset = requests[number]
        if offset is None:
            offset = 0
            for start, _, other in placed:
                if requests[other].first <= last and first <= requests[other].last:
                    if start - offset >= size:
                        break
                    offset = max(offset, start + requests[other].size)
        offsets[number] = offset
        insort(placed, (offset, rank, number))
    return offsets


def head(requests: Sequence[Request], offsets: Sequence[int]) -> int:
    """Bytes of the head under these offsets."""
    return max((offset + each.size for offset, each in zip(offsets, requests, strict=True)), default=0)
