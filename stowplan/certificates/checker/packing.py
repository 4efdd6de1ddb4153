"""Packing: forms ``load``, bytes that live at one moment, and ``search``, all ways to lie above each other.

A buffer has the bytes ``[offset, offset + size)`` while it lives. Two buffers that live at one moment share no byte, unless one
of them, the result, names the other as an operand in its ``overlaps``, and lies so far below its end:

    offset[result] + distance <= offset[operand] + size[operand]

Where the distance is null, both hold the same bytes, and may have the same offset.

Rules are those of docs/reference/packing.md.
"""

from __future__ import annotations

from itertools import combinations
from math import gcd

from stowplan.certificates.checker.reading import LARGEST, LOOKS, Fields, need, walk, whole

#: (lower, upper, bytes, same): of two buffers by their numbers one lies below the other, ``offset[lower] + bytes <=
#: offset[upper]``; and whether they may have the same offset instead.
Way = tuple[int, int, int, bool]


def lives(buffer: Fields, moment: int) -> bool:
    """Whether a buffer has bytes at a moment: ``lower <= moment < upper``, and in none of its gaps."""
    is_in_gap = any(start <= moment < end for start, end in buffer["gaps"])
    return bool(buffer["size"] > 0 and buffer["lower"] <= moment < buffer["upper"] and not is_in_gap)


def load(problem: Fields, proof: Fields) -> int | None:
    """Least height in bytes, or None where that is more than the capacity.

    Buffers that live at ``moment`` share no byte but what :func:`shared` says, so that

        height >= sum of the sizes of all buffers that live at ``moment`` - bytes that they share
    """
    moment, capacity = whole(proof, "moment", -LARGEST), problem["capacity"]
    live = [buffer for buffer in problem["buffers"] if lives(buffer, moment)]
    height = int(sum(buffer["size"] for buffer in live) - shared(live))
    return None if capacity is not None and height > capacity else height


def shared(live: list[Fields]) -> int:
    """Bytes that buffers of one moment can share, or more: sum of sizes - bytes that are taken <= this.

    Of any two buffers that have a byte one is a result of the other, so that of k of them k - 1 at least are results of others.
    A result shares with all of its operands no more than its size, and with one of them

        min(size of either, size of the result - bytes from its offset to the operand's where it lies below)

    or its whole size where both may have the same offset. Likewise k - 1 are operands. The smaller sum holds.
    """
    results = [buffer for buffer in live if "overlaps" in buffer]
    rows = [[(own, other, 0 if _may_coincide(own, other) else apart(own, other)) for other in live] for own in results]
    most = [[max(0, min(other["size"], own["size"], own["size"] - below)) for own, other, below in row] for row in rows]
    of_results = sum(min(result["size"], sum(row)) for result, row in zip(results, most, strict=True))
    of_operands = sum(min(operand["size"], sum(column)) for operand, column in zip(live, zip(*most, strict=True), strict=False))
    return int(min(of_results, of_operands))


def apart(lower: Fields, upper: Fields) -> int:
    """Bytes from an offset to that of a buffer above, at least: ``size[lower]``, or ``distance - size[upper]`` of an overlap.

    Offsets differ by a multiple of what divides both alignments.
    """
    distances = [overlap["distance"] for overlap in lower.get("overlaps", []) if overlap["operand"] == upper["id"]]
    free = [distance - upper["size"] for distance in distances if distance is not None]
    return aligned(min([lower["size"], *free]), gcd(lower["alignment"], upper["alignment"]))


def _may_coincide(result: Fields, operand: Fields) -> bool:
    """Whether a result may have the same offset as an operand while both live."""
    return {"operand": operand["id"], "distance": None} in result.get("overlaps", [])


def search(problem: Fields, proof: Fields, looks: int = LOOKS) -> int | None:
    """Height ``below`` which nothing packs, or None where that is not named, and nothing packs at all.

    A state has the lowest offset that each buffer may have. Where two buffers share bytes at these and must not, every packing
    has one above the other:

        offset[upper] >= offset[lower] + bytes that they are :func:`apart`

    Both ways are looked at. The search has shown its claim when each way ends with a buffer that is too high.

    Where the two may have the same offset, that is a third way. It is looked at together with the way in which the buffer whose
    lowest offset is less lies above the other: in both, its offset is no less than the other's lowest one.
    """
    buffers, below = problem["buffers"], whole(proof, "below") if "below" in proof else None
    capacity = LARGEST if problem["capacity"] is None else problem["capacity"]
    top = capacity if below is None else below - 1
    need(len(buffers) ** 2 <= LOOKS, "proof", "the search takes too long")
    pairs = _that_meet(buffers)
    highest = [_highest_offset(buffer, top) for buffer in buffers]
    lowest = [buffer["offset"] or 0 for buffer in buffers]
    waiting = [(lowest, frozenset[tuple[int, int]]())]
    for lowest, ordered in walk(waiting, lambda _: len(pairs) + 1, looks):
        if any(offset > most for offset, most in zip(lowest, highest, strict=True)):
            continue
        # Of the first pair that lies neither way.
        ways = next((both for both in pairs if all(_is_broken(lowest, *way) for way in both)), [])
        need(bool(ways), "proof", "there is a packing")
        for lower, upper, size, same in ways:
            # The other way round was taken before: both at once is no packing.
            if (upper, lower) not in ordered:
                raised, is_either = [*lowest], same and lowest[lower] > lowest[upper]
                raised[upper] = aligned(lowest[lower] + (0 if is_either else size), buffers[upper]["alignment"])
                waiting.append((raised, ordered if is_either else ordered | {(lower, upper)}))
    return below


def _is_broken(lowest: list[int], lower: int, upper: int, size: int, same: bool) -> bool:
    """Whether two buffers do not lie this way at their lowest offsets, nor at the same offset where they may."""
    return lowest[lower] + size > lowest[upper] and not (same and lowest[lower] == lowest[upper])


def _that_meet(buffers: list[Fields]) -> list[list[Way]]:
    """Both ways of pairs that live at one moment. Where any two do, they do at a moment when one begins to live."""
    begins = {moment for buffer in buffers for moment in (buffer["lower"], *(end for _, end in buffer["gaps"]))}
    moments = [{moment for moment in begins if lives(buffer, moment)} for buffer in buffers]
    pairs = []
    for pair in combinations(range(len(buffers)), 2):
        if moments[pair[0]] & moments[pair[1]]:
            ways = [(buffers[lower], buffers[upper]) for lower, upper in (pair, pair[::-1])]
            same = any(_may_coincide(*way) for way in ways)
            pairs.append([(*pair, apart(*ways[0]), same), (*pair[::-1], apart(*ways[1]), same)])
    return pairs


def _highest_offset(buffer: Fields, top: int) -> int:
    """``offset + size <= top``, and a buffer that has its place stays there."""
    return int(min(top - buffer["size"], top if buffer["offset"] is None else buffer["offset"]))


def aligned(size: int, alignment: int) -> int:
    """The least multiple of the alignment that is no less than a size."""
    return int(-(-size // alignment) * alignment)
