"""Tier placement as a mixed-integer linear program (MILP) for HiGHS.

A *tier* is one memory of the hierarchy, numbered from the slowest. A tensor is the weights or the output of a layer. A column
for every tensor and every tier that it fits into, except tier 0, says whether the tensor is in that tier. Every layer whose
latency depends on the plan has a column for its *excess*, the time by which its latency exceeds its *floor*
(:mod:`stowplan.models.tier_placement.structure`). Every tier that is smaller than all tensors together has a column for the
bytes of weights in it. The rows limit the bytes in each tier and define the excesses. All coefficients are whole numbers of
bytes and picoseconds; the solver gets a copy that is scaled to numbers near one.

While HiGHS runs, it reports plans and bounds and accepts plans of other candidates. :func:`relaxation` solves the linear
relaxation alone and returns its bound, and its solution as a hint. Hints must be valid plans; then nothing here raises an
error.
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
    """The MILP of a problem in whole numbers (``program``) and its scaled copy (``matrix``)."""

    structure: Structure
    """Tensors, live ranges and excesses of the problem."""
    place: dict[tuple[int, int], int]
    """Column that says whether a tensor is in a tier, by (tensor, tier)."""
    excess: list[int]
    """Column of each entry of ``structure.excesses``."""
    load: dict[int, int]
    """For each tier that is smaller than all tensors together, the column of the bytes of weights in it."""
    counts: dict[int, tuple[int, int]]
    """(size, tier) of each column that counts weights in this tier and faster ones. Weights count whose size is a multiple of
    ``size``; a weight that is ``n`` times as large counts as ``n``. Empty in models without such columns."""
    program: Program
    """The MILP in whole numbers."""
    time_unit: int
    """Number of picoseconds that correspond to 1 in the objective of ``matrix``."""
    matrix: MatrixModel
    """The scaled copy of the MILP."""
    column_scale: FloatArray
    """[columns] unscaled value that corresponds to 1 in ``matrix``."""
    row_scale: FloatArray
    """[rows] factor by which each row was multiplied."""

    def add_hint(self, plan: Plan) -> FloatArray:
        """Scaled values of all columns for a valid plan, of shape ``[columns]``, from which solvers can start."""
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
        """The tier of each tensor in a solution of ``matrix``.

        A tensor is in the tier, other than tier 0, that has more than one half of it. If there is no such tier, the tensor is
        in the slowest tier that it fits into.
        """
        best = [(0.5, 0 if not t.tiers else t.tiers[0]) for t in self.structure.tensors]
        for (tensor, tier), column in self.place.items():
            if values[column] > best[tensor][0]:
                best[tensor] = (float(values[column]), tier)
        return [tier for _, tier in best]

    def shares(self, values: FloatArray) -> FloatArray:
        """The fraction of each tensor in each tier in a solution of ``matrix``, of shape ``[tiers, tensors]``."""
        tensors = self.structure.tensors
        fractions = np.zeros((len(self.structure.problem.tiers), len(tensors)))
        for (tensor, tier), column in self.place.items():
            fractions[tier, tensor] = min(1.0, max(0.0, float(values[column])))
        fractions[0] = np.maximum(0.0, 1.0 - fractions.sum(axis=0))
        return fractions

    def hint(self, values: FloatArray) -> Hint:
        """The hint that corresponds to a solution of the linear relaxation of ``matrix``."""
        return hints.hint(self.structure.problem, self.shares(values).tolist(), source="relaxation")

    def extract(self, values: FloatArray) -> Plan:
        """The plan of a solution of ``matrix``, with its recomputed latency and without offsets.

        Parameters
        ----------
        values
            Values of the columns, shape ``[columns]``.
        """
        return plan_of(self.structure, self.tiers(values))

    def bound_ps(self, objective: float, tolerance: float) -> int:
        """Returns the bound on the latency in ps that ``objective``, a solver's dual bound for ``matrix``, proves. A margin for
        the solver's ``tolerance`` is subtracted (:func:`~stowplan.models.mip.matrix.proven`)."""
        spread = float(sum(excess.most for excess in self.structure.excesses))
        excess = proven(objective, spread / self.time_unit, unit=self.time_unit, tolerance=tolerance)
        return self.structure.base_ps + max(0, excess)

    def dual_bound_ps(self, duals: FloatArray, limits: Mapping[int, tuple[int, int]] | None = None) -> int:
        """The bound on the latency in ps that row duals of the linear relaxation of ``matrix`` prove, in exact arithmetic.

        Parameters
        ----------
        limits
            Lower and upper bounds of columns in place of those of the program. The bound then holds for plans within them.
        """
        prices = duals * self.row_scale * self.time_unit
        return self.structure.base_ps + max(0, self.program.dual_bound(prices, limits or {}))


