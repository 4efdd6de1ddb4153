"""Branch and bound for tier placement that branches on the number of equally large weights in the fast tiers.

A *tier* is one memory of the hierarchy. The tensors that are placed are the weights and the output of each layer; layer i runs
at step i. The relaxation is that of the MILP in :mod:`stowplan.models.tier_placement.milp`.

In a network, many layers have weights of the same size. If the linear relaxation puts two and a half of them into a tier,
branching on single tensors only moves the half from one tensor to the next. This search therefore first branches on counts: the
number of weights of a certain size that are in a tier or a faster one, where a weight that is ``n`` times as large counts as
``n``. If all counts are whole, it branches on single tensors.

Cover inequalities (Balas, "Facets of the knapsack polytope", 1975) tighten the relaxation. A node of the tree implies a least
number of bytes of weights in each tier. If outputs that are live at the same step do not fit into the rest of the tier
together, they are a *cover*: not all of them are in the tier.

All bounds come from duals in exact arithmetic. The solver's tolerances can make them weaker, but never wrong. Nothing here
raises an error for a valid problem.
"""

from __future__ import annotations

import heapq
import math
import time
from collections.abc import Callable, Iterator
from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple, Unpack

import highspy
import numpy as np

from stowplan.models.hint import Hint
from stowplan.models.mip.matrix import INFINITE, FloatArray
from stowplan.models.mip.with_highs import interrupt_when, new_highs
from stowplan.models.outcome import Outcome
from stowplan.models.tier_placement.milp import Model, Report, build
from stowplan.models.tier_placement.plan import Plan
from stowplan.models.tier_placement.problem import LIMIT, Problem
from stowplan.work_rates import TIER_PARTS

if TYPE_CHECKING:
    # It loads CP-SAT, which is not needed here.
    from stowplan.models.cpsat_runner import Search

#: Tolerance within which values of columns count as whole, and the smallest violation with which a cover is added.
WHOLE, BROKEN = 1e-6, 0.01

#: Number of times that covers are added and the relaxation is solved again, at the root and in other nodes of the tree.
ROUNDS = 20, 1

#: Size to which the largest entry of a dual ray that proves a node infeasible is scaled, in the units of the scaled model,
#: whose numbers are near one. The bound that the ray proves is then larger than the objective of any plan.
RULED_OUT = 1e6

#: For some columns, lower and upper bounds that are tighter than those of the program.
Limits = dict[int, tuple[int, int]]


class Cover(NamedTuple):
    """A cover inequality: at most ``most`` of some outputs are in a tier, if its weights have at least ``load`` bytes."""

    row: int
    """Number of its row in the program."""
    tier: int
    """Number of the tier."""
    load: int
    """Smallest number of bytes of weights with which the inequality holds."""
    most: int
    """Largest number of the outputs that fit."""


class Part(NamedTuple):
    """A node of the branch-and-bound tree: the plans within some limits, and the solution of their relaxation."""

    bound: int
    """Lower bound in ps on the latency of these plans."""
    number: int
    """Number of nodes created before it; it breaks ties in the heap."""
    limits: Limits
    """The limits on counts and on single tensors that define the node."""
    values: FloatArray
    """Values of the scaled columns in the relaxation's optimum; empty if no plan fits."""
    basis: Any
    """Basis of the relaxation's optimum, from which the relaxations of the node's children start."""


