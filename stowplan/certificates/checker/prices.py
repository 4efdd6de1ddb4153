"""What proofs of prices share: rows of memory that are rounded, the cheapest of choices; and form ``tree``, splits over them.

Lagrangian duality: a plan that keeps ``sum of units <= room`` costs no less than the same plan with ``price * (units - room)``
added, at any price of at least 0. What is left is a least cost for each thing by itself.

A decision is 1 or 0 in every plan: whether an item stands in a memory, or a use is fast. A split is on a sum of decisions:

    sum <= most   on one side,   sum >= most + 1   on the other

Every plan is on one side of each split, so that none costs less than the least leaf of a tree of splits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import product
from math import prod
from typing import NamedTuple

from stowplan.certificates.checker.reading import Fields, listed, need, numbers, rows, whole

#: Sets of choices of which each is looked at; beyond that each entry is looked at by itself.
MOST_SETS = 5000

#: Nodes of a tree, and nodes times the layers, buffers or steps of its problem: a few seconds.
MOST_NODES, MOST_WORK = 2000, 100_000

#: What rows above a leaf of a tree cost at its prices, as multiples of one over its denominator: each decision that is 1; ()
#: always is.
Splits = Counter[tuple[int, ...]]

#: What prices show of a problem, below splits: the largest bound; None for infeasible.
Prices = Callable[[Fields, Fields, Splits], int | None]


def rounded(part: Fields, units: list[int], room: int) -> tuple[list[int], int]:
    """Memory at one moment, as a row or a cut of it: what each tensor takes, and what no set of tensors that fits exceeds.

    Each of ``rounds`` is a mixed-integer rounding of the row before (Marchand and Wolsey 2001; lemma B4 of
    docs/reference/memory-mapping-models.md), in which x of the tensors ``turned`` is replaced by 1 - x before, and back after:

        sum of units * x <= room   implies   sum of G(units) * x <= G(room)
    """
    for step in listed(part, "rounds"):
        divisor, turned = whole(step, "divisor", 1), {*numbers(step, "turned")}
        room -= sum(units[tensor] for tensor in turned)
        rest = room % divisor
        signs = [-1 if tensor in turned else 1 for tensor in range(len(units))]
        units = [sign * _rounded(sign * own, divisor, rest) for sign, own in zip(signs, units, strict=True)]
        room = _rounded(room, divisor, rest) + sum(units[tensor] for tensor in turned)
    return units, room


def _rounded(units: int, divisor: int, rest: int) -> int:
    """``G(a) = (d - r) * floor(a / d) + max(0, a mod d - r)``, d the divisor and r the rest of the room."""
    return (divisor - rest) * (units // divisor) + max(0, units % divisor - rest)


def cheapest(start: list[int], items: list[list[list[int]]], most_sets: int = MOST_SETS) -> int:
    """Least of the largest entry of ``start`` and a choice of each item, added entry by entry; or less than that.

    Entries are affine pieces of a latency, with all that is paid beside it:

        least over all sets of choices of max over entries of (start + sum of choices)
    """
    items = [_without_dearer(choices) for choices in items]
    if prod(map(len, items)) > most_sets:
        # The largest entry is no less than any, and that has its least item by item.
        items = [[[*map(min, zip(*choices, strict=True))]] for choices in items]
    return min(max(map(sum, zip(start, *chosen, strict=True))) for chosen in product(*items))


def _without_dearer(choices: list[list[int]]) -> list[list[int]]:
    """One choice alone, where none of its entries is larger than another's: it is as good as all."""
    best = [one for one in choices if all(all(map(int.__le__, one, other)) for other in choices)]
    return best[:1] or choices


class Side(NamedTuple):
    """A row that holds on one side of a split: ``sign * sum of decisions <= most``."""

    decisions: list[list[int]]
    sign: int
    most: int


def tree(prices: Prices, problem: Fields, proof: Fields) -> int | None:
    """The least of what all leaves show by prices; None where there is no plan at any of them.

    ``nodes`` are in preorder, a node before what is below it: first where the sum of the ``split`` is at most ``most``, then
    where it is more.
    """
    nodes, size = listed(proof, "nodes"), 1 + max(len(part) for part in problem.values() if isinstance(part, list))
    need(len(nodes) <= min(MOST_NODES, MOST_WORK // size), "proof.nodes", "there are more than can be looked at")
    waiting: list[tuple[Side, ...]] = [()]
    shown = list[int | None]()
    for node in nodes:
        above = waiting.pop()
        if "split" in node:
            decisions, most = rows(node, "split"), whole(node, "most")
            waiting += [(*above, Side(decisions, -1, -most - 1)), (*above, Side(decisions, 1, most))]
        else:
            shown.append(prices(problem, node, _priced(above, numbers(node, "splits", 0, len(above)))))
    need(not waiting, "proof.nodes", "a side of a split has no proof")
    return min((bound for bound in shown if bound is not None), default=None)


def _priced(above: tuple[Side, ...], paid: list[int]) -> Splits:
    """What the rows above a leaf add to costs: ``price * (sign * sum of decisions - most)``, which is no more than 0."""
    splits = Splits()
    for side, price in zip(above, paid, strict=True):
        splits[()] -= side.most * price
        for decision in side.decisions:
            splits[*decision] += side.sign * price
    return splits
