"""Forms of packing: ``load`` counts the bytes that are live at one moment, ``search`` tries all ways in which pairs of buffers
can be ordered, and ``crowds``, for reuse penalties, uses sets of buffers of which few fit side by side.

A buffer has the bytes ``[offset, offset + size)`` while it is live. Two buffers that are live at the same moment share no byte,
with one exception. A buffer, the *result*, may name another one, its *operand*, in its field ``overlaps``, with a *distance* in
bytes. These two may share bytes if the result starts at least that distance below the operand's end:

    offset[result] + distance <= offset[operand] + size[operand]

If the distance is null, both hold the same bytes, and may have the same offset.

The rules are those of docs/reference/packing.md.
"""

from __future__ import annotations

from itertools import combinations
from math import gcd

from stowplan.certificates.checker.reading import LARGEST, LOOKS, Fields, need, walk, whole

#: (lower, upper, bytes, same): the buffer with the number ``lower`` is below ``upper``, ``offset[lower] + bytes <=
#: offset[upper]``; ``same`` says whether both may have the same offset instead.
Way = tuple[int, int, int, bool]


def is_live(buffer: Fields, moment: int) -> bool:
    """Whether a buffer takes space at a moment: its size is above 0, and the moment is in its life span, which is given by its
    fields ``lower`` and ``upper``, and in none of its gaps."""
    is_in_gap = any(start <= moment < end for start, end in buffer["gaps"])
    return bool(buffer["size"] > 0 and buffer["lower"] <= moment < buffer["upper"] and not is_in_gap)


def load(problem: Fields, proof: Fields) -> int | None:
    """The minimum height in bytes, or None if that exceeds the capacity. With reuse penalties, the objective is not the height,
    and 0 is returned.

    Buffers that are live at ``moment`` share no bytes except for those that :func:`shared` bounds, so that

        height >= sum of the sizes of all buffers that are live at ``moment`` - bytes that they share
    """
    moment, capacity = whole(proof, "moment", -LARGEST), problem["capacity"]
    live = [buffer for buffer in problem["buffers"] if is_live(buffer, moment)]
    height = int(sum(buffer["size"] for buffer in live) - shared(live))
    if capacity is not None and height > capacity:
        return None
    return 0 if problem.get("penalties") else height


def shared(live: list[Fields]) -> int:
    """An upper bound on the bytes that buffers of one moment share, that is, sum of sizes - bytes in use.

    Of any two buffers that contain a common byte, one is a result of the other. Of k buffers that contain it, at least k - 1
    are therefore results of others. So the bound is the sum of what each result shares with its operands. With one operand, it
    shares at most

        min(size of the result, size of the operand, size of the result - below)

    bytes, where ``below`` is the least distance from the result's offset up to the operand's (:func:`apart`), or 0 if both may
    have the same offset. With all of its operands together, it shares at most as many bytes as it has.

    Likewise, at least k - 1 of the k buffers are operands of others, so the sum of what each operand shares with its results is
    also a bound. The smaller of the two sums is returned.
    """
    results = [buffer for buffer in live if "overlaps" in buffer]
    rows = [[(own, other, 0 if _may_coincide(own, other) else apart(own, other)) for other in live] for own in results]
    most = [[max(0, min(other["size"], own["size"], own["size"] - below)) for own, other, below in row] for row in rows]
    of_results = sum(min(result["size"], sum(row)) for result, row in zip(results, most, strict=True))
    of_operands = sum(min(operand["size"], sum(column)) for operand, column in zip(live, zip(*most, strict=True), strict=False))
    return int(min(of_results, of_operands))


def apart(lower: Fields, upper: Fields) -> int:
    """Minimum distance from the offset of a buffer to that of one above it.

    It is ``size[lower]``. If the lower buffer is a result and the upper one is its operand, ``distance - size[upper]`` is also
    enough, with the distance of their overlap; this may be negative. The value is rounded up, because offsets differ by a
    multiple of the greatest common divisor of both alignments.
    """
    distances = [overlap["distance"] for overlap in lower.get("overlaps", []) if overlap["operand"] == upper["id"]]
    free = [distance - upper["size"] for distance in distances if distance is not None]
    return aligned(min([lower["size"], *free]), gcd(lower["alignment"], upper["alignment"]))


def _may_coincide(result: Fields, operand: Fields) -> bool:
    """Whether a result may have the same offset as an operand while both are live."""
    return {"operand": operand["id"], "distance": None} in result.get("overlaps", [])


def search(problem: Fields, proof: Fields, looks: int = LOOKS) -> int | None:
    """The height ``below`` which no packing exists; None if ``below`` is not given and no packing exists at all.

    A state contains the lowest offset that each buffer can have. If two buffers share bytes at these offsets and must not,
    every packing places one above the other:

        offset[upper] >= offset[lower] + bytes of :func:`apart`

    Both ways are examined. The search proves the claim if each way ends with a buffer that is too high.

    If the two may have the same offset, that is a third way. Let ``a`` be the buffer whose lowest offset is smaller, and ``b``
    the other one. If ``a`` is above ``b``, or has the same offset, then the offset of ``a`` is at least the lowest offset of
    ``b``. One state, in which the lowest offset of ``a`` is raised to that of ``b``, therefore stands for both ways.
    """
    buffers, below = problem["buffers"], whole(proof, "below") if "below" in proof else None
    need(below is None or not problem.get("penalties"), "proof", "it is about heights, the objective about reuse penalties")
    capacity = LARGEST if problem["capacity"] is None else problem["capacity"]
    top = capacity if below is None else below - 1
    need(len(buffers) ** 2 <= LOOKS, "proof", "the search takes too long")
    pairs = _pairs_live_together(buffers)
    highest = [_highest_offset(buffer, top) for buffer in buffers]
    lowest = [buffer["offset"] or 0 for buffer in buffers]
    waiting = [(lowest, frozenset[tuple[int, int]]())]
    for lowest, ordered in walk(waiting, lambda _: len(pairs) + 1, looks):
        if any(offset > most for offset, most in zip(lowest, highest, strict=True)):
            continue
        # The first pair that satisfies neither way.
        ways = next((both for both in pairs if all(_is_broken(lowest, *way) for way in both)), [])
        need(bool(ways), "proof", "there is a packing")
        for lower, upper, size, same in ways:
            # If the opposite way was chosen before, both together allow no packing.
            if (upper, lower) not in ordered:
                raised, is_either = [*lowest], same and lowest[lower] > lowest[upper]
                raised[upper] = aligned(lowest[lower] + (0 if is_either else size), buffers[upper]["alignment"])
                waiting.append((raised, ordered if is_either else ordered | {(lower, upper)}))
    return below


