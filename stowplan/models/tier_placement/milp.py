"""Tier placement as a mixed-integer linear program: capacity rows of bytes, and the excess rows of each layer.

Columns: for every tensor and every tier but the first that it fits into, whether it stands there; for every layer whose
latency depends on the plan its excess. For every tier that does not hold everything the bytes of weights in it. Rows and
sides are whole numbers of bytes and picoseconds; solvers get a copy scaled to numbers near one.

It is solved on HiGHS, which reports as it goes and takes plans from others. Of its linear relaxation there are the bound, and
the solution as a hint.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Unpack

import highspy
import numpy as np

from stowplan.models.hint import Hint
from stowplan.models.mip.matrix import FloatArray, MatrixModel, Program, Rows, proven
from stowplan.models.mip.with_highs import TIGHT, best_point, limit, new_highs, solve_relaxed, tighten
from stowplan.models.outcome import Best, Outcome
from stowplan.models.tier_placement import hint as hints
from stowplan.models.tier_placement.plan import Plan
from stowplan.models.tier_placement.problem import Problem
from stowplan.models.tier_placement.structure import Offsets, Structure, counted_sizes, plan_of, tiers_of
from stowplan.work_rates import TIER_NODES

if TYPE_CHECKING:
    # It loads CP-SAT, which is not needed here.
    from stowplan.models.cpsat_runner import Search


@dataclass
class Model:
    """A built model in whole numbers; ``matrix`` is its scaled copy, whose objective counts ``time_unit`` picoseconds."""

    structure: Structure
    place: dict[tuple[int, int], int]
    """Column of (tensor, tier)."""
    excess: list[int]
    """Column of each excess."""
    load: dict[int, int]
    """Column of the bytes of weights in each limited tier."""
    counts: dict[int, tuple[int, int]]
    """Columns of how many times a size (bytes) stands in a tier or those faster, of weights of that size or a multiple; and
    size and tier. Not all models have them."""
    program: Program
    time_unit: int
    matrix: MatrixModel
    column_scale: FloatArray
    row_scale: FloatArray

    def add_hint(self, plan: Plan) -> FloatArray:
        """The point of a plan, shape ``[columns]``, for solvers that start from one."""
        structure = self.structure
        tier_of = tiers_of(structure, plan)
        values = np.zeros(self.matrix.columns)
        for (tensor, tier), column in self.place.items():
            values[column] = tier_of[tensor] == tier
        for column, (size, first) in self.counts.items():
            inside = (
                tensor.size
                for tensor, tier in zip(structure.tensors, tier_of, strict=True)
                if not tensor.is_output and tier >= first
            )
            values[column] = sum(inside_size // size for inside_size in inside if not inside_size % size)
        for excess, column in zip(structure.excesses, self.excess, strict=True):
            values[column] = excess.at(tier_of)
        for tier, column in self.load.items():
            values[column] = sum(
                t.size for t, at in zip(structure.tensors, tier_of, strict=True) if at == tier and not t.is_output
            )
        return values / self.column_scale

    def tiers(self, values: FloatArray) -> list[int]:
        """Tier of each tensor at a point of the scaled copy; a fraction goes to the tier that has most of it."""
        best = [(0.5, 0 if not t.tiers else t.tiers[0]) for t in self.structure.tensors]
        for (tensor, tier), column in self.place.items():
            if values[column] > best[tensor][0]:
                best[tensor] = (float(values[column]), tier)
        return [tier for _, tier in best]

    def shares(self, values: FloatArray) -> FloatArray:
        """How much of each tensor stands in each tier at a point of the scaled copy, shape ``[tiers, tensors]``."""
        tensors = self.structure.tensors
        placed = np.zeros((len(self.structure.problem.tiers), len(tensors)))
        for (tensor, tier), column in self.place.items():
            placed[tier, tensor] = min(1.0, max(0.0, float(values[column])))
        placed[0] = np.maximum(0.0, 1.0 - placed.sum(axis=0))
        return placed

    def hint(self, values: FloatArray) -> Hint:
        """The hint of a point of the linear relaxation's scaled copy."""
        return hints.hint(self.structure.problem, self.shares(values).tolist(), source="relaxation")

    def extract(self, values: FloatArray) -> Plan:
        """Plan of a point of the scaled copy.

        Parameters
        ----------
        values
            Of the columns, shape ``[columns]``; the largest of a tensor says its tier.

        Returns
        -------
        Plan
            With its latency in ps worked out anew, without offsets.
        """
        return plan_of(self.structure, self.tiers(values))

    def bound_ps(self, objective: float, tolerance: float) -> int:
        """Proven latency from a solver's dual bound, in the scaled copy's units, less what its tolerance may amount to."""
        spread = float(sum(excess.most for excess in self.structure.excesses))
        excess = proven(objective, spread / self.time_unit, unit=self.time_unit, tolerance=tolerance)
        return self.structure.base_ps + max(0, excess)

    def dual_bound_ps(self, duals: FloatArray, limits: Mapping[int, tuple[int, int]] | None = None) -> int:
        """Latency proven by the row duals of the scaled copy's linear relaxation, in exact arithmetic.

        Parameters
        ----------
        limits
            Least and most of columns, where they are not the program's: the latency is that of plans within them.
        """
        prices = duals * self.row_scale * self.time_unit
        return self.structure.base_ps + max(0, self.program.dual_bound(prices, limits or {}))


