"""Prices where everything stands in one memory for life: a linear program with cuts, and a tree where these leave a gap.

Rows of memory are rounded (mixed-integer rounding, Marchand and Wolsey 2001) where a fractional point breaks what comes of it.
Then the leaf with the least bound is split, on the sum of things of one size in a memory, or on one thing: many alike take part
in one row, of which the sum tells more than each of them (general disjunctions, Karamanov and Cornuéjols 2011).
"""

from __future__ import annotations

import heapq
import math
import time
from collections import Counter
from collections.abc import Iterator
from itertools import count
from typing import Any, NamedTuple

import highspy
import numpy as np

from stowplan.certificates.checker.places import Item
from stowplan.certificates.checker.prices import MOST_NODES
from stowplan.certificates.maker import Proof, Wish
from stowplan.models.mip.matrix import FloatArray, Program
from stowplan.models.mip.with_highs import TIGHT, one_thread, pass_model

#: Prices are whole multiples of one over this.
DENOMINATOR = 1 << 60

#: Rounds of cuts at the root and at other leaves; cuts of each; rounds that bring little, this part of the gap, until they end.
ROUNDS, CUTS, PATIENCE, LITTLE = (40, 2), (40, 8), 8, 0.02

#: Splits that are tried before one is taken, with so many steps of the simplex method each.
TRIED, STEPS = 8, 15

#: Divisors of cuts are sizes over these; cuts of rows alike; how far a point must be beyond a cut, of its length.
PARTS, ALIKE, LEAST_BROKEN = (1, 2), 3, 1e-4

#: Leaves times items, so that a tree is checked in about a second.
MOST = 30_000

#: A fraction is farther than this from whole numbers.
FRACTION = 1e-6


class Row(NamedTuple):
    """Memory at a moment, where not everything fits."""

    memory: int
    moment: int
    items: Any
    """[items] numbers; below their columns, and what they take."""
    columns: Any
    taken: Any


#: (decisions, the most of their sum, whether it is more than that): a side of a split.
Side = tuple[tuple[tuple[int, int], ...], int, bool]


