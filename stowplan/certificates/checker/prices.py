"""What proofs of prices share: rows of memory that are rounded, the cheapest of choices; and form ``tree``, splits over them.

A decision of a split is 1 or 0 in every plan: whether a buffer stands in a memory, or a use is fast. A sum of some is at most a
number, or more than it. Either is a row that holds below its side of the split; a proof of prices may give it a price as well.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from math import prod
from typing import NamedTuple

from stowplan.certificates.checker.reading import Fields, fields, listed, need, numbers, pick, rows, whole

#: Nodes of a tree, and nodes times the layers, buffers or steps of its problem: a few seconds.
MOST_NODES, MOST_WORK = 2000, 100_000

#: Sets of choices of which each is looked at; beyond that each entry is looked at by itself.
MOST_SETS = 5000


class Splits(NamedTuple):
    """What the rows above a leaf cost at its prices, as multiples of one over its denominator."""

    price: Counter[tuple[int, ...]]
    """Of each decision that is 1."""
    total: int
    """To be taken off."""


#: Where there are no splits above.
NONE = Splits(Counter(), 0)


def rounded(part: Fields, units: list[int], room: int) -> tuple[list[int], int]:
    """Memory at one moment, as a row or a cut of it: what each tensor takes, and what no set of tensors that fits exceeds.

    Mixed-integer rounding of sum(units x) <= room, in which x of some tensors is replaced by 1 - x before, and back after
    (Marchand and Wolsey 2001; lemma B4 of docs/reference/memory-mapping-models.md): of units of memory, then perhaps of what
    came of it.
    """
    for each in listed(part, "rounds"):
        divisor, turned = whole(fields(each, "rounds"), "divisor", 1), {*numbers(each, "turned")}
        room -= sum(pick(units, tensor, "turned") for tensor in turned)
        steps, rest = divmod(room, divisor)
        units = [-each if tensor in turned else each for tensor, each in enumerate(units)]
        units = [(divisor - rest) * (each // divisor) + max(0, each % divisor - rest) for each in units]
        units = [-each if tensor in turned else each for tensor, each in enumerate(units)]
        room = (divisor - rest) * steps + sum(units[tensor] for tensor in turned)
    return units, room


def cheapest(start: list[int], items: list[list[list[int]]], most_sets: int = MOST_SETS) -> int:
    """Least of the largest entry of ``start`` and a choice of each item, added entry by entry; or less than that.

    Entries are affine pieces of a latency, with all that is paid beside it.
    """
    # A choice of which no entry is larger than another's is as good as all.
    best = [[one for one in each if all(all(map(int.__le__, one, other)) for other in each)] for each in items]
    items = [one[:1] or every for one, every in zip(best, items, strict=True)]
    if prod(map(len, items)) > most_sets:
        # The largest entry is no less than any, and that has its least item by item.
        items = [[[*map(min, zip(*each, strict=True))]] for each in items]
    sums = [start]
    for each in items:
        sums = [[*map(int.__add__, now, choice)] for now in sums for choice in each]
    return min(map(max, sums))


def tree(proof: Fields, run: Callable[[Fields, Splits], int | None], width: int, size: int) -> int | None:
    """The least of what all leaves show; None where there is no plan at any of them.

    ``nodes`` are in preorder, a node before what is below it: first where the sum of the ``split`` is at most ``most``, then
    where it is more. ``width`` is how many numbers name a decision, ``size`` what a leaf has to look at.
    """
    nodes, most_nodes = listed(proof, "nodes"), min(MOST_NODES, MOST_WORK // (1 + size))
    need(len(nodes) <= most_nodes, "proof.nodes", f"found {len(nodes)}, expected at most {most_nodes}")
    waiting: list[tuple[tuple[list[list[int]], int, int], ...]] = [()]
    found = list[int]()
    for node in nodes:
        need(bool(waiting), "proof.nodes", "there are more than the splits have sides")
        above = waiting.pop()
        if "split" in fields(node, "proof.nodes"):
            decisions, most = rows(node, "split", width), whole(node, "most")
            waiting += [(*above, (decisions, -1, -most - 1)), (*above, (decisions, 1, most))]
            continue
        # Most of a proof may be as in another leaf.
        leaf = fields(pick(nodes, whole(node, "like"), "proof.nodes"), "proof.nodes") | node if "like" in node else node
        price, total = Counter[tuple[int, ...]](), 0
        for (decisions, sign, most), paid in zip(above, numbers(leaf, "splits", 0, len(above)), strict=True):
            total += most * paid
            for each in decisions:
                price[*each] += sign * paid
        shown = run(leaf, Splits(price, total))
        found += [] if shown is None else [shown]
    need(not waiting, "proof.nodes", "a side of a split has no proof")
    return min(found, default=None)