def crowds(problem: Fields, proof: Fields) -> int:
    """A lower bound on the sum of the reuse penalties. The field ``crowds`` of the proof lists sets of buffers, each as a list
    of their numbers.

    Of the m buffers of a set, every two are live together or have a penalty. The *room* is the capacity, less the sizes of the
    buffers at fixed offsets that are live together with the whole set. Let k be how many buffers of the set fit into the room
    if the smallest are taken first; no more than k of them can lie side by side. If the m buffers are divided into k groups of
    nearly equal size, then, by Turán's theorem, at least as many pairs share bytes as there are pairs within groups. Buffers
    that are live together share no bytes, so each of these pairs has a penalty. Together they cost no less than as many of the
    cheapest pairs of the set that are not live together.

    The bounds of all sets are added up. No pair of buffers that are not live together may be in two sets, because its penalty
    is paid only once.
    """
    buffers, capacity = problem["buffers"], problem["capacity"]
    need(all("overlaps" not in buffer for buffer in buffers), "problem", "some buffers may share bytes while they are live")
    need(len(buffers) ** 2 <= LOOKS, "proof", "the check takes too long")
    number = {buffer["id"]: at for at, buffer in enumerate(buffers)}
    costs = {frozenset((number[each["first"]], number[each["second"]])): each["cost"] for each in problem["penalties"]}
    hard = {frozenset(ways[0][:2]) for ways in _pairs_live_together(buffers)}
    bound, counted = 0, set[frozenset[int]]()
    for members in proof["crowds"]:
        need(
            len({*members}) == len(members) and {*members} <= {*range(len(buffers))}, "proof", "a crowd names no set of buffers"
        )
        pairs = {frozenset(pair) for pair in combinations(members, 2)}
        need(
            all(buffers[at]["size"] > 0 and buffers[at]["offset"] is None for at in members), "proof", "a buffer has its place"
        )
        need(pairs <= hard | costs.keys(), "proof", "two buffers of a crowd may share bytes at no cost")
        pair_costs = [costs[pair] for pair in pairs - hard]
        need(counted.isdisjoint(pairs - hard), "proof", "two crowds have a pair in common")
        counted |= pairs - hard
        fixed = [at for at, buffer in enumerate(buffers) if buffer["offset"] is not None]
        around = [at for at in fixed if all(frozenset((at, member)) in hard for member in members)]
        need(all(frozenset(pair) in hard for pair in combinations(around, 2)), "proof", "fixed buffers may share bytes")
        room, fitting = capacity - sum(buffers[at]["size"] for at in around), 0
        for size in sorted(buffers[at]["size"] for at in members):
            room -= size
            fitting += room >= 0
        # If no buffer fits, there is no plan, and any bound holds. This set then adds nothing to the bound.
        groups = [len(members[at::fitting]) for at in range(fitting)]
        bound += sum(sorted(pair_costs)[: sum(size * (size - 1) // 2 for size in groups)])
    return bound


def _is_broken(lowest: list[int], lower: int, upper: int, size: int, same: bool) -> bool:
    """Whether two buffers at their lowest offsets violate this way, and do not have the same offset where that is allowed."""
    return lowest[lower] + size > lowest[upper] and not (same and lowest[lower] == lowest[upper])


def _pairs_live_together(buffers: list[Fields]) -> list[list[Way]]:
    """Both ways for each pair of buffers that are live at the same moment. Two buffers that are live together are so at a
    moment at which one of them begins to live, so that only these moments are examined."""
    begins = {moment for buffer in buffers for moment in (buffer["lower"], *(end for _, end in buffer["gaps"]))}
    moments = [{moment for moment in begins if is_live(buffer, moment)} for buffer in buffers]
    pairs = []
    for pair in combinations(range(len(buffers)), 2):
        if moments[pair[0]] & moments[pair[1]]:
            ways = [(buffers[lower], buffers[upper]) for lower, upper in (pair, pair[::-1])]
            same = any(_may_coincide(*way) for way in ways)
            pairs.append([(*pair, apart(*ways[0]), same), (*pair[::-1], apart(*ways[1]), same)])
    return pairs


def _highest_offset(buffer: Fields, top: int) -> int:
    """The highest offset with ``offset + size <= top``; a buffer with a fixed offset cannot be higher than that."""
    return int(min(top - buffer["size"], top if buffer["offset"] is None else buffer["offset"]))


def aligned(size: int, alignment: int) -> int:
    """The smallest multiple of the alignment that is at least a size."""
    return int(-(-size // alignment) * alignment)
