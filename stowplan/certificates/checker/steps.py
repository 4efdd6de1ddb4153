"""Least cost of one step of a memory mapping: its latency and the prices of the uses that are fast."""

from __future__ import annotations

from itertools import combinations
from typing import Any

#: Items of which every set is looked at; beyond that bounds by affine functions are taken.
MOST_ITEMS = 10

#: Parts into which mixtures of two affine functions are divided.
PARTS = 8


def least(step: dict[str, Any], factor: int, price: list[int], may: list[bool]) -> int:
    """Least of ``factor`` x latency + prices of the fast uses, over all sets of uses that may be fast.

    Parameters
    ----------
    factor
        At least 0.
    price, may
        Of each use of the step.
    """
    if step["table"] is not None:
        return _table(step["table"], factor, price, may)
    # A tensor that is updated in place is fast in both roles, or in none.
    together: dict[int, list[int]] = {}
    for at, use in enumerate(step["uses"]):
        together.setdefault(use["tensor"], []).append(at)
    pieces = [piece["base_ps"] + sum(piece["slow_ps"]) for piece in step["pieces"]]
    fixed, items = 0, list[tuple[int, list[int]]]()
    for uses in together.values():
        if not all(may[at] for at in uses):
            continue
        gain = [sum(piece["fast_ps"][at] - piece["slow_ps"][at] for at in uses) for piece in step["pieces"]]
        cost = sum(price[at] for at in uses)
        if cost + factor * max(gain) <= 0:
            # Whatever the others do, it is no dearer fast.
            fixed += cost
            pieces = [piece + own for piece, own in zip(pieces, gain, strict=True)]
        elif cost + factor * min(gain) < 0:
            items.append((cost, gain))
    if len(items) > MOST_ITEMS:
        return fixed + _affine(pieces, items, factor)
    sets = [(0, pieces)]
    for cost, gain in items:
        sets += [(paid + cost, [piece + own for piece, own in zip(now, gain, strict=True)]) for paid, now in sets]
    return fixed + int(min(paid + factor * max(now) for paid, now in sets))


def _affine(pieces: list[int], items: list[tuple[int, list[int]]], factor: int) -> int:
    """The largest of some mixtures of two pieces, each at its least: no set of items costs less."""
    found = []
    for one, two in [(at, at) for at in range(len(pieces))] + list(combinations(range(len(pieces)), 2)):
        for part in range(PARTS + 1):
            rest = PARTS - part
            total = factor * (part * pieces[one] + rest * pieces[two])
            total += sum(min(0, PARTS * cost + factor * (part * gain[one] + rest * gain[two])) for cost, gain in items)
            found.append(total // PARTS)
    return max(found)


def _table(table: dict[str, Any], factor: int, price: list[int], may: list[bool]) -> int:
    uses = table["uses"]
    listed = set(uses)
    fixed = sum(min(0, cost) for at, cost in enumerate(price) if may[at] and at not in listed)
    paid = [0]
    for at in uses:
        paid += [before + price[at] for before in paid]
    never = sum(1 << bit for bit, at in enumerate(uses) if not may[at])
    return fixed + int(
        min(factor * latency + paid[mask] for mask, latency in enumerate(table["latency_ps"]) if not mask & never)
    )


def floor(step: dict[str, Any]) -> int:
    """Latency of one run that no choice undercuts."""
    if step["table"] is not None:
        return int(min(step["table"]["latency_ps"]))
    return int(max(p["base_ps"] + sum(map(min, p["slow_ps"], p["fast_ps"])) for p in step["pieces"]))
