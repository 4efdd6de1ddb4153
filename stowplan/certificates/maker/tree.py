"""Branching for proofs: a linear program in HiGHS, split where its bound is least, and prices at every leaf."""

from __future__ import annotations

import heapq
import math
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from typing import Any, NamedTuple

import highspy
import numpy as np

from stowplan.certificates.checker.prices import MOST_NODES
from stowplan.certificates.maker import Proof, Wish
from stowplan.models.mip.matrix import FloatArray

#: Rounds of cuts at the root and at other leaves; cuts of each; rounds that bring little, this part of the gap, until they end.
ROUNDS, CUTS, PATIENCE, LITTLE = (40, 2), (80, 16), 8, 0.02

#: Splits that are tried before one is taken, those on new decisions with so many steps of the simplex method each.
TRIED, STEPS = 8, 30

#: How HiGHS chooses rows of the dual simplex method: as it likes, by steepest edges mostly, or by what is broken most.
CHOSEN, DANTZIG = -1, 0

#: Leaves times items, so that a tree is checked in about a second.
MOST = 30_000

#: A fraction is farther than this from whole numbers.
FRACTION = 1e-6

#: A decision of the checker's, and a split: (decisions, the most of their sum).
Decision = tuple[int, ...]
Split = tuple[tuple[Decision, ...], int]

#: (decisions, the most of their sum, whether it is more than that): a side of a split.
Side = tuple[tuple[Decision, ...], int, bool]


class Branched:
    """A linear program in HiGHS, to which nothing is added but cuts and sides of splits.

    Parameters
    ----------
    unit
        What 1 in its objective stands for.
    size
        What the checker has to look at for each leaf.
    columns_of
        The columns whose sum is a decision.
    """

    def __init__(self, highs: Any, unit: float, size: int, columns_of: Callable[[Decision], Sequence[int]]):
        self._highs, self._unit, self.size, self._columns_of = highs, unit, size, columns_of
        self._sides: dict[Side, int] = {}
        self._taken: tuple[Side, ...] = ()

    def solve(self, seconds: float, steps: int | None = None) -> float:
        """Its least cost so far; minus infinity where it was not solved to the end, nor as far as the steps go."""
        self._highs.setOptionValue("time_limit", self._highs.getRunTime() + max(0.02, seconds))
        self._highs.setOptionValue("simplex_iteration_limit", 1 << 30 if steps is None else steps)
        # Few steps do not pay for the weights of steepest edges.
        self._highs.setOptionValue("simplex_dual_edge_weight_strategy", CHOSEN if steps is None else DANTZIG)
        self._highs.run()
        states = highspy.HighsModelStatus
        is_done = self._highs.getModelStatus() in (states.kOptimal, states.kIterationLimit, states.kModelEmpty)
        return float(self._highs.getInfo().objective_function_value) * self._unit if is_done else -math.inf

    def point(self) -> FloatArray:
        """[columns] of the last solution."""
        return np.array(self._highs.getSolution().col_value)

    def add(self, columns: Any, values: Any, upper: float) -> int:
        """A row ``sum(values x) <= upper``; its number."""
        self._highs.addRow(-highspy.kHighsInf, upper, len(columns), np.asarray(columns, np.int32), np.asarray(values, float))
        return int(self._highs.getNumRow()) - 1

    def take(self, sides: tuple[Side, ...], penalty: float = 0.0) -> None:
        """Let these sides of splits hold, and no others; what breaks a new one costs ``penalty``, so that there are prices."""
        for side in {*self._taken, *sides}:
            decisions, most, is_more = side
            if side not in self._sides:
                columns = [column for decision in decisions for column in self._columns_of(decision)]
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

    def tidy(self) -> None:
        """Drop what is of no use, before there are sides of splits."""

    def separate(self, most: int) -> int:
        """Add so many cuts that the last solution breaks; how many were added."""
        return 0

    def splits(self) -> list[Split]:
        """Splits to try after the last solution, those that promise most first."""
        return []

    def worth(self, cost: float, proof: Proof, sides: tuple[Side, ...]) -> float:
        """What a proof shows below sides of splits, where it is known; else the least cost that it was made from."""
        return cost


