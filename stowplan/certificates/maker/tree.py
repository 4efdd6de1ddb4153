"""Branch and bound for proofs: a linear program in HiGHS is split at the leaf with the smallest bound, and each leaf gets a
proof by prices.

The *prices* of a proof are the duals of the program's rows. A *decision* is 1 or 0 in every plan, for example whether an item
is in a memory. A *split* divides the plans by a sum of decisions, and its two *sides* are the inequalities ``sum <= most`` and
``sum >= most + 1``.
"""

from __future__ import annotations

import heapq
import math
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from typing import Any, NamedTuple

import highspy
import numpy as np

from stowplan.certificates.checker.prices import MAX_NODES
from stowplan.certificates.maker import Proof, Wish
from stowplan.models.mip.matrix import FloatArray

#: Limits of the rounds in which cuts are added. ROUNDS: rounds at the root and at other leaves. CUTS: cuts of each round, at
#: the root and at other leaves. PATIENCE: number of consecutive rounds with little progress after which no more cuts are added.
#: SMALL_PROGRESS: progress is little if it closes less than this part of the gap to the goal.
ROUNDS, CUTS, PATIENCE, SMALL_PROGRESS = (40, 2), (80, 16), 8, 0.02

#: Splits that are tried before one is chosen, and steps of the simplex method for each side of a split on decisions that have
#: not been tried before.
MAX_TRIED_SPLITS, TRIAL_STEPS = 8, 30

#: Rules by which HiGHS chooses rows in the dual simplex method: its default, which is usually steepest edges, and the largest
#: violation (Dantzig's rule).
DEFAULT_STRATEGY, DANTZIG = -1, 0

#: Maximum of the number of leaves times :attr:`Branched.size`, so that a tree can be checked in about a second.
MAX_LEAF_WORK = 30_000

#: A value is fractional if it is farther than this from all whole numbers.
FRACTION = 1e-6

#: A decision as the checker defines it, and a split: (decisions, the largest sum on its first side).
Decision = tuple[int, ...]
Split = tuple[tuple[Decision, ...], int]

#: A side of a split: (decisions, the largest sum on the first side, whether this side is the second one).
Side = tuple[tuple[Decision, ...], int, bool]