class Tree:
    """The branch-and-bound tree. Its *open* nodes, which have not been branched on, together contain all plans that could be
    better than the best known one.

    Parameters
    ----------
    model
        A model with columns that count weights. Covers are added to its program.
    end
        Time of ``time.monotonic()`` at which the search ends.
    """

    def __init__(self, model: Model, *, seed: int, end: float, should_stop: Callable[[], bool] | None = None):
        self._model, self._end, self._should_stop = model, end, should_stop
        self._highs = new_highs(model.matrix.relaxed(), seed)
        interrupt_when(self._highs, should_stop)
        self._numbers = count()
        self._covers: list[Cover] = []
        self._current_limits: Limits = {}
        tensors = model.structure.tensors
        units = sorted({size for size, _ in model.counts.values()})
        counts = ({column: size for column, (size, _) in model.counts.items() if size == unit} for unit in units)
        self._branching = *counts, {column: tensors[tensor].size for (tensor, _), column in model.place.items()}
        """Groups of columns to branch on: for each column, the bytes that correspond to a change of the column by 1. A group is
        used only if all columns of the groups before it are whole."""
        outputs = (
            (tier, [(model.place[number, tier], tensors[number].size) for number in live if (number, tier) in model.place])
            for tier in model.structure.limited
            for live in model.structure.moments
        )
        self._live_outputs = [(tier, inside, sum(size for _, size in inside)) for tier, inside in outputs if inside]
        """For each tier and each set of outputs that may be live in it at the same step: the tier, (column, bytes) of each
        output, and their total bytes."""
        self.open: list[Part] = []
        """The open nodes as a heap, smallest bound first."""
        self.is_done = False
        """Whether it is proven that no plan is faster than the best known one."""

    def grow(self, best_ps: Callable[[], int | None] = lambda: None) -> Iterator[Part]:
        """Repeatedly branch on the open node with the smallest bound, and yield each node before it is branched on.

        The search ends when the relaxation of that node is a plan, when time runs out or ``should_stop`` returns True, or when
        the bound of the node is at least the latency in ps that ``best_ps`` returns (None if no plan is known).
        """
        root = self._node({}, None, 0, 0)
        if root is None:
            return
        self.open = [root]
        yield root
        self.open = [self._node({}, root.basis, root.bound, ROUNDS[0]) or root]
        while self.open[0].bound < LIMIT:
            node = self.open[0]
            yield node
            objective = best_ps()
            if objective is not None and node.bound >= objective:
                self.is_done = True
                return
            column = self._most_fractional(node)
            if column is None:
                return
            least, most = node.limits.get(column, (0, self._model.program.upper[column]))
            middle = math.floor(node.values[column])
            for half in ((least, middle), (middle + 1, most)):
                child = self._node(node.limits | {column: half}, node.basis, node.bound, ROUNDS[1])
                if child is None:
                    return
                heapq.heappush(self.open, child)
            self.open.remove(node)
            heapq.heapify(self.open)

    def _most_fractional(self, node: Part) -> int | None:
        """The column to branch on: the one that is farthest from a whole number, in bytes; None if all are whole."""
        for sizes in self._branching if len(node.values) else ():
            columns = np.array([*sizes], np.int64)
            away = np.abs(node.values[columns] - np.rint(node.values[columns]))
            away = np.where(away > WHOLE, away * np.array([*sizes.values()], float), 0.0)
            if away.any():
                return int(columns[away.argmax()])
        return None

    def _node(self, limits: Limits, basis: Any, least: int, rounds: int) -> Part | None:
        """Create a node: solve its relaxation, with rounds of violated covers; None if time runs out."""
        loads, node = self._limit(limits), None
        capacities = [tier.capacity for tier in self._model.structure.problem.tiers]
        if any(load > capacity for load, capacity in zip(loads, capacities, strict=True)):
            return Part(LIMIT, next(self._numbers), limits, np.zeros(0), basis)
        if basis is not None:
            missing = self._highs.getNumRow() - len(basis.row_status)
            basis.row_status = [*basis.row_status, *[highspy.HighsBasisStatus.kBasic] * missing]
            self._highs.setBasis(basis)
        for left in range(rounds, -1, -1):
            solved = self._solve()
            if solved is None:
                break
            duals, values = solved
            least = max(least, self._model.dual_bound_ps(duals, limits))
            node = Part(least, next(self._numbers), limits, values, self._highs.getBasis())
            if not (left and len(values) and self._separate(values, loads)):
                break
        return node

    def _solve(self) -> tuple[FloatArray, FloatArray] | None:
        """Solve the relaxation within the current limits.

        Returns the duals of the rows and the values of the columns; the values are empty if no plan fits. None if time runs
        out.
        """
        left = self._end - time.monotonic()
        if left <= 0 or (self._should_stop is not None and self._should_stop()):
            return None
        self._highs.setOptionValue("time_limit", self._highs.getRunTime() + left)
        self._highs.run()
        if self._highs.getModelStatus() == highspy.HighsModelStatus.kInfeasible:
            _, has_ray, ray = self._highs.getDualRay()
            # Without a dual ray nothing is proven, and the node keeps the bound of its parent.
            prices = np.array(ray) if has_ray else np.zeros(self._highs.getNumRow())
            return prices * (RULED_OUT / max(1e-12, float(np.abs(prices).max(initial=0.0)))), np.zeros(0)
        if self._highs.getModelStatus() != highspy.HighsModelStatus.kOptimal:
            return None
        solution = self._highs.getSolution()
        return np.array(solution.row_dual), np.array(solution.col_value)

    def _limit(self, limits: Limits) -> list[int]:
        """Apply limits and the covers that hold within them; returns the least bytes of weights in each tier."""
        program = self._model.program
        changed = {column: (program.lower[column], program.upper[column]) for column in self._current_limits} | limits
        for column, (least, most) in changed.items():
            scale = self._model.column_scale[column]
            self._highs.changeColBounds(column, least / scale, most / scale)
        self._current_limits = limits
        loads = self._loads(limits)
        for cover in self._covers:
            upper = cover.most if loads[cover.tier] >= cover.load else INFINITE
            if upper != program.rows.upper[cover.row]:
                program.rows.upper[cover.row] = upper
                self._highs.changeRowBounds(cover.row, -highspy.kHighsInf, upper if upper < INFINITE else highspy.kHighsInf)
        return loads

    def _loads(self, limits: Limits) -> list[int]:
        """[tiers] the least number of bytes of weights in each tier, within limits."""
        loads = [0] * len(self._model.structure.problem.tiers)
        most_in_faster: dict[int, int] = {}
        # For each size the fastest tier comes first. The largest number in faster tiers is subtracted from the smallest number
        # in this tier and faster ones.
        for column, (size, tier) in reversed(self._model.counts.items()):
            least, most = limits.get(column, (0, self._model.program.upper[column]))
            # Weights that are counted for one size may also be counted for a smaller one, so the maximum is taken.
            loads[tier] = max(loads[tier], size * (least - most_in_faster.get(size, 0)))
            most_in_faster[size] = most
        return loads

    def _separate(self, values: FloatArray, loads: list[int]) -> bool:
        """Add covers that a solution violates; returns whether there were any.

        ``loads`` has the least bytes of weights in each tier.
        """
        model, at, before = self._model, values.tolist(), len(self._covers)
        for tier, outputs, size in self._live_outputs:
            free_bytes = model.structure.problem.tiers[tier].capacity - loads[tier]
            if size <= free_bytes or not any(BROKEN < at[column] < 1 - BROKEN for column, _ in outputs):
                continue
            columns, most = _cover([(at[column], size, column) for column, size in outputs], free_bytes)
            if sum(at[column] for column in columns) > most + BROKEN:
                self._highs.addRow(-highspy.kHighsInf, most, len(columns), np.array(columns, np.int32), np.ones(len(columns)))
                self._covers.append(Cover(len(model.program.rows.lower), tier, loads[tier], most))
                model.program.rows.add([(column, 1) for column in columns], upper=most)
        model.row_scale = np.append(model.row_scale, np.ones(len(self._covers) - before))
        return len(self._covers) > before


