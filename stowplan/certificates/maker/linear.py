"""Proofs of tier placement, banked packing and bank mapping: prices by the duals of a linear relaxation."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from itertools import product

from stowplan.certificates.checker import placement
from stowplan.certificates.checker.placement import Item
from stowplan.certificates.maker import Proof, Wish
from stowplan.certificates.maker.places import DENOMINATOR, Relaxation, priced
from stowplan.certificates.maker.tree import Side, Tree
from stowplan.models.packing.bounds import live_sets
from stowplan.models.tier_placement.structure import Structure

#: Choices of tiers for what a layer uses, of which each has a column.
MOST_CHOICES = 100


def banks(wish: Wish) -> Iterator[Proof]:
    """Each buffer in its cheapest bank; then prices of bytes. Or the buffers of one moment that are too many."""
    room, placed, _ = placement.banks(wish.rules, {"denominator": 1})
    if wish.infeasible:
        yield {"form": "prices", "denominator": 0}
        for moment, numbers in _live(placed):
            for among in [(*range(len(room)),), *sorted({(*placed[number].taken,) for number in numbers})]:
                inside = [placed[number].taken for number in numbers if {*among}.issuperset(placed[number].taken)]
                if sum(max(taken.values(), default=0) for taken in inside) > sum(room[bank] for bank in among):
                    yield {"form": "prices", "denominator": 0, "memory": [priced(bank, moment, 1) for bank in among]}
        return
    yield from _priced(wish, room, placed)


def chip(wish: Wish) -> Iterator[Proof]:
    """Each tensor of bank mapping where it costs least; then prices of bytes on chip."""
    yield from () if wish.infeasible else _priced(wish, *placement.chip(wish.rules, {"denominator": 1})[:2])


def _live(placed: list[Item]) -> list[tuple[int, list[int]]]:
    """A moment of each of the largest sets of items that live at once, and the set."""
    sets = live_sets((number, each.start, each.end) for number, each in enumerate(placed) if each.start < each.end)
    return [(max(placed[number].start for number in live), sorted(live)) for live in sets]


def _priced(wish: Wish, room: list[int], placed: list[Item]) -> Iterator[Proof]:
    yield {"form": "prices", "denominator": 1}
    if placed and all(each.taken for each in placed):
        relaxation = Relaxation(placed, room, _live(placed))
        relaxation.start()
        yield from Tree(relaxation, wish, Relaxation.proof).proofs(0)


def tiers(wish: Wish) -> Iterator[Proof]:
    """Every tensor in its fastest tier; then prices of bytes at each step, and what uses earn in each tier."""
    known = Structure(wish.problem)
    layers, memories = wish.problem.layers, wish.problem.tiers
    if wish.infeasible:
        yield {"form": "prices", "denominator": 0}
        steps = [max([0, *(known.tensors[each].first for each in live)]) for live in known.moments]
        for step in steps:
            yield {"form": "prices", "denominator": 0, "memory": [priced(tier, step, 1) for tier in range(len(memories))]}
        return
    yield {"form": "prices", "denominator": 1}
    if not layers:
        return
    # As the checker numbers them: weights, then output of each layer.
    number = [2 * each.layer + each.is_output for each in known.tensors]
    items = [Item(0, len(layers), {0: 0}, {0: 0}) for _ in range(2 * len(layers))]
    for at, each in zip(number, known.tensors, strict=True):
        items[at] = Item(each.first, each.last + 1, dict.fromkeys(each.tiers, each.size), dict.fromkeys(each.tiers, 0))
    if not all(each.taken for each in items):
        return
    weights = [2 * layer for layer, tensor in enumerate(known.weights) if tensor is not None]
    live = [
        (max(known.tensors[each].first for each in some), [*weights, *(number[each] for each in some)])
        for some in known.moments
    ]
    relaxation = Relaxation(items, [each.capacity for each in memories], live)
    earning: list[tuple[int, int, int, int, int]] = []
    """(row, layer, item, tier, what a dual of 1 earns there)"""
    for excess in known.excesses:
        fits = [known.tensors[tensor].tiers for tensor, _ in excess.uses]
        if math.prod(map(len, fits)) <= MOST_CHOICES:
            # A column for each choice of tiers: beside cuts of memory that says more than rows which define the time.
            choices = list(product(*fits))
            moved = [[moves[tier] for (_, moves), tier in zip(excess.uses, each, strict=True)] for each in choices]
            columns = [relaxation.program.column(cost=max(0, excess.fixed_ps + sum(each))) for each in moved]
            for at, (tensor, _) in enumerate(excess.uses):
                for tier in fits[at]:
                    earning.append((len(relaxation.program.rows.lower), excess.layer, number[tensor], tier, -1))
                    terms = [(column, 1) for column, each in zip(columns, choices, strict=True) if each[at] == tier]
                    relaxation.program.add_row([*terms, (relaxation.column[number[tensor]][tier], -1)], 0, 0)
            continue
        time_of = relaxation.program.column(excess.most, cost=1)
        for row in known.rows(excess):
            made = len(relaxation.program.rows.lower)
            earning += [(made, excess.layer, number[tensor], tier, saving) for tensor, tier, saving in row.savings]
            terms = [(relaxation.column[number[tensor]][tier], saving) for tensor, tier, saving in row.savings]
            relaxation.program.add_row([(time_of, 1), *terms], row.least)
    relaxation.start()

    def proven(solved: Relaxation, sides: tuple[Side, ...]) -> Proof:
        duals = solved.duals()
        paid = defaultdict[tuple[int, ...], float](float)
        for row, *use, worth in earning:
            paid[*use] += float(duals[row]) * worth
        return solved.proof(sides) | {"access": [[*key, round(value * DENOMINATOR)] for key, value in paid.items() if value]}

    yield from Tree(relaxation, wish, proven).proofs(known.base_ps)
