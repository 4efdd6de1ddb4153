"""Solvers in this process, by way of OR-Tools' MathOpt: GSCIP, HiGHS, CP-SAT, and GLOP and PDLP for linear programs.

In OR-Tools 9.15, CP-SAT, GLOP and PDLP take an interrupter; HiGHS ignores it; GSCIP complains of it and goes on.
So a solve runs in a thread of its own, and one that does not stop is left behind, to end by its own time limit. Bounds on the
way come from CP-SAT's callback and from GSCIP's messages (its callback raises; HiGHS has neither).

CP-SAT rounds columns that are not integers to a grid, and then calls models infeasible that are not. What it proves is taken
only where all columns and coefficients are integers (:attr:`~stowplan.models.mip.matrix.MatrixModel.is_pure`).
"""

from __future__ import annotations

import datetime
import re
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from ortools.math_opt import model_pb2
from ortools.math_opt.python import mathopt
from ortools.util.python.solve_interrupter import SolveInterrupter

from stowplan.errors import UsageError
from stowplan.models.mip.matrix import FloatArray, MatrixModel
from stowplan.models.mip.outcome import LINEAR_ONLY, Options, Outcome, Status, rounded_down
from stowplan.models.mip.with_highs import UNSAFE_RULES

#: Solvers by name.
SOLVERS = {
    "gscip": mathopt.SolverType.GSCIP,
    "mathopt-highs": mathopt.SolverType.HIGHS,
    "cp-sat": mathopt.SolverType.CP_SAT,
    "glop": mathopt.SolverType.GLOP,
    "pdlp": mathopt.SolverType.PDLP,
}

_INTERRUPTIBLE = ("cp-sat", "glop", "pdlp")
_THREADED = ("gscip", "cp-sat", "pdlp")
"""MathOpt's HiGHS refuses ``threads``, and GLOP has one anyway."""
_COUNTS_NODES = ("gscip", "mathopt-highs")

#: Seconds between two looks at ``should_stop``.
_LOOK_EVERY = 0.02

#: Seconds, besides 5 %, that a solver may take past its limit before it is left behind.
_GRACE = 0.4

#: Doubles hold integers up to here.
_LARGEST_INTEGER = 2.0**53

_GSCIP_ROW = re.compile(r"\|\s*(?P<bound>[-+]?\d\.\d+e[-+]\d+)\s*\|[^|]*\|[^|]*\|[^|]*$")

_STATUS: dict[Any, Status] = {
    mathopt.TerminationReason.OPTIMAL: "optimal",
    mathopt.TerminationReason.FEASIBLE: "feasible",
    mathopt.TerminationReason.INFEASIBLE: "infeasible",
    mathopt.TerminationReason.UNBOUNDED: "unbounded",
}


def build(model: MatrixModel, *, names: bool = True) -> Any:
    """The model as MathOpt has it.

    Parameters
    ----------
    names
        Without names it is made faster.

    Returns
    -------
    mathopt.Model
        Variable ``j`` and constraint ``i`` have the ids ``j`` and ``i``; with the offset.
    """
    proto = model_pb2.ModelProto(name=model.name)
    variables, rows = proto.variables, proto.linear_constraints
    variables.ids.extend(range(model.columns))
    variables.lower_bounds.extend(model.lower.tolist())
    variables.upper_bounds.extend(model.upper.tolist())
    variables.integers.extend(model.is_integer.tolist())
    rows.ids.extend(range(model.rows))
    rows.lower_bounds.extend(model.row_lower.tolist())
    rows.upper_bounds.extend(model.row_upper.tolist())
    if names:
        variables.names.extend(model.column_name(column) for column in range(model.columns))
        rows.names.extend(model.row_name(row) for row in range(model.rows))
    paid = np.flatnonzero(model.cost)
    proto.objective.offset = model.offset
    proto.objective.linear_coefficients.ids.extend(paid.tolist())
    proto.objective.linear_coefficients.values.extend(model.cost[paid].tolist())
    # MathOpt wants the entries row by row, and the columns of each row in order.
    matrix = model.matrix.sorted_indices()
    entries = proto.linear_constraint_matrix
    entries.row_ids.extend(np.repeat(np.arange(model.rows), np.diff(matrix.indptr)).tolist())
    entries.column_ids.extend(matrix.indices.tolist())
    entries.coefficients.extend(matrix.data.tolist())
    return mathopt.Model.from_model_proto(proto)


def hint(built: Any, values: FloatArray) -> Any:
    """A ``mathopt.SolutionHint`` with a value for every column."""
    return mathopt.SolutionHint(variable_values=dict(zip(built.variables(), values.tolist(), strict=True)))


