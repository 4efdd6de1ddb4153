"""Functions for proofs by prices: rounding of rows of memory, the minimum over choices, and form ``tree``, which splits plans.

A *row* of memory is an inequality ``sum of units <= room``: the items that are live at one moment fit into one memory. The
bounds use Lagrangian duality. A plan that satisfies a row costs at least as much as the same plan with ``price * (units -
room)`` added, for any price of at least 0. What remains is a minimum for each item by itself. All costs and prices are whole
numbers: multiples of one over the denominator that the proof states.

A *decision* is 1 or 0 in every plan. It says whether an item is in a memory, or whether a use of a tensor is in fast memory. A
*split* divides the plans by a sum of decisions:

    sum <= most   on one side,   sum >= most + 1   on the other

Every plan is on one side of each split. The minimum over the leaves of a tree of splits is therefore a bound for all plans.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import product
from math import prod
from typing import NamedTuple

from stowplan.certificates.checker.reading import Fields, list_field, need, numbers, rows, whole

#: Maximum number of combinations of choices that :func:`cheapest` examines one by one. If there are more, it returns a number
#: that is quicker to compute and may be smaller than the minimum.
MAX_COMBINATIONS = 5000

#: A tree may have at most MAX_NODES nodes. Its number of nodes, multiplied by one more than the length of the problem's longest
#: list (such as its layers, buffers or steps), may be at most MAX_WORK. To check a tree of this size takes a few seconds.
MAX_NODES, MAX_WORK = 2000, 100_000

#: Cost that the splits above a leaf of the tree add for each decision that is 1, in multiples of one over the leaf's
#: denominator. The key is the decision; the cost of the key () is added in any case.
Splits = Counter[tuple[int, ...]]

#: A function of (problem, proof, splits) that returns the largest bound that the prices show; None if they show that no plan
#: exists.
Prices = Callable[[Fields, Fields, Splits], int | None]


def rounded(part: Fields, units: list[int], room: int) -> tuple[list[int], int]:
    """Rounds a row of memory to a *cut*, another inequality that holds for every set of tensors that fits into memory. Returns
    the units of each tensor in the cut, and its room. ``part`` is the part of the proof that may have a list ``rounds``;
    without it, units and room are unchanged.

    Each of ``rounds`` is a mixed-integer rounding of the row before it (Marchand and Wolsey 2001; lemma B4 of
    docs/reference/memory-mapping-models.md). Let x be 1 for a tensor in memory and 0 for any other. Before the rounding, x of
    the tensors in ``turned`` is replaced by 1 - x, and afterwards replaced back:

        sum of units * x <= room   implies   sum of G(units) * x <= G(room)

    G is the function :func:`_rounded`.
    """
    for step in list_field(part, "rounds"):
        divisor, turned = whole(step, "divisor", 1), {*numbers(step, "turned")}
        room -= sum(units[tensor] for tensor in turned)
        rest = room % divisor
        signs = [-1 if tensor in turned else 1 for tensor in range(len(units))]
        units = [sign * _rounded(sign * own, divisor, rest) for sign, own in zip(signs, units, strict=True)]
        room = _rounded(room, divisor, rest) + sum(units[tensor] for tensor in turned)
    return units, room


def _rounded(units: int, divisor: int, rest: int) -> int:
    """``G(a) = (d - r) * floor(a / d) + max(0, a mod d - r)``, where d is the divisor and r the remainder of the room."""
    return (divisor - rest) * (units // divisor) + max(0, units % divisor - rest)


def cheapest(start: list[int], items: list[list[list[int]]], most_sets: int = MAX_COMBINATIONS) -> int:
    """Lower bound on a latency that is the maximum of several affine functions, plus costs. The values of these functions
    depend on one choice for each item, for example the tier of a tensor. Returns

        minimum over all combinations of choices of max over entries of (start + sum of choices)

    or a smaller number if there are more than ``most_sets`` combinations. ``items`` has the choices of each item. ``start`` and
    each choice are lists of equal length, with one entry for each affine function: ``start`` has its constant, and a choice
    what the choice adds to it. If a choice also has a cost, the cost is included in each of its entries.
    """
    items = [_without_dearer(choices) for choices in items]
    if prod(map(len, items)) > most_sets:
        # The largest entry is at least as large as each entry, whose minimum can be found item by item.
        items = [[[*map(min, zip(*choices, strict=True))]] for choices in items]
    return min(max(map(sum, zip(start, *chosen, strict=True))) for chosen in product(*items))


def _without_dearer(choices: list[list[int]]) -> list[list[int]]:
    """If some choice is at most as large as each other choice in every entry, returns only this choice; otherwise returns all
    choices."""
    best = [one for one in choices if all(all(map(int.__le__, one, other)) for other in choices)]
    return best[:1] or choices


class Side(NamedTuple):
    """An inequality that holds on one side of a split: ``sign * sum of decisions <= most``, where ``sign`` is 1 or -1."""

    decisions: list[list[int]]
    sign: int
    most: int


def tree(prices: Prices, problem: Fields, proof: Fields) -> int | None:
    """The minimum of the bounds that the leaves show by prices; None if no plan exists at any leaf.

    ``nodes`` are in preorder. Below a ``split``, the side on which the sum is at most ``most`` comes first, then the other
    side.
    """
    nodes, size = list_field(proof, "nodes"), 1 + max(len(part) for part in problem.values() if isinstance(part, list))
    need(len(nodes) <= min(MAX_NODES, MAX_WORK // size), "proof.nodes", "there are more than can be looked at")
    waiting: list[tuple[Side, ...]] = [()]
    shown = list[int | None]()
    for node in nodes:
        above = waiting.pop()
        if "split" in node:
            decisions, most = rows(node, "split"), whole(node, "most")
            waiting += [(*above, Side(decisions, -1, -most - 1)), (*above, Side(decisions, 1, most))]
        else:
            shown.append(prices(problem, node, _split_costs(above, numbers(node, "splits", 0, len(above)))))
    need(not waiting, "proof.nodes", "a side of a split has no proof")
    return min((bound for bound in shown if bound is not None), default=None)


def _split_costs(above: tuple[Side, ...], paid: list[int]) -> Splits:
    """Cost that the splits above a leaf add: ``price * (sign * sum of decisions - most)``, which is at most 0."""
    splits = Splits()
    for side, price in zip(above, paid, strict=True):
        splits[()] -= side.most * price
        for decision in side.decisions:
            splits[*decision] += side.sign * price
    return splits