def _cover(outputs: list[tuple[float, int, int]], room: int) -> tuple[list[int], int]:
    """Find a cover, that is, outputs that together have more bytes than ``room``; extend it and return its inequality.

    Parameters
    ----------
    outputs
        (value in the relaxation, bytes, column) of each output.

    Returns
    -------
    tuple
        Columns of the cover, and the largest number of them that can be 1.
    """
    cover, used = [], 0
    for output in sorted(outputs, key=lambda output: ((1.0 - output[0]) / max(1, output[1]), -output[1])):
        if used > room:
            break
        cover.append(output)
        used += output[1]
    for output in sorted(cover):
        if used - output[1] > room:
            cover.remove(output)
            used -= output[1]
    # Any output that is at least as large as the largest one of the cover can replace one of them (extended cover).
    largest = max(size for _, size, _ in cover)
    return [column for _, size, column in {*cover, *(output for output in outputs if output[1] >= largest)}], len(cover) - 1


def solve_by_counts(
    problem: Problem,
    *,
    incumbent: Callable[[], Plan | None] = lambda: None,
    on_hint: Callable[[Hint], None] = lambda hint: None,
    **search: Unpack[Search[Plan]],
) -> Outcome[Plan]:
    """Solve a problem by branch and bound over counts of weights, on one thread.

    Parameters
    ----------
    incumbent
        Called repeatedly for the best plan that other candidates of the ``solve`` call have found; None if there is none.
    on_hint
        Called with a hint from the linear relaxation at the root, unless the relaxation is infeasible.
    search
        See :func:`stowplan.models.tier_placement.milp.solve_milp`. A ``deterministic_limit`` limits the number of nodes, to
        :data:`TIER_PARTS` nodes for each deterministic second.

    Returns
    -------
    Outcome
        The best plan and bound. Running out of time is never reported as ``infeasible``.
    """
    end = time.monotonic() + search["time_limit"]
    model = build(problem, counted=True)
    report = Report(model, search.get("on_plan"), search.get("on_bound"), end)
    report.keep_plan(search.get("hint"))
    if not model.matrix.columns:
        return report.outcome_without_columns()
    tree = Tree(model, seed=search.get("seed", 0), end=end, should_stop=search.get("should_stop"))
    work = search.get("deterministic_limit")

    def best_ps() -> int | None:
        report.keep_plan(incumbent())
        return None if report.plan is None else report.plan.objective

    for number, node in enumerate(tree.grow(best_ps)):
        report.offer_proven(node.bound)
        if len(node.values):
            report.offer_point(node.values)
            if number == 0:
                on_hint(model.hint(node.values))
        if work is not None and number >= TIER_PARTS * work:
            break
    if tree.is_done:
        report.report_final_bound(None)
    return report.outcome()
