"""Branch and bound over the linear relaxation that branches on how many weights of one size stand in the fast tiers.

Networks repeat themselves: weights of the same size lie in layer after layer. Where the relaxation has two and a half of them
in a tier, a search that branches on single tensors moves the half from one to the next. Here what is branched on first is how
many times a size stands in a tier and those faster, in weights of that size or a multiple; single tensors come where that is
whole. Outputs that live at once, and do not fit together beside the weights that a part of the tree has in a tier at least,
give covers (Balas, "Facets of the knapsack polytope", 1975).

All bounds are by duals in exact arithmetic: the solver's tolerances can make them weaker, never wrong.
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

#: Values are whole up to this; a cover is added that is broken by more than that.
WHOLE, BROKEN = 1e-6, 0.01

#: Rounds of covers at the root, and in other parts.
ROUNDS = 20, 1

#: Largest of the prices that rule out a part in which nothing fits, in the scaled copy's units: what they prove is beyond all
#: plans.
RULED_OUT = 1e6

#: Least and most of columns that are limited more than the program limits them.
Limits = dict[int, tuple[int, int]]


class Cover(NamedTuple):
    """At most so many of some outputs that live at once stand in a tier, where its weights have a load."""

    row: int
    tier: int
    load: int
    """Bytes, at least."""
    most: int


class Part(NamedTuple):
    """The plans within limits, and what the relaxation says of them."""

    bound: int
    """No plan of these is faster, ps."""
    number: int
    """Parts made before it, so that no two are compared further."""
    limits: Limits
    values: FloatArray
    """Of the columns of the scaled copy, at the relaxation's optimum; empty where nothing fits."""
    basis: Any


class Tree:
    """Parts that together hold all plans that may be faster than a known one.

    Parameters
    ----------
    model
        With counts; covers are added to its program.
    end
        Moment of the monotonic clock.
    """

    def __init__(self, model: Model, *, seed: int, end: float, should_stop: Callable[[], bool] | None = None):
        self._model, self._end, self._should_stop = model, end, should_stop
        self._highs = new_highs(model.matrix.relaxed(), seed)
        interrupt_when(self._highs, should_stop)
        self._numbers = count()
        self._covers: list[Cover] = []
        self._limited: Limits = {}
        tensors = model.structure.tensors
        units = sorted({size for size, _ in model.counts.values()})
        counts = ({column: size for column, (size, _) in model.counts.items() if size == unit} for unit in units)
        self._branching = *counts, {column: tensors[tensor].size for (tensor, _), column in model.place.items()}
        """Bytes of what a column counts: columns to branch on, and those that follow where all of these are whole."""
        outputs = (
            (tier, [(model.place[number, tier], tensors[number].size) for number in live if (number, tier) in model.place])
            for tier in model.structure.limited
            for live in model.structure.moments
        )
        self._crowds = [(tier, inside, sum(size for _, size in inside)) for tier, inside in outputs if inside]
        """Outputs that may be in a tier at once, as (column, bytes), and all bytes of these."""
        self.open: list[Part] = []
        """A heap, least bound first."""
        self.is_done = False
        """Whether no plan is faster than the one known."""

    def grow(self, known: Callable[[], int | None] = lambda: None) -> Iterator[Part]:
        """Divide the part of the least bound, again and again; yields it each time before it is divided.

        Ends where it is a plan, where time is up, and where no plan is faster than what ``known`` says (ps).
        """
        root = self._part({}, None, 0, 0)
        if root is None:
            return
        self.open = [root]
        yield root
        self.open = [self._part({}, root.basis, root.bound, ROUNDS[0]) or root]
        while self.open[0].bound < LIMIT:
            part = self.open[0]
            yield part
            objective = known()
            if objective is not None and part.bound >= objective:
                self.is_done = True
                return
            column = self._most_fractional(part)
            if column is None:
                return
            least, most = part.limits.get(column, (0, self._model.program.upper[column]))
            middle = math.floor(part.values[column])
            for half in ((least, middle), (middle + 1, most)):
                child = self._part(part.limits | {column: half}, part.basis, part.bound, ROUNDS[1])
                if child is None:
                    return
                heapq.heappush(self.open, child)
            self.open.remove(part)
            heapq.heapify(self.open)

    def _most_fractional(self, part: Part) -> int | None:
        """The column to branch on: that which is farthest from whole, in bytes; None where all are whole."""
        for sizes in self._branching if len(part.values) else ():
            columns = np.array([*sizes], np.int64)
            away = np.abs(part.values[columns] - np.rint(part.values[columns]))
            away = np.where(away > WHOLE, away * np.array([*sizes.values()], float), 0.0)
            if away.any():
                return int(columns[away.argmax()])
        return None

    def _part(self, limits: Limits, basis: Any, least: int, rounds: int) -> Part | None:
        """Solve the relaxation within limits, then with covers that it breaks; None where there is no time."""
        loads, part = self._limit(limits), None
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
            part = Part(least, next(self._numbers), limits, values, self._highs.getBasis())
            if not (left and len(values) and self._separate(values, loads)):
                break
        return part

    def _solve(self) -> tuple[FloatArray, FloatArray] | None:
        """Duals of the rows, and values of the columns, none where nothing fits; None where there is no time."""
        left = self._end - time.monotonic()
        if left <= 0 or (self._should_stop is not None and self._should_stop()):
            return None
        self._highs.setOptionValue("time_limit", self._highs.getRunTime() + left)
        self._highs.run()
        if self._highs.getModelStatus() == highspy.HighsModelStatus.kInfeasible:
            _, has_ray, ray = self._highs.getDualRay()
            # Without one nothing is proven: the part stays as good as the one it was made of.
            prices = np.array(ray) if has_ray else np.zeros(self._highs.getNumRow())
            return prices * (RULED_OUT / max(1e-12, float(np.abs(prices).max(initial=0.0)))), np.zeros(0)
        if self._highs.getModelStatus() != highspy.HighsModelStatus.kOptimal:
            return None
        solution = self._highs.getSolution()
        return np.array(solution.row_dual), np.array(solution.col_value)

    def _limit(self, limits: Limits) -> list[int]:
        """Let these limits hold, and the covers that follow; the bytes of weights that each tier then has at least."""
        program = self._model.program
        changed = {column: (program.lower[column], program.upper[column]) for column in self._limited} | limits
        for column, (least, most) in changed.items():
            scale = self._model.column_scale[column]
            self._highs.changeColBounds(column, least / scale, most / scale)
        self._limited = limits
        loads = self._loads(limits)
        for cover in self._covers:
            upper = cover.most if loads[cover.tier] >= cover.load else INFINITE
            if upper != program.rows.upper[cover.row]:
                program.rows.upper[cover.row] = upper
                self._highs.changeRowBounds(cover.row, -highspy.kHighsInf, upper if upper < INFINITE else highspy.kHighsInf)
        return loads

    def _loads(self, limits: Limits) -> list[int]:
        loads = [0] * len(self._model.structure.problem.tiers)
        beyond: dict[int, int] = {}
        # Of each size the fastest tier first: what is there at most is taken from what is there or in the next at least.
        for column, (size, tier) in reversed(self._model.counts.items()):
            least, most = limits.get(column, (0, self._model.program.upper[column]))
            # What one size has may be among what is counted in smaller units.
            loads[tier] = max(loads[tier], size * (least - beyond.get(size, 0)))
            beyond[size] = most
        return loads

    def _separate(self, values: FloatArray, loads: list[int]) -> bool:
        """Add covers that a point breaks; whether there are any."""
        model, at, before = self._model, values.tolist(), len(self._covers)
        for tier, outputs, size in self._crowds:
            room = model.structure.problem.tiers[tier].capacity - loads[tier]
            if size <= room or not any(BROKEN < at[column] < 1 - BROKEN for column, _ in outputs):
                continue
            columns, most = _cover([(at[column], size, column) for column, size in outputs], room)
            if sum(at[column] for column in columns) > most + BROKEN:
                self._highs.addRow(-highspy.kHighsInf, most, len(columns), np.array(columns, np.int32), np.ones(len(columns)))
                self._covers.append(Cover(len(model.program.rows.lower), tier, loads[tier], most))
                model.program.rows.add([(column, 1) for column in columns], upper=most)
        model.row_scale = np.append(model.row_scale, np.ones(len(self._covers) - before))
        return len(self._covers) > before


