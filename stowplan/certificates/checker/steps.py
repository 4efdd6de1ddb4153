"""Least cost of one step: its latency, and prices of where what it uses stands."""

from __future__ import annotations

from math import prod
from typing import Any

#: Sets of choices of which each is looked at; beyond that each affine piece is looked at by itself.
MOST_SETS = 5000

#: What a choice costs by itself, and what it adds to each affine piece of the latency.
Choice = tuple[int, list[int]]


def cheapest(factor: int, pieces: list[int], items: list[list[Choice]]) -> int:
    """Least of ``factor`` x the largest piece + what the choices cost, one of each item; or less than that."""
    if prod(map(len, items)) > MOST_SETS:
        # The largest piece is no less than any, and that has its least item by item.
        return max(
            factor * start + sum(min(cost + factor * gain[at] for cost, gain in choices) for choices in items)
            for at, start in enumerate(pieces)
        )
    sets = [(0, pieces)]
    for choices in items:
        sets = [(paid + cost, [*map(int.__add__, now, gain)]) for paid, now in sets for cost, gain in choices]
    return min(paid + factor * max(now) for paid, now in sets)


def least(step: dict[str, Any], factor: int, price: list[int], may: list[bool]) -> int:
    """Least of ``factor`` x latency + prices of the fast uses, over all sets of uses that may be fast.

    Parameters
    ----------
    factor
        At least 0.
    price, may
        Of each use of the step.
    """
    table = step["table"]
    if table is not None:
        fixed = sum(min(0, cost) for at, cost in enumerate(price) if may[at] and at not in table["uses"])
        paid = [0]
        for at in table["uses"]:
            paid += [before + price[at] for before in paid]
        never = sum(1 << bit for bit, at in enumerate(table["uses"]) if not may[at])
        rows = zip(table["latency_ps"], paid, strict=True)
        return int(fixed + min(factor * time + cost for mask, (time, cost) in enumerate(rows) if not mask & never))
    # A tensor that is updated in place is fast in both roles, or in none.
    together: dict[int, list[int]] = {}
    for at, use in enumerate(step["uses"]):
        together.setdefault(use["tensor"], []).append(at)
    pieces = [piece["base_ps"] + sum(piece["slow_ps"]) for piece in step["pieces"]]
    fixed, items = 0, list[list[Choice]]()
    for uses in together.values():
        gain = [sum(piece["fast_ps"][at] - piece["slow_ps"][at] for at in uses) for piece in step["pieces"]]
        cost = sum(price[at] for at in uses)
        if not all(may[at] for at in uses) or cost + factor * min(gain) >= 0:
            continue
        if cost + factor * max(gain) <= 0:
            # Whatever the others do, it is no dearer fast.
            fixed, pieces = fixed + cost, [*map(int.__add__, pieces, gain)]
        else:
            items.append([(0, [0] * len(pieces)), (cost, gain)])
    return fixed + cheapest(factor, pieces, items)


def floor(step: dict[str, Any]) -> int:
    """Latency of one run that no choice undercuts."""
    if step["table"] is not None:
        return int(min(step["table"]["latency_ps"]))
    return int(max(p["base_ps"] + sum(map(min, p["slow_ps"], p["fast_ps"])) for p in step["pieces"]))
