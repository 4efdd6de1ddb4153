"""Form ``load``: buffers that take space at one moment, or that stand where they are fixed (docs/reference/packing.md)."""

from __future__ import annotations

from typing import Any

from stowplan.certificates.checker.reading import Part, need, pick


def load(problem: dict[str, Any], proof: Part, bound: int | None) -> int | None:
    """Least height in bytes, or None where the proof shows that nothing fits."""
    buffers, capacity = problem["buffers"], problem["capacity"]
    if proof.get("collide", None) is not None:
        one, two = (pick(buffers, number, "collide") for number in proof.list("collide", length=2))
        moment = proof.whole("moment", -(1 << 62))
        need(one is not two and None not in (one["offset"], two["offset"]), "collide", "not two fixed buffers")
        need(_lives(one, moment) and _lives(two, moment), "moment", "they do not both take space then")
        low, high = max(one["offset"], two["offset"]), min(one["offset"] + one["size"], two["offset"] + two["size"])
        need(low < high and bound is None, "collide", "they share no byte")
        return None
    fixed = proof.get("fixed", None)
    if fixed is not None:
        buffer = pick(buffers, proof.whole("fixed"), "fixed")
        need(buffer["offset"] is not None, "fixed", f"buffer {buffer['id']} is not fixed")
        height = buffer["offset"] + buffer["size"]
    else:
        moment = proof.whole("moment", -(1 << 62))
        height = sum(buffer["size"] for buffer in buffers if _lives(buffer, moment))
    if bound is None:
        need(capacity is not None and height > capacity, "load", f"{height} bytes are no more than the capacity, {capacity}")
        return None
    return int(height)


def _lives(buffer: dict[str, Any], moment: int) -> bool:
    return buffer["lower"] <= moment < buffer["upper"] and not any(start <= moment < end for start, end in buffer["gaps"])
