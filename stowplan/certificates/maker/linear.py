"""Makes proofs of tier placement, banked packing and bank mapping by prices, the duals of a linear relaxation.

An *item* is a tensor or a buffer; it stays in one memory during its whole life. The relaxation is a linear program with one row
for each memory and each moment at which the live items do not all fit into it. These rows are strengthened by cuts: a row is
rounded (mixed-integer rounding, Marchand and Wolsey 2001) if the fractional solution violates the rounded row. If the cuts do
not prove the bound that is wanted, branch and bound follows. It splits the leaf with the smallest bound, either on the number
of items of one size that are in a memory, or on a single item. Items of one size usually occur in the same rows, so that a
split on their number raises the bound more than a split on one of them (general disjunctions, Karamanov and Cornuéjols 2011).

The functions that yield proofs get a :class:`~stowplan.certificates.maker.Wish`: the problem, the claim to prove, and limits.
None of them raises an error for a valid problem. Where the documentation of an array begins with brackets, they contain its
shape.
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
from stowplan.certificates.maker.tree import FRACTION, MAX_TRIED_SPLITS, Branched, Decision, Side, Split, Tree
from stowplan.models.mip.matrix import FloatArray, Program
from stowplan.models.mip.with_highs import TIGHT, one_thread, pass_model
from stowplan.models.packing.bounds import live_sets
from stowplan.models.tier_placement.structure import Structure

#: Prices are multiples of one over this denominator.
DENOMINATOR = 1 << 60

#: A row may be rounded with several divisors: the size of each of its items, divided by each of these numbers and rounded down,
#: and the largest size plus one. Of these, only divisors above 1 are used.
PARTS = 1, 2

#: In each round of cuts, at most this many similar rows are rounded (:func:`_rounded` says which rows are similar).
MAX_SIMILAR = 3

#: A cut is added only if the solution violates it by more than this Euclidean distance.
MIN_VIOLATION = 1e-4

#: A row is rounded only if the solution uses at least this fraction of the memory.
FULL = 0.99


class Row(NamedTuple):
    """A row of the program: the items that are live at a moment and are in a memory take at most its capacity."""

    memory: int
    moment: int
    items: Any
    """[items] numbers of the items that are live at the moment, fit into the memory and take bytes there."""
    columns: Any
    """[items] the column that is 1 if the item is in the memory."""
    taken: Any
    """[items] bytes that the item takes there."""
    divisors: Any
    """[divisors, 1] the divisors with which the row may be rounded."""


class Relaxation(Branched):
    """The linear program, with the memory and the moment that each of its rows stands for. A *decision* is a pair (item,
    memory): whether the item is in the memory. A *price* is the dual of a row. :meth:`start` must be called before the program
    is solved.

    Parameters
    ----------
    items
        The items to place, each with its cost and its size in every memory that it fits into.
    room
        Capacity of each memory in bytes.
    moments
        Pairs of a moment and the items that are live then. A moment may be left out if all of its items are live at another
        one.
    """

    def __init__(self, items: list[Item], room: list[int], moments: list[tuple[int, list[int]]]):
        self.items, self.room, self.program = items, room, Program()
        self.column = [{memory: self.program.column(cost=cost) for memory, cost in item.costs.items()} for item in items]
        for own in self.column:
            self.program.add_row([(column, 1) for column in own.values()], 1, 1)
        self.rows: list[Row] = []
        self._memory_rows: list[tuple[int, int, int]] = []
        """(row of the program, memory, moment) for each of ``rows``."""
        always = set.intersection(*(set(live) for _, live in moments)) if moments else set()
        for memory, most in enumerate(room):
            # All rows of a memory share one column for the bytes of the items that are live at all moments.
            permanent = [
                (self.column[item][memory], items[item].taken[memory]) for item in always if memory in items[item].taken
            ]
            load = self.program.column(sum(taken for _, taken in permanent))
            self.program.add_row([*permanent, (load, -1)], upper=0)
            for moment, live in moments:
                numbers = np.array([item for item in live if items[item].taken.get(memory, 0) > 0], np.int64)
                taken = np.array([items[item].taken[memory] for item in numbers], np.int64)
                if taken.sum() <= most:
                    continue
                columns = np.array([self.column[item][memory] for item in numbers], np.int64)
                sizes = np.unique(taken)
                divisors = np.unique(np.concatenate([*(sizes // parts for parts in PARTS), [sizes[-1] + 1]]))
                self.rows.append(Row(memory, moment, numbers, columns, taken, divisors[divisors > 1, None]))
                self._memory_rows.append((len(self.program.rows.lower), memory, moment))
                terms = [(int(c), int(t)) for n, c, t in zip(numbers, columns, taken, strict=True) if n not in always]
                self.program.add_row([*terms, (load, 1)], upper=most)
        self._cuts: list[tuple[int, float, Proof]] = []
        """For each cut: its row in HiGHS, the number that divides its coefficients there, and its entry in the proof."""
        self.groups: dict[tuple[int, int, int], list[tuple[int, int]]] = {}
        """Decisions (item, memory), by (memory, size of the item there, whether the item is live at all moments)."""
        for item, thing in enumerate(items):
            for memory, size in thing.taken.items():
                self.groups.setdefault((memory, size, item in always), []).append((item, memory))

    @cached_property
    def _joined(self) -> tuple[Any, Any, Any, Any]:
        """``columns`` and ``taken`` of all rows one after another, the position at which each row begins, and the number of
        bytes in use from which on each row counts as full."""
        starts = np.cumsum([0, *(len(row.columns) for row in self.rows)])[:-1]
        full = FULL * np.array([self.room[row.memory] for row in self.rows])
        columns = np.concatenate([row.columns for row in self.rows])
        return columns, np.concatenate([row.taken for row in self.rows]), starts, full

    def start(self) -> None:
        """Passes the program to HiGHS. Afterwards only cuts and splits are added to it."""
        scale = np.exp2(np.rint(np.log2(np.maximum(1.0, np.array(self.program.upper, float)))))
        unit = max(1.0, float((np.array(self.program.cost, float) * scale).max(initial=0)))
        matrix, self._scale = self.program.scaled("prices", scale, unit)
        highs = one_thread(0)
        for name in ("primal_feasibility_tolerance", "dual_feasibility_tolerance"):
            highs.setOptionValue(name, TIGHT)
        pass_model(highs, matrix.relaxed())
        super().__init__(highs, unit, 1 + len(self.items), lambda decision: [self.column[decision[0]][decision[1]]])

    def duals(self) -> FloatArray:
        """[rows of the program] the change of the cost if the lower limit of a row increases by one."""
        return np.array(self._highs.getSolution().row_dual[: len(self._scale)]) * self._scale * self._unit

    def proof(self, sides: tuple[Side, ...] = ()) -> Proof:
        """The proof by the duals of the last solution: the prices of the rows of memory, of the cuts, and of ``sides``, the
        branches on the path from the root of the tree to the leaf."""
        paid = -np.array(self._highs.getSolution().row_dual) * self._unit
        memory = [priced(memory, moment, _whole(paid[row] * self._scale[row])) for row, memory, moment in self._memory_rows]
        memory += [cut | {"price": _whole(paid[row] / scale)} for row, scale, cut in self._cuts]
        splits = [_whole(paid[self._sides[side]]) for side in sides]
        proof = {"form": "prices", "denominator": DENOMINATOR, "memory": [row for row in memory if row["price"]]}
        return proof | ({"splits": splits} if sides else {})

    def remove_useless_cuts(self) -> None:
        """Removes the cuts whose dual is 0; must be called before the first split."""
        duals = self._highs.getSolution().row_dual
        useless = [number for number, *_ in self._cuts if not duals[number]]
        self._highs.deleteRows(len(useless), np.array(useless, np.int32))
        useful = [cut for cut in self._cuts if duals[cut[0]]]
        self._cuts = [(len(self._scale) + at, scale, cut) for at, (_, scale, cut) in enumerate(useful)]
        self._highs.run()

    def separate(self, most: int) -> int:
        """Adds the rounded rows that the last solution violates most, at most ``most``; returns how many were added."""
        point, broken, seen = self.point(), list[Any](), Counter[bytes]()
        for row in self._full(point):
            cut = _rounded(row, point[row.columns], self.room[row.memory], seen)
            if cut is not None:
                broken.append(cut)
        broken.sort(key=lambda cut: -cut[0])
        for _, row, turned, divisor, coefficients, side in broken[:most]:
            scale = float(np.abs(coefficients).max())
            nonzero = np.flatnonzero(coefficients)
            number = self.add(row.columns[nonzero], coefficients[nonzero] / scale, side / scale)
            rounds = [{"divisor": divisor, "turned": row.items[turned].tolist()}]
            self._cuts.append((number, scale, {"memory": row.memory, "moment": row.moment, "rounds": rounds}))
        return min(most, len(broken))

    def _full(self, point: FloatArray) -> list[Row]:
        """Rows that are nearly full in the last solution and have items whose column is fractional."""
        if not self.rows:
            return []
        columns, taken, starts, full = self._joined
        values = point[columns]
        load = np.add.reduceat(taken * values, starts)
        parts = np.add.reduceat((values > FRACTION) & (values < 1 - FRACTION), starts, dtype=np.int64)
        return [self.rows[at] for at in np.flatnonzero((parts > 0) & (load >= full))]

    def splits(self) -> list[Split]:
        """Returns splits whose sum of decisions is fractional in the last solution. The sum is either the number of items of
        one size that are in a memory, or the decision about a single item. On the first side of a split ``(decisions, most)``,
        the sum is at most ``most``. On the other side, it is larger.

        Splits on several items come before splits on one item. In each of these two groups, splits are sorted by the size of an
        item times the distance of the sum from the nearest whole number, the largest product first.
        """
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
        return [(decisions, most) for _, decisions, most in (several[: MAX_TRIED_SPLITS - 2] + single)[:MAX_TRIED_SPLITS]]


def priced(memory: int, moment: int, price: int) -> Proof:
    """The entry of a proof that gives a byte of a memory a price at a moment."""
    return {"memory": memory, "moment": moment, "price": price}


def _whole(price: float) -> int:
    """The numerator of a price over DENOMINATOR; 0 for a negative or infinite one."""
    return max(0, round(float(price) * DENOMINATOR)) if math.isfinite(price) else 0


def _rounded(row: Row, point: FloatArray, room: int, seen: Counter[bytes]) -> Any:
    """Rounds one row in several ways and returns the rounded row that the solution violates most; None if it violates none of
    them by more than MIN_VIOLATION.

    Before a row is rounded, x is replaced by 1 - x for some items (``turned``). The result is (violation as a distance, row,
    turned, divisor, coefficients of the row's columns, upper limit).

    At most MAX_SIMILAR similar rows are rounded; for further ones, the result is None. ``seen`` counts similar rows. Rows are
    similar if they are of the same memory, their columns of the same items are fractional, and the items whose column is 1 take
    equally many bytes.

    Parameters
    ----------
    point
        Values of the row's columns in the solution.
    room
        Capacity of the memory in bytes.
    """
    is_part = (point > FRACTION) & (point < 1 - FRACTION)
    key = row.items[is_part].tobytes() + bytes(str((row.memory, row.taken[point >= 1 - FRACTION].sum())), "ascii")
    seen[key] += 1
    if seen[key] > MAX_SIMILAR:
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
        if rest[at, 0] and broken[at] > MIN_VIOLATION and (best is None or broken[at] > best[0]):
            side = int(sides[at]) - int(rounded[at][turned].sum())
            best = float(broken[at]), row, turned, int(divisors[at, 0]), np.where(turned, -rounded[at], rounded[at]), side
    return best


#: If the tensors of a layer may be in at most this many combinations of tiers, each combination gets a column of its own.
MAX_CHOICES = 100


def banks(wish: Wish) -> Iterator[Proof]:
    """Yields proofs for banked packing, the simplest first.

    The first proof puts each buffer into its cheapest bank; the others have prices of the banks' bytes. If the claim is that no
    plan exists, the denominator of all proofs is 0, with which the checker ignores costs. The first proof then says that some
    buffer fits into no bank. Each other proof is about a moment and some banks: the buffers that are limited to these banks
    need more bytes at the moment than the banks have.

    Parameters
    ----------
    wish
        The problem, and the claim to prove.
    """
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
    """Yields proofs for bank mapping, the simplest first. If the claim is that no plan exists, it yields nothing.

    The first proof puts each tensor into the memory where it costs least; the others have prices of the bytes on chip.
    """
    yield from () if wish.infeasible else _priced(wish, *placement.chip(wish.rules, {"denominator": 1})[:2])


def _live(placed: list[Item]) -> list[tuple[int, list[int]]]:
    """The largest sets of items that are live at the same time, each with a moment."""
    sets = live_sets((number, item.start, item.end) for number, item in enumerate(placed) if item.start < item.end)
    return [(max(placed[number].start for number in live), sorted(live)) for live in sets]


def _priced(wish: Wish, room: list[int], placed: list[Item]) -> Iterator[Proof]:
    """Yields the proof that puts each item into the memory where it costs least, then proofs by prices of the relaxation."""
    yield {"form": "prices", "denominator": 1}
    if placed and all(item.taken for item in placed):
        relaxation = Relaxation(placed, room, _live(placed))
        relaxation.start()
        yield from Tree(relaxation, wish, Relaxation.proof).proofs(0)


def tiers(wish: Wish) -> Iterator[Proof]:
    """Yields proofs for tier placement, the simplest first.

    The first proof puts every tensor into its fastest tier. The others have prices of two sorts: of a byte of a tier at a step,
    and of a use of a tensor by a layer (``access`` in the certificate). The price of a use depends on the tier of the tensor.
    It is subtracted from the cost of the tensor and added to the time of the layer.

    If the claim is that no plan exists, the denominator of all proofs is 0, with which the checker ignores costs. The first
    proof then says that some tensor fits into no tier. Each other proof is about one step: the tensors that are live at it do
    not fit into all tiers together.
    """
    structure = Structure(wish.problem)
    layers, memories = wish.problem.layers, wish.problem.tiers
    if wish.infeasible:
        yield {"form": "prices", "denominator": 0}
        steps = [max([0, *(structure.tensors[tensor].first for tensor in live)]) for live in structure.moments]
        for step in steps:
            yield {"form": "prices", "denominator": 0, "memory": [priced(tier, step, 1) for tier in range(len(memories))]}
        return
    yield {"form": "prices", "denominator": 1}
    if not layers:
        return
    # Items are numbered as in the checker: the weights, then the output of each layer.
    number = [2 * tensor.layer + tensor.is_output for tensor in structure.tensors]
    items = [Item(0, len(layers), {0: 0}, {0: 0}) for _ in range(2 * len(layers))]
    for at, placed in zip(number, structure.tensors, strict=True):
        sizes, costs = dict.fromkeys(placed.tiers, placed.size), dict.fromkeys(placed.tiers, 0)
        items[at] = Item(placed.first, placed.last + 1, sizes, costs)
    if not all(item.taken for item in items):
        return
    weights = [2 * layer for layer, tensor in enumerate(structure.weights) if tensor is not None]
    live = [
        (max(structure.tensors[output].first for output in outputs), [*weights, *(number[output] for output in outputs)])
        for outputs in structure.moments
    ]
    relaxation = Relaxation(items, [memory.capacity for memory in memories], live)
    use_rows: list[tuple[int, int, int, int, int]] = []
    """(row, layer, item, tier, factor): the dual of the row, times the factor, is one part of the price of the layer's use of
    the item in the tier. This price is the sum over all entries with the same layer, item and tier."""
    # The time of a layer is the sum of its overhead, its *floor* and its *excess*. The floor is the longer of the times of its
    # computation and of its memory traffic if each tensor is in the fastest tier that it fits into. No plan changes overhead
    # and floor. The excess is at least 0 and depends on the tiers, so the linear program has only the excess.
    for excess in structure.excesses:
        fits = [structure.tensors[tensor].tiers for tensor, _ in excess.uses]
        if math.prod(map(len, fits)) <= MAX_CHOICES:
            # Together with cuts of memory, one column for each combination of tiers gives a tighter bound than rows that define
            # the layer's time.
            choices = list(product(*fits))
            moved = [[moves[tier] for (_, moves), tier in zip(excess.uses, choice, strict=True)] for choice in choices]
            columns = [relaxation.program.column(cost=max(0, excess.fixed_ps + sum(times))) for times in moved]
            for at, (tensor, _) in enumerate(excess.uses):
                for tier in fits[at]:
                    use_rows.append((len(relaxation.program.rows.lower), excess.layer, number[tensor], tier, -1))
                    terms = [(column, 1) for column, choice in zip(columns, choices, strict=True) if choice[at] == tier]
                    relaxation.program.add_row([*terms, (relaxation.column[number[tensor]][tier], -1)], 0, 0)
            continue
        time_of = relaxation.program.column(excess.most, cost=1)
        for row in structure.rows(excess):
            first_row = len(relaxation.program.rows.lower)
            use_rows += [(first_row, excess.layer, number[tensor], tier, saving) for tensor, tier, saving in row.savings]
            terms = [(relaxation.column[number[tensor]][tier], saving) for tensor, tier, saving in row.savings]
            relaxation.program.add_row([(time_of, 1), *terms], row.least)
    relaxation.start()

    def make_proof(solved: Relaxation, sides: tuple[Side, ...]) -> Proof:
        """The proof by the duals of the last solution, with the price of each use of an item in each tier."""
        duals = solved.duals()
        prices = defaultdict[tuple[int, ...], float](float)
        for row, *use, factor in use_rows:
            prices[*use] += float(duals[row]) * factor
        return solved.proof(sides) | {"access": [[*key, round(value * DENOMINATOR)] for key, value in prices.items() if value]}

    yield from Tree(relaxation, wish, make_proof).proofs(structure.base_ps)
