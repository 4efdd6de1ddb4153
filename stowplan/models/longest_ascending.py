"""The longest ascending subsequence: what is in the same order in two sequences, as much of it as can be."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence


def longest_ascending(values: Sequence[int]) -> list[int]:
    """Places of a longest ascending subsequence of unlike values, ascending."""
    ends: list[int] = []
    places: list[int] = []
    before: list[int | None] = []
    for at, value in enumerate(values):
        length = bisect_left(ends, value)
        ends[length : length + 1] = [value]
        places[length : length + 1] = [at]
        before.append(places[length - 1] if length else None)
    found: list[int] = []
    last = places[-1] if places else None
    while last is not None:
        found.append(last)
        last = before[last]
    return found[::-1]