def build(problem: Problem, pins: Mapping[tuple[int, bool], int] | None = None, *, counted: bool = False) -> Model:
    """Variables, constraints, objective.

    Parameters
    ----------
    pins
        As of :class:`~stowplan.models.tier_placement.structure.Structure`.
    counted
        Whether there are columns for numbers of weights.

    Returns
    -------
    Model
        Its matrix ``[rows, columns]``, scaled, and what its columns stand for.
    """
    structure = Structure(problem, pins)
    program = Program()
    tensors = enumerate(structure.tensors)
    place = {(number, tier): program.column() for number, tensor in tensors for tier in tensor.tiers if tier}
    excess = [program.column(excess.most, cost=1, integer=False) for excess in structure.excesses]
    weights = [number for number in structure.weights if number is not None]
    total = sum(structure.tensors[number].size for number in weights)
    load = {tier: program.column(min(total, problem.tiers[tier].capacity), integer=False) for tier in structure.limited}
    counts = _add_counts(program, structure, place) if counted else {}
    _add_places(program.rows, structure, place)
    _add_excesses(program.rows, structure, place, excess)
    _add_capacities(program.rows, structure, place, load)
    time_unit = _unit(max((excess.most for excess in structure.excesses), default=1), 6)
    byte_unit = _unit(max((tensor.size for tensor in structure.tensors), default=1), 2)
    scale = np.ones(len(program.cost))
    scale[excess] = time_unit
    scale[list(load.values())] = byte_unit
    matrix, row_scale = program.scaled(problem.name or "tier_placement", scale, time_unit)
    return Model(structure, place, excess, load, counts, program, time_unit, matrix, scale, row_scale)


def _add_places(rows: Rows, structure: Structure, place: dict[tuple[int, int], int]) -> None:
    """Every tensor stands in one tier."""
    for number, tensor in enumerate(structure.tensors):
        terms = [(place[number, tier], 1) for tier in tensor.tiers if tier > 0]
        if 0 not in tensor.tiers:
            rows.add(terms, 1, 1)
        elif len(terms) > 1:
            rows.add(terms, upper=1)


def _add_excesses(rows: Rows, structure: Structure, place: dict[tuple[int, int], int], columns: list[int]) -> None:
    for excess, column in zip(structure.excesses, columns, strict=True):
        for row in structure.rows(excess):
            terms = [(column, 1), *((place[tensor, tier], saving) for tensor, tier, saving in row.savings)]
            rows.add(terms, row.least)


def _add_capacities(rows: Rows, structure: Structure, place: dict[tuple[int, int], int], load: dict[int, int]) -> None:
    """Weights and live outputs fit into every tier, at every moment."""
    tensors = structure.tensors
    weights = [number for number in structure.weights if number is not None]

    def inside(tier: int, numbers: Iterable[int]) -> tuple[list[tuple[int, int]], int]:
        """Bytes in a tier as terms and a constant: what is in none of the others is in the first."""
        if tier:
            return [(place[number, tier], tensors[number].size) for number in numbers if tier in tensors[number].tiers], 0
        terms = [
            (place[number, other], -tensors[number].size) for number in numbers for other in tensors[number].tiers if other
        ]
        return terms, sum(tensors[number].size for number in numbers)

    for tier, column in load.items():
        terms, constant = inside(tier, weights)
        rows.add([*terms, (column, -1)], -constant, -constant)
        capacity = structure.problem.tiers[tier].capacity
        for live in structure.moments:
            terms, constant = inside(tier, live)
            rows.add([*terms, (column, 1)], upper=capacity - constant)