def _cover(outputs: list[tuple[float, int, int]], room: int) -> tuple[list[int], int]:
    """Columns of outputs (value, bytes, column) that have more bytes than there is room, and how many of them fit at most."""
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
    # Those that are as large as any of them may as well stand for it.
    largest = max(size for _, size, _ in cover)
    return [column for _, size, column in {*cover, *(output for output in outputs if output[1] >= largest)}], len(cover) - 1


def solve_by_counts(
    problem: Problem,
    *,
    incumbent: Callable[[], Plan | None] = lambda: None,
    on_hint: Callable[[Hint], None] = lambda hint: None,
    **search: Unpack[Search[Plan]],
) -> Outcome[Plan]:
    """Branch and bound over counts, with one thread.

    Parameters
    ----------
    incumbent
        Asked now and then for the best plan that others know.
    on_hint
        Called with the hint of :func:`stowplan.models.tier_placement.milp.relaxation`.
    search
        As of :func:`stowplan.models.tier_placement.milp.solve_milp`; a ``deterministic_limit`` counts parts, :data:`TIER_PARTS`
        a unit.
    """
    end = time.monotonic() + search["time_limit"]
    model = build(problem, counted=True)
    report = Report(model, search.get("on_plan"), search.get("on_bound"), end)
    report.take(search.get("hint"))
    if not model.matrix.columns:
        return report.trivial()
    tree = Tree(model, seed=search.get("seed", 0), end=end, should_stop=search.get("should_stop"))
    work = search.get("deterministic_limit")

    def known() -> int | None:
        report.take(incumbent())
        return None if report.plan is None else report.plan.objective

    for number, part in enumerate(tree.grow(known)):
        report.offer_proven(part.bound)
        if len(part.values):
            report.offer_point(part.values)
            if number == 0:
                on_hint(model.hint(part.values))
        if work is not None and number >= TIER_PARTS * work:
            break
    if tree.is_done:
        report.close(None)
    return report.outcome()
