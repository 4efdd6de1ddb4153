"""Forms ``load`` and ``search`` of packing: bytes that live at one moment, and all ways to lie above each other.

Read from docs/reference/packing.md.
"""

from __future__ import annotations

from itertools import combinations
from typing import Any

from stowplan.certificates.checker.reading import LARGEST, LOOKS, Fields, need, whole
from stowplan.certificates.checker.tree import Splits


def load(problem: Fields, proof: Fields, splits: Splits) -> int | None:
    """Least height in bytes, or None where that is more than the capacity."""
    moment, capacity = whole(proof, "moment", -(1 << 62)), problem["capacity"]
    height = int(sum(buffer["size"] for buffer in problem["buffers"] if _lives(buffer, moment)))
    return None if capacity is not None and height > capacity else height


def _lives(buffer: dict[str, Any], moment: int) -> bool:
    is_gone = any(start <= moment < end for start, end in buffer["gaps"])
    return bool(buffer["size"] > 0 and buffer["lower"] <= moment < buffer["upper"] and not is_gone)


def search(problem: Fields, proof: Fields, splits: Splits) -> int | None:
    """Height ``below`` which nothing packs, or None where that is not named, and nothing packs at all.

    Buffers lie as low as they can. Of two that share bytes and a moment then, one lies above the other, or the other above it.
    """
    buffers, capacity = problem["buffers"], problem["capacity"]
    top = LARGEST if capacity is None else capacity
    below = whole(proof, "below") if "below" in proof else None
    top = top if below is None else below - 1
    begun = [{each["lower"], *(end for _, end in each["gaps"])} for each in buffers]
    pairs = [
        (one, other)
        for one, other in combinations(range(len(buffers)), 2)
        if any(_lives(buffers[one], at) and _lives(buffers[other], at) for at in begun[one] | begun[other])
    ]
    highest = [min(top - each["size"], top if each["offset"] is None else each["offset"]) for each in buffers]
    waiting = [([each["offset"] or 0 for each in buffers], list[tuple[int, int]]())]
    for _ in range(LOOKS // (len(pairs) + 1)):
        if not waiting:
            break
        low, above = waiting.pop()
        raised = [*low]
        for one, other in above:
            unit = buffers[other]["alignment"]
            raised[other] = max(raised[other], -(-(raised[one] + buffers[one]["size"]) // unit) * unit)
        if any(at > most for at, most in zip(raised, highest, strict=True)):
            continue
        if raised != low:
            waiting.append((raised, above))
        else:
            clash = [(one, other) for one, other in pairs if _share(low, buffers, one, other)]
            need(bool(clash), "proof", "there is a packing")
            waiting += [(low, [*above, pair]) for pair in (clash[0], clash[0][::-1])]
    need(not waiting, "proof", "the search takes too long")
    return below


def _share(low: list[int], buffers: list[dict[str, Any]], one: int, other: int) -> bool:
    return bool(low[one] < low[other] + buffers[other]["size"] and low[other] < low[one] + buffers[one]["size"])
