"""Which steps of a program are which of an earlier version of it, as a build sees them: most are the same.

Steps are matched by name and by what they are, their *signature*; those that were renamed by their place between others that
were not. What hints for one version say of another rests on this.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Hashable, Sequence
from difflib import SequenceMatcher

#: Stretches between matched steps are compared step by step up to this product of their lengths.
MOST_PAIRS = 1_000_000


def matched(
    names: Sequence[str], signatures: Sequence[Hashable], earlier_names: Sequence[str], earlier_signatures: Sequence[Hashable]
) -> list[int]:
    """For each step the step of the earlier version that it was, -1 for none; ascending, shape ``[steps]``.

    Parameters
    ----------
    names, signatures
        Of the steps in their order, shape ``[steps]``. Matched steps have equal signatures.
    earlier_names, earlier_signatures
        The same of the earlier version.
    """
    numbers = {name: index for index, name in enumerate(earlier_names)}
    pairs = [(index, numbers[name]) for index, name in enumerate(names) if name in numbers]
    anchors = _ascending([(index, other) for index, other in pairs if signatures[index] == earlier_signatures[other]])
    found = [-1] * len(names)
    ends = (len(names), len(earlier_names))
    for (low, first), (high, last) in zip([(-1, -1), *anchors], [*anchors, ends], strict=True):
        if high < len(names):
            found[high] = last
        if 0 < (high - low - 1) * (last - first - 1) <= MOST_PAIRS:
            here, there = signatures[low + 1 : high], earlier_signatures[first + 1 : last]
            for block in SequenceMatcher(None, here, there, autojunk=False).get_matching_blocks():
                for shift in range(block.size):
                    found[low + 1 + block.a + shift] = first + 1 + block.b + shift
    return found


def _ascending(pairs: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """As many pairs as possible whose second numbers ascend as the first ones do."""
    ends: list[int] = []
    last: list[int] = []
    before: list[int] = []
    for number, (_, other) in enumerate(pairs):
        place = bisect_left(ends, other)
        before.append(last[place - 1] if place else -1)
        if place == len(ends):
            ends.append(other)
            last.append(number)
        else:
            ends[place], last[place] = other, number
    found = []
    number = last[-1] if last else -1
    while number >= 0:
        found.append(pairs[number])
        number = before[number]
    return found[::-1]