class Relaxation:
    """The linear program, with the meaning of its rows.

    Parameters
    ----------
    moments
        Of each moment that matters what lives then.
    """

    def __init__(self, items: list[Item], room: list[int], moments: list[tuple[int, list[int]]]):
        self.items, self.room, self.program = items, room, Program()
        self.column = [{memory: self.program.column(cost=cost) for memory, cost in each.costs.items()} for each in items]
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
                numbers = np.array([each for each in live if items[each].taken.get(memory, 0) > 0], np.int64)
                taken = np.array([items[each].taken[memory] for each in numbers], np.int64)
                if taken.sum() <= most:
                    continue
                columns = np.array([self.column[each][memory] for each in numbers], np.int64)
                self.rows.append(Row(memory, moment, numbers, columns, taken))
                self._priced.append((len(self.program.rows.lower), memory, moment))
                terms = [(int(c), int(t)) for n, c, t in zip(numbers, columns, taken, strict=True) if n not in always]
                self.program.add_row([*terms, (load, 1)], upper=most)
        self._cuts: list[tuple[int, float, Proof]] = []
        self._sides: dict[Side, int] = {}
        self._taken: tuple[Side, ...] = ()
        self.groups: dict[tuple[int, int, int], list[tuple[int, int]]] = {}
        """Decisions on items that take as much in a memory, and live as short or always."""
        for item, thing in enumerate(items):
            for memory, size in thing.taken.items():
                self.groups.setdefault((memory, size, item in always), []).append((item, memory))

    def start(self) -> None:
        """Hand the program to HiGHS; nothing is added to it later but cuts and splits."""
        scale = np.exp2(np.rint(np.log2(np.maximum(1.0, np.array(self.program.upper, float)))))
        self._unit = max(1.0, float((np.array(self.program.cost, float) * scale).max(initial=0)))
        matrix, self._scale = self.program.scaled("prices", scale, self._unit)
        self._highs = one_thread(0)
        for name in ("primal_feasibility_tolerance", "dual_feasibility_tolerance"):
            self._highs.setOptionValue(name, TIGHT)
        pass_model(self._highs, matrix.relaxed())

    def solve(self, seconds: float, steps: int = 1 << 30) -> float:
        """Its least cost so far; minus infinity where it was not solved to the end, nor as far as the steps go."""
        self._highs.setOptionValue("time_limit", self._highs.getRunTime() + max(0.02, seconds))
        self._highs.setOptionValue("simplex_iteration_limit", steps)
        self._highs.run()
        is_done = self._highs.getModelStatus() in (highspy.HighsModelStatus.kOptimal, highspy.HighsModelStatus.kIterationLimit)
        return float(self._highs.getInfo().objective_function_value) * self._unit if is_done else -math.inf

    def point(self) -> FloatArray:
        """[columns] of the last solution."""
        return np.array(self._highs.getSolution().col_value)

    def duals(self) -> FloatArray:
        """[rows of the program] what one more of each lower side costs."""
        return np.array(self._highs.getSolution().row_dual[: len(self._scale)]) * self._scale * self._unit

    def add(self, columns: Any, values: Any, upper: float) -> int:
        """A row ``sum(values x) <= upper``; its number."""
        self._highs.addRow(-highspy.kHighsInf, upper, len(columns), np.asarray(columns, np.int32), np.asarray(values, float))
        return int(self._highs.getNumRow()) - 1

    def take(self, sides: tuple[Side, ...], penalty: float = 0.0) -> None:
        """Let these sides of splits hold, and no others; what breaks a new one costs ``penalty``, so that there are prices."""
        for side in {*self._taken, *sides}:
            decisions, most, is_more = side
            if side not in self._sides:
                columns = [self.column[item][memory] for item, memory in decisions]
                self._sides[side] = self.add(columns, [-1.0 if is_more else 1.0] * len(columns), highspy.kHighsInf)
                self._highs.addCol(penalty / self._unit, 0.0, highspy.kHighsInf, 1, [self._sides[side]], [-1.0])
            if (side in sides) != (side in self._taken):
                upper = highspy.kHighsInf if side not in sides else float(-most - 1 if is_more else most)
                self._highs.changeRowBounds(self._sides[side], -highspy.kHighsInf, upper)
        self._taken = sides

    def place(self) -> Any:
        """Basis of the last solution, with its numbers of rows and columns."""
        return self._highs.getBasis(), self._highs.getNumRow(), self._highs.getNumCol()

    def go(self, place: Any) -> Any:
        """Go on from a solution; rows and columns that came after it are not part of its basis. The place with these."""
        basis, rows, columns = place
        if (rows, columns) != (self._highs.getNumRow(), self._highs.getNumCol()):
            basis.row_status = [*basis.row_status, *[highspy.HighsBasisStatus.kBasic] * (self._highs.getNumRow() - rows)]
            basis.col_status = [*basis.col_status, *[highspy.HighsBasisStatus.kLower] * (self._highs.getNumCol() - columns)]
        self._highs.setBasis(basis)
        return basis, self._highs.getNumRow(), self._highs.getNumCol()

    def proof(self, sides: tuple[Side, ...] = ()) -> Proof:
        """Prices of the last solution."""
        paid = -np.array(self._highs.getSolution().row_dual) * self._unit
        memory = [priced(memory, moment, _whole(paid[row] * self._scale[row])) for row, memory, moment in self._priced]
        memory += [cut | {"price": _whole(paid[row] / scale)} for row, scale, cut in self._cuts]
        splits = [_whole(paid[self._sides[side]]) for side in sides]
        found = {"form": "prices", "denominator": DENOMINATOR, "memory": [each for each in memory if each["price"]]}
        return found | ({"splits": splits} if sides else {})

    def tidy(self) -> None:
        """Drop the cuts that have no price, before there are sides of splits."""
        paid = self._highs.getSolution().row_dual
        useless = [number for number, *_ in self._cuts if not paid[number]]
        self._highs.deleteRows(len(useless), np.array(useless, np.int32))
        kept = [each for each in self._cuts if paid[each[0]]]
        self._cuts = [(len(self._scale) + at, scale, cut) for at, (_, scale, cut) in enumerate(kept)]
        self._highs.run()

    def separate(self, most: int) -> int:
        """Add so many rounded rows of memory that the point breaks most; how many were added."""
        point, found, seen = self.point(), list[Any](), Counter[bytes]()
        for row in self.rows:
            cut = _rounded(row, point[row.columns], self.room[row.memory], seen)
            if cut is not None:
                found.append(cut)
        found.sort(key=lambda cut: -cut[0])
        for _, row, turned, divisor, coefficients, side in found[:most]:
            scale = float(np.abs(coefficients).max())
            some = np.flatnonzero(coefficients)
            number = self.add(row.columns[some], coefficients[some] / scale, side / scale)
            rounds = [{"divisor": divisor, "turned": row.items[turned].tolist()}]
            self._cuts.append((number, scale, {"memory": row.memory, "moment": row.moment, "rounds": rounds}))
        return min(most, len(found))

    def splits(self) -> list[tuple[tuple[tuple[int, int], ...], int]]:
        """(decisions, most) of sums that are fractional, first of several; the most bytes from whole numbers first."""
        point = self.point()
        found: list[list[tuple[float, tuple[tuple[int, int], ...], int]]] = [[], []]
        for (_, size, _), group in self.groups.items():
            values = [float(point[self.column[item][memory]]) for item, memory in group]
            sums = [*(((each,), value) for each, value in zip(group, values, strict=True)), (tuple(group), sum(values))]
            for decisions, value in sums if len(group) > 1 else sums[:1]:
                rest = value - math.floor(value)
                if FRACTION < rest < 1 - FRACTION:
                    found[len(decisions) == 1].append((-size * min(rest, 1 - rest), decisions, math.floor(value)))
        several, single = (sorted(each, key=lambda split: split[0]) for each in found)
        return [(decisions, most) for _, decisions, most in (several[: TRIED - 2] + single)[:TRIED]]