class _Leaf(NamedTuple):
    bound: float
    number: int
    sides: tuple[Side, ...]
    proof: Proof
    splits: list[Split]
    place: Any


class Tree:
    """Branch and bound over a relaxation: at every leaf its prices."""

    def __init__(self, relaxation: Branched, wish: Wish, earned: Callable[[Any, tuple[Side, ...]], Proof]):
        self._relaxation, self._wish, self._earned = relaxation, wish, earned
        self._goal, self._penalty = math.inf, 0.0
        self._numbers = count()
        self._gains: dict[tuple[Decision, ...], float] = {}
        """Of decisions that were tried what both sides gained, or what they did where last they were taken, cuts and all."""
        self._children: dict[int, tuple[Split, int, int]] = {}

    def proofs(self, base: int) -> Iterator[Proof]:
        """Of a tree where there is time, then of its root. ``base`` is what costs have beside the program's."""
        self._goal = math.inf if self._wish.bound is None else self._wish.bound - base - 0.5
        self._penalty = 10 * abs(self._relaxation.solve(self._left()) or base)
        if not math.isfinite(self._penalty):
            return
        root = self._leaf(())
        self._relaxation.tidy()
        root = root._replace(place=self._relaxation.place())
        leaves, closed = [root], dict[int, _Leaf]()
        most = min(MOST // self._relaxation.size, MOST_NODES // 2)
        while leaves and len(leaves) + len(closed) < most and not self._wish.is_over():
            if leaves[0].bound >= self._goal or not leaves[0].splits:
                break
            leaf = heapq.heappop(leaves)
            split, place = self._best(leaf)
            made = [self._leaf((*leaf.sides, (*split, is_more)), place) for is_more in (False, True)]
            if not all(math.isfinite(child.bound) for child in made):
                leaves.append(leaf)
                break
            self._children[leaf.number] = (split, made[0].number, made[1].number)
            self._gains[split[0]] = self._gain(leaf, [child.bound for child in made])
            for child in made:
                if child.bound >= self._goal:
                    closed[child.number] = child
                else:
                    heapq.heappush(leaves, child)
        if self._children:
            yield {"form": "tree", "nodes": self._nodes(closed | {leaf.number: leaf for leaf in leaves}, root.number)}
        yield root.proof

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
        proof = self._earned(relaxation, sides)
        bound = relaxation.worth(bound, proof, sides) if math.isfinite(bound) else bound
        return _Leaf(bound, next(self._numbers), sides, proof, splits, relaxation.place())

    def _best(self, leaf: _Leaf) -> tuple[Split, Any]:
        """The split of which both sides gain most, in a few steps each; and where the leaf's solution is."""
        relaxation, best, most = self._relaxation, leaf.splits[0], -1.0
        for split in leaf.splits:
            relaxation.take((*leaf.sides, (*split, False), (*split, True)), self._penalty)
        place = relaxation.go(leaf.place)
        for split in leaf.splits if len(leaf.splits) > 1 else []:
            if self._wish.is_over():
                break
            if split[0] not in self._gains:
                gains = list[float]()
                for is_more in (False, True):
                    relaxation.take((*leaf.sides, (*split, is_more)), self._penalty)
                    relaxation.go(place)
                    gains.append(relaxation.solve(self._left(), STEPS))
                self._gains[split[0]] = self._gain(leaf, gains)
            if self._gains[split[0]] > most:
                best, most = split, self._gains[split[0]]
        return best, place

    def _gain(self, leaf: _Leaf, bounds: list[float]) -> float:
        """Product of what the sides of a split gain, as far as that is needed."""
        return math.prod(max(1.0, min(bound, self._goal) - leaf.bound) for bound in bounds)

    def _nodes(self, leaves: dict[int, _Leaf], root: int) -> list[Proof]:
        nodes, waiting = list[Proof](), [root]
        while waiting:
            number = waiting.pop()
            if number in leaves:
                nodes.append(leaves[number].proof)
                continue
            (decisions, most), first, second = self._children[number]
            nodes.append({"split": [[*decision] for decision in decisions], "most": most})
            waiting += [second, first]
        return nodes
