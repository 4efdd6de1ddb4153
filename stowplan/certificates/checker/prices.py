"""What proofs of prices share: rows of memory that are rounded, the cheapest of choices; and form ``tree``, splits over them.

A decision of a split is 1 or 0 in every plan: whether a buffer stands in a memory, or a use is fast. A sum of some is at most a
number, or more than it. Either is a row that holds below its side of the split; a proof of prices may give it a price as well.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import product
from math import prod

from stowplan.certificates.checker.reading import Fields, listed, need, numbers, rows, whole

#: Nodes of a tree, and nodes times the layers, buffers or steps of its problem: a few seconds.
MOST_NODES, MOST_WORK = 2000, 100_000

#: Sets of choices of which each is looked at; beyond that each entry is looked at by itself.
MOST_SETS = 5000


#: What rows above a leaf cost at its prices, as multiples of one over its denominator: each decision that is 1; () always is.
Splits = Counter[tuple[int, ...]]

#: What prices show of a problem, below splits.
Prices = Callable[[Fields, Fields, Splits], int | None]


def rounded(part: Fields, units: list[int], room: int) -> tuple[list[int], int]:
    """Memory at one moment, as a row or a cut of it: what each tensor takes, and what no set of tensors that fits exceeds.

    Mixed-integer rounding of sum(units x) <= room, in which x of some tensors is replaced by 1 - x before, and back after
    (Marchand and Wolsey 2001; lemma B4 of docs/reference/memory-mapping-models.md): of units of memory, then perhaps of what
    came of it.
    """
    for each in listed(part, "rounds"):
        divisor, turned = whole(each, "divisor", 1), {*numbers(each, "turned")}
        room -= sum(units[tensor] for tensor in turned)
        rest = room % divisor
        units = [-_low(-each, divisor, rest) if at in turned else _low(each, divisor, rest) for at, each in enumerate(units)]
        room = _low(room, divisor, rest) + sum(units[tensor] for tensor in turned)
    return units, room


def _low(units: int, divisor: int, rest: int) -> int:
    return (divisor - rest) * (units // divisor) + max(0, units % divisor - rest)


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
    return min(max(map(sum, zip(start, *choice, strict=True))) for choice in product(*items))


def tree(prices: Prices, problem: Fields, proof: Fields) -> int | None:
    """The least of what all leaves show by prices; None where there is no plan at any of them.

    ``nodes`` are in preorder, a node before what is below it: first where the sum of the ``split`` is at most ``most``, then
    where it is more.
    """
    nodes, size = listed(proof, "nodes"), 1 + max(len(each) for each in problem.values() if isinstance(each, list))
    need(len(nodes) <= min(MOST_NODES, MOST_WORK // size), "proof.nodes", "there are more than can be looked at")
    waiting: list[tuple[tuple[list[list[int]], int, int], ...]] = [()]
    found = list[int | None]()
    for node in nodes:
        above = waiting.pop()
        if "split" in node:
            decisions, most = rows(node, "split"), whole(node, "most")
            waiting += [(*above, (decisions, -1, -most - 1)), (*above, (decisions, 1, most))]
            continue
        splits = Splits()
        for (decisions, sign, most), paid in zip(above, numbers(node, "splits", 0, len(above)), strict=True):
            splits[()] -= most * paid
            for each in decisions:
                splits[*each] += sign * paid
        found.append(prices(problem, node, splits))
    need(not waiting, "proof.nodes", "a side of a split has no proof")
    return min((each for each in found if each is not None), default=None)
