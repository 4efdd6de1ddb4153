"""Proofs of tier placement, banked packing and bank mapping: prices by the duals of a linear relaxation.

Everything stands in one memory for life: a linear program with cuts, and a tree where these leave a gap. Rows of memory are
rounded (mixed-integer rounding, Marchand and Wolsey 2001) where a fractional point breaks what comes of it. Then the leaf with
the least bound is split, on the sum of things of one size in a memory, or on one thing: many alike take part in one row, of
which the sum tells more than each of them (general disjunctions, Karamanov and Cornuéjols 2011).
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import cached_property
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from stowplan.certificates.checker import placement
from stowplan.certificates.checker.placement import Item
from stowplan.certificates.maker import Proof, Wish
from stowplan.certificates.maker.tree import FRACTION, TRIED, Branched, Decision, Side, Split, Tree
from stowplan.models.mip.matrix import FloatArray, Program
from stowplan.models.mip.with_highs import TIGHT, one_thread, pass_model
from stowplan.models.packing.bounds import live_sets
from stowplan.models.tier_placement.structure import Structure

#: Prices are whole multiples of one over this.
DENOMINATOR = 1 << 60

#: Divisors of cuts are sizes over these; cuts of rows alike; how far a point must be beyond a cut, of its length.
PARTS, ALIKE, LEAST_BROKEN = (1, 2), 3, 1e-4

#: Part of a memory that is taken where its row is rounded.
FULL = 0.99


class Row(NamedTuple):
    """Memory at a moment, where not everything fits."""

    memory: int
    moment: int
    items: Any
    """[items] numbers; below their columns, and what they take."""
    columns: Any
    taken: Any
    divisors: Any
    """[divisors, 1] to round by."""


class Relaxation(Branched):
    """The linear program, with the meaning of its rows.

    Parameters
    ----------
    moments
        Of each moment that matters what lives then.
    """

    def __init__(self, items: list[Item], room: list[int], moments: list[tuple[int, list[int]]]):
        self.items, self.room, self.program = items, room, Program()
        self.column = [{memory: self.program.column(cost=cost) for memory, cost in item.costs.items()} for item in items]
        for own in self.column:
            self.program.add_row([(column, 1) for column in own.values()], 1, 1)
        self.rows: list[Row] = []
        self._priced: list[tuple[int, int, int]] = []
        """(row, memory, moment)"""
        always = set.intersection(*(set(live) for _, live in moments)) if moments else set()
        for memory, most in enumerate(room):
            kept = [(self.column[item][memory], items[item].taken[memory]) for item in always if memory in items[item].taken]
            load = self.program.column(sum(taken for _, taken in kept))
            self.program.add_row([*kept, (load, -1)], upper=0)
            for moment, live in moments:
                numbers = np.array([item for item in live if items[item].taken.get(memory, 0) > 0], np.int64)
                taken = np.array([items[item].taken[memory] for item in numbers], np.int64)
                if taken.sum() <= most:
                    continue
                columns = np.array([self.column[item][memory] for item in numbers], np.int64)
                sizes = np.unique(taken)
                divisors = np.unique(np.concatenate([*(sizes // parts for parts in PARTS), [sizes[-1] + 1]]))
                self.rows.append(Row(memory, moment, numbers, columns, taken, divisors[divisors > 1, None]))
                self._priced.append((len(self.program.rows.lower), memory, moment))
                terms = [(int(c), int(t)) for n, c, t in zip(numbers, columns, taken, strict=True) if n not in always]
                self.program.add_row([*terms, (load, 1)], upper=most)
        self._cuts: list[tuple[int, float, Proof]] = []
        self.groups: dict[tuple[int, int, int], list[tuple[int, int]]] = {}
        """Decisions on items that take as much in a memory, and live as short or always."""
        for item, thing in enumerate(items):
            for memory, size in thing.taken.items():
                self.groups.setdefault((memory, size, item in always), []).append((item, memory))

    @cached_property
    def _joined(self) -> tuple[Any, Any, Any, Any]:
        """Columns of all rows and what they take, row after row; where each row begins, and the load from which it is full."""
        starts = np.cumsum([0, *(len(row.columns) for row in self.rows)])[:-1]
        full = FULL * np.array([self.room[row.memory] for row in self.rows])
        columns = np.concatenate([row.columns for row in self.rows])
        return columns, np.concatenate([row.taken for row in self.rows]), starts, full

    def start(self) -> None:
        """Hand the program to HiGHS; nothing is added to it later but cuts and splits."""
        scale = np.exp2(np.rint(np.log2(np.maximum(1.0, np.array(self.program.upper, float)))))
        unit = max(1.0, float((np.array(self.program.cost, float) * scale).max(initial=0)))
        matrix, self._scale = self.program.scaled("prices", scale, unit)
        highs = one_thread(0)
        for name in ("primal_feasibility_tolerance", "dual_feasibility_tolerance"):
            highs.setOptionValue(name, TIGHT)
        pass_model(highs, matrix.relaxed())
        super().__init__(highs, unit, 1 + len(self.items), lambda decision: [self.column[decision[0]][decision[1]]])

    def duals(self) -> FloatArray:
        """[rows of the program] what one more of each lower side costs."""
        return np.array(self._highs.getSolution().row_dual[: len(self._scale)]) * self._scale * self._unit

    def proof(self, sides: tuple[Side, ...] = ()) -> Proof:
        """Prices of the last solution."""
        paid = -np.array(self._highs.getSolution().row_dual) * self._unit
        memory = [priced(memory, moment, _whole(paid[row] * self._scale[row])) for row, memory, moment in self._priced]
        memory += [cut | {"price": _whole(paid[row] / scale)} for row, scale, cut in self._cuts]
        splits = [_whole(paid[self._sides[side]]) for side in sides]
        proof = {"form": "prices", "denominator": DENOMINATOR, "memory": [row for row in memory if row["price"]]}
        return proof | ({"splits": splits} if sides else {})

    def tidy(self) -> None:
        """Drop the cuts that have no price, before there are sides of splits."""
        paid = self._highs.getSolution().row_dual
        useless = [number for number, *_ in self._cuts if not paid[number]]
        self._highs.deleteRows(len(useless), np.array(useless, np.int32))
        kept = [cut for cut in self._cuts if paid[cut[0]]]
        self._cuts = [(len(self._scale) + at, scale, cut) for at, (_, scale, cut) in enumerate(kept)]
        self._highs.run()

    def separate(self, most: int) -> int:
        """Add so many rounded rows of memory that the point breaks most; how many were added."""
        point, broken, seen = self.point(), list[Any](), Counter[bytes]()
        for row in self._full(point):
            cut = _rounded(row, point[row.columns], self.room[row.memory], seen)
            if cut is not None:
                broken.append(cut)
        broken.sort(key=lambda cut: -cut[0])
        for _, row, turned, divisor, coefficients, side in broken[:most]:
            scale = float(np.abs(coefficients).max())
            some = np.flatnonzero(coefficients)
            number = self.add(row.columns[some], coefficients[some] / scale, side / scale)
            rounds = [{"divisor": divisor, "turned": row.items[turned].tolist()}]
            self._cuts.append((number, scale, {"memory": row.memory, "moment": row.moment, "rounds": rounds}))
        return min(most, len(broken))

    def _full(self, point: FloatArray) -> list[Row]:
        """Rows that are nearly full, with fractions."""
        if not self.rows:
            return []
        columns, taken, starts, full = self._joined
        values = point[columns]
        load = np.add.reduceat(taken * values, starts)
        parts = np.add.reduceat((values > FRACTION) & (values < 1 - FRACTION), starts, dtype=np.int64)
        return [self.rows[at] for at in np.flatnonzero((parts > 0) & (load >= full))]

    def splits(self) -> list[Split]:
        """Sums that are fractional, first of several; the most bytes from whole numbers first."""
        point = self.point()
        splits: list[list[tuple[float, tuple[Decision, ...], int]]] = [[], []]
        for (_, size, _), group in self.groups.items():
            values = [float(point[self.column[item][memory]]) for item, memory in group]
            sums = [*(((decision,), value) for decision, value in zip(group, values, strict=True)), (tuple(group), sum(values))]
            for decisions, value in sums if len(group) > 1 else sums[:1]:
                rest = value - math.floor(value)
                if FRACTION < rest < 1 - FRACTION:
                    splits[len(decisions) == 1].append((-size * min(rest, 1 - rest), decisions, math.floor(value)))
        several, single = (sorted(part, key=lambda split: split[0]) for part in splits)
        return [(decisions, most) for _, decisions, most in (several[: TRIED - 2] + single)[:TRIED]]


def priced(memory: int, moment: int, price: int) -> Proof:
    """A price of a byte of a memory at a moment."""
    return {"memory": memory, "moment": moment, "price": price}


def _whole(price: float) -> int:
    return max(0, round(float(price) * DENOMINATOR)) if math.isfinite(price) else 0


def _rounded(row: Row, point: FloatArray, room: int, seen: Counter[bytes]) -> Any:
    """The rounding of a row that the point breaks most; None where it breaks none, or there are some of rows like it."""
    is_part = (point > FRACTION) & (point < 1 - FRACTION)
    key = row.items[is_part].tobytes() + bytes(str((row.memory, row.taken[point >= 1 - FRACTION].sum())), "ascii")
    seen[key] += 1
    if seen[key] > ALIKE:
        return None
    divisors, best = row.divisors, None
    for turned in (point >= 0.5, point >= 1 - FRACTION, point > FRACTION):
        left = room - int(row.taken[turned].sum())
        units, values = np.where(turned, -row.taken, row.taken), np.where(turned, 1 - point, point)
        rest = left % divisors
        rounded = (divisors - rest) * (units // divisors) + np.maximum(0, units % divisors - rest)
        sides = ((divisors - rest) * (left // divisors))[:, 0]
        broken = (rounded @ values - sides) / np.maximum(1.0, np.sqrt((rounded.astype(float) ** 2).sum(axis=1)))
        at = int(np.where(rest[:, 0] > 0, broken, 0.0).argmax())
        if rest[at, 0] and broken[at] > LEAST_BROKEN and (best is None or broken[at] > best[0]):
            side = int(sides[at]) - int(rounded[at][turned].sum())
            best = float(broken[at]), row, turned, int(divisors[at, 0]), np.where(turned, -rounded[at], rounded[at]), side
    return best


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
    sets = live_sets((number, item.start, item.end) for number, item in enumerate(placed) if item.start < item.end)
    return [(max(placed[number].start for number in live), sorted(live)) for live in sets]


def _priced(wish: Wish, room: list[int], placed: list[Item]) -> Iterator[Proof]:
    yield {"form": "prices", "denominator": 1}
    if placed and all(item.taken for item in placed):
        relaxation = Relaxation(placed, room, _live(placed))
        relaxation.start()
        yield from Tree(relaxation, wish, Relaxation.proof).proofs(0)


def tiers(wish: Wish) -> Iterator[Proof]:
    """Every tensor in its fastest tier; then prices of bytes at each step, and what uses earn in each tier."""
    known = Structure(wish.problem)
    layers, memories = wish.problem.layers, wish.problem.tiers
    if wish.infeasible:
        yield {"form": "prices", "denominator": 0}
        steps = [max([0, *(known.tensors[tensor].first for tensor in live)]) for live in known.moments]
        for step in steps:
            yield {"form": "prices", "denominator": 0, "memory": [priced(tier, step, 1) for tier in range(len(memories))]}
        return
    yield {"form": "prices", "denominator": 1}
    if not layers:
        return
    # As the checker numbers them: weights, then output of each layer.
    number = [2 * tensor.layer + tensor.is_output for tensor in known.tensors]
    items = [Item(0, len(layers), {0: 0}, {0: 0}) for _ in range(2 * len(layers))]
    for at, placed in zip(number, known.tensors, strict=True):
        sizes, costs = dict.fromkeys(placed.tiers, placed.size), dict.fromkeys(placed.tiers, 0)
        items[at] = Item(placed.first, placed.last + 1, sizes, costs)
    if not all(item.taken for item in items):
        return
    weights = [2 * layer for layer, tensor in enumerate(known.weights) if tensor is not None]
    live = [
        (max(known.tensors[output].first for output in outputs), [*weights, *(number[output] for output in outputs)])
        for outputs in known.moments
    ]
    relaxation = Relaxation(items, [memory.capacity for memory in memories], live)
    earning: list[tuple[int, int, int, int, int]] = []
    """(row, layer, item, tier, what a dual of 1 earns there)"""
    for excess in known.excesses:
        fits = [known.tensors[tensor].tiers for tensor, _ in excess.uses]
        if math.prod(map(len, fits)) <= MOST_CHOICES:
            # A column for each choice of tiers: beside cuts of memory that says more than rows which define the time.
            choices = list(product(*fits))
            moved = [[moves[tier] for (_, moves), tier in zip(excess.uses, choice, strict=True)] for choice in choices]
            columns = [relaxation.program.column(cost=max(0, excess.fixed_ps + sum(times))) for times in moved]
            for at, (tensor, _) in enumerate(excess.uses):
                for tier in fits[at]:
                    earning.append((len(relaxation.program.rows.lower), excess.layer, number[tensor], tier, -1))
                    terms = [(column, 1) for column, choice in zip(columns, choices, strict=True) if choice[at] == tier]
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