class Branched:
    """A linear program in HiGHS, to which cuts and sides of splits can be added.

    Parameters
    ----------
    highs
        The HiGHS object.
    unit
        Value of 1 in its objective, in the unit of the kind.
    size
        Work of the checker for each leaf, about the number of items, steps or tensors of the problem.
    columns_of
        A function that returns the columns whose sum is the value of a decision.
    """

    def __init__(self, highs: Any, unit: float, size: int, columns_of: Callable[[Decision], Sequence[int]]):
        self._highs, self._unit, self.size, self._columns_of = highs, unit, size, columns_of
        self._sides: dict[Side, int] = {}
        self._sides_in_force: tuple[Side, ...] = ()

    def solve(self, seconds: float, steps: int | None = None) -> float:
        """Solves the program within a time limit and, if ``steps`` is not None, within this number of steps of the simplex
        method. Returns its minimum, or the value reached after ``steps``; minus infinity if the time was over first."""
        self._highs.setOptionValue("time_limit", self._highs.getRunTime() + max(0.02, seconds))
        self._highs.setOptionValue("simplex_iteration_limit", 1 << 30 if steps is None else steps)
        # For few steps, computing the weights of steepest edges does not pay.
        self._highs.setOptionValue("simplex_dual_edge_weight_strategy", DEFAULT_STRATEGY if steps is None else DANTZIG)
        self._highs.run()
        states = highspy.HighsModelStatus
        is_done = self._highs.getModelStatus() in (states.kOptimal, states.kIterationLimit, states.kModelEmpty)
        return float(self._highs.getInfo().objective_function_value) * self._unit if is_done else -math.inf

    def point(self) -> FloatArray:
        """[columns] values of the last solution."""
        return np.array(self._highs.getSolution().col_value)

    def add(self, columns: Any, values: Any, upper: float) -> int:
        """Adds a row ``sum(values x) <= upper`` and returns its number."""
        self._highs.addRow(-highspy.kHighsInf, upper, len(columns), np.asarray(columns, np.int32), np.asarray(values, float))
        return int(self._highs.getNumRow()) - 1

    def set_sides(self, sides: tuple[Side, ...], penalty: float = 0.0) -> None:
        """Enforces these sides of splits and no others. A solution may violate a new side at the cost of ``penalty``, so that
        prices always exist."""
        for side in {*self._sides_in_force, *sides}:
            decisions, most, is_more = side
            if side not in self._sides:
                columns = [column for decision in decisions for column in self._columns_of(decision)]
                self._sides[side] = self.add(columns, [-1.0 if is_more else 1.0] * len(columns), highspy.kHighsInf)
                self._highs.addCol(penalty / self._unit, 0.0, highspy.kHighsInf, 1, [self._sides[side]], [-1.0])
            if (side in sides) != (side in self._sides_in_force):
                upper = highspy.kHighsInf if side not in sides else float(-most - 1 if is_more else most)
                self._highs.changeRowBounds(self._sides[side], -highspy.kHighsInf, upper)
        self._sides_in_force = sides

    def place(self) -> Any:
        """The basis of the last solution, with its numbers of rows and columns."""
        return self._highs.getBasis(), self._highs.getNumRow(), self._highs.getNumCol()

    def restore_basis(self, place: Any) -> Any:
        """Continues from a basis that :meth:`place` returned. The basis is extended by the rows and columns that were added
        later, and is returned in this form."""
        basis, rows, columns = place
        if (rows, columns) != (self._highs.getNumRow(), self._highs.getNumCol()):
            basis.row_status = [*basis.row_status, *[highspy.HighsBasisStatus.kBasic] * (self._highs.getNumRow() - rows)]
            basis.col_status = [*basis.col_status, *[highspy.HighsBasisStatus.kLower] * (self._highs.getNumCol() - columns)]
        self._highs.setBasis(basis)
        return basis, self._highs.getNumRow(), self._highs.getNumCol()

    def remove_useless_cuts(self) -> None:
        """Removes cuts without a price; called before there are sides of splits."""

    def separate(self, most: int) -> int:
        """Adds up to ``most`` cuts that the last solution violates, and returns how many were added. This base class has no
        cuts."""
        return 0

    def splits(self) -> list[Split]:
        """Splits to try after the last solution, the most promising first."""
        return []

    def checked_bound(self, cost: float, proof: Proof, sides: tuple[Side, ...]) -> float:
        """The bound that a proof shows below sides of splits, if it is known; otherwise the minimum from which the proof was
        made."""
        return cost


class _Leaf(NamedTuple):
    """A leaf of the tree, with its bound, proof and basis. Leaves are compared by their bounds, then by their numbers. A bound
    leaves out the part of the costs that is not in the program (``base`` of :meth:`Tree.proofs`)."""

    bound: float
    number: int
    sides: tuple[Side, ...]
    """The sides of the splits on the path from the root to the leaf."""
    proof: Proof
    splits: list[Split]
    """Splits to try at the leaf, the most promising first."""
    place: Any
    """The basis of its solution, as :meth:`Branched.place` returns it."""