def solve(model: MatrixModel, solver: str, options: Options) -> Outcome:
    """Solve with one of :data:`SOLVERS`, in this process.

    Returns
    -------
    Outcome
        A solver that does not stop when told to is left behind: it has found nothing but the bounds reported until then.

    Raises
    ------
    UsageError
        Integers for a solver of linear programs, or options that MathOpt refuses.
    """
    began = time.monotonic()
    kind = SOLVERS[solver]
    if solver in LINEAR_ONLY and bool(model.is_integer.any()):
        raise UsageError(f"found integers in {model.name}, expected a linear program: {solver} solves nothing else")
    built = build(model, names=False)
    is_proof = solver != "cp-sat" or model.is_pure
    run = _Run(solver, options.on_bound if is_proof else None)
    parameters = mathopt.SolveParameters(
        time_limit=datetime.timedelta(seconds=max(0.01, options.time_limit - (time.monotonic() - began))),
        random_seed=options.seed % (1 << 31) if solver != "pdlp" else None,
        threads=options.threads if solver in _THREADED else None,
        node_limit=options.node_limit if solver in _COUNTS_NODES else None,
    )
    if solver in ("gscip", "mathopt-highs", "cp-sat"):
        parameters.relative_gap_tolerance = 1e-9
        parameters.absolute_gap_tolerance = 1e-9
    if solver == "mathopt-highs":
        parameters.highs.int_options["presolve_rule_off"] = UNSAFE_RULES
    if solver == "cp-sat":
        # By default it cuts columns off at 1e7.
        parameters.cp_sat.mip_max_bound = _LARGEST_INTEGER
    guided = mathopt.ModelSolveParameters()
    takes_start = options.start is not None and solver not in LINEAR_ONLY
    if options.start is not None and takes_start:
        guided.solution_hints = [hint(built, options.start)]
    end = began + 1.05 * options.time_limit + _GRACE
    result = run.solve(
        lambda: mathopt.solve(built, kind, params=parameters, model_params=guided, **run.options), options.should_stop, end
    )
    if result is None:
        return Outcome(solver, "unknown", None, run.bound if is_proof else None, time.monotonic() - began)
    found = _outcome(model, solver, result, run.bound, time.monotonic() - began, takes_start)
    return found if is_proof else _without_proof(found)


class _Run:
    """One solve in a thread, so that this one can look at the clock."""

    def __init__(self, solver: str, on_bound: Callable[[float], None] | None):
        self.bound: float | None = None
        """Best bound that was reported on the way."""
        self.options: dict[str, Any] = {}
        self._on_bound = on_bound
        self._result: Any = None
        self._error: BaseException | None = None
        self._left_behind = False
        self._interrupter = SolveInterrupter() if solver in _INTERRUPTIBLE else None
        if self._interrupter is not None:
            self.options["interrupter"] = self._interrupter
        if solver == "cp-sat":
            self.options["callback_reg"] = mathopt.CallbackRegistration(events={mathopt.Event.MIP})
            self.options["cb"] = self._take_callback
        elif solver == "gscip":
            self.options["msg_cb"] = self._take_messages

    def _offer(self, bound: float) -> None:
        if np.isfinite(bound) and not self._left_behind and (self.bound is None or bound > self.bound):
            self.bound = bound
            if self._on_bound is not None:
                self._on_bound(bound)

    def _take_callback(self, data: Any) -> Any:
        self._offer(data.mip_stats.dual_bound)
        return mathopt.CallbackResult()

    def _take_messages(self, lines: list[str]) -> None:
        for line in lines:
            found = _GSCIP_ROW.search(line)
            # A row of the table of progress; the column of the dual bound is the last but two.
            if found is not None:
                self._offer(rounded_down(found["bound"]))

    def solve(self, call: Callable[[], Any], should_stop: Callable[[], bool] | None, end: float) -> Any:
        """Result of the call, or None where it was left behind."""

        def work() -> None:
            try:
                self._result = call()
            except BaseException as error:
                self._error = error

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        while thread.is_alive():
            thread.join(_LOOK_EVERY)
            if should_stop is not None and should_stop():
                if self._interrupter is not None:
                    self._interrupter.interrupt()
                    thread.join(_GRACE)
                break
            if time.monotonic() > end:
                break
        self._left_behind = thread.is_alive()
        if self._error is not None:
            # OR-Tools 9.15 stumbles over its own error (an AttributeError); what the solver said stands behind it.
            said = self._error.__context__ or self._error
            raise UsageError(f"MathOpt refuses the call: {said}") from self._error
        return self._result


def _without_proof(found: Outcome) -> Outcome:
    return replace(found, status="feasible" if found.values is not None else "unknown", bound=None)


def _outcome(model: MatrixModel, solver: str, result: Any, seen: float | None, seconds: float, takes_start: bool) -> Outcome:
    status: Status = _STATUS.get(result.termination.reason, "unknown")
    values = duals = None
    best = result.solutions[0] if result.solutions else None
    if best is not None and best.primal_solution is not None:
        found = best.primal_solution.variable_values
        values = np.fromiter(found.values(), dtype=np.float64, count=len(found))
        if not model.is_feasible(values):
            values = None
    if best is not None and best.dual_solution is not None and best.dual_solution.dual_values:
        prices = best.dual_solution.dual_values
        duals = np.fromiter(prices.values(), dtype=np.float64, count=len(prices))
    bound = result.termination.objective_bounds.dual_bound
    known = [each for each in (bound if np.isfinite(bound) else None, seen) if each is not None]
    # PDLP's point and bound are approximate; what its duals prove is for the caller to work out.
    if solver == "pdlp":
        known = []
    if values is None and status in ("optimal", "feasible"):
        status = "unknown"
    objective = None if values is None else model.objective(values)
    return Outcome(solver, status, objective, max(known, default=None), seconds, values, duals, takes_start)