def build(problem: Problem, pins: Mapping[tuple[int, bool], int] | None = None, *, counted: bool = False) -> Model:
    """Build the MILP of a problem.

    Parameters
    ----------
    pins
        Prescribed tiers of tensors; see :class:`~stowplan.models.tier_placement.structure.Structure`.
    counted
        Whether the model has columns that count weights (``Model.counts``).
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
    """Add rows that require every tensor to be in exactly one tier."""
    for number, tensor in enumerate(structure.tensors):
        terms = [(place[number, tier], 1) for tier in tensor.tiers if tier > 0]
        if 0 not in tensor.tiers:
            rows.add(terms, 1, 1)
        elif len(terms) > 1:
            rows.add(terms, upper=1)


def _add_excesses(rows: Rows, structure: Structure, place: dict[tuple[int, int], int], columns: list[int]) -> None:
    """Add the rows that define and tighten the excesses."""
    for excess, column in zip(structure.excesses, columns, strict=True):
        for row in structure.rows(excess):
            terms = [(column, 1), *((place[tensor, tier], saving) for tensor, tier, saving in row.savings)]
            rows.add(terms, row.least)


def _add_capacities(rows: Rows, structure: Structure, place: dict[tuple[int, int], int], load: dict[int, int]) -> None:
    """Add rows that require weights and live outputs to fit into every tier at every step."""
    tensors = structure.tensors
    weights = [number for number in structure.weights if number is not None]

    def bytes_in(tier: int, numbers: Iterable[int]) -> tuple[list[tuple[int, int]], int]:
        """Bytes of tensors in a tier, as terms and a constant. A tensor that is in no other tier is in tier 0."""
        if tier:
            return [(place[number, tier], tensors[number].size) for number in numbers if tier in tensors[number].tiers], 0
        terms = [
            (place[number, other], -tensors[number].size) for number in numbers for other in tensors[number].tiers if other
        ]
        return terms, sum(tensors[number].size for number in numbers)

    for tier, column in load.items():
        terms, constant = bytes_in(tier, weights)
        rows.add([*terms, (column, -1)], -constant, -constant)
        capacity = structure.problem.tiers[tier].capacity
        for live in structure.moments:
            terms, constant = bytes_in(tier, live)
            rows.add([*terms, (column, 1)], upper=capacity - constant)


def _add_counts(program: Program, structure: Structure, place: dict[tuple[int, int], int]) -> dict[int, tuple[int, int]]:
    """Add the columns that count weights in a tier and faster ones (:attr:`Model.counts`).

    For each size, the column of the slowest tier comes first.
    """
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
    """The power of two that divides numbers up to ``most`` to below ``2 ** bits``."""
    return 1 << max(0, most.bit_length() - bits)


#: If a better plan than the initial one is known after this number of nodes, branch and bound is restarted with it; the number
#: doubles with each restart. With a good plan, most columns can be fixed at the root, which can shorten a run of minutes to a
#: second.
RESTART_NODES = 100


def solve_milp(
    problem: Problem,
    *,
    pins: Mapping[tuple[int, bool], int] | None = None,
    incumbent: Callable[[], Plan | None] | None = None,
    **search: Unpack[Search[Plan]],
) -> Outcome[Plan]:
    """Solve the MILP of a problem with HiGHS on one thread.

    Parameters
    ----------
    pins
        Tier of tensors that may be in no other tier, by (layer, whether it is the output). Plans and bounds respect them.
    incumbent
        Called repeatedly for the best plan that other candidates of the ``solve`` call have found; None as its result means
        that there is none.
    search
        Keyword arguments of :func:`stowplan.models.cpsat_runner.find_plan`: limits, a hint and callbacks. The time limit
        includes building the model. A ``deterministic_limit`` also limits the nodes of branch and bound, to
        :data:`TIER_NODES` nodes for each deterministic second.

    Returns
    -------
    Outcome
        The best plan and bound. Running out of time is never reported as ``infeasible``.
    """
    end = time.monotonic() + search["time_limit"]
    report = Report(build(problem, pins), search.get("on_plan"), search.get("on_bound"), end)
    report.keep_plan(search.get("hint"))
    if not report.model.matrix.columns:
        return report.outcome_without_columns()
    work = search.get("deterministic_limit")
    run = _Highs(report, search.get("seed", 0), search.get("should_stop"), incumbent)
    return run.solve(max(0.01, end - time.monotonic()), None if work is None else max(1, int(TIER_NODES * work)))


#: A latency in ps above that of any plan.
_NEVER = 1 << 63


class Report(Best[Plan]):
    """The best plan and bound so far, updated from solutions and dual bounds of a solver.

    Parameters
    ----------
    end
        Time of ``time.monotonic()`` after which the search for offsets gets no more time.
    """

    def __init__(
        self, model: Model, on_plan: Callable[[Plan], None] | None, on_bound: Callable[[int], None] | None, end: float
    ):
        super().__init__(lambda plan: plan.objective, on_plan, on_bound, model.structure.base_ps)
        self.model = model
        self.offsets = Offsets(model.structure, end=end)

    def keep_plan(self, plan: Plan | None) -> None:
        """Keep a plan of another candidate if it is the best so far, without reporting it."""
        if plan is not None and (self.plan is None or plan.objective < self.plan.objective):
            self.plan = plan

    def offer_point(self, values: FloatArray) -> Plan | None:
        """Report the plan of a solution if it is valid and better than the best so far.

        If tiers are address spaces, offsets are sought, and the plan is valid only if they are found. Returns the plan without
        offsets in any case.
        """
        tiers = self.model.tiers(values)
        plan = plan_of(self.model.structure, tiers)
        if self.plan is None or plan.objective < self.plan.objective:
            self.offer_plan(self.offsets.place(tiers))
        return plan

    def offer_dual(self, objective: float) -> None:
        """Report a dual bound of HiGHS, which is in the units of its objective."""
        if np.isfinite(objective):
            self.offer_proven(self.model.bound_ps(objective, TIGHT))

    def offer_proven(self, bound: int) -> None:
        """Report a bound in ps, at most the latency of the best plan."""
        self.offer_bound(bound if self.plan is None else min(bound, self.plan.objective))

    def report_final_bound(self, best: Plan | None) -> None:
        """Report the final bound after branch and bound has finished; ``best`` is the plan of its best solution."""
        objectives = [plan.objective for plan in (best, self.plan) if plan is not None]
        if objectives:
            self.offer_proven(min(objectives))

    def infeasible_outcome(self) -> Outcome[Plan]:
        """The outcome if a solver reports that no plan exists: infeasible, unless a plan has been found already."""
        return Outcome("infeasible", None, self.bound) if self.plan is None else self.outcome()

    def outcome_without_columns(self) -> Outcome[Plan]:
        """The outcome for a model without columns: no tensor has a choice of tiers, so either all tensors fit or the problem is
        infeasible."""
        if not self.model.matrix.is_feasible(np.zeros(0)):
            return self.infeasible_outcome()
        self.report_final_bound(self.offer_point(np.zeros(0)))
        return self.outcome()


class _Highs:
    """Runs branch and bound of HiGHS, with restarts."""

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
        self._initial_ps = _NEVER
        """Latency in ps of the plan that the current run began with."""
        self._last_passed_ps = _NEVER
        """Latency in ps of the last plan that was passed to HiGHS."""
        self._restart = False

    def solve(self, time_limit: float, node_limit: int | None) -> Outcome[Plan]:
        """Run branch and bound, restarting it with better plans, until it finishes or a limit is reached."""
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
                return report.infeasible_outcome()
            report.offer_dual(info.mip_dual_bound)
            if status == highspy.HighsModelStatus.kOptimal:
                report.report_final_bound(best)
            out_of_work = node_limit is not None and nodes >= node_limit
            if not self._restart or out_of_work or time.monotonic() >= end or self._stopped():
                return report.outcome()
            self._patience *= 2

    def _run(self, time_limit: float, node_limit: int | None) -> highspy.Highs:
        """Run branch and bound once, from the best plan so far."""
        report, self._restart = self._report, False
        highs = new_highs(report.model.matrix, self._seed)
        tighten(highs)
        highs.cbMipImprovingSolution += self._improved
        highs.cbMipInterrupt += self._interrupt
        if self._incumbent is not None:
            highs.cbMipUserSolution += self._adopt
        self._initial_ps = self._last_passed_ps = _NEVER
        start = None
        if report.plan is not None:
            self._initial_ps = self._last_passed_ps = report.plan.objective
            start = report.model.add_hint(report.plan)
        limit(highs, time_limit, node_limit, start)
        highs.run()
        return highs

    def _stopped(self) -> bool:
        """Whether the caller wants the search to end."""
        return self._should_stop is not None and self._should_stop()

    def _improved(self, event: Any) -> None:
        """Called by HiGHS with every better solution."""
        self._report.offer_point(np.array(event.data_out.mip_solution))

    def _interrupt(self, event: Any) -> None:
        """Called by HiGHS repeatedly: reports its bound, and ends the run for a restart or if the caller wants to stop."""
        self._report.offer_dual(event.data_out.mip_dual_bound)
        plan = self._report.plan
        is_better = plan is not None and plan.objective < self._initial_ps
        if is_better and event.data_out.mip_node_count >= self._patience:
            self._restart = True
        if self._restart or self._stopped():
            event.interrupt()

    def _adopt(self, event: Any) -> None:
        """Called by HiGHS repeatedly: passes a plan of another candidate on to HiGHS if it is better than the last one."""
        plan = None if self._incumbent is None else self._incumbent()
        if plan is None or plan.objective >= self._last_passed_ps:
            return
        self._last_passed_ps = plan.objective
        self._report.keep_plan(plan)
        event.data_in.setSolution(self._report.model.add_hint(plan))


def relaxation(
    problem: Problem, *, time_limit: float, seed: int = 0, should_stop: Callable[[], bool] | None = None
) -> tuple[Hint | None, int]:
    """Solve the linear relaxation.

    Parameters
    ----------
    time_limit
        Limit of HiGHS in seconds.
    should_stop
        HiGHS ends when this returns True.

    Returns
    -------
    tuple
        The solution as a hint, and the bound in ps that its duals prove in exact arithmetic. The hint is None if HiGHS has no
        solution or the model has no columns. Without duals, the bound is the sum of the floors and overheads of all layers.
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