class Tree:
    """Branch and bound over a relaxation, with prices at each leaf.

    Parameters
    ----------
    relaxation
        The relaxation of the problem.
    wish
        The request for a proof, with the bound to prove and the time to do so.
    earned
        Makes the proof of a leaf from the last solution of the relaxation and the sides of splits above the leaf.
    """

    def __init__(self, relaxation: Branched, wish: Wish, earned: Callable[[Any, tuple[Side, ...]], Proof]):
        self._relaxation, self._wish, self._make_proof = relaxation, wish, earned
        self._goal, self._penalty = math.inf, 0.0
        self._numbers = count()
        self._gains: dict[tuple[Decision, ...], float] = {}
        """For decisions that were tried, the gain of both sides: in the trial, or with all cuts when they were last chosen."""
        self._children: dict[int, tuple[Split, int, int]] = {}

    def proofs(self, base: int) -> Iterator[Proof]:
        """Yields a proof by a tree, if there is time for one, then the proof by the prices at its root. It yields nothing if
        there is no time to solve the program once. ``base`` is the part of the costs that is not in the program."""
        self._goal = math.inf if self._wish.bound is None else self._wish.bound - base - 0.5
        self._penalty = 10 * abs(self._relaxation.solve(self._seconds_left()) or base)
        if not math.isfinite(self._penalty):
            return
        root = self._leaf(())
        self._relaxation.remove_useless_cuts()
        root = root._replace(place=self._relaxation.place())
        leaves, closed = [root], dict[int, _Leaf]()
        max_leaves = min(MAX_LEAF_WORK // self._relaxation.size, MAX_NODES // 2)
        while leaves and len(leaves) + len(closed) < max_leaves and not self._wish.is_over():
            if leaves[0].bound >= self._goal or not leaves[0].splits:
                break
            leaf = heapq.heappop(leaves)
            split, place = self._best(leaf)
            children = [self._leaf((*leaf.sides, (*split, is_more)), place) for is_more in (False, True)]
            if not all(math.isfinite(child.bound) for child in children):
                leaves.append(leaf)
                break
            self._children[leaf.number] = (split, children[0].number, children[1].number)
            self._gains[split[0]] = self._gain(leaf, [child.bound for child in children])
            for child in children:
                if child.bound >= self._goal:
                    closed[child.number] = child
                else:
                    heapq.heappush(leaves, child)
        if self._children:
            yield {"form": "tree", "nodes": self._nodes(closed | {leaf.number: leaf for leaf in leaves}, root.number)}
        yield root.proof

    def _seconds_left(self) -> float:
        return min(1e6, self._wish.end - time.monotonic())

    def _leaf(self, sides: tuple[Side, ...], place: Any = None) -> _Leaf:
        """Solves a leaf with cuts, and makes its proof."""
        relaxation = self._relaxation
        relaxation.set_sides(sides, self._penalty)
        if place is not None:
            relaxation.restore_basis(place)
        bound, slow_rounds = relaxation.solve(self._seconds_left()), 0
        for _ in range(ROUNDS[bool(sides)]):
            if (
                not bound < self._goal
                or slow_rounds > PATIENCE
                or self._wish.is_over()
                or not relaxation.separate(CUTS[bool(sides)])
            ):
                break
            new_bound = relaxation.solve(self._seconds_left())
            gap = self._goal - new_bound if math.isfinite(self._goal) else 0.01 * abs(new_bound)
            slow_rounds = slow_rounds + 1 if new_bound < bound + SMALL_PROGRESS * gap else 0
            bound = new_bound if math.isfinite(new_bound) else bound
        splits = relaxation.splits() if math.isfinite(bound) else []
        proof = self._make_proof(relaxation, sides)
        bound = relaxation.checked_bound(bound, proof, sides) if math.isfinite(bound) else bound
        return _Leaf(bound, next(self._numbers), sides, proof, splits, relaxation.place())

    def _best(self, leaf: _Leaf) -> tuple[Split, Any]:
        """The split whose sides gain most in a few steps of the simplex method each, and the basis of the leaf's solution."""
        relaxation, best, most = self._relaxation, leaf.splits[0], -1.0
        for split in leaf.splits:
            relaxation.set_sides((*leaf.sides, (*split, False), (*split, True)), self._penalty)
        place = relaxation.restore_basis(leaf.place)
        for split in leaf.splits if len(leaf.splits) > 1 else []:
            if self._wish.is_over():
                break
            if split[0] not in self._gains:
                gains = list[float]()
                for is_more in (False, True):
                    relaxation.set_sides((*leaf.sides, (*split, is_more)), self._penalty)
                    relaxation.restore_basis(place)
                    gains.append(relaxation.solve(self._seconds_left(), TRIAL_STEPS))
                self._gains[split[0]] = self._gain(leaf, gains)
            if self._gains[split[0]] > most:
                best, most = split, self._gains[split[0]]
        return best, place

    def _gain(self, leaf: _Leaf, bounds: list[float]) -> float:
        """Product of the gains of both sides of a split, as far as they are needed to reach the goal."""
        return math.prod(max(1.0, min(bound, self._goal) - leaf.bound) for bound in bounds)

    def _nodes(self, leaves: dict[int, _Leaf], root: int) -> list[Proof]:
        """The tree below node ``root`` in preorder, as the checker reads it. ``leaves`` has the leaves by their numbers."""
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