def priced(memory: int, moment: int, price: int) -> Proof:
    """A price of a byte of a memory at a moment."""
    return {"memory": memory, "moment": moment, "price": price}


def _whole(price: float) -> int:
    return max(0, round(float(price) * DENOMINATOR)) if math.isfinite(price) else 0


def _rounded(row: Row, point: FloatArray, room: int, seen: Counter[bytes]) -> Any:
    """The rounding of a row that the point breaks most; None where it breaks none, or there are some of rows like it."""
    is_part = (point > FRACTION) & (point < 1 - FRACTION)
    if not is_part.any() or row.taken @ point < 0.99 * room:
        return None
    key = row.items[is_part].tobytes() + bytes(str((row.memory, row.taken[point >= 1 - FRACTION].sum())), "ascii")
    seen[key] += 1
    if seen[key] > ALIKE:
        return None
    sizes = np.unique(row.taken)
    divisors = np.unique(np.concatenate([*(sizes // parts for parts in PARTS), [sizes[-1] + 1]]))
    divisors = divisors[divisors > 1, None]
    best: Any = None
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


class _Leaf(NamedTuple):
    bound: float
    number: int
    sides: tuple[Side, ...]
    proof: Proof
    splits: list[tuple[tuple[tuple[int, int], ...], int]]
    place: Any


class Tree:
    """Branch and bound over a relaxation: at every leaf its prices."""

    def __init__(self, relaxation: Relaxation, wish: Wish, earned: Any):
        self._relaxation, self._wish, self._earned = relaxation, wish, earned
        self._goal, self._penalty = math.inf, 0.0
        self._numbers = count()
        self._children: dict[int, tuple[tuple[tuple[tuple[int, int], ...], int], int, int]] = {}

    def proofs(self, base: int) -> Iterator[Proof]:
        """Of the linear program, with cuts, then of a tree. ``base`` is what costs have beside the program's."""
        self._goal = math.inf if self._wish.bound is None else self._wish.bound - base - 0.5
        self._penalty = 10 * abs(self._relaxation.solve(self._left()))
        if not math.isfinite(self._penalty):
            return
        yield self._earned(self._relaxation, ())
        root = self._leaf(())
        yield root.proof
        self._relaxation.tidy()
        root = root._replace(place=self._relaxation.place())
        leaves, closed = [root], dict[int, _Leaf]()
        # Each leaf is checked by itself.
        size = 1 + len(self._relaxation.items)
        while leaves and len(leaves) + len(closed) < min(MOST // size, MOST_NODES // 2) and not self._wish.is_over():
            if leaves[0].bound >= self._goal or not leaves[0].splits:
                break
            leaf = heapq.heappop(leaves)
            split, place = self._best(leaf)
            made = [self._leaf((*leaf.sides, (*split, is_more)), place) for is_more in (False, True)]
            if not all(math.isfinite(each.bound) for each in made):
                leaves.append(leaf)
                break
            self._children[leaf.number] = (split, made[0].number, made[1].number)
            for each in made:
                if each.bound >= self._goal:
                    closed[each.number] = each
                else:
                    heapq.heappush(leaves, each)
        if self._children:
            yield {"form": "tree", "nodes": self._nodes(closed | {each.number: each for each in leaves}, root.number)}

    def _left(self) -> float:
        return min(1e6, self._wish.end - time.monotonic())

    def _leaf(self, sides: tuple[Side, ...], place: Any = None) -> _Leaf:
        relaxation = self._relaxation
        relaxation.take(sides, self._penalty)
        if place is not None:
            relaxation.go(place)
        bound, stale = relaxation.solve(self._left()), 0
        for _ in range(ROUNDS[bool(sides)]):
            if not bound < self._goal or stale > PATIENCE or self._wish.is_over() or not relaxation.separate(CUTS[bool(sides)]):
                break
            now = relaxation.solve(self._left())
            gap = self._goal - now if math.isfinite(self._goal) else 0.01 * abs(now)
            stale = stale + 1 if now < bound + LITTLE * gap else 0
            bound = now if math.isfinite(now) else bound
        splits = relaxation.splits() if math.isfinite(bound) else []
        return _Leaf(bound, next(self._numbers), sides, self._earned(relaxation, sides), splits, relaxation.place())

    def _best(self, leaf: _Leaf) -> tuple[tuple[tuple[tuple[int, int], ...], int], Any]:
        """The split of which both sides gain most, in a few steps each; and where the leaf's solution is."""
        relaxation, best, most = self._relaxation, leaf.splits[0], -1.0
        for split in leaf.splits:
            relaxation.take((*leaf.sides, (*split, False), (*split, True)), self._penalty)
        place = relaxation.go(leaf.place)
        for split in leaf.splits if len(leaf.splits) > 1 else []:
            if self._wish.is_over():
                break
            gains = []
            for is_more in (False, True):
                relaxation.take((*leaf.sides, (*split, is_more)), self._penalty)
                relaxation.go(place)
                gains.append(max(1.0, min(relaxation.solve(self._left(), STEPS), self._goal) - leaf.bound))
            if gains[0] * gains[1] > most:
                best, most = split, gains[0] * gains[1]
        return best, place

    def _nodes(self, leaves: dict[int, _Leaf], root: int) -> list[Proof]:
        found, waiting = list[Proof](), [root]
        while waiting:
            number = waiting.pop()
            if number in leaves:
                found.append(leaves[number].proof)
                continue
            (decisions, most), first, second = self._children[number]
            found.append({"split": [[*each] for each in decisions], "most": most})
            waiting += [second, first]
        return found
