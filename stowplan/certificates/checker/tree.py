"""Form ``tree``: splits on sums of decisions, with a proof at every leaf.

A decision is 1 or 0 in every plan: whether a buffer stands in a memory, or a use is fast. A sum of some is at most a number, or
more than it. Either is a row that holds below its side of the split; a proof of prices may give it a price as well.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from stowplan.certificates.checker.reading import Fields, fields, listed, need, numbers, pick, rows, whole

#: Nodes of a tree, and nodes times the layers, buffers or steps of its problem: a few seconds.
MOST_NODES, MOST_WORK = 2000, 100_000


class Splits(NamedTuple):
    """What the rows above a leaf cost at its prices, as multiples of one over its denominator."""

    price: dict[tuple[int, ...], int]
    """Of each decision that is 1."""
    total: int
    """To be taken off."""


def tree(proof: Fields, run: Callable[[Fields, Splits], int | None], width: int, size: int) -> int | None:
    """The least of what all leaves show; None where there is no plan at any of them.

    ``nodes`` are in preorder, a node before what is below it: first where the sum of the ``split`` is at most ``most``, then
    where it is more. ``width`` is how many numbers name a decision, ``size`` what a leaf has to look at.
    """
    nodes = listed(proof, "nodes")
    most_nodes = min(MOST_NODES, MOST_WORK // (1 + size))
    need(len(nodes) <= most_nodes, "proof.nodes", f"found {len(nodes)}, expected at most {most_nodes}")
    waiting: list[tuple[tuple[list[list[int]], int, int], ...]] = [()]
    found: list[int] = []
    for node in nodes:
        need(bool(waiting), "proof.nodes", "there are more than the splits have sides")
        above = waiting.pop()
        if "split" in fields(node, "proof.nodes"):
            decisions, most = rows(node, "split", width), whole(node, "most")
            waiting += [(*above, (decisions, -1, -most - 1)), (*above, (decisions, 1, most))]
            continue
        # Most of a proof may be as in another leaf.
        leaf = fields(pick(nodes, whole(node, "like"), "proof.nodes"), "proof.nodes") | node if "like" in node else node
        price: dict[tuple[int, ...], int] = {}
        total = 0
        for (decisions, sign, most), paid in zip(above, numbers(leaf, "splits", 0, len(above)), strict=True):
            total += most * paid
            for each in decisions:
                price[tuple(each)] = price.get(tuple(each), 0) + sign * paid
        shown = run(leaf, Splits(price, total))
        found += [] if shown is None else [shown]
    need(not waiting, "proof.nodes", "a side of a split has no proof")
    return min(found, default=None)
