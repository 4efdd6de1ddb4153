"""Packing: forms ``load``, bytes that live at one moment, and ``search``, all ways to lie above each other.

A buffer has the bytes ``[offset, offset + size)`` while it lives. Two buffers that live at one moment share no byte. Rules are
those of docs/reference/packing.md.
"""

from __future__ import annotations

from itertools import combinations

from stowplan.certificates.checker.reading import LARGEST, LOOKS, Fields, need, walk, whole

#: Two buffers by their numbers.
Pair = tuple[int, int]


def lives(buffer: Fields, moment: int) -> bool:
    """Whether a buffer has bytes at a moment: ``lower <= moment < upper``, and in none of its gaps."""
    is_in_gap = any(start <= moment < end for start, end in buffer["gaps"])
    return bool(buffer["size"] > 0 and buffer["lower"] <= moment < buffer["upper"] and not is_in_gap)


def load(problem: Fields, proof: Fields) -> int | None:
    """Least height in bytes, or None where that is more than the capacity.

    Buffers that live at ``moment`` share no byte, so that

        height >= sum of the sizes of all buffers that live at ``moment``
    """
    moment, capacity = whole(proof, "moment", -LARGEST), problem["capacity"]
    height = int(sum(buffer["size"] for buffer in problem["buffers"] if lives(buffer, moment)))
    return None if capacity is not None and height > capacity else height


def search(problem: Fields, proof: Fields) -> int | None:
    """Height ``below`` which nothing packs, or None where that is not named, and nothing packs at all.

    A state has the lowest offset that each buffer may have. Where two buffers overlap at these, every packing has one above
    the other:

        offset[upper] >= offset[lower] + size[lower]

    Both ways are looked at. The search has shown its claim when each way ends with a buffer that is too high.
    """
    buffers, below = problem["buffers"], whole(proof, "below") if "below" in proof else None
    capacity = LARGEST if problem["capacity"] is None else problem["capacity"]
    top = capacity if below is None else below - 1
    need(len(buffers) ** 2 <= LOOKS, "proof", "the search takes too long")
    pairs = _that_meet(buffers)
    highest = [_highest_offset(buffer, top) for buffer in buffers]
    lowest = [buffer["offset"] or 0 for buffer in buffers]
    waiting = [(lowest, frozenset[Pair]())]
    for lowest, ordered in walk(waiting, lambda _: len(pairs) + 1):
        if any(offset > most for offset, most in zip(lowest, highest, strict=True)):
            continue
        overlap = _first_overlap(lowest, buffers, pairs)
        need(overlap is not None, "proof", "there is a packing")
        for lower, upper in (overlap, overlap[::-1]) if overlap else ():
            # The other way round was taken before: both at once is no packing.
            if (upper, lower) not in ordered:
                end = lowest[lower] + buffers[lower]["size"]
                raised = [*lowest]
                raised[upper] = aligned(end, buffers[upper]["alignment"])
                waiting.append((raised, ordered | {(lower, upper)}))
    return below


def _that_meet(buffers: list[Fields]) -> list[Pair]:
    """Pairs of buffers that live at one moment. Where any two do, they do at a moment when one begins to live."""
    begins = {moment for buffer in buffers for moment in (buffer["lower"], *(end for _, end in buffer["gaps"]))}
    moments = [{moment for moment in begins if lives(buffer, moment)} for buffer in buffers]
    return [(one, other) for one, other in combinations(range(len(buffers)), 2) if moments[one] & moments[other]]


def _highest_offset(buffer: Fields, top: int) -> int:
    """``offset + size <= top``, and a buffer that has its place stays there."""
    by_height = top - buffer["size"]
    return int(by_height if buffer["offset"] is None else min(by_height, buffer["offset"], top))


def _first_overlap(lowest: list[int], buffers: list[Fields], pairs: list[Pair]) -> Pair | None:
    """The first pair that shares a byte at these offsets; None where they are a packing."""
    ends = [offset + buffer["size"] for offset, buffer in zip(lowest, buffers, strict=True)]
    overlaps = ((one, other) for one, other in pairs if lowest[one] < ends[other] and lowest[other] < ends[one])
    return next(overlaps, None)


def aligned(size: int, alignment: int) -> int:
    """The least multiple of the alignment that is no less than a size."""
    return int(-(-size // alignment) * alignment)
