"""Forms ``load`` and ``search`` of packing: bytes that live at one moment, and buffers that no order of two and two packs lower.

Read from docs/reference/packing.md.
"""

from __future__ import annotations

from itertools import combinations
from typing import Any

from stowplan.certificates.checker.reading import LOOKS, Fields, need, whole
from stowplan.certificates.checker.tree import Splits


def load(problem: Fields, proof: Fields, splits: Splits) -> int | None:
    """Least height in bytes, or None where that is more than the capacity."""
    moment = whole(proof, "moment", -(1 << 62))
    return _unless_over(problem, sum(buffer["size"] for buffer in problem["buffers"] if _lives(buffer, moment)))


def _unless_over(problem: Fields, height: int) -> int | None:
    capacity = problem["capacity"]
    return None if capacity is not None and height > capacity else height


def _lives(buffer: dict[str, Any], moment: int) -> bool:
    return buffer["lower"] <= moment < buffer["upper"] and not any(start <= moment < end for start, end in buffer["gaps"])


def search(problem: Fields, proof: Fields, splits: Splits) -> int | None:
    """Height ``below`` which nothing packs, or None where that is above the capacity.

    Buffers lie as low as they can. Of two that share bytes and a moment then, one lies above the other, or the other above it.
    """
    below = whole(proof, "below")
    buffers = [buffer for buffer in problem["buffers"] if buffer["size"]]
    begun = [{each["lower"], *(end for _, end in each["gaps"])} for each in buffers]
    pairs = [
        (one, other)
        for one, other in combinations(range(len(buffers)), 2)
        if any(_lives(buffers[one], at) and _lives(buffers[other], at) for at in begun[one] | begun[other])
    ]
    highest = [
        below - 1 - each["size"] if each["offset"] is None else min(each["offset"], below - 1 - each["size"]) for each in buffers
    ]
    waiting = [([each["offset"] or 0 for each in buffers], list[tuple[int, int]]())]
    for _ in range(LOOKS // (len(pairs) + 1)):
        if not waiting:
            return _unless_over(problem, below)
        low, above = waiting.pop()
        raised = [*low]
        for one, other in above:
            lowest, unit = raised[one] + buffers[one]["size"], buffers[other]["alignment"]
            raised[other] = max(raised[other], -(-lowest // unit) * unit)
        if any(at > most for at, most in zip(raised, highest, strict=True)):
            continue
        if raised != low:
            waiting.append((raised, above))
            continue
        clash = next((pair for pair in pairs if _share(low, buffers, *pair)), None)
        need(clash is not None, "proof.below", "there is a packing below it")
        waiting += [(low, [*above, pair]) for pair in (clash, clash[::-1])] if clash else []
    need(not waiting, "proof", "the search takes too long")
    return _unless_over(problem, below)


def _share(low: list[int], buffers: list[dict[str, Any]], one: int, other: int) -> bool:
    return low[one] < low[other] + buffers[other]["size"] and low[other] < low[one] + buffers[one]["size"]