def _add_counts(program: Program, structure: Structure, place: dict[tuple[int, int], int]) -> dict[int, tuple[int, int]]:
    """Columns for how much of some weights stands in a tier and those faster, the slowest of a size first."""
    counts = {}
    for size in counted_sizes(structure.problem):
        for first in range(1, len(structure.problem.tiers)):
            terms = [
                (column, structure.tensors[number].size // size)
                for (number, tier), column in place.items()
                if tier >= first and not structure.tensors[number].is_output and not structure.tensors[number].size % size
            ]
            if terms:
                column = program.column(sum(amount for _, amount in terms))
                counts[column] = size, first
                program.rows.add([*terms, (column, -1)], 0, 0)
    return counts


def _unit(most: int, bits: int) -> int:
    """Power of two that brings numbers up to ``most`` below ``2 ** bits``."""
    return 1 << max(0, most.bit_length() - bits)


#: A search that has found, or was given, a better plan than it began with begins anew after this many nodes, and then after
#: twice as many: with a good plan at the root most columns can be fixed there, and what took minutes may take a second.
RESTART_NODES = 100


def solve_milp(
    problem: Problem,
    *,
    pins: Mapping[tuple[int, bool], int] | None = None,
    incumbent: Callable[[], Plan | None] | None = None,
    **search: Unpack[Search[Plan]],
) -> Outcome[Plan]:
    """Solve the MILP of a problem with one thread.

    Parameters
    ----------
    pins
        Tier of tensors that may stand in no other: of (layer, whether it is its output). Plan and bound are of what is left.
    incumbent
        Asked now and then for the best plan that others know.
    search
        As :func:`stowplan.models.cpsat_runner.find_plan` takes it: limits, building included, a hint, what to call. A
        ``deterministic_limit`` limits work instead of time: nodes of branch and bound, :data:`TIER_NODES` a unit.

    Returns
    -------
    Outcome
        Best plan, and what is proven; running out of time is never ``infeasible``.
    """
    end = time.monotonic() + search["time_limit"]
    report = Report(build(problem, pins), search.get("on_plan"), search.get("on_bound"), end)
    report.take(search.get("hint"))
    if not report.model.matrix.columns:
        return report.trivial()
    work = search.get("deterministic_limit")
    run = _Highs(report, search.get("seed", 0), search.get("should_stop"), incumbent)
    return run.solve(max(0.01, end - time.monotonic()), None if work is None else max(1, int(TIER_NODES * work)))


#: Slower than any plan, ps.
_NEVER = 1 << 63


class Report(Best[Plan]):
    """The best plan and bound so far, in the terms of solvers."""

    def __init__(
        self, model: Model, on_plan: Callable[[Plan], None] | None, on_bound: Callable[[int], None] | None, end: float
    ):
        super().__init__(lambda plan: plan.objective, on_plan, on_bound, model.structure.base_ps)
        self.model = model
        self.offsets = Offsets(model.structure, end=end)

    def take(self, plan: Plan | None) -> None:
        """Keep a plan that others found where it is the best, and tell nobody."""
        if plan is not None and (self.plan is None or plan.objective < self.plan.objective):
            self.plan = plan

    def offer_point(self, values: FloatArray) -> Plan | None:
        """Report the plan of a point where it is better than what is known; the plan as it is, valid or not."""
        tiers = self.model.tiers(values)
        plan = plan_of(self.model.structure, tiers)
        if self.plan is None or plan.objective < self.plan.objective:
            self.offer_plan(self.offsets.place(tiers))
        return plan

    def offer_dual(self, objective: float) -> None:
        """Report a dual bound of HiGHS, in its units."""
        if np.isfinite(objective):
            self.offer_proven(self.model.bound_ps(objective, TIGHT))

    def offer_proven(self, bound: int) -> None:
        """Report a bound in ps, which no plan need pass."""
        self.offer_bound(bound if self.plan is None else min(bound, self.plan.objective))

    def close(self, best: Plan | None) -> None:
        """Branch and bound is done, and ``best`` is the plan of its best point: nothing is faster than that."""
        known = [plan.objective for plan in (best, self.plan) if plan is not None]
        if known:
            self.offer_proven(min(known))

    def refuted(self) -> Outcome[Plan]:
        """What was found where a solver says that no plan fits."""
        return Outcome("infeasible", None, self.bound) if self.plan is None else self.outcome()

    def trivial(self) -> Outcome[Plan]:
        """There is one tier, and it holds everything or nothing can be done."""
        if not self.model.matrix.is_feasible(np.zeros(0)):
            return self.refuted()
        self.close(self.offer_point(np.zeros(0)))
        return self.outcome()


class _Highs:
    """Solving on the built-in HiGHS."""

    def __init__(
        self,
        report: Report,
        seed: int,
        should_stop: Callable[[], bool] | None,
        incumbent: Callable[[], Plan | None] | None,
    ):
        self._report = report
        self._seed = seed
        self._should_stop, self._incumbent = should_stop, incumbent
        self._patience = RESTART_NODES
        self._began_with = _NEVER
        """Latency of the plan that this search began with, ps."""
        self._given = _NEVER
        """Latency of the last plan handed to HiGHS, ps."""
        self._restart = False

    def solve(self, time_limit: float, node_limit: int | None) -> Outcome[Plan]:
        """Search, and search anew with better plans, until it is done or a limit is met."""
        report, end = self._report, time.monotonic() + time_limit
        nodes = 0
        while True:
            left = max(0.01, end - time.monotonic())
            highs = self._run(left, None if node_limit is None else node_limit - nodes)
            status, info = highs.getModelStatus(), highs.getInfo()
            nodes += max(1, int(info.mip_node_count))
            point = best_point(highs)
            best = None if point is None else report.offer_point(point)
            if status == highspy.HighsModelStatus.kInfeasible:
                return report.refuted()
            report.offer_dual(info.mip_dual_bound)
            if status == highspy.HighsModelStatus.kOptimal:
                report.close(best)
            out_of_work = node_limit is not None and nodes >= node_limit
            if not self._restart or out_of_work or time.monotonic() >= end or self._stopped():
                return report.outcome()
            self._patience *= 2

    def _run(self, time_limit: float, node_limit: int | None) -> highspy.Highs:
        """One search."""
        report, self._restart = self._report, False
        highs = new_highs(report.model.matrix, self._seed)
        tighten(highs)
        highs.cbMipImprovingSolution += self._improved
        highs.cbMipInterrupt += self._interrupt
        if self._incumbent is not None:
            highs.cbMipUserSolution += self._adopt
        self._began_with = self._given = _NEVER
        start = None
        if report.plan is not None:
            self._began_with = self._given = report.plan.objective
            start = report.model.add_hint(report.plan)
        limit(highs, time_limit, node_limit, start)
        highs.run()
        return highs

    def _stopped(self) -> bool:
        return self._should_stop is not None and self._should_stop()

    def _improved(self, event: Any) -> None:
        self._report.offer_point(np.array(event.data_out.mip_solution))

    def _interrupt(self, event: Any) -> None:
        self._report.offer_dual(event.data_out.mip_dual_bound)
        plan = self._report.plan
        better = plan is not None and plan.objective < self._began_with
        if better and event.data_out.mip_node_count >= self._patience:
            self._restart = True
        if self._restart or self._stopped():
            event.interrupt()

    def _adopt(self, event: Any) -> None:
        plan = None if self._incumbent is None else self._incumbent()
        if plan is None or plan.objective >= self._given:
            return
        self._given = plan.objective
        self._report.take(plan)
        event.data_in.setSolution(self._report.model.add_hint(plan))


def relaxation(
    problem: Problem, *, time_limit: float, seed: int = 0, should_stop: Callable[[], bool] | None = None
) -> tuple[Hint | None, int]:
    """How much of every tensor the linear relaxation has in each tier, and the latency that its duals prove.

    Parameters
    ----------
    time_limit
        Seconds for HiGHS.
    should_stop
        Asked now and then; True ends HiGHS.

    Returns
    -------
    tuple
        None instead of a hint where HiGHS does not finish, or there is nothing to decide. The bound in ps, in exact
        arithmetic; the floors, where HiGHS does not finish.
    """
    model = build(problem)
    if not model.matrix.columns:
        return None, model.structure.base_ps
    solution = solve_relaxed(model.matrix, seed, time_limit, should_stop)
    hint = None
    if solution.value_valid:
        hint = model.hint(np.array(solution.col_value))
    bound = model.dual_bound_ps(np.array(solution.row_dual)) if solution.dual_valid else model.structure.base_ps
    return hint, bound
